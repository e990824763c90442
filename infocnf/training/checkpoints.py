"""Checkpoints that survive: written at once, the one before kept, damaged ones recognised.

Loading runs no code: only tensors and plain values are read.
"""

from __future__ import annotations

import io
import logging
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import CheckpointIO

from infocnf.errors import InputError
from infocnf.files import write

__all__ = ["BEST", "LAST", "PREVIOUS", "SafeCheckpoints", "latest", "read", "set_aside"]

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
DAMAGED = "damaged.ckpt"
log = logging.getLogger("infocnf")


class SafeCheckpoints(CheckpointIO):
    """How Lightning's checkpoints are written and read."""

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | Path,
        storage_options: object = None,
    ) -> None:
        """Write a checkpoint whole or not at all; the last one becomes the previous one."""
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name == LAST and path.exists():
            path.replace(path.with_name(PREVIOUS))  # until the next line is done, it is the last
        write(path, buffer.getvalue())

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: object = None,
        weights_only: bool | None = True,
    ) -> dict[str, Any]:
        """A checkpoint of tensors and plain values."""
        return read(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint."""
        Path(path).unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any]:
    """A checkpoint, on the CPU."""
    return torch.load(path, map_location="cpu", weights_only=True)


def intact(path: Path) -> bool:
    """Whether a checkpoint is whole, by the check sums of its archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile, EOFError, ValueError, RuntimeError):
        return False


def set_aside(folder: Path) -> None:
    """Put a damaged last checkpoint where it will not take the place of the one before it."""
    if (folder / LAST).exists() and not intact(folder / LAST):
        (folder / LAST).replace(folder / DAMAGED)


def latest(folder: Path) -> Path:
    """The last checkpoint that is whole; a warning where that is not the last one."""
    present = [name for name in (LAST, PREVIOUS) if (folder / name).exists()]
    for name in present:
        if intact(folder / name):
            if name == PREVIOUS:
                what = "is damaged" if LAST in present else "is missing"
                log.warning("%s %s: going on from the one before it", folder / LAST, what)
            return folder / name
    raise InputError(
        f"{folder} has no checkpoint that can be read: start again with --overwrite"
        if present
        else f"{folder} has no checkpoint: nothing to resume"
    )
