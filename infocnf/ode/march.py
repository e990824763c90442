"""The loop of the solver: attempt a step, judge it, move the lanes that may move, retire those that
are done.

A *lane* is what has a time and a step of its own: one sample under individual stepping, the whole
batch under shared stepping. Lanes that arrive or fail leave the working batch, so the cost is the
sum of what each needs.
"""

from __future__ import annotations

from dataclasses import fields
from functools import reduce

import numpy as np
import torch
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
from infocnf.ode.problem import Arrival, Lanes, Listener, Problem, Status, Step
from infocnf.ode.steps import Increments, Layout, stage_times, take_step

__all__ = ["March"]


class March:
    """One solve under way; :meth:`run` finishes it."""

    def __init__(
        self, problem: Problem, y: State, context: State, listener: Listener | None = None
    ) -> None:
        count = len(y[0]) if problem.individual else 1
        self.problem, self.listener, self.context = problem, listener, context
        self.controller = Controller(problem.table.order)
        scale = max(abs(problem.start), abs(problem.end))
        self.precision = torch.finfo(y[0].dtype).eps
        self.smallest = 4.0 * self.precision * scale

        self.layout = Layout(y)
        self.place(self.layout.flatten(y))
        self.k: State | None = None
        self.live = Lanes(
            np.arange(count),
            np.full(count, problem.start),
            np.full(count, abs(problem.span) / max(problem.steps, 1)),
            problem.tolerance,
            np.ones(count),
            np.zeros(count, bool),
            np.full(count, np.nan),
            *np.zeros((2, count), np.int64),
        )
        self.all_proposed = not problem.table.adaptive
        self.work: Increments | None = None
        self.status = np.zeros(count, np.int64)
        self.evaluations = 0  # of every lane still on its way: all are attempted together
        self.retired: list[tuple[Lanes, int, State]] = []

    def place(self, flat: Tensor, size: Tensor | None = None) -> None:
        """Put the working batch somewhere; ``size`` is the absolute value, where known."""
        self.flat, self.y, self.size = flat, self.layout.parts(flat), size

    def run(self) -> Arrival:
        """Take all lanes to their ends."""
        if self.problem.span == 0.0 or not len(self.flat):
            self.retire(np.ones(len(self.live.t), bool))
        elif self.problem.table.adaptive:
            self.begin()
        while len(self.live.t):
            self.attempt()

        return self.collect()

    def evaluate(self, h: Array, y: State) -> State:
        """Slopes at ``y`` a step ``h`` from the current times, counted."""
        times = self.live.t + h
        t = torch.from_numpy(times) if self.problem.individual else torch.tensor(times[0])
        self.evaluations += 1

        return self.problem.field(t.to(y[0]), y, self.context)

    def begin(self) -> None:
        """First slopes and first steps; lanes that start at a non-finite value end here."""
        problem, count = self.problem, self.problem.controlled
        self.k = self.evaluate(np.zeros_like(self.live.t), self.y)

        with torch.no_grad():
            broken = ~finite((*self.y, *self.k), problem.individual)
        if broken.any():
            self.status[self.live.index[broken]] = Status.NOT_FINITE
            self.retire(broken)
            if torch.is_grad_enabled() and len(self.live.t):
                # as in attempt: no graph of a broken lane
                self.k = self.evaluate(np.zeros_like(self.live.t), self.y)
        if not len(self.live.t):
            return

        if problem.first is not None:
            h = np.minimum(problem.first[self.live.index], abs(problem.span))
        else:
            with torch.no_grad():
                h = first_step(
                    self.evaluate,
                    self.y,
                    self.k,
                    self.live.tolerance,
                    problem.span,
                    problem.table.order,
                    problem.individual,
                    count,
                )
        self.live.h = np.maximum(h, 2.0 * self.smallest)

    def attempt(self) -> None:
        """Try one step of every lane."""
        problem, table, live = self.problem, self.problem.table, self.live
        remaining = np.abs(problem.end - live.t)
        if table.adaptive:
            size = self.controller.fit(live.h, remaining)
            last = size == remaining
        else:
            last = live.accepted == problem.steps - 1
            size = np.where(last, remaining, live.h)

        h = np.copysign(size, problem.span)
        first = self.k if self.k is not None else self.evaluate(np.zeros_like(h), self.y)
        if self.work is None:
            graph = torch.is_grad_enabled()
            self.work = Increments(self.layout, table.stages, self.flat, graph)
        times, scales = stage_times(table, live.t, h, self.layout, self.y[0], problem.individual)
        after, slopes = take_step(
            problem.field_of, table, times, scales, self.flat, first, self.context, self.work
        )
        self.evaluations += table.stages - 1

        ratio, magnitude = self.judge(after)
        accept, idle = ratio <= 1.0, None
        if torch.is_grad_enabled() and not np.isfinite(ratio).all():
            # the graph of a broken lane would turn the gradients of all into NaN: the others try
            # the same step again without it, which costs them evaluations and nothing else
            idle = np.isfinite(ratio)
            accept[:] = False
        self.move(accept, h, after, magnitude, first, slopes)
        if not table.fsal:
            # also after a rejection: kept, a lane's cost would depend on its neighbours' luck
            self.k = None
        self.adapt(accept, idle, size, ratio, last)

    def judge(self, after: Tensor) -> tuple[Array, Tensor]:
        """Ratio of error to tolerance, NaN where the result is not finite, zero for a finite result
        of a method without error estimate; and the absolute value of the result.
        """
        problem, layout, individual = self.problem, self.layout, self.problem.individual
        sums: list[Tensor] = []
        size = after.detach().abs()
        if problem.table.adaptive:
            assert self.work is not None
            before = self.flat.detach().abs() if self.size is None else self.size
            scaled = relative(self.work.sum(problem.table.e), before, size)
            sums = squares(layout.parts(scaled)[: problem.controlled], individual)
        largest = peaks(layout.parts(size) if individual else [size], individual)
        numbers = to_host([*sums, *largest])  # all that leaves the device

        lanes = numbers.shape[1]
        means = [
            total * (lanes / max(count, 1))
            for total, count in zip(numbers[: len(sums)], layout.sizes, strict=False)
        ]
        worst = reduce(np.maximum, means) if means else np.zeros(lanes)
        ratio = np.sqrt(worst) / self.live.tolerance
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
        """Put the accepted lanes where their step arrived; ``first`` and ``slopes`` are those
        before and after it, ``size`` is the absolute value of ``after``.
        """
        self.k = first
        if not accept.any():
            return
        live, everyone = self.live, bool(accept.all())
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
            rows = torch.from_numpy(live.index[accept]) if self.problem.individual else None
            self.listener(Step(rows, live.t[accept], h[accept]), before, increments, context)

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
        """Book the attempt, choose the next steps and retire the lanes that ended; ``idle`` ones
        have neither succeeded nor failed.
        """
        problem, live = self.problem, self.live
        refused = ~accept if idle is None else ~(accept | idle)
        arrived = accept & last
        live.accepted = live.accepted + accept
        live.rejected = live.rejected + refused
        live.t = np.where(arrived, problem.end, live.t + accept * np.copysign(size, problem.span))

        if problem.table.adaptive:
            ratio = self.controller.above_rounding(ratio, live.tolerance, self.precision)
            growth = self.controller.factor(ratio, live.previous)
            if live.stumbled.any():
                growth = np.where(live.stumbled, np.minimum(growth, 1.0), growth)
            if refused.any() or not self.all_proposed:
                elementary = self.controller.elementary(ratio)
                growth = np.where(accept, growth, elementary)
                first = accept & np.isnan(live.proposal)
                live.proposal = np.where(first, size * elementary, live.proposal)
                self.all_proposed = not np.isnan(live.proposal).any()
            following = size * growth
            live.h = following if idle is None else np.where(idle, live.h, following)
            live.previous = np.where(accept, np.maximum(ratio, 1e-4), live.previous)
            live.stumbled = refused if idle is None else np.where(idle, live.stumbled, refused)
            stuck = ~arrived & (live.h < self.smallest)
            ended = arrived | stuck | (live.accepted + live.rejected >= problem.max_steps)
        else:
            stuck = refused
            ended = arrived | stuck
        if ended.any():
            cause = np.where(np.isfinite(ratio), Status.STEP_TOO_SMALL, Status.NOT_FINITE)
            outcome = np.where(arrived, Status.DONE, np.where(stuck, cause, Status.TOO_MANY_STEPS))
            self.status[live.index[ended]] = outcome[ended]
            self.retire(ended)

    def retire(self, ended: Flags) -> None:
        """Let lanes leave the working batch."""
        gone = self.live.keep(ended)
        self.live = self.live.keep(~ended)
        if not len(self.live.t):
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

    def collect(self) -> Arrival:
        """What became of each lane, in the order of the input; NaN is the state of one that failed,
        lest half an answer pass for one.
        """
        groups = [gone for gone, *_ in self.retired]
        order = np.argsort(np.concatenate([gone.index for gone in groups]))
        lanes = Lanes(
            *(
                np.concatenate([getattr(gone, field.name) for gone in groups])[order]
                for field in fields(Lanes)
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

        return Arrival(
            state=state,
            time=lanes.t,
            status=self.status,
            evaluations=counts[order],
            accepted=lanes.accepted,
            rejected=lanes.rejected,
            proposal=lanes.proposal,
        )


def replace_rows(state: State, rows: Tensor, by: State) -> State:
    """The state with some rows taken from another one."""
    return tuple(part.index_copy(0, rows, new[rows]) for part, new in zip(state, by, strict=True))
