"""What is solved, how far it has come, and how it ended: the nouns of the solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from infocnf.ode.controller import Array, Flags, State
from infocnf.ode.steps import Field
from infocnf.ode.tableaus import Tableau

__all__ = ["Arrival", "Counts", "Lanes", "Listener", "Problem", "Status", "Step"]

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
        drift: The field without the slopes of the integrals, for stages that have no weight.
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
    drift: Field | None = None

    def field_of(self, stage: int) -> Field:
        """The field as a stage of a step needs it."""
        if self.drift is not None and self.table.silent[stage]:
            return self.drift
        return self.field

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


Listener = Callable[[Step, Tensor, Tensor, State], None]
"""Hears of accepted steps: step, flat state before it ``(N,)``, increments of its stages ``(stages,
N)``, which are valid during the call only, and context; all of the rows that it moved.
"""


@dataclass
class Lanes:
    """The lanes still on their way, ``(lanes,)`` each."""

    index: Counts
    t: Array
    h: Array  # next step to try, unsigned
    tolerance: Array
    previous: Array  # ratio of the last accepted step
    stumbled: Flags  # whether the last attempt was rejected
    proposal: Array  # first step that the next similar solve should try; NaN until a step came off
    accepted: Counts
    rejected: Counts

    def keep(self, stay: Flags) -> Lanes:
        """Some of them."""
        return Lanes(*(getattr(self, field.name)[stay] for field in fields(self)))


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
