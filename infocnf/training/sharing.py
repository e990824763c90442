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
    """Sums by name over all processes, of what any of them has."""
    known = [[sums.get(name, 0.0), float(name in sums)] for name in names]
    total = torch.tensor(known, dtype=torch.float64, device=device)
    total = strategy.reduce(total, reduce_op="sum")
    return {
        name: value for name, (value, count) in zip(names, total.tolist(), strict=True) if count
    }


def add_gradients(strategy: Strategy, groups: Sequence[dict[str, Any]]) -> None:
    """Add the gradients of all processes up in each of them; a parameter for which none has a
    gradient keeps none, so that the optimiser leaves it alone.
    """
    for group in groups:
        parameters = group["params"]
        known = [float(parameter.grad is not None) for parameter in parameters]
        gradients = [gradient_of(parameter).flatten() for parameter in parameters]
        flat = torch.cat([*gradients, gradients[0].new_tensor(known)])
        flat = strategy.reduce(flat, reduce_op="sum")
        *parts, counts = flat.split([*(len(part) for part in gradients), len(parameters)])
        for parameter, part, count in zip(parameters, parts, counts.tolist(), strict=True):
            parameter.grad = part.view_as(parameter) if count else None


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
