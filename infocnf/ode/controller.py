r"""How large a step may be.

A step is accepted when the ratio of its estimated error to what the tolerance :math:`\tau` allows,

.. math:: r = \frac{1}{\tau} \max_{\text{parts}}
    \mathrm{rms}\!\left( \frac{\mathrm{error}}{1 + \max(|y|, |y'|)} \right),

is at most one (:math:`\tau` serves as absolute and as relative tolerance). The next step follows
Gustafsson's proportional-integral rule. Ratios, times and steps are NumPy arrays of shape
``(samples,)`` in double precision on the host; under shared stepping the whole batch counts as one
sample. One transfer of ``samples`` numbers per attempted step is all that leaves the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "ARRAYS",
    "PLAIN",
    "TENSORS",
    "Array",
    "Controller",
    "Flags",
    "State",
    "finite",
    "first_step",
    "peaks",
    "relative",
    "rms",
    "squares",
    "to_host",
]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
State = tuple[Tensor, ...]

# a last step may exceed its proposal by this much: 1.05**5 is less than the safety leaves free
STRETCH = 1.05


def squares(parts: Sequence[Tensor], individual: bool) -> list[Tensor]:
    """Sum of squares of each part, each ``(samples,)``, or ``()`` for one sample."""
    if not individual:
        flat = [part.reshape(-1) for part in parts]
        return [torch.dot(vector, vector) for vector in flat]
    rows = [part.reshape(len(part), -1).square() for part in parts]
    # a product with ones: summing short rows is slow in PyTorch
    return [row @ row.new_ones(row.shape[1]) for row in rows]


def peaks(sizes: Sequence[Tensor], individual: bool) -> list[Tensor]:
    """Largest of the absolute values of each part that has any, each ``(samples,)``, or ``()`` for
    one sample; NaN and infinity come through.
    """
    full = [size for size in sizes if size.numel()]
    return [size.reshape(len(size), -1).amax(1) if individual else size.amax() for size in full]


def rms(parts: Sequence[Tensor], individual: bool) -> Array:
    """Root mean square of each part, ``(parts, samples)``."""
    samples = len(parts[0]) if individual else 1
    sums = to_host(squares(parts, individual))
    means = [
        total / max(part.numel() // samples, 1) for total, part in zip(sums, parts, strict=True)
    ]
    return np.sqrt(means)


def finite(parts: Sequence[Tensor], individual: bool) -> Flags:
    """Whether all numbers of a sample are finite, ``(samples,)``."""
    sizes = [part.abs() for part in parts]
    return cast("Flags", np.isfinite(to_host(peaks(sizes, individual))).all(0))


def relative(error: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Error in units of one and the larger state, element by element; the states are given as
    absolute values.
    """
    return error / torch.maximum(before, after).add_(1.0)


def to_host(values: Sequence[Tensor]) -> Array:
    """Numbers of tensors of one shape as the rows of a double-precision array, in one transfer."""
    if values[0].ndim == 0 and values[0].device.type == "cpu":  # a few numbers, already here
        return np.array([[value.item()] for value in values])
    rows = torch.stack(list(values)).to("cpu", torch.float64).numpy()
    return rows.reshape(len(values), -1)


def quiet_log(x: Array) -> Array:
    """Logarithm of an array, of zero and NaN without a warning."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(x)


@dataclass(frozen=True)
class Numbers:
    """What a controller computes with."""

    exp: Callable[[Any], Any]
    log: Callable[[Any], Any]
    where: Callable[[Any, Any, Any], Any]
    clip: Callable[[Any, float, float], Any]  # NaN to the lower bound


ARRAYS = Numbers(
    np.exp, quiet_log, np.where, lambda x, low, high: np.minimum(np.fmax(x, low), high)
)
PLAIN = Numbers(  # of the batch as one: ten times faster than arrays of one number
    math.exp,
    lambda x: math.log(x) if x != 0.0 else -math.inf,
    lambda condition, a, b: a if condition else b,
    lambda x, low, high: low if math.isnan(x) else min(max(x, low), high),
)
TENSORS = Numbers(  # inside of compiled functions
    torch.exp,
    torch.log,
    torch.where,
    lambda x, low, high: x.nan_to_num(nan=low).clamp(low, high),
)


@dataclass(frozen=True)
class Controller:
    r"""Proportional-integral step-size control,

    .. math:: h' = h \cdot \mathrm{clip}\big(
        0.9\; r^{-(1 - 0.75\beta q)/q}\; r_{\text{prev}}^{\,\beta},\; 0.2,\; 10\big),

    with :math:`q` the order of the method. The memory of the previous ratio damps the alternation
    of accepted and rejected steps that the plain rule shows at the edge of stability.

    Arguments:
        order: Order :math:`q` of the method.
        proportional: Weight :math:`\beta` of the previous ratio; 0 gives the elementary rule.
        numbers: Whether it computes with arrays, plain numbers or tensors.
    """

    order: int
    safety: float = 0.9
    shrink: float = 0.2
    grow: float = 10.0
    proportional: float = 0.04
    numbers: Numbers = ARRAYS

    def factor(self, ratio: Any, previous: Any) -> Any:  # noqa: ANN401
        """Growth of the step after an attempt with ``ratio``; a breakdown shrinks it most."""
        integral = 1.0 / self.order - 0.75 * self.proportional
        # by logarithms: powers of many samples are slow in NumPy
        exp, log = self.numbers.exp, self.numbers.log
        growth = self.safety * exp(self.proportional * log(previous) - integral * log(ratio))
        return self.numbers.clip(growth, self.shrink, self.grow)

    def elementary(self, ratio: Any) -> Any:  # noqa: ANN401
        """Growth without memory: after a rejection, and for the proposal of a first step."""
        growth = self.safety * self.numbers.exp(self.numbers.log(ratio) / -self.order)
        return self.numbers.clip(growth, self.shrink, self.grow)

    def fit(self, step: Any, remaining: Any) -> Any:  # noqa: ANN401
        """The step that is taken: clipped to the end, and halved rather than leaving a crumb for
        the last one.
        """
        where = self.numbers.where
        halved = where(2.0 * step > remaining, 0.5 * remaining, step)
        return where(step * STRETCH >= remaining, remaining, halved)


def first_step(
    evaluate: Callable[[Array, State], State],
    y: State,
    k: State,
    tolerance: Array,
    span: float,
    order: int,
    individual: bool,
    controlled: int,
) -> Array:
    """Hairer's estimate of a first step (Hairer, Nørsett, Wanner, *Solving ODEs I*, II.4),
    ``(samples,)``, unsigned.

    It costs one evaluation of the field, at an Euler step that is itself a guess from the sizes of
    ``y`` and ``k``. A part that starts at zero, as the log-determinant does, has no size to guess
    from: the others decide.

    Arguments:
        evaluate: Field at signed steps ``(samples,)`` from the start.
        y: Initial state.
        k: Field at the initial state.
        tolerance: ``(samples,)``.
        span: Signed length of the interval.
        order: Order of the method.
        individual: Whether each sample is a sample.
        controlled: Number of leading parts of the state that are in the error norm.
    """
    scales = [part.abs().add_(1.0) for part in y[:controlled]]

    def sizes(parts: Sequence[Tensor]) -> Array:
        scaled = [part / scale for part, scale in zip(parts, scales, strict=True)]
        return rms(scaled, individual) / tolerance

    with np.errstate(all="ignore"):
        d0, d1 = sizes(y[:controlled]), sizes(k[:controlled])
        guess = np.where((d0 < 1e-5) | (d1 < 1e-5), np.inf, 0.01 * d0 / d1).min(0)
        # nothing moves: one may look further ahead, and the stages of a step look all along it
        unknown = np.where((d1 < 1e-5).all(0), 0.01 * abs(span), 1e-6)
        guess = np.minimum(np.where(np.isfinite(guess), guess, unknown), abs(span))

        ahead = evaluate(np.copysign(guess, span), y)
        bend = sizes(
            [new - old for new, old in zip(ahead[:controlled], k[:controlled], strict=True)]
        )
        largest = np.maximum(d1, bend / guess).max(0)
        estimate = (0.01 / largest) ** (1.0 / order)

    estimate = np.where(np.isnan(estimate), guess, estimate)
    return np.minimum(np.minimum(100.0 * guess, estimate), abs(span))
