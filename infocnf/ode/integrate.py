"""The loop of the solver: attempt a step, judge it, move what may move.

Under *shared* stepping the batch moves as one: one time, one step, one ratio of error to
tolerance, which are plain numbers. Under *individual* stepping every sample has a time, a step and
a tolerance of its own, in arrays of shape ``(samples,)``; a sample is *active* until it arrives or
fails, then it leaves the working batch, so that the cost is the sum of what each sample needs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from infocnf.ode.context import Counts, Listener, Result, SolveContext, Status, Step
from infocnf.ode.controller import (
    ARRAYS,
    PLAIN,
    Array,
    Controller,
    Flags,
    State,
    finite,
    first_step,
    relative,
    squares,
    to_host,
)
from infocnf.ode.step import Increments, Layout, stage_times, take_step

__all__ = ["integrate", "integrate_in_shares"]

SHARE = 2**16  # numbers of a state that are solved at a time where nothing is differentiated


class Integrator(ABC):
    """One solve under way; :meth:`run` finishes it."""

    numbers = ARRAYS  # what times and steps are

    def __init__(
        self, problem: SolveContext, y: State, context: State, listener: Listener | None = None
    ) -> None:
        self.problem, self.listener, self.context = problem, listener, context
        self.controller = Controller(problem.table.order, numbers=self.numbers)
        scale = max(abs(problem.start), abs(problem.end))
        self.smallest = 4.0 * torch.finfo(y[0].dtype).eps * scale

        self.layout = Layout(y)
        self.place(self.layout.flatten(y))
        self.k: State | None = None  # slopes at the current state, where known
        self.work: Increments | None = None
        self.evaluations = 0  # of every sample still on its way: all are attempted together

    @abstractmethod
    def run(self) -> Result:
        """Take all samples to their ends."""

    def place(self, flat: Tensor, size: Tensor | None = None) -> None:
        """Put the working batch somewhere; ``size`` is the absolute value, where known."""
        self.flat, self.y, self.size = flat, self.layout.parts(flat), size

    def take(self, t: Array, h: Array, first: State) -> tuple[Tensor, State]:
        """A step of the working batch: where it arrives, and the last slopes."""
        problem, table = self.problem, self.problem.table
        if self.work is None:
            graph = torch.is_grad_enabled()
            self.work = Increments(self.layout, table.stages, self.flat, graph)
        times, scales = stage_times(table, t, h, self.layout, self.y[0], problem.individual)
        self.evaluations += table.stages - 1
        return take_step(
            problem.field_of, table, times, scales, self.flat, first, self.context, self.work
        )

    @abstractmethod
    def evaluate(self, h: Array, y: State) -> State:
        """Slopes at ``y`` a step ``h`` from the current times, counted."""

    def first_step(self, tolerance: Array) -> Array:
        """First steps by an estimate."""
        problem = self.problem
        assert self.k is not None
        return first_step(
            self.evaluate,
            self.y,
            self.k,
            tolerance,
            problem.span,
            problem.table.order,
            problem.individual,
            problem.controlled,
        )

    def errors(self, size: Tensor) -> list[Tensor]:
        """Sums of squares of the relative error of each controlled part, for a result of absolute
        value ``size``.
        """
        assert self.work is not None
        before = self.flat.detach().abs() if self.size is None else self.size
        scaled = relative(self.work.sum(self.problem.table.e), before, size)
        parts = self.layout.parts(scaled)[: self.problem.controlled]
        return squares(parts, self.problem.individual)

    def watched(self, last: bool) -> bool:
        """Whether a result is to be looked at for numbers that are not finite: an error that is
        finite tells it of all steps but the last, whose result may overflow, unless there are parts
        that it does not see.
        """
        seen = self.problem.controlled == len(self.layout.shapes)
        return last or not (self.problem.adaptive and seen)


class SharedIntegrator(Integrator):
    """The batch as one."""

    numbers = PLAIN

    def __init__(
        self, problem: SolveContext, y: State, context: State, listener: Listener | None = None
    ) -> None:
        super().__init__(problem, y, context, listener)
        self.t, self.h = problem.start, abs(problem.span)
        self.tolerance = float(problem.tolerance[0])
        self.previous, self.stumbled, self.proposal = 1.0, False, math.nan
        self.accepted = self.rejected = 0

    def run(self) -> Result:
        problem, status = self.problem, None
        if problem.span == 0.0 or not len(self.flat):
            status = Status.DONE
        elif problem.adaptive:
            status = self.begin()
        while status is None:
            status = self.attempt()

        # half an answer is never taken for one
        state = self.y
        if status != Status.DONE:
            state = tuple(torch.full_like(part, torch.nan) for part in state)
        return Result(
            state=state,
            time=np.array([self.t]),
            status=np.array([status]),
            evaluations=np.array([self.evaluations]),
            accepted=np.array([self.accepted]),
            rejected=np.array([self.rejected]),
            proposal=np.array([self.proposal]),
        )

    def evaluate(self, h: Array, y: State) -> State:
        self.evaluations += 1
        t = torch.tensor(self.t + float(h[0]), dtype=y[0].dtype, device=y[0].device)
        return self.problem.field(t, y, self.context)

    def begin(self) -> Status | None:
        """First slopes and first step."""
        problem = self.problem
        self.k = self.evaluate(np.zeros(1), self.y)
        with torch.no_grad():
            if not finite((*self.y, *self.k), individual=False).all():
                return Status.NOT_FINITE
            if problem.first is not None:
                h = min(float(problem.first[0]), abs(problem.span))
            else:
                h = float(self.first_step(problem.tolerance)[0])
        self.h = max(h, 2.0 * self.smallest)
        return None

    def attempt(self) -> Status | None:
        """Try one step; how the solve ended, where it did."""
        problem, table = self.problem, self.problem.table
        remaining = abs(problem.end - self.t)
        if problem.mesh is None:
            size = self.controller.fit(self.h, remaining)
            last = size == remaining
        else:
            last = self.accepted == problem.mesh.shape[1] - 1
            size = remaining if last else float(problem.mesh[0, self.accepted])
        t, h = np.array([self.t]), np.array([math.copysign(size, problem.span)])
        first = self.k if self.k is not None else self.evaluate(np.zeros(1), self.y)
        after, slopes = self.take(t, h, first)
        ratio, magnitude = self.judge(after, last)

        accept = ratio <= 1.0
        if accept:
            if self.listener is not None:
                assert self.work is not None
                self.listener(Step(None, t, h), self.flat, self.work.matrix, self.context)
            self.place(after, magnitude)
            self.t = problem.end if last else self.t + float(h[0])
        # without reuse also after a rejection, as under individual stepping
        self.k = None if not table.fsal else slopes if accept else first
        return self.adapt(accept, size, ratio, last)

    def judge(self, after: Tensor, last: bool) -> tuple[float, Tensor]:
        """Ratio of error to tolerance, NaN where the result is not finite, zero for a finite result
        of a method without error estimate; and the absolute value of the result.
        """
        size, layout = after.detach().abs(), self.layout
        ratio = 0.0
        if self.problem.adaptive:
            sums = to_host(self.errors(size))[:, 0].tolist()  # all that leaves the device
            means = [total / max(n, 1) for total, n in zip(sums, layout.sizes, strict=False)]
            sound = all(map(math.isfinite, means))
            ratio = math.sqrt(max(means)) / self.tolerance if sound else math.nan
        if self.watched(last) and not math.isfinite(size.amax().item()):
            ratio = math.nan
        return ratio, size

    def adapt(self, accept: bool, size: float, ratio: float, last: bool) -> Status | None:
        """Book the attempt and choose the next step."""
        problem, control = self.problem, self.controller
        self.accepted += accept
        self.rejected += not accept
        if accept and problem.adaptive and math.isnan(self.proposal):
            self.proposal = size * control.elementary(ratio)
        if accept and last:
            return Status.DONE
        cause = Status.STEP_TOO_SMALL if math.isfinite(ratio) else Status.NOT_FINITE
        if not problem.adaptive:
            return None if accept else cause

        if accept:
            growth = control.factor(ratio, self.previous)
            self.h = size * (min(growth, 1.0) if self.stumbled else growth)
            self.previous = max(ratio, 1e-4)
        else:
            self.h = size * control.elementary(ratio)
        self.stumbled = not accept
        if self.h < self.smallest:
            return cause
        spent = self.accepted + self.rejected >= problem.max_steps
        return Status.TOO_MANY_STEPS if spent else None


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


class IndividualIntegrator(Integrator):
    """Each sample on its own."""

    def __init__(
        self, problem: SolveContext, y: State, context: State, listener: Listener | None = None
    ) -> None:
        super().__init__(problem, y, context, listener)
        count = len(y[0])
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
        self.status = np.zeros(count, np.int64)
        self.retired: list[tuple[SolverState, int, State]] = []

    def run(self) -> Result:
        if self.problem.span == 0.0 or not len(self.flat):
            self.retire(np.ones(len(self.active.t), bool))
        elif self.problem.adaptive:
            self.begin()
        while len(self.active.t):
            self.attempt()

        return self.collect()

    def evaluate(self, h: Array, y: State) -> State:
        self.evaluations += 1
        t = torch.from_numpy(self.active.t + h)
        return self.problem.field(t.to(y[0]), y, self.context)

    def begin(self) -> None:
        """First slopes and first steps; samples that start at a non-finite value end here."""
        problem = self.problem
        self.k = self.evaluate(np.zeros_like(self.active.t), self.y)

        with torch.no_grad():
            broken = ~finite((*self.y, *self.k), individual=True)
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
                h = self.first_step(self.active.tolerance)
        self.active.h = np.maximum(h, 2.0 * self.smallest)

    def attempt(self) -> None:
        """Try one step of every sample."""
        problem, active = self.problem, self.active
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
        after, slopes = self.take(active.t, h, first)

        ratio, magnitude = self.judge(after, last)
        accept, idle = ratio <= 1.0, None
        if torch.is_grad_enabled() and not np.isfinite(ratio).all():
            # the graph of a broken sample would turn the gradients of all into NaN: the others try
            # the same step again without it, which costs them evaluations and nothing else
            idle = np.isfinite(ratio)
            accept[:] = False
        self.move(accept, h, after, magnitude, first, slopes)
        if not problem.table.fsal:
            # also after a rejection: kept, a sample's cost would depend on its neighbours' luck
            self.k = None
        self.adapt(accept, idle, size, ratio, last)

    def judge(self, after: Tensor, last: Flags) -> tuple[Array, Tensor]:
        """Ratios of error to tolerance, as of :class:`SharedIntegrator`."""
        size, samples = after.detach().abs(), len(last)
        ratio = np.zeros(samples)
        if self.problem.adaptive:
            sums = to_host(self.errors(size))
            sizes = [n // samples for n in self.layout.sizes]
            means = [total / max(n, 1) for total, n in zip(sums, sizes, strict=False)]
            worst = reduce(np.maximum, means)  # NaN comes through
            with np.errstate(invalid="ignore"):
                ratio = np.sqrt(worst) / self.active.tolerance
            ratio[~np.isfinite(worst)] = np.nan
        if self.watched(bool(last.any())):
            ratio[~finite(self.layout.parts(size), individual=True)] = np.nan
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
        everyone = bool(accept.all())
        if self.listener is not None:
            self.tell(accept, h, everyone)
        if everyone:
            self.place(after, size)
            self.k = slopes
        else:
            moved = torch.from_numpy(accept).to(after.device)
            self.place(self.layout.flatten(choose(moved, self.layout.parts(after), self.y)))
            self.k = choose(moved, slopes, first)

    def tell(self, accept: Flags, h: Array, everyone: bool) -> None:
        """The listener of the steps that were accepted."""
        assert self.work is not None and self.listener is not None
        before, increments, context = self.flat, self.work.matrix, self.context
        if not everyone:
            chosen = torch.from_numpy(np.flatnonzero(accept)).to(before.device)
            before, increments = (self.layout.select(f, chosen) for f in (before, increments))
            context = tuple(part[chosen] for part in context)
        rows = torch.from_numpy(self.active.index[accept])
        step = Step(rows, self.active.t[accept], h[accept])
        self.listener(step, before, increments, context)

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
        if len(failed):
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


def choose(rows: Tensor, one: State, other: State) -> State:
    """Some rows of one state, and the rest of another; ``rows`` are flags ``(samples,)``."""
    return tuple(
        torch.where(rows.view(-1, *[1] * (a.ndim - 1)), a, b)
        for a, b in zip(one, other, strict=True)
    )


def integrate(
    problem: SolveContext, y: State, context: State, listener: Listener | None = None
) -> Result:
    """All samples at their ends."""
    kind = IndividualIntegrator if problem.individual else SharedIntegrator
    return kind(problem, y, context, listener).run()


def integrate_in_shares(problem: SolveContext, y: State, context: State) -> Result:
    """The same where nothing is differentiated: samples with steps of their own are solved in
    shares of a size that caches hold. No answer depends on its neighbours.
    """
    samples = len(y[0]) if y[0].ndim else 1
    numbers = sum(part.numel() for part in y) // max(samples, 1)
    size = max(SHARE // max(numbers, 1), 1)
    if not problem.individual or samples <= size:
        return integrate(problem, y, context)

    results = []
    for start in range(0, samples, size):
        rows = slice(start, start + size)
        share = replace(
            problem,
            tolerance=problem.tolerance[rows],
            first=None if problem.first is None else problem.first[rows],
            mesh=None if problem.mesh is None else problem.mesh[rows],
        )
        own, given = (tuple(part[rows] for part in group) for group in (y, context))
        results.append(integrate(share, own, given))
    state = tuple(torch.cat(parts) for parts in zip(*(r.state for r in results), strict=True))
    counts = (f.name for f in fields(Result) if f.name != "state")
    return Result(state, *(np.concatenate([getattr(r, n) for r in results]) for n in counts))
