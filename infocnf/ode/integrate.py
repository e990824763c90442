"""The loop of the solver: attempt a step, judge it, move the samples that may move, retire those
that are done.

A sample is *active* until it arrives or fails; then it leaves the working batch, so that the cost
is the sum of what each sample needs. Under individual stepping every sample has a time, a step and
a tolerance of its own. Under shared stepping the whole batch counts as one sample: arrays of shape
``(samples,)`` have one entry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infocnf.ode.controller import (
    Array,
    Controller,
    Flags,
    State,
    finite,
    first_step,
    peaks,
    relative,
    squares,
    to_host,
)
from infocnf.ode.step import Field, Increments, Layout, stage_times, take_step
from infocnf.ode.tableaus import Tableau

__all__ = [
    "Counts",
    "Integrator",
    "Listener",
    "Result",
    "SolveContext",
    "SolverState",
    "Status",
    "Step",
]

Counts = NDArray[np.int64]
SHARE = 2**16  # numbers of a state that are solved at a time where nothing is differentiated


class Status(IntEnum):
    """How a solve ended."""

    DONE = 0
    STEP_TOO_SMALL = 1
    TOO_MANY_STEPS = 2
    NOT_FINITE = 3

    @property
    def advice(self) -> str:
        """What happened and what to try, in one sentence."""
        return _ADVICE[self]


_ADVICE = {
    Status.DONE: "the end was reached",
    Status.STEP_TOO_SMALL: "the step fell below the resolution of the floating-point type: "
    "the solution blows up or the tolerance is too tight; loosen it, "
    "solve in float64 or regularise the field",
    Status.TOO_MANY_STEPS: "the budget of steps is spent: the field is too stiff; "
    "raise max_steps, loosen the tolerance or regularise the field",
    Status.NOT_FINITE: "the field or the state is not finite: check the input for NaN, "
    "lower the learning rate or clip the gradient",
}


@dataclass
class SolveContext:
    """One solve: what is solved and how, and what it took.

    Arguments:
        field: The field in normal form.
        table: The Runge-Kutta method.
        start: Initial time.
        end: Final time; before ``start`` for a backward solve.
        tolerance: ``(samples,)``.
        individual: Whether each sample has steps of its own.
        controlled: Number of leading parts of the state in the error norm; the others are auxiliary
            integrals.
        max_steps: Attempts after which a sample is given up.
        mesh: Steps that are given, unsigned, ``(samples, most steps)`` with NaN after the last of a
            sample; None where they are chosen by an estimate of their error.
        first: First steps to try ``(samples,)``, unsigned, or None to estimate them.
        drift: The field without the slopes of the integrals, for stages that have no weight.
        parts: Number of tensors of the state; the tensors of an autograd function are these, those
            of the context, and the parameters.
        contexts: Number of tensors of the context.
        backward: Evaluations of the backward pass by sample, filled in by it.
        result: Where the forward solve arrived, without the state.
    """

    field: Field
    table: Tableau
    start: float
    end: float
    tolerance: Array
    individual: bool
    controlled: int
    max_steps: int
    mesh: Array | None = None
    first: Array | None = None
    drift: Field | None = None
    parts: int = 1
    contexts: int = 0
    backward: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(1, dtype=torch.int64))
    result: Result | None = None

    @property
    def adaptive(self) -> bool:
        """Whether steps are chosen by an estimate of their error."""
        return self.mesh is None

    def field_of(self, stage: int) -> Field:
        """The field as a stage of a step needs it."""
        if self.drift is not None and self.table.silent[stage]:
            return self.drift
        return self.field

    @property
    def span(self) -> float:
        """Signed length of the interval."""
        return self.end - self.start

    def split(self, tensors: Sequence[Tensor]) -> tuple[State, State, State]:
        """State, context and parameters."""
        first, second = self.parts, self.parts + self.contexts
        return tuple(tensors[:first]), tuple(tensors[first:second]), tuple(tensors[second:])

    def finish(self, result: Result, y: State = ()) -> State:
        """Take note of a result and return its state.

        The state is not kept: it will refer to the autograd node, which refers to this context, and
        memory would wait for the garbage collector. A solve of no length returns its own input;
        autograd wants a copy.
        """
        self.result = replace(result, state=())
        return tuple(s.clone() if any(s is part for part in y) else s for s in result.state)

    def count(self, rows: Tensor | None, evaluations: int | Tensor) -> None:
        """Book evaluations of the backward pass."""
        self.backward[slice(None) if rows is None else rows] += evaluations


@dataclass(frozen=True)
class Step:
    """One accepted step: ``rows`` are the samples it moved (None: all), ``t`` and ``h`` their times
    and steps.
    """

    rows: Tensor | None
    t: Array
    h: Array


Listener = Callable[[Step, Tensor, Tensor, State], None]
"""Hears of accepted steps: step, flat state before it ``(N,)``, increments of its stages ``(stages,
N)``, which are valid during the call only, and context; all of the rows that it moved.
"""


@dataclass
class SolverState:
    """The active samples, ``(samples,)`` each."""

    index: Counts
    t: Array
    h: Array  # next step to try, unsigned
    tolerance: Array
    previous: Array  # ratio of the last accepted step
    stumbled: Flags  # whether the last attempt was rejected
    proposal: Array  # first step that the next similar solve should try; NaN until a step came off
    accepted: Counts
    rejected: Counts

    def keep(self, stay: Flags) -> SolverState:
        """Some of them."""
        return SolverState(*(getattr(self, f.name)[stay] for f in fields(self)))


@dataclass(frozen=True)
class Result:
    """Where each sample ended and what it took."""

    state: State
    time: Array
    status: Counts
    evaluations: Counts
    accepted: Counts
    rejected: Counts
    proposal: Array  # first step that the next similar solve should try


class Integrator:
    """One solve under way; :meth:`run` finishes it."""

    def __init__(
        self, problem: SolveContext, y: State, context: State, listener: Listener | None = None
    ) -> None:
        count = len(y[0]) if problem.individual else 1
        self.problem, self.listener, self.context = problem, listener, context
        self.controller = Controller(problem.table.order)
        scale = max(abs(problem.start), abs(problem.end))
        self.smallest = 4.0 * torch.finfo(y[0].dtype).eps * scale

        self.layout = Layout(y)
        self.place(self.layout.flatten(y))
        self.k: State | None = None
        self.active = SolverState(
            np.arange(count),
            np.full(count, problem.start),
            np.full(count, abs(problem.span)),
            problem.tolerance,
            np.ones(count),
            np.zeros(count, bool),
            np.full(count, np.nan),
            *np.zeros((2, count), np.int64),
        )
        self.all_proposed = not problem.adaptive
        self.work: Increments | None = None
        self.status = np.zeros(count, np.int64)
        self.evaluations = 0  # of every sample still on its way: all are attempted together
        self.retired: list[tuple[SolverState, int, State]] = []

    def place(self, flat: Tensor, size: Tensor | None = None) -> None:
        """Put the working batch somewhere; ``size`` is the absolute value, where known."""
        self.flat, self.y, self.size = flat, self.layout.parts(flat), size

    def run(self) -> Result:
        """Take all samples to their ends."""
        if self.problem.span == 0.0 or not len(self.flat):
            self.retire(np.ones(len(self.active.t), bool))
        elif self.problem.adaptive:
            self.begin()
        while len(self.active.t):
            self.attempt()

        return self.collect()

    def evaluate(self, h: Array, y: State) -> State:
        """Slopes at ``y`` a step ``h`` from the current times, counted."""
        times = self.active.t + h
        t = torch.from_numpy(times) if self.problem.individual else torch.tensor(times[0])
        self.evaluations += 1

        return self.problem.field(t.to(y[0]), y, self.context)

    def begin(self) -> None:
        """First slopes and first steps; samples that start at a non-finite value end here."""
        problem, count = self.problem, self.problem.controlled
        self.k = self.evaluate(np.zeros_like(self.active.t), self.y)

        with torch.no_grad():
            broken = ~finite((*self.y, *self.k), problem.individual)
        if broken.any():
            self.status[self.active.index[broken]] = Status.NOT_FINITE
            self.retire(broken)
            if torch.is_grad_enabled() and len(self.active.t):
                # as in attempt: no graph of a broken sample
                self.k = self.evaluate(np.zeros_like(self.active.t), self.y)
        if not len(self.active.t):
            return

        if problem.first is not None:
            h = np.minimum(problem.first[self.active.index], abs(problem.span))
        else:
            with torch.no_grad():
                h = first_step(
                    self.evaluate,
                    self.y,
                    self.k,
                    self.active.tolerance,
                    problem.span,
                    problem.table.order,
                    problem.individual,
                    count,
                )
        self.active.h = np.maximum(h, 2.0 * self.smallest)

    def attempt(self) -> None:
        """Try one step of every sample."""
        problem, table, active = self.problem, self.problem.table, self.active
        remaining = np.abs(problem.end - active.t)
        if problem.mesh is None:
            size = self.controller.fit(active.h, remaining)
            last = size == remaining
        else:
            mesh = problem.mesh[active.index]
            last = active.accepted == np.isfinite(mesh).sum(1) - 1
            size = np.where(last, remaining, mesh[np.arange(len(mesh)), active.accepted])

        h = np.copysign(size, problem.span)
        first = self.k if self.k is not None else self.evaluate(np.zeros_like(h), self.y)
        if self.work is None:
            graph = torch.is_grad_enabled()
            self.work = Increments(self.layout, table.stages, self.flat, graph)
        times, scales = stage_times(table, active.t, h, self.layout, self.y[0], problem.individual)
        after, slopes = take_step(
            problem.field_of, table, times, scales, self.flat, first, self.context, self.work
        )
        self.evaluations += table.stages - 1

        ratio, magnitude = self.judge(after)
        accept, idle = ratio <= 1.0, None
        if torch.is_grad_enabled() and not np.isfinite(ratio).all():
            # the graph of a broken sample would turn the gradients of all into NaN: the others try
            # the same step again without it, which costs them evaluations and nothing else
            idle = np.isfinite(ratio)
            accept[:] = False
        self.move(accept, h, after, magnitude, first, slopes)
        if not table.fsal:
            # also after a rejection: kept, a sample's cost would depend on its neighbours' luck
            self.k = None
        self.adapt(accept, idle, size, ratio, last)

    def judge(self, after: Tensor) -> tuple[Array, Tensor]:
        """Ratio of error to tolerance, NaN where the result is not finite, zero for a finite result
        of a method without error estimate; and the absolute value of the result.
        """
        problem, layout, individual = self.problem, self.layout, self.problem.individual
        sums: list[Tensor] = []
        size = after.detach().abs()
        if problem.adaptive:
            assert self.work is not None
            before = self.flat.detach().abs() if self.size is None else self.size
            scaled = relative(self.work.sum(problem.table.e), before, size)
            sums = squares(layout.parts(scaled)[: problem.controlled], individual)
        largest = peaks(layout.parts(size) if individual else [size], individual)
        numbers = to_host([*sums, *largest])  # all that leaves the device

        samples = numbers.shape[1]
        means = [
            total * (samples / max(count, 1))
            for total, count in zip(numbers[: len(sums)], layout.sizes, strict=False)
        ]
        worst = reduce(np.maximum, means) if means else np.zeros(samples)
        ratio = np.sqrt(worst) / self.active.tolerance
        sound = np.isfinite(numbers)
        if not sound.all():
            ratio[~sound.all(0)] = np.nan
        return ratio, size

    def move(
        self,
        accept: Flags,
        h: Array,
        after: Tensor,
        size: Tensor,
        first: State,
        slopes: State,
    ) -> None:
        """Put the accepted samples where their step arrived; ``first`` and ``slopes`` are those
        before and after it, ``size`` is the absolute value of ``after``.
        """
        self.k = first
        if not accept.any():
            return
        active, everyone = self.active, bool(accept.all())
        chosen = None
        if not everyone:
            chosen = torch.from_numpy(np.flatnonzero(accept)).to(after.device)

        if self.listener is not None:
            assert self.work is not None
            before, increments = self.flat, self.work.matrix
            context = self.context
            if chosen is not None:
                before, increments = (self.layout.select(f, chosen) for f in (before, increments))
                context = tuple(part[chosen] for part in context)
            rows = torch.from_numpy(active.index[accept]) if self.problem.individual else None
            self.listener(Step(rows, active.t[accept], h[accept]), before, increments, context)

        if chosen is None:
            self.place(after, size)
            self.k = slopes
        else:
            moved = replace_rows(self.y, chosen, self.layout.parts(after))
            self.place(self.layout.flatten(moved))
            self.k = replace_rows(first, chosen, slopes)

    def adapt(
        self, accept: Flags, idle: Flags | None, size: Array, ratio: Array, last: Flags
    ) -> None:
        """Book the attempt, choose the next steps and retire the samples that ended; ``idle`` ones
        have neither succeeded nor failed.
        """
        problem, active = self.problem, self.active
        refused = ~accept if idle is None else ~(accept | idle)
        arrived = accept & last
        active.accepted = active.accepted + accept
        active.rejected = active.rejected + refused
        active.t = np.where(
            arrived, problem.end, active.t + accept * np.copysign(size, problem.span)
        )

        if problem.adaptive:
            growth = self.controller.factor(ratio, active.previous)
            if active.stumbled.any():
                growth = np.where(active.stumbled, np.minimum(growth, 1.0), growth)
            if refused.any() or not self.all_proposed:
                elementary = self.controller.elementary(ratio)
                growth = np.where(accept, growth, elementary)
                first = accept & np.isnan(active.proposal)
                active.proposal = np.where(first, size * elementary, active.proposal)
                self.all_proposed = not np.isnan(active.proposal).any()
            following = size * growth
            active.h = following if idle is None else np.where(idle, active.h, following)
            active.previous = np.where(accept, np.maximum(ratio, 1e-4), active.previous)
            active.stumbled = refused if idle is None else np.where(idle, active.stumbled, refused)
            stuck = ~arrived & (active.h < self.smallest)
            ended = arrived | stuck | (active.accepted + active.rejected >= problem.max_steps)
        else:
            stuck = refused
            ended = arrived | stuck
        if ended.any():
            cause = np.where(np.isfinite(ratio), Status.STEP_TOO_SMALL, Status.NOT_FINITE)
            outcome = np.where(arrived, Status.DONE, np.where(stuck, cause, Status.TOO_MANY_STEPS))
            self.status[active.index[ended]] = outcome[ended]
            self.retire(ended)

    def retire(self, ended: Flags) -> None:
        """Let samples leave the working batch."""
        gone = self.active.keep(ended)
        self.active = self.active.keep(~ended)
        if not len(self.active.t):
            self.retired.append((gone, self.evaluations, self.y))
            return

        device = self.flat.device
        left = torch.from_numpy(np.flatnonzero(ended)).to(device)
        kept = torch.from_numpy(np.flatnonzero(~ended)).to(device)
        self.retired.append((gone, self.evaluations, tuple(part[left] for part in self.y)))
        self.context = tuple(part[kept] for part in self.context)
        self.k = None if self.k is None else tuple(part[kept] for part in self.k)
        flat = self.layout.select(self.flat, kept)
        self.layout, self.work = self.layout.resized(len(kept)), None
        self.place(flat)

    def collect(self) -> Result:
        """What became of each sample, in the order of the input; NaN is the state of one that
        failed, so that half an answer is never taken for one.
        """
        groups = [gone for gone, *_ in self.retired]
        order = np.argsort(np.concatenate([gone.index for gone in groups]))
        samples = SolverState(
            *(
                np.concatenate([getattr(gone, f.name) for gone in groups])[order]
                for f in fields(SolverState)
            )
        )
        counts = np.repeat([n for _, n, _ in self.retired], [len(gone.t) for gone in groups])
        failed = np.flatnonzero(self.status != Status.DONE)
        state = self.retired[0][-1]
        if len(self.retired) > 1:
            parts = zip(*(state for *_, state in self.retired), strict=True)
            places = torch.from_numpy(order)
            state = tuple(torch.cat(pieces)[places.to(pieces[0].device)] for pieces in parts)
        if len(failed) and not self.problem.individual:
            state = tuple(torch.full_like(part, torch.nan) for part in state)
        elif len(failed):
            rows = torch.from_numpy(failed)
            state = tuple(part.index_fill(0, rows.to(part.device), torch.nan) for part in state)

        return Result(
            state=state,
            time=samples.t,
            status=self.status,
            evaluations=counts[order],
            accepted=samples.accepted,
            rejected=samples.rejected,
            proposal=samples.proposal,
        )


def replace_rows(state: State, rows: Tensor, by: State) -> State:
    """The state with some rows taken from another one."""
    return tuple(part.index_copy(0, rows, new[rows]) for part, new in zip(state, by, strict=True))


def integrate(context: SolveContext, y: State, tensors: State, in_shares: bool) -> Result:
    """All samples at their ends; where nothing is differentiated, samples with steps of their own
    are solved in shares of a size that caches hold. No answer depends on its neighbours.
    """
    samples = len(y[0]) if y[0].ndim else 1
    numbers = sum(part.numel() for part in y) // max(samples, 1)
    size = max(SHARE // max(numbers, 1), 1)
    if not (in_shares and context.individual) or samples <= size:
        return Integrator(context, y, tensors).run()

    results = []
    for start in range(0, samples, size):
        rows = slice(start, start + size)
        share = replace(
            context,
            tolerance=context.tolerance[rows],
            first=None if context.first is None else context.first[rows],
            mesh=None if context.mesh is None else context.mesh[rows],
        )
        own, given = (tuple(part[rows] for part in group) for group in (y, tensors))
        results.append(Integrator(share, own, given).run())
    state = tuple(torch.cat(parts) for parts in zip(*(r.state for r in results), strict=True))
    counts = (f.name for f in fields(Result) if f.name != "state")
    return Result(state, *(np.concatenate([getattr(r, n) for r in results]) for n in counts))
