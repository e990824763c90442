r"""One continuous block: the flow of a field over a unit of time, and its log-determinant.

.. math:: \frac{dz}{dt} = f(z, t), \qquad
    \log \left| \det \frac{\partial z(1)}{\partial z(0)} \right|
    = \int_0^1 \mathrm{tr} \frac{\partial f}{\partial z}\, dt .

Walking from data to latent the trace enters :math:`\log p(x)` with a plus sign (the paper prints a
minus, which holds for dynamics from latent to data).

In training the trace is integrated beside the state. In evaluation the state is solved alone and
the trace is integrated along its path, by a quadrature with an error of its own: the trace is then
needed at some ten nodes instead of all stages, which pays for an exact one or for many probes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from infocnf.flows.bijection import Block, BlockSolve, Choice, LogDet, Traversal
from infocnf.networks.fields import check_field
from infocnf.networks.sharpened import Sharpened
from infocnf.ode import Solution, SolverOptions, solve, solve_at, solve_path
from infocnf.ode.divergence import (
    PROBES,
    contract,
    draw_probes,
    estimate_trace,
    exact_products,
    products,
    unit_probes,
)
from infocnf.ode.quadrature import Integral, integrate_along
from infocnf.random import combine_seeds

__all__ = ["EXACT_UP_TO", "TRACES", "ContinuousBlock"]

TRACES = ("auto", "exact", "hutchinson")
EXACT_UP_TO = 16  # products up to which `auto` takes the exact trace in training
BUDGET = 2e10  # operations that `auto` spends on the traces of one sample and block in evaluation
USUAL = 15  # nodes of a quadrature, by which that is judged
FEWEST = 8  # probes of a node in evaluation, at least; two where only averages matter
# what a quadrature may err, in tolerances of each coordinate; nodes of few coordinates are cheap
LOOSER, TIGHTER = 1.0, 0.1
FIXED = 2  # probes that are the same at all nodes
AT_ONCE = 2**18  # numbers of states and tangents that are looked at in one call


class Dynamics(nn.Module):
    r"""Slopes of ``(z, log_det)``: the field and its divergence; and of two auxiliary integrals
    where the state has them, the kinetic energy and the squared norm of the Jacobian, each per
    dimension:

    .. math:: \frac{1}{D} \int_0^1 |f(z, t)|^2\, dt, \qquad
        \frac{1}{D} \int_0^1 \Big\| \frac{\partial f}{\partial z} \Big\|_F^2\, dt .

    Arguments:
        field: The field.
        most: Products with the Jacobian up to which the trace is exact: by the unit vectors, or,
            where nothing but a trace is integrated, as the field knows it.
    """

    def __init__(self, field: nn.Module, most: float) -> None:
        super().__init__()
        self.field, self.most = field, most

    def closed(self, size: int, auxiliary: bool) -> bool:
        """Whether the trace of ``size`` dimensions is the one that the field knows."""
        return not auxiliary and exact_products(self.field, size) < min(size, self.most + 1)

    def probed(self, size: int, auxiliary: bool) -> bool:
        """Whether it needs probes."""
        return size > self.most and not self.closed(size, auxiliary)

    def forward(self, t: Tensor, state: tuple[Tensor, ...], *context: Tensor) -> tuple[Tensor, ...]:
        """Slopes; the context is the field's, and after it, where they are needed, the probes
        ``(batch, count, ...)`` of Hutchinson's estimates.
        """
        size = math.prod(state[0].shape[1:])
        if self.closed(size, len(state) > 2):
            slopes, trace = cast("Any", self.field).with_trace(t, state[0], *context)
            return slopes, trace.to(state[1])  # under autocast, too
        exact = size <= self.most
        z, directions, weight = state[0], unit_probes(state[0]) if exact else None, 1.0
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
        trace: ``exact``, ``hutchinson``, or ``auto``: in training exact where that takes up to 16
            products with the Jacobian, in evaluation where its cost fits a budget.
        probes: Distribution of Hutchinson's probes in training: ``rademacher`` or ``gaussian``.
        probe_count: Number of probes; in evaluation at each node, two at least, and as many as fit
            the budget where the trace is ``auto``.
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
        self.trace = trace
        most = {"exact": math.inf, "auto": EXACT_UP_TO, "hutchinson": 0}[trace]
        self.dynamics = Dynamics(Sharpened(field) if sharpened else field, most)
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
    def exact_products(self) -> int:
        """Products with the Jacobian that an exact trace takes."""
        return exact_products(self.field, math.prod(self.shape))

    @property
    def exact(self) -> bool:
        """Whether its trace is exact in training."""
        return self.exact_products <= self.dynamics.most

    @property
    def matched_field(self) -> nn.Module:
        return self.field.field if isinstance(self.field, Sharpened) else self.field

    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        if traversal.seeds is None:
            (z,) = self.solve((x,), (0.0, 1.0), traversal)
            return z, x.new_zeros(len(x))
        if traversal.quadrature and len(x) and not self.recorded(x, traversal):
            return self.integrate(x, traversal.seeds, traversal)

        probes: tuple[Tensor, ...] = ()
        if self.dynamics.probed(math.prod(self.shape), traversal.auxiliary):
            probes = (
                draw_probes(traversal.seeds, x, self.probe_count, self.probes, stream=self.index),
            )
        totals = [x.new_zeros(len(x)) for _ in range(3 if traversal.auxiliary else 1)]
        z, log_det, *_ = self.solve((x, *totals), (0.0, 1.0), traversal, probes)
        return z, log_det

    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        (x,) = self.solve((z,), (1.0, 0.0), traversal)
        return x

    def recorded(self, x: Tensor, traversal: Traversal) -> bool:
        """Whether autograd is to record the solve itself, which it can beside the state only."""
        recording = replace(self.solver, **traversal.options).gradient == "backprop"
        tensors = (x, *self.field.parameters())
        return recording and torch.is_grad_enabled() and any(t.requires_grad for t in tensors)

    def plan(self, x: Tensor, traversal: Traversal) -> tuple[Choice, Tensor, SolverOptions]:
        """What the policy chose for this block, its tolerance, and how to solve."""
        seeds = traversal.seeds if traversal.draw else None
        choice = traversal.policy(self.index, x, seeds)
        tolerance = torch.as_tensor(choice.tolerance, dtype=torch.float64)
        options = replace(self.solver, **traversal.options)
        if options.steps is not None:
            options = replace(options, steps=options.steps * choice.refine)
        if tolerance.ndim:
            options = replace(options, stepping="individual")
        return choice, tolerance, options

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
        choice, tolerance, options = self.plan(state[0], traversal)
        with_log_det = len(state) > 1
        warm = traversal.warm and with_log_det
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
        if with_log_det:
            size, auxiliary = math.prod(self.shape), len(state) > 2
            each = self.exact_products if self.dynamics.closed(size, auxiliary) else size
            each = self.probe_count if self.dynamics.probed(size, auxiliary) else each
            solution = with_products(solution, each, options)
        traversal.solves.append(BlockSolve(self.index, choice, solution))
        solution.check(f"block {self.index}")
        if warm and torch.is_grad_enabled() and math.isfinite(solution.first_step):
            self.first_step = solution.first_step / float(growth.median())

        final = solution.state
        return (final,) if isinstance(final, Tensor) else final

    # -------------------------------------------------------------------- evaluation by quadrature

    def integrate(self, x: Tensor, seeds: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        """Final state and log-determinant, the trace integrated along the path of the state."""
        own = () if traversal.context is None else (traversal.context,)
        if traversal.again:
            return self.repeat(x, own, seeds, traversal)

        choice, tolerance, options = self.plan(x, traversal)
        path = solve_path(self.field, x, tolerance=tolerance, options=options, context=own)
        if not path.solution.done.all():
            traversal.solves.append(BlockSolve(self.index, choice, path.solution))
            path.solution.check(f"block {self.index}")
        count = self.evaluation_probes(traversal.effort)
        traces = Traces(self, x, own, seeds, count)
        with torch.no_grad():
            size = math.prod(self.shape)
            share = LOOSER if self.exact_products > EXACT_UP_TO else TIGHTER
            allowed = share * size * tolerance.expand(len(x)).cpu().numpy()
            kinks = getattr(self.field, "kinks", ())
            found = integrate_along(
                path,
                traces,
                allowed,
                breaks=kinks,
                share=traces.share,
                deviation=None if count is None else 2,
            )
        _, value, _, fixed = found.sums().to(x).unbind(1)
        log_det = LogDet(
            value=value,
            quadrature=found.error.to(x),
            variance=found.sums(power=2)[:, 2].to(x),
            size=replace(found, values=found.values.abs()).sums()[:, 1].to(x),
            fixed=fixed,
            nodes=(found.rows, found.times, found.weights),
            mesh=path.mesh(),
        )
        z, solution = path.solution.state, path.solution
        assert isinstance(z, Tensor)
        if torch.is_grad_enabled() and traces.differentiable:
            z, value, solution = self.with_gradients(x, z, value, found, traces, tolerance, options)
        counts = found.counts + found.discarded
        stats = replace(
            solution.stats,
            forward=solution.stats.forward + counts,
            products=counts * traces.products,
        )
        solution = replace(solution, stats=stats)
        traversal.solves.append(BlockSolve(self.index, choice, solution, log_det))
        return z, value

    def repeat(
        self, x: Tensor, own: tuple[Tensor, ...], seeds: Tensor, traversal: Traversal
    ) -> tuple[Tensor, Tensor]:
        """The same once more, as :class:`Traversal` says; the log-determinant by the fixed probes,
        at the same nodes.
        """
        old = traversal.again[len(traversal.solves)]
        assert old.log_det is not None
        mesh = old.log_det.mesh
        if traversal.halves:
            mesh = np.repeat(mesh / 2.0, 2, axis=1)
        else:
            signs = draw_probes(seeds, x, 1, stream=self.index)[:, 0]
            x = x + signs * (1.0 + x.abs()) * torch.finfo(x.dtype).eps
        options = replace(self.solver, **traversal.options)
        path = solve_path(self.field, x, options=options, context=own, mesh=mesh)
        traces = Traces(self, x, own, seeds, 0)
        rows, times, weights = old.log_det.nodes
        with torch.no_grad():
            values = [
                traces(rows[some], times[some], path.states(rows[some], times[some])).double()
                for some in shares(len(rows), traces.share)
            ]
        error = torch.zeros(len(x), dtype=torch.float64)
        found = Integral(rows, times, weights, torch.cat(values), error)
        traversal.solves.append(replace(old, solution=path.solution))
        assert isinstance(path.solution.state, Tensor)
        return path.solution.state, found.sums()[:, 3].to(x)

    @property
    def cost(self) -> float:
        """Operations of an evaluation of the field for one sample, about: every weight is used once
        at every position.
        """
        weights = sum(parameter.numel() for parameter in self.field.parameters())
        return 2.0 * max(weights, math.prod(self.shape)) * math.prod(self.shape[1:])

    def evaluation_probes(self, effort: float) -> int | None:
        """Probes at each node in evaluation, a power of two; None for the exact trace, which takes
        over where it is no dearer.
        """
        if self.exact:
            return None
        if self.trace == "auto":
            wanted = max(FEWEST * min(effort, 1.0), BUDGET * effort / (USUAL * self.cost))
        else:
            wanted = self.probe_count * effort
        count = 2 ** int(math.log2(min(max(wanted, 2.0), 2.0**20)))
        return None if count + FIXED >= self.exact_products else count

    def with_gradients(
        self,
        x: Tensor,
        z: Tensor,
        value: Tensor,
        found: Integral,
        traces: Traces,
        tolerance: Tensor,
        options: SolverOptions,
    ) -> tuple[Tensor, Tensor, Solution]:
        """The same final state and log-determinant with gradients."""
        counts = found.counts.numpy()
        order = np.argsort(found.rows, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order)) - np.repeat(counts.cumsum() - counts, counts)
        times = np.full((len(x), counts.max(initial=0) + 1), np.nan)
        times[found.rows, place], times[:, -1] = found.times, 1.0
        states, solution = solve_at(
            self.field,
            x,
            torch.from_numpy(times),
            tolerance=tolerance,
            options=replace(options, stepping="individual"),
            context=traces.context,
        )
        rows = torch.from_numpy(found.rows)
        end, inside = states[:, -1], states[rows, torch.from_numpy(place)]
        parameters = tuple(self.field.parameters())
        log_det = _Along.apply(
            traces, found, solution.stats.backward, value, inside, *traces.context, *parameters
        )
        return z + (end - end.detach()), log_det, solution


def shares(count: int, size: int) -> Iterator[slice]:
    """Slices of so many rows."""
    return (slice(first, first + size) for first in range(0, count, size))


def with_products(solution: Solution, each: int, options: SolverOptions) -> Solution:
    """The account with the products of a solve whose stages, but for silent ones, have ``each``."""
    stats = solution.stats
    silent = sum(options.table.silent) * (stats.accepted + stats.rejected)
    return replace(solution, stats=replace(stats, products=(stats.forward - silent) * each))


class Traces:
    """The trace of a block's field at nodes of paths, as :func:`estimate_trace` has it.

    Arguments:
        block: The block.
        x: Its input ``(batch, ...)``.
        context: Covariates of its field.
        seeds: Seeds of the samples ``(batch,)``.
        count: Probes of a node; None for the exact trace, 0 for the fixed probes alone.
    """

    def __init__(
        self,
        block: ContinuousBlock,
        x: Tensor,
        context: tuple[Tensor, ...],
        seeds: Tensor,
        count: int | None,
    ) -> None:
        self.field, self.index, self.context = block.field, block.index, context
        self.seeds, self.count = seeds, count
        self.fixed = draw_probes(seeds, x, FIXED, stream=self.index).transpose(0, 1)
        self.products = block.exact_products if count is None else count + FIXED
        self.share = max(AT_ONCE // ((1 + self.products) * math.prod(block.shape)), 1)
        tensors = (x, *context, *block.field.parameters())
        self.differentiable = any(tensor.requires_grad for tensor in tensors)

    def __call__(self, rows: np.ndarray, times: np.ndarray, z: Tensor) -> Tensor:
        """Columns ``(nodes, 4)`` at samples, times and states ``(nodes, ...)``."""
        chosen = torch.from_numpy(rows).to(z.device)
        context = tuple(part[chosen] for part in self.context)
        return self.at(chosen, times, z, context)

    def at(
        self, chosen: Tensor, times: np.ndarray, z: Tensor, context: tuple[Tensor, ...]
    ) -> Tensor:
        """The same with covariates ``(nodes, ...)``."""
        seeds = None
        if self.count is not None:
            moments = torch.from_numpy(times.view(np.int64)).to(z.device)
            seeds = combine_seeds(self.index, moments) ^ self.seeds[chosen]
        t = torch.from_numpy(times).to(z)
        return estimate_trace(
            self.field, t, z, self.fixed[:, chosen], seeds, self.count or 0, *context
        )


class _Along(torch.autograd.Function):
    """A log-determinant that is known, with the gradient of its quadrature: the trace is looked at
    again, some nodes at a time, so that nothing but their states is kept.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        traces: Traces,
        found: Integral,
        backward: Tensor,
        value: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.traces, ctx.found, ctx.account = traces, found, backward
        ctx.save_for_backward(*tensors)
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        traces, found = ctx.traces, ctx.found
        inside, *sources = ctx.saved_tensors
        ctx.account += found.counts
        count = len(traces.context)
        pulled = torch.zeros_like(inside)
        totals = [torch.zeros_like(s) if s.requires_grad else None for s in sources]
        for some in shares(len(found.rows), traces.share):
            chosen = torch.from_numpy(found.rows[some]).to(inside.device)
            with torch.enable_grad():
                z = inside[some].detach().requires_grad_()
                leaves = [s.detach().requires_grad_(s.requires_grad) for s in sources[:count]]
                context = tuple(leaf[chosen] for leaf in leaves)
                trace = traces.at(chosen, found.times[some], z, context)[:, 1]
            weights = torch.from_numpy(found.weights[some]).to(inside) * cotangent[chosen]
            wanted = [z, *(s for s in (*leaves, *sources[count:]) if s.requires_grad)]
            gradients = torch.autograd.grad(trace, wanted, weights, allow_unused=True)
            pulled[some] = 0.0 if gradients[0] is None else gradients[0]
            live = [total for total in totals if total is not None]
            for total, gradient in zip(live, gradients[1:], strict=True):
                if gradient is not None:
                    total += gradient
        return None, None, None, None, pulled, *totals
