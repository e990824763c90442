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

from infocnf.errors import InputError
from infocnf.files import write

__all__ = [
    "BEST",
    "DAMAGED",
    "LAST",
    "PREVIOUS",
    "copy_best",
    "latest",
    "put_aside",
    "read",
    "save",
]

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
DAMAGED = "damaged.ckpt"
FORMAT = 2
log = logging.getLogger("infocnf")


def save(checkpoint: dict[str, Any], path: Path) -> None:
    """Write a checkpoint whole or not at all; the last one becomes the previous one."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **checkpoint}, buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.replace(path.with_name(PREVIOUS))  # until the next line is done, it is the last
    write(path, buffer.getvalue())


def copy_best(path: Path) -> None:
    """Keep a checkpoint as the best one, too."""
    write(path.with_name(BEST), path.read_bytes())


def read(path: Path) -> dict[str, Any]:
    """A checkpoint, on the CPU."""
    found = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(
            f"{path} was written by another version, which cannot be resumed: its model in model/ "
            "can be used, or train again with --overwrite"
        )
    return found


def intact(path: Path) -> bool:
    """Whether a checkpoint is whole, by the check sums of its archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile, EOFError, ValueError, RuntimeError):
        return False


def put_aside(folder: Path) -> None:
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
