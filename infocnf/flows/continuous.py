r"""One continuous block: the flow of a field over a unit of time, and its log-determinant.

.. math:: \frac{dz}{dt} = f(z, t), \qquad
    \log \left| \det \frac{\partial z(1)}{\partial z(0)} \right|
    = \int_0^1 \mathrm{tr} \frac{\partial f}{\partial z}\, dt .

Walking from data to latent the trace enters :math:`\log p(x)` with a plus sign (the paper prints a
minus, which holds for dynamics from latent to data).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from infocnf.flows.bijection import Block, BlockSolve, Traversal
from infocnf.networks.fields import check_field
from infocnf.networks.sharpened import Sharpened
from infocnf.ode import SolverOptions, solve
from infocnf.ode.divergence import PROBES, contract, draw_probes, products, unit_probes

__all__ = ["EXACT_UP_TO", "TRACES", "ContinuousBlock"]

TRACES = ("auto", "exact", "hutchinson")
EXACT_UP_TO = 16  # dimensions up to which `auto` takes the exact trace


class Dynamics(nn.Module):
    r"""Slopes of ``(z, log_det)``: the field and its divergence; and of two auxiliary integrals
    where the state has them, the kinetic energy and the squared norm of the Jacobian, each per
    dimension:

    .. math:: \frac{1}{D} \int_0^1 |f(z, t)|^2\, dt, \qquad
        \frac{1}{D} \int_0^1 \Big\| \frac{\partial f}{\partial z} \Big\|_F^2\, dt .

    Arguments:
        field: The field.
        exact: Whether the trace is exact.
    """

    def __init__(self, field: nn.Module, exact: bool) -> None:
        super().__init__()
        self.field, self.exact = field, exact

    def forward(self, t: Tensor, state: tuple[Tensor, ...], *context: Tensor) -> tuple[Tensor, ...]:
        """Slopes; the context is the field's, and after it, unless the trace is exact, the probes
        ``(batch, count, ...)`` of Hutchinson's estimates.
        """
        z, directions, weight = state[0], unit_probes(state[0]) if self.exact else None, 1.0
        if directions is None:
            *context, probes = context  # type: ignore[assignment]
            directions, weight = probes.transpose(0, 1), 1.0 / probes.shape[1]
        slopes, turned = products(self.field, t, z, directions, *context)
        trace = contract(turned, directions, weight)
        if len(state) == 2:
            return slopes, trace

        kinetic = slopes.square().flatten(1).mean(1)
        jacobian = weight * turned.square().flatten(2).mean(2).sum(0)
        return slopes, trace, kinetic, jacobian


class ContinuousBlock(Block):
    """A field, its divergence, and the solver between them.

    Arguments:
        field: A smooth deterministic field, called as ``field(t, z)``.
        shape: Shape of one sample.
        index: Position among the continuous blocks of the flow, which the tolerance policy is asked
            about.
        trace: ``exact``, ``hutchinson``, or ``auto``: exact up to 16 dimensions.
        probes: Distribution of Hutchinson's probes: ``rademacher`` or ``gaussian``.
        probe_count: Number of probes.
        solver: Method and limits of the solver.
        compile: Whether to compile field and divergence. It needs a C++ compiler, some seconds per
            block at first use and batches of one size; see docs/results/benchmarks.md for its gain.
        sharpened: Whether the field can be made to decide more firmly; see :class:`Sharpened`.
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
        solver: SolverOptions | None = None,
        compile: bool = False,
        sharpened: bool = False,
    ) -> None:
        super().__init__()
        check_field(field)
        if trace not in TRACES:
            raise ValueError(f"trace must be one of {', '.join(TRACES)}, got {trace!r}")
        if probes not in PROBES:
            raise ValueError(f"probes must be one of {', '.join(PROBES)}, got {probes!r}")
        if probe_count < 1:
            raise ValueError(f"probe_count must be at least 1, got {probe_count}")
        self.exact = trace == "exact" or (trace == "auto" and math.prod(shape) <= EXACT_UP_TO)
        self.dynamics = Dynamics(Sharpened(field) if sharpened else field, self.exact)
        if compile:
            self.dynamics.compile(dynamic=False)  # symbolic shapes break the compiler of torch 2.13
        self.shape, self.index = tuple(shape), index
        self.probes, self.probe_count = probes, probe_count
        self.solver = solver or SolverOptions()
        # what the last solve in training proposed for the next, were the tolerance 1
        self.first_step: float | None = None

    @property
    def field(self) -> nn.Module:
        return self.dynamics.field

    @property
    def matched_field(self) -> nn.Module:
        return self.field.field if isinstance(self.field, Sharpened) else self.field

    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        if traversal.seeds is None:
            (z,) = self.solve((x,), (0.0, 1.0), traversal)
            return z, x.new_zeros(len(x))

        probes: tuple[Tensor, ...] = ()
        if not self.exact:
            probes = (
                draw_probes(traversal.seeds, x, self.probe_count, self.probes, stream=self.index),
            )
        totals = [x.new_zeros(len(x)) for _ in range(3 if traversal.auxiliary else 1)]
        z, log_det, *_ = self.solve((x, *totals), (0.0, 1.0), traversal, probes)
        return z, log_det

    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        (x,) = self.solve((z,), (1.0, 0.0), traversal)
        return x

    def solve(
        self,
        state: tuple[Tensor, ...],
        interval: tuple[float, float],
        traversal: Traversal,
        probes: tuple[Tensor, ...] = (),
    ) -> tuple[Tensor, ...]:
        """Final state, entered into the traversal's account; an error that names this block where a
        sample failed.
        """
        seeds = traversal.seeds if traversal.draw else None
        choice = traversal.policy(self.index, state[0], seeds)
        tolerance = torch.as_tensor(choice.tolerance, dtype=torch.float64)
        with_log_det = len(state) > 1
        warm = traversal.warm and with_log_det
        options = replace(self.solver, **traversal.options)
        if options.steps is not None:
            options = replace(options, steps=options.steps * choice.refine)
        if tolerance.ndim:
            options = replace(options, stepping="individual")
        growth = tolerance ** (1.0 / options.table.order)  # of steps with tolerance
        own = () if traversal.context is None else (traversal.context,)
        count = len(own)
        solution = solve(
            self.dynamics if with_log_det else self.field,
            state if with_log_det else state[0],
            interval,
            tolerance=tolerance,
            options=options,
            first_step=self.first_step * growth if warm and self.first_step else None,
            auxiliary=max(len(state) - 2, 0),
            context=(*own, *probes),
            # of the field's context, without the probes
            drift=(lambda t, z, *c: self.field(t, z, *c[:count])) if with_log_det else None,
        )
        traversal.solves.append(BlockSolve(self.index, choice, solution))
        solution.check(f"block {self.index}")
        if warm and torch.is_grad_enabled() and math.isfinite(solution.first_step):
            self.first_step = solution.first_step / float(growth.median())

        final = solution.state
        return (final,) if isinstance(final, Tensor) else final
