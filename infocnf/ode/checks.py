"""What cannot be solved is refused before any work, by name and with the remedy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from infocnf.ode.controller import State
from infocnf.ode.gradients import GRADIENTS

__all__ = [
    "STEPPINGS",
    "check_choices",
    "check_context",
    "check_interval",
    "check_positive",
    "check_state",
    "check_steps",
]

STEPPINGS = ("shared", "individual")


def check_choices(stepping: str, gradient: str) -> bool:
    """Whether stepping is individual; an error for an unknown choice."""
    if stepping not in STEPPINGS:
        raise ValueError(f"stepping must be one of {', '.join(STEPPINGS)}, got {stepping!r}")
    if gradient not in GRADIENTS:
        raise ValueError(f"gradient must be one of {', '.join(GRADIENTS)}, got {gradient!r}")
    return stepping == "individual"


def check_state(y: State, passengers: int, by_row: bool) -> None:
    """Refuse what cannot be integrated."""
    if not y or not 0 <= passengers < len(y):
        raise ValueError(
            f"a state of {len(y)} tensors cannot have {passengers} passengers: "
            "one must be controlled"
        )
    for part in y:
        if not part.is_floating_point():
            raise ValueError(f"the state must be of a floating-point type, got {part.dtype}")
    if by_row and len({part.shape[:1] for part in y}) != 1:
        raise ValueError(
            f"tensors of the state differ in batch size: {[tuple(part.shape) for part in y]}"
        )
    if by_row and not y[0].ndim:
        raise ValueError("individual stepping needs a batch dimension, got a state of shape ()")


def check_context(context: Sequence[Tensor], batch: int | None) -> None:
    """Under individual stepping each sample needs a row of every context tensor."""
    for tensor in context:
        if batch is not None and tuple(tensor.shape[:1]) != (batch,):
            raise ValueError(f"context must have {batch} rows, got shape {tuple(tensor.shape)}")


def check_interval(interval: tuple[float, float]) -> tuple[float, float]:
    """Initial and final time, finite."""
    start, end = (float(time) for time in interval)
    if not (np.isfinite(start) and np.isfinite(end)):
        raise ValueError(f"the interval must be finite, got {(start, end)}")
    return start, end


def check_steps(method: str, adaptive: bool, steps: int | None) -> None:
    """A number of steps belongs to the methods that cannot choose their own."""
    if adaptive and steps is not None:
        raise ValueError(
            f"{method} chooses its own steps: leave out steps={steps}, "
            "or use euler, midpoint or rk4"
        )
    if not adaptive and (steps is None or steps < 1 or steps != int(steps)):
        raise ValueError(
            f"{method} needs the number of steps, a positive integer, got steps={steps}"
        )


def check_positive(
    name: str, value: float | Tensor, lanes: int, individual: bool
) -> NDArray[np.float64]:
    """A positive number for each lane, given as one for all or one for each sample."""
    values = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    values = values.astype(np.float64)
    if values.ndim and not (individual and values.shape == (lanes,)):
        needed = f"() or ({lanes},)" if individual else "() under shared stepping"
        raise ValueError(f"{name} must have shape {needed}, got {values.shape}")
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(f"{name} must be positive and finite, got {values.min()}")
    return np.broadcast_to(values, (lanes,))
