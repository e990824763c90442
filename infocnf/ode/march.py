"""The loop of the solver: attempt a step, judge it, move the lanes that may move, retire those that
are done.

A *lane* is what has a time and a step of its own: one sample under individual stepping, the whole
batch under shared stepping. Lanes that arrive or fail leave the working batch, so the cost is the
sum of what each needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infocnf.ode.controller import (
    Array,
    Controller,
    State,
    error_ratio,
    finite,
    first_step,
    to_host,
)
from infocnf.ode.steps import Field, combine, stage_times, step_size, take_step
from infocnf.ode.tableaus import Tableau

__all__ = ["Arrival", "March", "Problem", "Status", "Step"]

Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]


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


@dataclass(frozen=True)
class Problem:
    """What is solved and how.

    Arguments:
        field: The field in normal form.
        table: The Runge-Kutta method.
        start: Initial time.
        end: Final time; before ``start`` for a backward solve.
        tolerance: ``(lanes,)``.
        individual: Whether each sample is a lane.
        controlled: Number of leading parts of the state in the error norm; the others are
            passengers.
        max_steps: Attempts after which a lane is given up.
        steps: Number of equal steps of a method without error estimate, else 0.
        first: First steps to try ``(lanes,)``, unsigned, or None to estimate them.
    """

    field: Field
    table: Tableau
    start: float
    end: float
    tolerance: Array
    individual: bool
    controlled: int
    max_steps: int
    steps: int = 0
    first: Array | None = None

    @property
    def span(self) -> float:
        """Signed length of the interval."""
        return self.end - self.start


@dataclass(frozen=True)
class Step:
    """One accepted step: ``rows`` are the samples it moved (None: all), ``t`` and ``h`` their times
    and steps.
    """

    rows: Tensor | None
    t: Array
    h: Array


Listener = Callable[[Step, Callable[[State], State], State, list[State], State], None]
"""Hears of accepted steps: step, selection of the rows it moved, state before, slopes, context."""


@dataclass(frozen=True)
class Arrival:
    """Where each lane ended and what it took."""

    state: State
    time: Array
    status: Counts
    evaluations: Counts
    accepted: Counts
    rejected: Counts
    proposal: Array  # first step that the next similar solve should try


class March:
    """One solve under way; :meth:`run` finishes it."""

    def __init__(
        self, problem: Problem, y: State, context: State, listener: Listener | None = None
    ) -> None:
        lanes = len(y[0]) if problem.individual else 1
        self.problem, self.listener = problem, listener
        self.controller = Controller(problem.table.order)
        scale = max(abs(problem.start), abs(problem.end))
        self.smallest = 4.0 * torch.finfo(y[0].dtype).eps * scale

        self.y, self.context, self.k = y, context, None  # type: tuple[State, State, State | None]
        self.lanes = np.arange(lanes)  # those still on the way; the arrays below are theirs
        self.t = np.full(lanes, problem.start)
        self.h = np.full(lanes, abs(problem.span) / max(problem.steps, 1))
        self.previous = np.ones(lanes)
        self.stumbled = np.zeros(lanes, bool)

        self.status = np.zeros(lanes, np.int64)
        self.evaluations, self.accepted, self.rejected = np.zeros((3, lanes), np.int64)
        self.reached = np.full(lanes, problem.start)
        self.proposal = np.full(lanes, np.nan)
        self.arrived: list[tuple[Counts, State]] = []

    def run(self) -> Arrival:
        """Take all lanes to their ends."""
        if self.problem.span == 0.0 or not any(part.numel() for part in self.y):
            self.retire(np.ones(len(self.lanes), bool))
        elif self.problem.table.adaptive:
            self.begin()
        while len(self.lanes):
            self.attempt()

        return Arrival(
            state=self.collect(),
            time=self.reached,
            status=self.status,
            evaluations=self.evaluations,
            accepted=self.accepted,
            rejected=self.rejected,
            proposal=self.proposal,
        )

    def evaluate(self, h: Array, y: State) -> State:
        """Slopes at ``y`` a step ``h`` from the current times, counted."""
        times = self.t + h
        t = torch.from_numpy(times) if self.problem.individual else torch.tensor(times[0])
        self.evaluations[self.lanes] += 1

        return self.problem.field(t.to(y[0]), y, self.context)

    def begin(self) -> None:
        """First slopes and first steps; lanes that start at a non-finite value end here."""
        problem, count = self.problem, self.problem.controlled
        self.k = self.evaluate(np.zeros_like(self.t), self.y)

        broken = ~finite((*self.y, *self.k), problem.individual).cpu().numpy()
        if broken.any():
            self.status[self.lanes[broken]] = Status.NOT_FINITE
            self.retire(broken)
            if torch.is_grad_enabled() and len(self.lanes):
                # as in attempt: no graph of a broken lane
                self.k = self.evaluate(np.zeros_like(self.t), self.y)
        if not len(self.lanes):
            return

        if problem.first is not None:
            self.h = np.minimum(problem.first[self.lanes], abs(problem.span))
        else:
            with torch.no_grad():
                self.h = first_step(
                    self.evaluate,
                    self.y,
                    self.k,
                    problem.tolerance[self.lanes],
                    problem.span,
                    problem.table.order,
                    problem.individual,
                    count,
                )
        self.h = np.maximum(self.h, 2.0 * self.smallest)

    def attempt(self) -> None:
        """Try one step of every lane."""
        problem, table = self.problem, self.problem.table
        remaining = np.abs(problem.end - self.t)
        if table.adaptive:
            size = self.controller.fit(self.h, remaining)
            last = size == remaining
        else:
            last = self.accepted[self.lanes] == problem.steps - 1
            size = np.where(last, remaining, self.h)

        h = np.copysign(size, problem.span)
        first = self.k if self.k is not None else self.evaluate(np.zeros_like(h), self.y)
        times = stage_times(table, self.t, h, self.y[0], problem.individual)
        step = step_size(h, self.y[0], problem.individual)
        after, slopes = take_step(problem.field, table, times, step, self.y, first, self.context)
        self.evaluations[self.lanes] += table.stages - 1

        ratio = self.judge(step, after, slopes)
        accept, idle = ratio <= 1.0, np.zeros(len(ratio), bool)
        if torch.is_grad_enabled() and not np.isfinite(ratio).all():
            # the graph of a broken lane would turn the gradients of all into NaN: the others try
            # the same step again without it, which costs them evaluations and nothing else
            idle = np.isfinite(ratio)
            accept[:] = False
        self.move(accept, h, after, slopes)
        if not table.fsal:
            # also after a rejection: kept, a lane's cost would depend on its neighbours' luck
            self.k = None
        self.adapt(accept, idle, size, ratio, last)

    def judge(self, step: float | Tensor, after: State, slopes: list[State]) -> Array:
        """Ratio of error to tolerance; of a method without error estimate only whether the result
        is finite.
        """
        problem, count = self.problem, self.problem.controlled
        with torch.no_grad():
            whole = finite(after, problem.individual)
            ratio = torch.zeros(len(whole), device=whole.device)
            if problem.table.adaptive:
                parts = list(zip(*slopes, strict=True))[:count]
                errors = tuple(combine(step, problem.table.e, part) for part in parts)
                ratio = error_ratio(errors, self.y[:count], after[:count], problem.individual)

            return to_host(ratio.where(whole, torch.nan)) / problem.tolerance[self.lanes]

    def move(self, accept: Flags, h: Array, after: State, slopes: list[State]) -> None:
        """Put the accepted lanes where their step arrived."""
        if not accept.any():
            return
        everyone = bool(accept.all())
        chosen = torch.from_numpy(np.flatnonzero(accept)).to(self.y[0].device)

        if self.listener is not None:
            rows = torch.from_numpy(self.lanes[accept]) if self.problem.individual else None

            def select(state: State) -> State:
                return state if everyone else tuple(part[chosen] for part in state)

            step = Step(rows, self.t[accept], h[accept])
            self.listener(step, select, self.y, slopes, self.context)

        if everyone:
            self.y, self.k = after, slopes[-1]
        else:
            self.y = replace_rows(self.y, chosen, after)
            self.k = replace_rows(slopes[0], chosen, slopes[-1])

    def adapt(self, accept: Flags, idle: Flags, size: Array, ratio: Array, last: Flags) -> None:
        """Book the attempt, choose the next steps and retire the lanes that ended."""
        problem, lanes = self.problem, self.lanes
        self.accepted[lanes] += accept
        self.rejected[lanes] += ~accept & ~idle
        with np.errstate(invalid="ignore"):
            self.t = np.where(
                accept & last, problem.end, self.t + accept * np.copysign(size, problem.span)
            )

        if problem.table.adaptive:
            growth = self.controller.factor(ratio, self.previous)
            growth = np.where(self.stumbled, np.minimum(growth, 1.0), growth)
            elementary = self.controller.elementary(ratio)
            self.h = np.where(idle, self.h, size * np.where(accept, growth, elementary))
            first = accept & np.isnan(self.proposal[lanes])
            self.proposal[lanes] = np.where(first, size * elementary, self.proposal[lanes])
            self.previous = np.where(accept, np.maximum(ratio, 1e-4), self.previous)
            self.stumbled = np.where(idle, self.stumbled, ~accept)

        arrived = accept & last
        stuck = ~arrived & (self.h < self.smallest) if problem.table.adaptive else ~accept & ~idle
        spent = self.accepted[lanes] + self.rejected[lanes] >= problem.max_steps
        ended = arrived | stuck | (spent if problem.table.adaptive else False)
        if ended.any():
            cause = np.where(np.isfinite(ratio), Status.STEP_TOO_SMALL, Status.NOT_FINITE)
            outcome = np.where(arrived, Status.DONE, np.where(stuck, cause, Status.TOO_MANY_STEPS))
            self.status[lanes[ended]] = outcome[ended]
            self.retire(ended)

    def retire(self, ended: Flags) -> None:
        """Let lanes leave the working batch."""
        lanes = self.lanes[ended]
        self.reached[lanes] = self.t[ended]
        stay = ~ended
        if ended.all():
            self.arrived.append((lanes, self.y))
        else:
            device = self.y[0].device
            gone = torch.from_numpy(np.flatnonzero(ended)).to(device)
            kept = torch.from_numpy(np.flatnonzero(stay)).to(device)
            self.arrived.append((lanes, tuple(part[gone] for part in self.y)))
            self.y, self.context = (
                tuple(part[kept] for part in group) for group in (self.y, self.context)
            )
            self.k = None if self.k is None else tuple(part[kept] for part in self.k)

        self.lanes, self.t, self.h = self.lanes[stay], self.t[stay], self.h[stay]
        self.previous, self.stumbled = self.previous[stay], self.stumbled[stay]

    def collect(self) -> State:
        """Final state in the order of the input; NaN where a lane failed, lest half an answer pass
        for one.
        """
        if not self.problem.individual:
            ((_, state),) = self.arrived
            failed = self.status[0] != Status.DONE
            return tuple(torch.full_like(part, torch.nan) for part in state) if failed else state

        order = torch.from_numpy(np.argsort(np.concatenate([lanes for lanes, _ in self.arrived])))
        parts = zip(*(state for _, state in self.arrived), strict=True)
        failed = torch.from_numpy(np.flatnonzero(self.status != Status.DONE))
        gathered = []
        for pieces in parts:
            part = torch.cat(pieces)[order.to(pieces[0].device)]
            gathered.append(
                part.index_fill(0, failed.to(part.device), torch.nan) if len(failed) else part
            )

        return tuple(gathered)


def replace_rows(state: State, rows: Tensor, by: State) -> State:
    """The state with some rows taken from another one."""
    return tuple(part.index_copy(0, rows, new[rows]) for part, new in zip(state, by, strict=True))
