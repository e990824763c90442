"""The loosest tolerance whose numerical error stays within a budget: an evaluation that is as exact
as was asked for, and no more expensive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from infocnf.data import Preparation, spread_over
from infocnf.errors import InputError, WorkError
from infocnf.evaluation.certificate import LARGEST_ERROR
from infocnf.evaluation.density import Evaluation, evaluate, score
from infocnf.models import InfoCNF
from infocnf.tolerances import Fixed

__all__ = ["TOLERANCES", "evaluate_within"]

TOLERANCES = tuple(10.0 ** (-0.5 * i) for i in range(2, 12))
"""Tolerances that are tried, from loose to tight."""
LOOK = 100  # examples on which tolerances are tried before all are solved
REFERENCE = 1e-6  # at which these examples are solved to compare
# (not at a tenth of the tolerance: where both are loose, both may take the same steps)


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
    """Figures of all examples at the loosest tolerance that keeps log p within a budget: on some of
    them compared with a solve at 1e-6, and on all by the certificate, the mean change under a ten
    times tighter solve.

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
    some, mine = spread_over(x, labels, LOOK)
    prepared = preparation(some.to(model.device), next(model.flow.parameters()).dtype)
    mine = {name: y.to(model.device) for name, y in mine.items()}

    def log_prob(tolerance: float) -> Tensor:
        return score(model, prepared, mine, Fixed(tolerance), 0.0).log_prob

    exact = log_prob(REFERENCE)
    for tolerance in TOLERANCES:
        change = (log_prob(tolerance) - exact).abs().mean()
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
        f"no tolerance down to {TOLERANCES[-1]:.0e} has a numerical error within {budget:g} "
        "bits/dim: give a larger budget, or double precision"
    )


def in_short(found: Evaluation, budget: float) -> dict[str, Any]:
    """The figures that say what a budget bought."""
    names = "tolerance bits_per_dim bits_per_dim_standard_error error_percent nfe_forward"
    kept = [*names.split(), "numerical_error_bits_per_dim", "numerical_error_largest", "seconds"]
    return {"budget": budget, **{name: getattr(found, name) for name in kept}}
