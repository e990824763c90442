"""Numerics: adaptive and fixed-step Runge-Kutta solvers, their gradients, and divergences of
fields.
"""

from infocnf.ode.march import Status
from infocnf.ode.solve import Solution, SolveError, Stats, solve
from infocnf.ode.tableaus import TABLEAUS

__all__ = ["TABLEAUS", "Solution", "SolveError", "Stats", "Status", "solve"]
