"""Sums over examples, from which the figures of an epoch are made, over all processes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from infocnf.flows.bijection import BlockSolve
from infocnf.models import Categorical, InfoCNF, LatentODE
from infocnf.models.labels import is_missing
from infocnf.objectives import Matching, Objective, Variational

__all__ = [
    "Account",
    "account_names",
    "account_of",
    "account_of_matching",
    "spread",
    "validation_of_matching",
]


@dataclass
class Account:
    """Sums by name; a figure is a sum divided by the number of examples."""

    sums: dict[str, float] = field(default_factory=dict)

    def add(self, other: dict[str, float]) -> None:
        """Add sums to these."""
        for name, value in other.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    @property
    def examples(self) -> float:
        """Number of examples that were solved."""
        return self.sums.get("examples", 0.0)

    def mean(self, name: str) -> float | None:
        """The figure of a name; None where nothing was counted."""
        if not self.examples or name not in self.sums:
            return None
        return self.sums[name] / self.examples

    def means(self) -> dict[str, float | None]:
        """All figures."""
        return {name: self.mean(name) for name in self.sums if name not in ("examples", "failed")}


def account_of(
    model: InfoCNF | LatentODE, objective: Objective | Variational, labels: dict[str, Tensor]
) -> dict[str, float]:
    """Sums over the examples of an objective; call it after the backward pass, which has counts of
    its own.
    """
    count = len(objective.losses)
    sums = {
        "examples": float(count),
        "loss": total(objective.losses),
        **{name: total(values) for name, values in objective.parts.items()},
        **wrong_answers(model, objective.answers, labels),
        **objective.sums,
    }
    for name in ("forward", "backward", "rejected"):
        value = getattr(objective.stats, name).double()
        sums[name] = float(value.sum() if value.ndim else value * count)
    for solve in objective.stats.solves:
        sums.update(account_of_block(solve, count))
    return sums


def account_of_matching(
    model: InfoCNF, matching: Matching, labels: dict[str, Tensor]
) -> dict[str, float]:
    """Sums over the examples of a step of matching, whose answers were read in one step."""
    count, read = float(len(matching.losses)), matching.read
    evaluations = count + len(read)
    wrong = wrong_answers(model, matching.answers, {name: y[read] for name, y in labels.items()})
    each = count / max(len(read), 1)  # as if all had been read
    return {
        "examples": count,
        "loss": total(matching.losses),
        "matching": total(matching.error),
        "cross_entropy": each * total(matching.cross_entropy),
        "forward": evaluations,
        "backward": evaluations,
        **{name: each * value for name, value in wrong.items()},
    }


def validation_of_matching(sums: dict[str, float], alone: bool) -> dict[str, float]:
    """What a validation keeps of matching: its loss would not compare with the exact objective's,
    and the label's error is the exact one's where there is one.
    """
    kept = ("examples", "matching", "error_percent", "squared_error") if alone else ("matching",)
    found = {name: value for name, value in sums.items() if name in kept}
    read = {"one_step_error_percent": sums["error_percent"]} if "error_percent" in sums else {}
    return {**found, **read}


def account_names(model: InfoCNF | LatentODE) -> list[str]:
    """What is added up over processes."""
    fixed = (
        "examples loss bits_per_dim matching cross_entropy forward backward rejected failed stop "
        "save one_step_error_percent elbo mse kl bits_per_dim_marginal"
    )
    kinds = [isinstance(model.factors[name], Categorical) for name in model.code.heads]
    errors = ["error_percent"] * any(kinds) + ["squared_error"] * (not all(kinds))
    blocks = range(len(model.blocks))
    each = [f"{name}_{block}" for name in BLOCK for block in blocks]
    return [*fixed.split(), *errors, *each, *model.policy.figures]


def total(values: Tensor) -> float:
    """Sum in double precision."""
    return float(values.detach().double().sum())


def total_of_known(values: Tensor, labels: Tensor) -> float:
    """Sum over examples whose label is known, as if all were."""
    known = ~is_missing(labels)
    return total(values[known]) * len(values) / max(int(known.sum()), 1)


def wrong_answers(
    model: InfoCNF | LatentODE, answers: dict[str, Tensor], labels: dict[str, Tensor]
) -> dict[str, float]:
    """Percentage of wrong classes, summed over examples and averaged over categorical factors; the
    squared error of real ones.
    """
    wrong, squares = [], []
    for name, answer in answers.items():
        factor = model.factors[name]
        found, label = factor.read(answer.detach()), labels[name]
        if isinstance(factor, Categorical):
            wrong.append(100.0 * total_of_known((found != label).double(), label))
        else:
            squares.append(total_of_known((found - label).square(), label))
    sums = {"error_percent": sum(wrong) / len(wrong)} if wrong else {}
    return {**sums, **({"squared_error": sum(squares) / len(squares)} if squares else {})}


BLOCK = ("tolerance", "log_tolerance", "squared_log_tolerance", "nfe")
"""Sums of each block, with its index behind."""


def account_of_block(solve: BlockSolve, count: int) -> dict[str, float]:
    """Sums over examples of what was chosen for one block, and what it took."""
    tolerance = torch.as_tensor(solve.choice.tolerance, dtype=torch.float64)
    log = tolerance.log10()
    values = (tolerance, log, log.square(), solve.solution.stats.forward.double())
    return {
        f"{name}_{solve.block}": float(value.mean()) * count
        for name, value in zip(BLOCK, values, strict=True)
    }


def spread(account: Account, block: int) -> float | None:
    """Standard deviation of the log10 tolerance of a block."""
    mean = account.mean(f"log_tolerance_{block}")
    square = account.mean(f"squared_log_tolerance_{block}")
    return None if mean is None or square is None else max(square - mean**2, 0.0) ** 0.5
