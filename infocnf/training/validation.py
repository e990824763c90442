"""What a model in training is worth by examples that it does not learn from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from infocnf.models import InfoCNF
from infocnf.objectives import Objective, Variational
from infocnf.training.account import (
    Account,
    account_of,
    account_of_matching,
    validation_of_matching,
)
from infocnf.training.failures import solvable

if TYPE_CHECKING:
    from infocnf.training.module import FlowModule

__all__ = ["validate"]


def validate(module: FlowModule, part: str, piece: slice) -> dict[str, float]:
    """Sums over some examples: of the exact objective where this epoch has it, of matching where it
    goes on.
    """
    x, labels = module.take(part, torch.arange(piece.start, piece.stop))
    model, kept, sums = module.evaluated.eval(), torch.arange(len(x)), Account()

    def attempt(kept: Tensor, stepping: str | None) -> Objective | Variational:
        return module.plan.exact(
            model,
            module.preparation(x[kept], module.model_dtype),
            {name: y[kept] for name, y in labels.items()},
            tolerance=module.config.evaluation.tolerance,
        )

    if module.validates:
        objective, kept = solvable(attempt, len(x))
        sums.add({"failed": float(len(x) - len(kept))})
        if objective is None:
            return sums.sums
        labels = {name: y[kept] for name, y in labels.items()}
        sums.add(account_of(model, objective, labels))
    if (
        isinstance(model, InfoCNF)
        and module.plan.matched
        and (module.validates or module.stage.name == "matching")
    ):
        prepared = module.preparation(x[kept], module.model_dtype)
        read = account_of_matching(model, module.plan.matching(model, prepared, labels), labels)
        sums.add(validation_of_matching(read, alone=not module.validates))
    return sums.sums
