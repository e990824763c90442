"""One Runge-Kutta step: combinations of slopes, and the stages they lead to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from infocnf.ode.controller import Array, State
from infocnf.ode.tableaus import Tableau

__all__ = ["Field", "StepSize", "advance", "combine", "stage_times", "step_size", "take_step"]

Field = Callable[[Tensor, State, State], State]
"""A field in normal form: time, state and context (tensors with one row per sample) to slopes."""

StepSize = float | Tensor
"""Signed step of the batch, or of each sample ``(batch,)``."""


def stage_times(table: Tableau, t: Array, h: Array, like: Tensor, individual: bool) -> Tensor:
    """Times of all stages, ``(stages, lanes)``, or ``(stages,)`` where the step is shared."""
    times = torch.from_numpy(t + np.multiply.outer(table.c, h)).to(like)
    return times if individual else times[:, 0]


def step_size(h: Array, like: Tensor, individual: bool) -> StepSize:
    """The step as :func:`combine` wants it."""
    return torch.from_numpy(h).to(like) if individual else float(h[0])


def combine(h: StepSize, weights: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    r"""The increment :math:`h \sum_j w_j k_j` of one part of the state."""
    scale = h if isinstance(h, float) else 1.0
    total = None
    for weight, slope in zip(weights, slopes, strict=False):
        if total is None and weight != 0.0:
            total = slope * (scale * weight)
        elif total is not None and weight != 0.0:
            total.add_(slope, alpha=scale * weight)
    if total is None:
        return torch.zeros_like(slopes[0])

    return (
        total
        if isinstance(h, float)
        else total * h.to(total.dtype).reshape(-1, *[1] * (total.ndim - 1))
    )


def advance(y: State, h: StepSize, weights: Sequence[float], slopes: Sequence[State]) -> State:
    r"""The state :math:`y + h \sum_j w_j k_j`."""
    if not slopes:
        return y
    parts = zip(y, zip(*slopes, strict=True), strict=True)
    return tuple(combine(h, weights, part_slopes).add_(part) for part, part_slopes in parts)


def take_step(
    field: Field, table: Tableau, times: Tensor, h: StepSize, y: State, k: State, context: State
) -> tuple[State, list[State]]:
    """Where a step from ``y`` with first slope ``k`` arrives, and the slopes of all its stages."""
    slopes, reached = [k], y
    for i in range(1, table.stages):
        reached = advance(y, h, table.a[i], slopes)
        slopes.append(field(times[i], reached, context))
    if not table.fsal:
        reached = advance(y, h, table.b, slopes)

    return reached, slopes
