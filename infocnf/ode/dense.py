r"""One solve, and the state at many times on the way: each sample at its own. :func:`solve_at` is
told the times beforehand and can be differentiated; a :class:`Path` is asked for any of them later.

The steps are those of :func:`infocnf.ode.solve`, as large as the tolerance allows, whatever the
times. Within a step the method's own polynomial gives the state (:attr:`Tableau.d`),

.. math:: y(t + \theta h) = y + \sum_i w_i(\theta)\, (h k_i), \qquad w_i(\theta) = \sum_p d_{ip}\,
    \theta^p ,

so a time costs a weighted sum and no evaluation. In the backward pass a cotangent :math:`g` of such
a state is one of :math:`y`, and :math:`w_i(\theta)\, g` one of each increment, beside what comes
from later steps (:meth:`infocnf.ode.gradients.Pull.through`): the gradient of the discrete
solution.

>>> import torch
>>> states, _ = solve_at(lambda t, y: -y, torch.ones(1, 1), torch.tensor([0.0, 0.5, 1.0]))
>>> states.flatten()
tensor([1.0000, 0.6065, 0.3679])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from infocnf.ode.context import SolveContext, Step
from infocnf.ode.controller import State
from infocnf.ode.gradients import Pull, put_rows, rows_of, unhooked
from infocnf.ode.integrate import integrate
from infocnf.ode.solve import Solution, SolverOptions, account, prepare
from infocnf.ode.step import Layout

__all__ = ["Path", "solve_at", "solve_path"]

SLACK = 1e-10  # of the interval, by which rounding may put a time beyond its step


def solve_at(
    field: Callable[..., Tensor],
    state: Tensor,
    times: Tensor,
    interval: tuple[float, float] = (0.0, 1.0),
    *,
    tolerance: float | Tensor = 1e-5,
    options: SolverOptions | None = None,
    first_step: float | Tensor | None = None,
    context: Sequence[Tensor] = (),
    parameters: Iterable[Tensor] | None = None,
    **changes: Any,  # noqa: ANN401
) -> tuple[Tensor, Solution]:
    """States ``(batch, count, ...)`` at times of an interval, and the account of the solve, whose
    own state is that at the end of the interval (without gradient).

    Arguments:
        field: Called as ``field(t, state, *context)``; see :func:`infocnf.ode.solve`.
        state: State at the start of the interval, ``(batch, ...)``.
        times: The times, ``(count,)`` for all samples or ``(batch, count)``, in any order; NaN
            where a sample has fewer. The state there is NaN, too, and so is that of times which a
            sample that failed did not reach.
        interval: Start and end; backward when the end comes first.
        tolerance: As for :func:`infocnf.ode.solve`, like all that follow.
        options: Method, stepping and limits. Gradients are always those of ``checkpoint``.
        first_step: First step to try.
        context: Tensors the field needs, one row per sample.
        parameters: Tensors whose gradients are wanted.
        changes: Single options by name.
    """
    chosen = replace(options or SolverOptions(), **{**changes, "gradient": "checkpoint"})
    job, sources = prepare(
        field,
        state,
        interval,
        chosen,
        tolerance=tolerance,
        first_step=first_step,
        context=context,
        parameters=parameters,
    )
    readings = Readings(times, state, job)
    tensors = (state, *context, *sources)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        found, final = _Dense.apply(job, readings, *tensors)
    else:
        with torch.no_grad():
            found, final, _ = readings.collect(job, (state,), tuple(context), keep=0)

    return found, account(job, final)


class Path:
    """What a solve passed through, without gradients.

    Arguments:
        job: The solve.
        state: The initial state ``(batch, ...)``.
        context: Tensors the field needs.

    Attributes:
        solution: Where it ended, and what it took.
    """

    def __init__(self, job: SolveContext, state: Tensor, context: State) -> None:
        self.start, self.span, self.shape = job.start, job.span, tuple(state.shape)
        width = math.prod(state.shape[1:])
        self.initial = state.reshape(len(state), width)
        weights = torch.from_numpy(job.table.dense.T).to(state)  # (powers, stages)
        rows: list[np.ndarray] = []
        times: list[tuple[np.ndarray, np.ndarray]] = []
        pieces: list[Tensor] = []

        def listen(step: Step, before: Tensor, increments: Tensor, _: State) -> None:
            count = before.numel() // max(width, 1)
            rows.append(np.arange(count) if step.rows is None else step.rows.numpy())
            times.append(tuple(np.broadcast_to(part, (count,)) for part in (step.t, step.h)))  # type: ignore[arg-type]
            powers = torch.mm(weights, increments).view(len(weights), count, width)
            pieces.append(torch.cat([before.view(1, count, width), powers]).transpose(0, 1))

        final = job.finish(integrate(job, (state,), context, listen), (state,))
        self.solution = account(job, final[0])
        self.rows = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        self.t, self.h = (
            np.concatenate([pair[i] for pair in times]) if times else np.zeros(0) for i in (0, 1)
        )
        # by sample, and along the interval
        self.order = np.argsort(2.0 * self.rows + self.progress(self.t), kind="stable")
        self.keys = (2.0 * self.rows + self.progress(self.t))[self.order]
        empty = state.new_zeros(0, 1 + len(weights), width)
        self.pieces = torch.cat(pieces) if pieces else empty

    def progress(self, times: np.ndarray) -> np.ndarray:
        """Share of the interval."""
        return (times - self.start) / (self.span or 1.0)

    def states(self, rows: np.ndarray, times: np.ndarray) -> Tensor:
        """States ``(count, ...)`` of samples at times, ``(count,)`` each."""
        if not len(self.keys):  # an interval of no length
            return self.initial[torch.from_numpy(rows)].view(len(rows), *self.shape[1:])
        found = np.searchsorted(self.keys, 2.0 * rows + self.progress(times) + SLACK) - 1
        step = self.order[np.maximum(found, 0)]
        theta = (times - self.t[step]) / self.h[step]
        powers = torch.from_numpy(theta[:, None] ** np.arange(self.pieces.shape[1]))
        chosen = self.pieces[torch.from_numpy(step)]
        return torch.bmm(powers.to(chosen).unsqueeze(1), chosen).view(-1, *self.shape[1:])

    def mesh(self) -> np.ndarray:
        """The steps of each sample, unsigned, ``(batch, most steps)``, NaN after its last."""
        counts = np.bincount(self.rows, minlength=self.shape[0])
        steps = np.full((self.shape[0], max(counts.max(initial=0), 1)), np.nan)
        sorted_rows = self.rows[self.order]
        place = np.arange(len(sorted_rows)) - np.repeat(counts.cumsum() - counts, counts)
        steps[sorted_rows, place] = np.abs(self.h[self.order])
        return steps


def solve_path(
    field: Callable[..., Tensor],
    state: Tensor,
    interval: tuple[float, float] = (0.0, 1.0),
    *,
    tolerance: float | Tensor = 1e-5,
    options: SolverOptions | None = None,
    context: Sequence[Tensor] = (),
    mesh: np.ndarray | None = None,
) -> Path:
    """A solve whose states on the way can be asked for; arguments as of :func:`solve_at`. A
    ``mesh`` of each sample's steps, as :meth:`Path.mesh` gives it, takes the place of adaptive
    ones.

    >>> path = solve_path(lambda t, y: -y, torch.ones(2, 1))
    >>> path.states(np.array([1, 0]), np.array([0.5, 0.0])).flatten()
    tensor([0.6065, 1.0000])
    """
    changes = {} if mesh is None else {"stepping": "individual"}
    with torch.no_grad():
        job, _ = prepare(
            field,
            state,
            interval,
            replace(options or SolverOptions(), **changes),  # type: ignore[arg-type]
            tolerance=tolerance,
            first_step=None,
            context=context,
            parameters=(),
            mesh=mesh,
        )
        return Path(job, state.detach(), tuple(context))


class Readings:
    """Which times lie in which steps.

    Arguments:
        times: ``(count,)`` or ``(batch, count)``.
        state: The initial state.
        job: The solve.
    """

    def __init__(self, times: Tensor, state: Tensor, job: SolveContext) -> None:
        batch, individual = len(state), job.individual
        if times.ndim not in (1, 2) or (times.ndim == 2 and len(times) != batch):
            raise ValueError(
                f"times must have shape (count,) or ({batch}, count), got {tuple(times.shape)}"
            )
        self.common = times.ndim == 1 and not individual
        self.shape = (batch, times.shape[-1], *state.shape[1:])
        self.start, self.span = job.start, job.span
        values = times.detach().double().cpu().numpy()
        if not self.common:
            values = np.broadcast_to(values, self.shape[:2])
        place = np.flatnonzero(~np.isnan(values))
        numbers = values.reshape(-1)[place]
        progress = self.progress(numbers)
        outside = (progress < -SLACK) | (progress > 1.0 + SLACK)
        if outside.any():
            raise ValueError(
                f"times must lie in the interval {(job.start, job.end)}, "
                f"got {numbers[outside][0]:g}"
            )
        # in the order in which they are met: along the interval, sample by sample under individual
        # stepping, where 2 per sample keeps their progress apart
        rows = place // self.shape[1] if not self.common else np.zeros_like(place)
        keys = progress + (2.0 * rows if individual else 0.0)
        order = np.argsort(keys, kind="stable")
        self.keys, self.place, self.rows = keys[order], place[order], rows[order]
        self.times = numbers[order]
        samples = batch if individual else 1
        # times at the very start need no step
        self.first = np.flatnonzero(self.keys <= (2.0 * self.rows if individual else 0.0))
        self.next = np.searchsorted(self.keys, 2.0 * np.arange(samples), side="right")
        self.dense = job.table.dense

    def progress(self, times: np.ndarray) -> np.ndarray:
        """Share of the interval."""
        return (times - self.start) / (self.span or 1.0)

    def take(self, step: Step) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Those that an accepted step reaches: their numbers, whose row among the rows that it
        moved each belongs to, and the weights of the increments ``(count, stages)``.
        """
        index = np.zeros(1, np.int64) if step.rows is None else step.rows.numpy()
        reached = self.progress(step.t + step.h) + (2.0 * index if len(self.next) > 1 else 0.0)
        first = self.next[index]
        last = np.maximum(np.searchsorted(self.keys, reached + SLACK, side="right"), first)
        self.next[index] = last
        counts = last - first
        samples = np.repeat(np.arange(len(index)), counts)
        offsets = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        numbers = first[samples] + offsets
        theta = (self.times[numbers] - step.t[samples]) / step.h[samples]
        powers = theta[:, None] ** np.arange(1, self.dense.shape[1] + 1)
        rows = samples if step.rows is not None else self.rows[numbers]
        return numbers, rows, powers @ self.dense.T

    def collect(
        self, job: SolveContext, y: State, context: State, keep: int
    ) -> tuple[Tensor, Tensor, list[tuple[Any, ...]]]:
        """States at the times and at the end, and of each accepted step what a gradient needs, with
        ``keep`` increments.
        """
        (state,) = y
        flat = state.new_full((self.shape[0] * self.shape[1], *self.shape[2:]), torch.nan)
        whole = flat.view(self.shape)
        width = state[0].numel() if len(state) else 0
        flat = flat.view(-1, max(width, 1))
        trail: list[tuple[Any, ...]] = []
        self.begin(state, whole)

        def listen(step: Step, before: Tensor, increments: Tensor, _: State) -> None:
            numbers, rows, weights = self.take(step)
            weighting = torch.from_numpy(weights).to(before)
            if len(numbers):
                stages = increments.view(len(increments), -1, width)
                if self.common:
                    inside = torch.tensordot(weighting, stages, 1) + before.view(1, -1, width)
                    places = torch.from_numpy(self.place[numbers])
                    whole[:, places] = inside.transpose(0, 1).reshape(
                        -1, len(numbers), *self.shape[2:]
                    )
                else:
                    chosen = torch.from_numpy(rows)
                    inside = before.view(-1, width)[chosen]
                    for weight, stage in zip(weighting.t(), stages, strict=True):
                        inside = inside + weight.unsqueeze(1) * stage[chosen]
                    flat[torch.from_numpy(self.place[numbers])] = inside
            if keep:
                trail.append((step, before, increments[:keep].clone(), numbers, rows, weighting))

        final = job.finish(integrate(job, y, context, listen), y)
        return whole, final[0], trail

    def begin(self, state: Tensor, whole: Tensor) -> None:
        """States at the very start."""
        places = torch.from_numpy(self.place[self.first])
        if self.common:
            whole[:, places] = state.unsqueeze(1)
        else:
            rows = places // max(self.shape[1], 1)
            whole.view(-1, *self.shape[2:])[places] = state[rows]

    def pull_start(self, cotangent: Tensor) -> Tensor:
        """Cotangent of the initial state from the times at the very start."""
        total = cotangent.new_zeros(self.shape[0], *self.shape[2:])
        places = torch.from_numpy(self.place[self.first])
        if self.common:
            return total + cotangent[:, places].sum(1)
        flat = cotangent.reshape(-1, *self.shape[2:])
        return total.index_add_(0, places // max(self.shape[1], 1), flat[places])

    def pull(
        self, cotangent: Tensor, numbers: np.ndarray, rows: np.ndarray, weights: Tensor, count: int
    ) -> tuple[Tensor, Tensor]:
        """Cotangents ``(N,)`` of the state before a step and ``(stages, N)`` of its increments,
        from those of the states inside it, ``count`` samples moved.
        """
        places = torch.from_numpy(self.place[numbers])
        if self.common:
            inside = cotangent[:, places].flatten(2).transpose(0, 1)  # (times, batch, width)
            stages = torch.tensordot(weights.t(), inside, 1)
            return inside.sum(0).reshape(-1), stages.reshape(len(stages), -1)
        mine = cotangent.reshape(self.shape[0] * self.shape[1], -1)[places]
        chosen = torch.from_numpy(rows)
        total = mine.new_zeros(count, mine.shape[1]).index_add_(0, chosen, mine)
        stages = mine.new_zeros(weights.shape[1], count, mine.shape[1])
        stages.index_add_(1, chosen, weights.t().unsqueeze(2) * mine)
        return total.reshape(-1), stages.flatten(1)


class _Dense(torch.autograd.Function):
    """As the gradient by checkpoints, with cotangents that come in on the way."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        job: SolveContext,
        readings: Readings,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        y, context, _ = job.split(tensors)
        keep = job.table.stages - 1
        found, final, trail = readings.collect(job, y, context, max(keep, 1))
        ctx.job, ctx.readings, ctx.layout = job, readings, Layout(y)
        ctx.trail = [(step, *rest) for step, _, _, *rest in trail]
        ctx.save_for_backward(*tensors, *(kept for _, *pair in trail for kept in pair[:2]))
        ctx.mark_non_differentiable(final)
        return found, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        job: SolveContext = ctx.job
        readings: Readings = ctx.readings
        saved = ctx.saved_tensors
        sources = len(saved) - 2 * len(ctx.trail)
        befores, increments = saved[sources::2], saved[sources + 1 :: 2]
        y, context, parameters = job.split(saved[:sources])
        pull = Pull(job, context, parameters)
        given = cotangents[0]  # those of states that were not reached are never looked at

        cotangent: State = (torch.zeros_like(y[0]),)
        idle = True  # until a time has been met on the way back
        with unhooked(parameters):
            for (step, numbers, rows, weights), before, kept in reversed(
                list(zip(ctx.trail, befores, increments, strict=True))
            ):
                idle = idle and not len(numbers)
                if idle:
                    continue
                moved = rows_of(cotangent, step.rows)
                count = len(moved[0])
                layout = ctx.layout if step.rows is None else ctx.layout.resized(count)
                inside, start = None, None
                if len(numbers):
                    start, inside = readings.pull(given, numbers, rows, weights, count)
                pulled = pull.through(step, before, kept, moved, layout, inside)
                if start is not None:
                    pulled = (pulled[0] + layout.parts(start)[0],)
                cotangent = pulled if step.rows is None else put_rows(cotangent, step.rows, pulled)

        initial = cotangent[0] + readings.pull_start(given)
        return None, None, initial, *pull.collected
