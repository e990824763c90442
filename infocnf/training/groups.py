"""Two groups of weights: the flow's, and those of a tolerance policy, whose gradients are much
noisier. They share neither learning rate, nor decay, nor the norm to which gradients are clipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from infocnf.models import InfoCNF, LatentODE
from infocnf.training.config import Recipe

__all__ = ["average_gradients", "parameter_groups", "set_rates"]


def parameter_groups(model: InfoCNF | LatentODE) -> list[dict[str, Any]]:
    """The groups as an optimiser wants them; rates and decay are set at every step."""
    policy = list(model.policy.parameters())
    known = {id(parameter) for parameter in policy}
    flow = [p for p in model.parameters() if id(p) not in known and p.requires_grad]
    return [{"params": group, "weight_decay": 0.0} for group in (flow, policy) if group]


def set_rates(
    groups: Sequence[dict[str, Any]], recipe: Recipe, gates: float, factor: float
) -> None:
    """Rates of a step: the recipe's and that of gates, times a factor; gates do not decay."""
    flow, *policy = groups
    flow.update(
        lr=recipe.learning_rate * factor,
        weight_decay=recipe.weight_decay,
        orthogonal=recipe.optimizer == "muon",
    )
    for group in policy:
        group["lr"] = gates * factor


def average_gradients(
    groups: Sequence[dict[str, Any]], examples: float, clip: float | None
) -> float:
    """Turn sums over examples into means, each group clipped by itself; returns the norm of the
    flow's, or what is not finite.
    """
    norms = []
    for group in groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad /= examples
        norm = torch.nn.utils.clip_grad_norm_(group["params"], clip or math.inf)
        norms.append(float(norm))
    return norms[0] if all(map(math.isfinite, norms)) else math.nan
