"""Numerics: adaptive and fixed-step Runge-Kutta solvers, their gradients, and divergences of
fields.
"""

from infocnf.ode.dense import Path, solve_at, solve_path
from infocnf.ode.gradients import AdjointError
from infocnf.ode.solve import Solution, SolveError, SolverOptions, Stats, Status, set_aside, solve
from infocnf.ode.tableaus import TABLEAUS

__all__ = [
    "TABLEAUS",
    "AdjointError",
    "Path",
    "Solution",
    "SolveError",
    "SolverOptions",
    "Stats",
    "Status",
    "set_aside",
    "solve",
    "solve_at",
    "solve_path",
]
