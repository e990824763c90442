r"""One continuous block: the flow of a field over a unit of time, and its log-determinant.

.. math:: \frac{dz}{dt} = f(z, t), \qquad
    \log \left| \det \frac{\partial z(1)}{\partial z(0)} \right|
    = \int_0^1 \mathrm{tr} \frac{\partial f}{\partial z}\, dt .

Walking from data to latent the trace enters :math:`\log p(x)` with a plus sign (the paper prints a
minus, which holds for dynamics from latent to data).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from infocnf.flows.bijection import Bijection, BlockSolve, Traversal
from infocnf.networks.fields import check_field
from infocnf.ode import solve
from infocnf.ode.checks import check_steps
from infocnf.ode.divergence import PROBES, contract, draw_probes, products, unit_probes
from infocnf.ode.tableaus import tableau

__all__ = ["EXACT_UP_TO", "TRACES", "ContinuousBlock"]

TRACES = ("auto", "exact", "hutchinson")
EXACT_UP_TO = 16  # dimensions up to which `auto` takes the exact trace


class Dynamics(nn.Module):
    r"""Slopes of ``(z, log_det)``: the field and its divergence; and of two passengers where the
    state has them, the kinetic energy and the squared norm of the Jacobian, each per dimension:

    .. math:: \frac{1}{D} \int_0^1 |f(z, t)|^2\, dt, \qquad
        \frac{1}{D} \int_0^1 \Big\| \frac{\partial f}{\partial z} \Big\|_F^2\, dt .

    Arguments:
        field: The field.
    """

    def __init__(self, field: nn.Module) -> None:
        super().__init__()
        self.field = field

    def forward(
        self, t: Tensor, state: tuple[Tensor, ...], probes: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Slopes; ``probes`` is ``(batch, count, ...)`` for Hutchinson's estimates, None for the
        exact trace and norm.
        """
        z = state[0]
        directions = unit_probes(z) if probes is None else probes.transpose(0, 1)
        weight = 1.0 if probes is None else 1.0 / probes.shape[1]
        slopes, turned = products(self.field, t, z, directions)
        trace = contract(turned, directions, weight)
        if len(state) == 2:
            return slopes, trace

        kinetic = slopes.square().flatten(1).mean(1)
        jacobian = weight * turned.square().flatten(2).mean(2).sum(0)
        return slopes, trace, kinetic, jacobian


class ContinuousBlock(Bijection):
    """A field, its divergence, and the solver between them.

    Arguments:
        field: A smooth deterministic field, called as ``field(t, z)``.
        shape: Shape of one sample.
        index: Position among the continuous blocks of the flow, which the tolerance policy is asked
            about.
        trace: ``exact``, ``hutchinson``, or ``auto``: exact up to 16 dimensions.
        probes: Distribution of Hutchinson's probes: ``rademacher`` or ``gaussian``.
        probe_count: Number of probes.
        method: Method of the solver; see :func:`infocnf.ode.solve`.
        steps: Number of steps of a method without error estimate.
        max_steps: Attempted steps after which a sample is given up.
        compile: Whether to compile field and divergence. It needs a C++ compiler, some seconds per
            block at first use and batches of one size; see docs/results/benchmarks.md for its gain.
    """

    def __init__(
        self,
        field: nn.Module,
        shape: tuple[int, ...],
        index: int = 0,
        *,
        trace: str = "auto",
        probes: str = "rademacher",
        probe_count: int = 1,
        method: str = "dopri5",
        steps: int | None = None,
        max_steps: int = 4096,
        compile: bool = False,
    ) -> None:
        super().__init__()
        check_field(field)
        if trace not in TRACES:
            raise ValueError(f"trace must be one of {', '.join(TRACES)}, got {trace!r}")
        if probes not in PROBES:
            raise ValueError(f"probes must be one of {', '.join(PROBES)}, got {probes!r}")
        check_steps(method, tableau(method).adaptive, steps)
        if probe_count < 1:
            raise ValueError(f"probe_count must be at least 1, got {probe_count}")
        self.dynamics = Dynamics(field)
        if compile:
            self.dynamics.compile(dynamic=False)  # symbolic shapes break the compiler of torch 2.13
        self.shape, self.index = tuple(shape), index
        self.exact = trace == "exact" or (trace == "auto" and math.prod(shape) <= EXACT_UP_TO)
        self.probes, self.probe_count = probes, probe_count
        self.solver: dict[str, Any] = {"method": method, "steps": steps, "max_steps": max_steps}
        # what the last solve in training proposed for the next, were the tolerance 1
        self.first_step: float | None = None

    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        if traversal.seeds is None:
            (z,) = self.solve((x,), (0.0, 1.0), traversal)
            return z, x.new_zeros(len(x))

        context: tuple[Tensor, ...] = ()
        if not self.exact:
            context = (
                draw_probes(traversal.seeds, x, self.probe_count, self.probes, stream=self.index),
            )
        totals = [x.new_zeros(len(x)) for _ in range(3 if traversal.passengers else 1)]
        z, log_det, *_ = self.solve((x, *totals), (0.0, 1.0), traversal, context)
        return z, log_det

    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        (x,) = self.solve((z,), (1.0, 0.0), traversal)
        return x

    def solve(
        self,
        state: tuple[Tensor, ...],
        interval: tuple[float, float],
        traversal: Traversal,
        context: tuple[Tensor, ...] = (),
    ) -> tuple[Tensor, ...]:
        """Final state, entered into the traversal's account; an error that names this block where a
        sample failed.
        """
        seeds = traversal.seeds if traversal.draw else None
        choice = traversal.policy(self.index, state[0], seeds)
        tolerance = torch.as_tensor(choice.tolerance, dtype=torch.float64)
        with_log_det = len(state) > 1
        warm = traversal.warm and with_log_det
        solver = dict(self.solver)
        if traversal.method is not None:  # an adaptive one
            solver.update(method=traversal.method, steps=None)
        growth = tolerance ** (1.0 / tableau(solver["method"]).order)  # of steps with tolerance
        solution = solve(
            self.dynamics if with_log_det else self.dynamics.field,
            state if with_log_det else state[0],
            interval,
            tolerance=tolerance,
            stepping="individual" if tolerance.ndim else traversal.stepping,
            gradient=traversal.gradient,
            first_step=self.first_step * growth if warm and self.first_step else None,
            passengers=max(len(state) - 2, 0),
            context=context,
            drift=self.dynamics.field if with_log_det else None,
            **solver,
        )
        traversal.solves.append(BlockSolve(self.index, choice, solution))
        solution.check(f"block {self.index}")
        if warm and torch.is_grad_enabled() and math.isfinite(solution.first_step):
            self.first_step = solution.first_step / float(growth.median())

        final = solution.state
        return (final,) if isinstance(final, Tensor) else final
