"""The loosest tolerance whose numerical error stays within a budget: an evaluation that is as exact
as was asked for, and no more expensive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from infocnf.data import Preparation
from infocnf.errors import InputError, WorkError
from infocnf.evaluation.certificate import LARGEST_ERROR
from infocnf.evaluation.density import Evaluation, evaluate, score
from infocnf.models import InfoCNF
from infocnf.tolerances import Fixed

__all__ = ["TOLERANCES", "evaluate_within"]

TOLERANCES = tuple(10.0 ** (-0.5 * i) for i in range(2, 15))
"""Tolerances that are tried, from loose to tight: two a decade, so that the tenth of one is the one
after the next.
"""
LOOK = 100  # examples on which tolerances are tried before all are solved


def evaluate_within(
    model: InfoCNF,
    preparation: Preparation,
    x: Tensor,
    labels: Mapping[str, Tensor],
    *,
    budget: float = LARGEST_ERROR,
    batch_size: int = 500,
    progress: Callable[[int], None] = lambda count: None,
) -> Evaluation:
    """Figures of all examples at the loosest tolerance whose certificate, the mean change of log p
    under a ten times tighter solve, is within a budget on all of them.

    Arguments:
        model: The model, in evaluation mode.
        preparation: How examples become what the model reads.
        x: Examples as read.
        labels: Their labels by factor.
        budget: Largest mean numerical error in bits per dimension.
        batch_size: Examples solved at a time.
        progress: Told of the number of examples after each batch.
    """
    if not budget > 0:
        raise ValueError(f"budget must be positive, got {budget}")
    if any(block.solver["steps"] is not None for block in model.flow.blocks):
        raise InputError("a method without error estimate has no tolerance: leave out --budget")
    model.eval()
    spread = torch.linspace(0, len(x) - 1, min(LOOK, len(x))).long()
    seen: dict[float, Tensor] = {}

    def log_prob(tolerance: float) -> Tensor:
        if tolerance not in seen:
            prepared = preparation(x[spread].to(model.device), next(model.flow.parameters()).dtype)
            mine = {name: y[spread].to(model.device) for name, y in labels.items()}
            seen[tolerance] = score(model, prepared, mine, Fixed(tolerance), 0.0).log_prob
        return seen[tolerance]

    for tolerance, tenth in zip(TOLERANCES, TOLERANCES[2:], strict=False):
        change = (log_prob(tolerance) - log_prob(tenth)).abs().mean()
        if not float(change) / (model.dimensions * math.log(2.0)) <= budget:
            continue
        found = evaluate(
            model,
            preparation,
            x,
            labels,
            tolerance=tolerance,
            batch_size=batch_size,
            progress=progress,
        )
        if found.numerical_error_bits_per_dim <= budget:
            return found
    raise WorkError(
        f"no tolerance down to {TOLERANCES[-3]:.0e} has a numerical error within {budget:g} "
        "bits/dim: give a larger budget, or double precision"
    )


def in_short(found: Evaluation, budget: float) -> dict[str, Any]:
    """The figures that say what a budget bought."""
    names = "tolerance bits_per_dim bits_per_dim_standard_error error_percent nfe_forward"
    kept = [*names.split(), "numerical_error_bits_per_dim", "numerical_error_largest", "seconds"]
    return {"budget": budget, **{name: getattr(found, name) for name in kept}}
