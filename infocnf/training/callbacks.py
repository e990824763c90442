"""What happens around the steps: figures are written, checkpoints kept, signals heard."""

from __future__ import annotations

import csv
import io
import logging
import os
import signal
import threading
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from infocnf.errors import StoppedError, WorkError
from infocnf.files import write
from infocnf.models import InfoCNF
from infocnf.training.account import spread
from infocnf.training.checkpoints import BEST, LAST, read
from infocnf.training.module import FlowModule

__all__ = ["Journal", "Keeper"]

log = logging.getLogger("infocnf")
Row = dict[str, float | int | str | None]


class Journal(Callback):
    """One row of figures per epoch, in ``metrics.csv`` and in the run's loggers.

    The rows are part of the checkpoint, so that a resumed run has each epoch once.

    Arguments:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the row of this epoch and count anew."""
        assert isinstance(pl_module, FlowModule)
        row = row_of(trainer, pl_module)
        self.rows.append(row)
        if row["samples_failed"]:
            log.warning(
                "%d examples of epoch %d could not be solved and were left out",
                row["samples_failed"],
                row["epoch"],
            )
        pl_module.epoch.sums.clear()
        pl_module.skipped = 0
        if trainer.is_global_zero:
            write(self.path, to_csv(self.rows).encode())
            figures = {n: float(v) for n, v in row.items() if isinstance(v, int | float)}
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """The rows so far."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The rows of the checkpoint."""
        self.rows = list(state_dict["rows"])


def row_of(trainer: Trainer, module: FlowModule) -> Row:
    """The figures of an epoch, by the names of the run directory's format."""
    train, validation = module.epoch, module.validation
    row: Row = {"epoch": trainer.current_epoch + 1, "step": trainer.global_step}
    if module.plan.matched:
        row["stage"] = module.stage.name
        row["validation_one_step_error_percent"] = validation.mean("one_step_error_percent")
    for name in module.plan.names:
        row[f"train_{name}"] = train.mean(name)
        row[f"validation_{name}"] = validation.mean(name)
        if module.config.training.watch_test:
            row[f"test_{name}"] = module.watched.mean(name)
    row["nfe_forward"], row["nfe_backward"] = train.mean("forward"), train.mean("backward")
    row["steps_rejected"] = train.mean("rejected")
    row["validation_nfe_forward"] = validation.mean("forward")
    for block in range(len(module.blocks)):
        row[f"tolerance_{block}"] = train.mean(f"tolerance_{block}")
        row[f"tolerance_spread_{block}"] = spread(train, block)
        row[f"nfe_{block}"] = train.mean(f"nfe_{block}")
    row.update(module.model.policy.report(train.means()))
    row["samples_failed"] = int(train.sums.get("failed", 0.0))
    row["validation_samples_failed"] = int(validation.sums.get("failed", 0.0))
    row["steps_skipped"] = module.skipped
    row["learning_rate"] = module.optimizer.param_groups[0]["lr"]
    row["seconds"] = train.sums.get("seconds", 0.0)
    if trainer.world_size > 1:
        mine = torch.tensor(module.waited, device=module.device)
        waits = cast("Tensor", module.all_gather(mine)).flatten()
        row["seconds_waited"] = float(waits.max())
        row["rank_that_waited_longest"] = int(waits.argmax())
        module.waited = 0.0
    return row


def rows_of(checkpoint: Path) -> list[Row]:
    """The rows of the epochs that a checkpoint has behind it."""
    return read(checkpoint)["callbacks"]["Journal"]["rows"]


def to_csv(rows: list[Row]) -> str:
    """Rows as a table with a header; a missing figure is empty."""
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


class Keeper(Callback):
    """Checkpoints after each epoch, every so many minutes and on request; the best model.

    Arguments:
        folder: The run directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.best: list[float] | None = None
        self.improved = False
        self.saved = monotonic()
        self.asked = 0
        self.before: dict[signal.Signals, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have a checkpoint from the beginning, and listen to signals."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self.ask)
        if not trainer.global_step:
            self.save(trainer)
        elif self.improved and trainer.is_global_zero:  # it was killed before this was done
            self.copy_best(Path(str(trainer.ckpt_path)))
        self.improved = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Stop after this step; at once when asked again."""
        self.asked += 1
        if self.asked > 1:
            os._exit(1)
        log.warning("stopping after this step; once more to stop at once")

    def on_train_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Say what this process would have."""
        assert isinstance(pl_module, FlowModule)
        minutes = (monotonic() - self.saved) / 60.0
        pl_module.votes["save"] = minutes >= pl_module.config.training.checkpoint_minutes
        pl_module.votes["stop"] = self.asked > 0

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Save or stop where any process wanted it; after an epoch's last step its end does."""
        assert isinstance(pl_module, FlowModule)
        last = batch_idx + 1 == pl_module.order.steps
        if not last and any(pl_module.decided.values()):
            self.save(trainer)
        if not last and pl_module.decided["stop"]:
            raise StoppedError(
                f"stopped in epoch {trainer.current_epoch + 1}, step {batch_idx + 1}"
            )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the model where it is the best so far."""
        assert isinstance(pl_module, FlowModule)
        loss, failed = pl_module.validation.mean("loss"), pl_module.validation.sums.get("failed", 0)
        if loss is None:
            return
        score = [failed, loss]  # a model that solves fewer examples is worse, whatever their loss
        self.improved = self.best is None or score < self.best
        if self.improved:
            self.best = score
            if pl_module.config.training.select == "best":
                self.keep(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, and stop where any process wanted it."""
        assert isinstance(pl_module, FlowModule)
        final = trainer.current_epoch + 1 == pl_module.plan.epochs
        if final and pl_module.config.training.select == "last":
            self.keep(trainer, pl_module)
        self.save(trainer)
        if self.improved and trainer.is_global_zero:
            self.copy_best(self.folder / "checkpoints" / LAST)
        self.improved = False
        if final and self.best is None and pl_module.config.training.select == "best":
            raise WorkError(
                "no validation example could be solved, so there is no model to keep: loosen "
                "tolerance and evaluation.tolerance, or raise model.max_steps"
            )
        if pl_module.decided["stop"] and not final:
            raise StoppedError(f"stopped after epoch {trainer.current_epoch + 1}")

    def save(self, trainer: Trainer) -> None:
        """Write the last checkpoint."""
        trainer.save_checkpoint(self.folder / "checkpoints" / LAST)
        self.saved = monotonic()

    def copy_best(self, source: Path) -> None:
        """Keep a checkpoint as the best one, too."""
        write(self.folder / "checkpoints" / BEST, source.read_bytes())

    def keep(self, trainer: Trainer, module: FlowModule) -> None:
        """Write the model for others to use."""
        if trainer.is_global_zero:
            if isinstance(module.evaluated, InfoCNF):
                module.evaluated.read = module.read
            module.evaluated.save_pretrained(self.folder / "model")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the signals back."""
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before.clear()

    def state_dict(self) -> dict[str, Any]:
        """The best score so far, and whether this is its checkpoint."""
        return {"best": self.best, "improved": self.improved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Undo :meth:`state_dict`."""
        self.best, self.improved = state_dict["best"], state_dict["improved"]
