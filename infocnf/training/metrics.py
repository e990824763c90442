"""Sums over examples, from which the metrics of an epoch are made, over all processes; and the
table of epochs, ``metrics.csv``.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from infocnf.files import write
from infocnf.flows.bijection import BlockSolve
from infocnf.matching import Matching
from infocnf.models import Categorical, PartitionedModel
from infocnf.models.base import is_missing
from infocnf.objectives import Objective, Variational
from infocnf.training.distributed import total_of

if TYPE_CHECKING:
    from infocnf.training.loop import Training

__all__ = ["CSVLog", "MetricSums", "Row", "sum_names", "sums_of", "validation_of_matching"]

Row = dict[str, float | int | str | None]
BLOCK = ("tolerance", "log_tolerance", "squared_log_tolerance", "nfe")
"""Sums of each block, with its index behind."""


@dataclass
class MetricSums:
    """Sums by name; a metric is a sum divided by the number of examples."""

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
        """The metric of a name; None where nothing was counted."""
        if not self.examples or name not in self.sums:
            return None
        return self.sums[name] / self.examples

    def means(self) -> dict[str, float | None]:
        """All metrics."""
        return {name: self.mean(name) for name in self.sums if name not in ("examples", "failed")}

    def tolerance_spread(self, block: int) -> float | None:
        """Standard deviation of the log10 tolerance of a block."""
        mean = self.mean(f"log_tolerance_{block}")
        square = self.mean(f"squared_log_tolerance_{block}")
        return None if mean is None or square is None else max(square - mean**2, 0.0) ** 0.5


def sums_of(
    model: PartitionedModel,
    objective: Objective | Variational | Matching,
    labels: dict[str, Tensor],
) -> dict[str, float]:
    """Sums over the examples of an objective; call it after the backward pass, which has counts of
    its own.
    """
    if isinstance(objective, Matching):
        return sums_of_matching(model, objective, labels)
    count = len(objective.losses)
    sums = {
        "examples": float(count),
        "loss": total(objective.losses),
        **{name: total(values) for name, values in objective.parts.items()},
        **label_errors(model, objective.logits, labels),
        **objective.sums,
    }
    for name in ("forward", "backward", "rejected"):
        value = getattr(objective.stats, name).double()
        sums[name] = float(value.sum() if value.ndim else value * count)
    for solve in objective.stats.solves:
        sums.update(sums_of_block(solve, count))
    return sums


def sums_of_matching(
    model: PartitionedModel, matching: Matching, labels: dict[str, Tensor]
) -> dict[str, float]:
    """Sums over the examples of a step of matching, whose labels were read in one step."""
    count, read = float(len(matching.losses)), matching.read
    evaluations = count + len(read)
    wrong = label_errors(model, matching.logits, {name: y[read] for name, y in labels.items()})
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


def sum_names(model: PartitionedModel) -> list[str]:
    """What is added up over processes."""
    fixed = (
        "examples loss bits_per_dim matching cross_entropy forward backward rejected failed stop "
        "save one_step_error_percent elbo mse kl bits_per_dim_marginal"
    )
    kinds = [isinstance(model.factors[name], Categorical) for name in model.code.heads]
    errors = ["error_percent"] * any(kinds) + ["squared_error"] * (not all(kinds))
    blocks = range(len(model.blocks))
    each = [f"{name}_{block}" for name in BLOCK for block in blocks]
    return [*fixed.split(), *errors, *each, *model.policy.metrics]


def total(values: Tensor) -> float:
    """Sum in double precision."""
    return float(values.detach().double().sum())


def total_of_known(values: Tensor, labels: Tensor) -> float:
    """Sum over examples whose label is known, as if all were."""
    known = ~is_missing(labels)
    return total(values[known]) * len(values) / max(int(known.sum()), 1)


def label_errors(
    model: PartitionedModel, logits: dict[str, Tensor], labels: dict[str, Tensor]
) -> dict[str, float]:
    """Percentage of wrong classes, summed over examples and averaged over categorical factors; the
    squared error of real ones.
    """
    wrong, squares = [], []
    for name, found in logits.items():
        factor, label = model.factors[name], labels[name]
        predicted = factor.predict(found.detach())
        if isinstance(factor, Categorical):
            wrong.append(100.0 * total_of_known((predicted != label).double(), label))
        else:
            squares.append(total_of_known((predicted - label).square(), label))
    sums = {"error_percent": sum(wrong) / len(wrong)} if wrong else {}
    return {**sums, **({"squared_error": sum(squares) / len(squares)} if squares else {})}


def sums_of_block(solve: BlockSolve, count: int) -> dict[str, float]:
    """Sums over examples of what was chosen for one block, and what it took."""
    tolerance = torch.as_tensor(solve.choice.tolerance, dtype=torch.float64)
    log = tolerance.log10()
    values = (tolerance, log, log.square(), solve.solution.stats.forward.double())
    return {
        f"{name}_{solve.block}": float(value.mean()) * count
        for name, value in zip(BLOCK, values, strict=True)
    }


class CSVLog:
    """One row of metrics per epoch, in ``metrics.csv`` and for TensorBoard.

    The rows are part of the checkpoint, so that a resumed run has each epoch once.

    Arguments:
        folder: The run directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows, self.board = folder, [], None  # type: tuple[Path, list[Row], Any]

    def write(self, training: Training) -> Row:
        """Write the row of this epoch."""
        row = row_of(training)
        self.rows.append(row)
        if training.is_leader:
            self.save()
            numbers = {n: float(v) for n, v in row.items() if isinstance(v, int | float)}
            self.tensorboard.log_metrics(numbers, step=training.steps)
        return row

    def save(self) -> None:
        """Write all rows."""
        write(self.folder / "metrics.csv", to_csv(self.rows).encode())

    @property
    def tensorboard(self) -> Any:  # noqa: ANN401
        """The writer of TensorBoard's events, made when it is first used."""
        if self.board is None:
            from lightning_fabric.loggers.tensorboard import TensorBoardLogger

            self.board = TensorBoardLogger(self.folder, name="", version="")
        return self.board

    def close(self) -> None:
        """Write what is still in memory."""
        if self.board is not None:
            self.board.finalize("success")


def row_of(training: Training) -> Row:
    """The metrics of an epoch, by the names of the run directory's format."""
    train, validation, plan = training.sums, training.validation, training.plan
    row: Row = {"epoch": training.epoch + 1, "step": training.steps}
    if plan.matched:
        row["stage"] = training.stage.name
        row["validation_one_step_error_percent"] = validation.mean("one_step_error_percent")
    for name in plan.names:
        row[f"train_{name}"] = train.mean(name)
        row[f"validation_{name}"] = validation.mean(name)
        if training.config.training.watch_test:
            row[f"test_{name}"] = training.watched.mean(name)
    row["nfe_forward"], row["nfe_backward"] = train.mean("forward"), train.mean("backward")
    row["steps_rejected"] = train.mean("rejected")
    row["validation_nfe_forward"] = validation.mean("forward")
    for block in range(len(training.model.blocks)):
        row[f"tolerance_{block}"] = train.mean(f"tolerance_{block}")
        row[f"tolerance_spread_{block}"] = train.tolerance_spread(block)
        row[f"nfe_{block}"] = train.mean(f"nfe_{block}")
    row.update(training.model.policy.report(train.means()))
    row["samples_failed"] = int(train.sums.get("failed", 0.0))
    row["validation_samples_failed"] = int(validation.sums.get("failed", 0.0))
    row["steps_skipped"] = training.rollback.skipped
    row["learning_rate"] = training.optimizer.param_groups[0]["lr"]
    row["seconds"] = train.sums.get("seconds", 0.0)
    if training.fabric.world_size > 1:
        waits = torch.zeros(training.fabric.world_size, device=training.device)
        waits[training.fabric.global_rank] = training.waited
        waits = total_of(training.fabric, waits)
        row["seconds_waited"] = float(waits.max())
        row["rank_that_waited_longest"] = int(waits.argmax())
        training.waited = 0.0
    return row


def to_csv(rows: list[Row]) -> str:
    """Rows as a table with a header; a missing metric is empty."""
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()
