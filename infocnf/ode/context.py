"""What a solve is: its problem, how it may end, and what it leaves behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infocnf.ode.controller import Array, State
from infocnf.ode.step import Field
from infocnf.ode.tableaus import Tableau

__all__ = ["Counts", "Listener", "Result", "SolveContext", "Status", "Step"]

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
        keep: Bytes that graphs of stages may take, for their gradient.
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
    keep: int = 0
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
