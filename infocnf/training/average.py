"""A moving average of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["averaging"]


def averaging(decay: Callable[[], float]) -> Callable[[Any, Any, Any], None]:
    """Exponential moving average whose memory grows to that of ``decay`` over the first steps."""

    @torch.no_grad()
    def update(averaged: list[Tensor], current: list[Tensor], count: Tensor | int) -> None:
        keep = min(decay(), (1.0 + float(count)) / (10.0 + float(count)))
        torch._foreach_lerp_(averaged, current, 1.0 - keep)

    return update
