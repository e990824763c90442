"""Tiny runs for the tests of training and of the command."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import torch

from infocnf.runs import checkpoints, read_config
from infocnf.runs.config import Config

TINY = [
    "data.limit=48",
    "data.validation=24",
    "model.hidden=[6]",
    "model.training_method=bosh3",
    "tolerance=1e-2",
    "training.epochs=2",
    "training.batch_size=16",
    "training.checkpoint_minutes=0",
    "trainer.threads=1",
    "evaluation.tolerance=1e-3",
]


def tiny(*settings: str, preset: str = "digits-likelihood") -> Config:
    return read_config(preset, [*TINY, *settings])


def last(folder: Path) -> dict[str, Any]:
    return checkpoints.read(folder / "checkpoints" / "last.ckpt")


def equal(a: Any, b: Any) -> bool:
    """Whether two values of checkpoints are the same, bit for bit, in everything but times."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a if k != "seconds")
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def same_state(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Whether two checkpoints are the same in all that training depends on."""
    names = ("weights", "optimizer", "blocks", "sums", "rollback", "epoch", "batch", "steps")
    return all(equal(one[name], two[name]) for name in names)


def rows(folder: Path) -> list[dict[str, str]]:
    """The rows of metrics.csv but for times."""
    text = (folder / "metrics.csv").read_text()
    found = csv.DictReader(io.StringIO(text))
    return [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in found]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of the model in the last checkpoint."""
    return last(folder)["weights"]["model"]


class Watcher:
    """An observer that is told before and after each step, too."""

    def started(self, training: Any) -> None:
        step = training.step

        def watched() -> None:
            self.before(training)
            step()
            self.after(training)

        training.step = watched

    def before(self, training: Any) -> None: ...

    def after(self, training: Any) -> None: ...

    def stepped(self, training: Any) -> None: ...

    def ended(self) -> None: ...
