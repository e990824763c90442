"""What the processes of a run add up: figures, gradients, and the steps their solves begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.strategies import Strategy
from torch import Tensor

__all__ = ["add_figures", "add_gradients", "mean_first_steps"]


def add_figures(
    strategy: Strategy, sums: dict[str, float], names: Sequence[str], device: torch.device
) -> dict[str, float]:
    """Sums by name over all processes; those that a process does not have are zero there."""
    values = [sums.get(name, 0.0) for name in names]
    total = torch.tensor(values, dtype=torch.float64, device=device)
    total = strategy.reduce(total, reduce_op="sum")
    return dict(zip(names, total.tolist(), strict=True))


def add_gradients(strategy: Strategy, groups: Sequence[dict[str, Any]]) -> None:
    """Add the gradients of all processes up in each of them."""
    for group in groups:
        parameters = group["params"]
        flat = torch.cat([gradient_of(parameter).flatten() for parameter in parameters])
        flat = strategy.reduce(flat, reduce_op="sum")
        parts = flat.split([parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)


def gradient_of(parameter: Tensor) -> Tensor:
    """The gradient, zero where none arrived."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def mean_first_steps(
    strategy: Strategy, steps: Sequence[float | None], device: torch.device
) -> list[float | None]:
    """Mean over processes of the steps they propose, so that all begin alike."""
    known = [[step or 0.0, float(step is not None)] for step in steps]
    total = torch.tensor(known, dtype=torch.float64, device=device)
    total = strategy.reduce(total, reduce_op="sum")
    return [step / count if count else None for step, count in total.tolist()]
