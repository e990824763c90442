"""Several processes: how they are launched, which one leads, and what they add up.

Lightning Fabric launches processes and knows torchrun and SLURM. PyTorch's wrapper would average
gradients over processes after each backward pass; a step here is made of several, over shares that
differ where examples failed, and must be given up everywhere alike. So sums are added up once per
step.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from infocnf.errors import InputError
from infocnf.runs.config import TrainerConfig

__all__ = [
    "add_gradients",
    "add_sums",
    "launch",
    "mean_first_steps",
    "part",
    "same_weights",
    "total_of",
]


def launch(config: TrainerConfig) -> Fabric:
    """The processes of a run, launched; this is one of them."""
    world = config.devices * config.nodes
    if config.threads or world > 1:
        share = max(1, (os.cpu_count() or 1) // config.devices)
        torch.set_num_threads(config.threads or share)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning_fabric")
        try:
            fabric = Fabric(
                accelerator=config.accelerator,
                devices=config.devices,
                num_nodes=config.nodes,
                strategy="ddp" if world > 1 else "auto",
            )
        except (ValueError, RuntimeError) as error:
            raise InputError(
                f"trainer.accelerator={config.accelerator}, devices={config.devices}: {error}"
            ) from None
        fabric.launch()
    return fabric


def part(fabric: Fabric) -> None:
    """Let the processes part once all have finished."""
    if fabric.world_size > 1:
        fabric.barrier()
        torch.distributed.destroy_process_group()


def same_weights(fabric: Fabric, model: nn.Module) -> None:
    """Begin with the same weights everywhere."""
    if fabric.world_size > 1:
        for tensor in model.state_dict().values():
            torch.distributed.broadcast(tensor, src=0)


def add_sums(
    fabric: Fabric, sums: dict[str, float], names: Sequence[str], device: torch.device
) -> dict[str, float]:
    """Sums by name over all processes, of what any of them has."""
    known = [[sums.get(name, 0.0), float(name in sums)] for name in names]
    total = total_of(fabric, torch.tensor(known, dtype=torch.float64, device=device))
    return {
        name: value for name, (value, count) in zip(names, total.tolist(), strict=True) if count
    }


def add_gradients(fabric: Fabric, groups: Sequence[dict[str, Any]]) -> None:
    """Add the gradients of all processes up in each of them; a parameter for which none has a
    gradient keeps none, so that the optimiser leaves it alone.
    """
    for group in groups:
        parameters = group["params"]
        known = [float(parameter.grad is not None) for parameter in parameters]
        gradients = [gradient_of(parameter).flatten() for parameter in parameters]
        flat = total_of(fabric, torch.cat([*gradients, gradients[0].new_tensor(known)]))
        *parts, counts = flat.split([*(len(part) for part in gradients), len(parameters)])
        for parameter, part, count in zip(parameters, parts, counts.tolist(), strict=True):
            parameter.grad = part.view_as(parameter) if count else None


def gradient_of(parameter: Tensor) -> Tensor:
    """The gradient, zero where none arrived."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def mean_first_steps(
    fabric: Fabric, steps: Sequence[float | None], device: torch.device
) -> list[float | None]:
    """Mean over processes of the steps they propose, so that all begin alike."""
    known = [[step or 0.0, float(step is not None)] for step in steps]
    total = total_of(fabric, torch.tensor(known, dtype=torch.float64, device=device))
    return [step / count if count else None for step, count in total.tolist()]


def total_of(fabric: Fabric, values: Tensor) -> Tensor:
    """Sum over all processes."""
    return cast("Tensor", fabric.all_reduce(values, reduce_op="sum"))
