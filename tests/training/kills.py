"""Run as a program by test_kills.py: trains a tiny run, takes a copy of its directory at every
moment at which a kill could break a write off, and resumes each of them.

Processes are forked from this one, in which nothing has been computed yet, because starting Python
and PyTorch takes longer than the run.
"""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits

from infocnf import files
from infocnf.errors import InputError
from infocnf.training import begin, resume
from tests.runs.tiny import tiny

SETTINGS = (
    "data.limit=24",
    "model.hidden=[4]",
    "model.blocks=1",
    "matching.epochs=2",
    "matching.batch_size=16",
    "matching.ema=0.5",
    "training.epochs=3",
    "training.learning_rate=0.5",  # so that the best epoch is not the last
    "training.ema=0.5",
    "training.validate_every=1",
    "tolerance={name='learned', start=1e-3}",
)


def in_child(work: Callable[[], object]) -> None:
    """Do something in a process of its own."""
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def train(folder: Path, copies: Path) -> None:
    """Train, and copy the run at every moment of a write: with half of a draft, with a whole one
    that has not taken its place, and when it has.
    """
    fsync, replace, count = os.fsync, Path.replace, 0

    def copy(half: Path | None = None) -> None:
        nonlocal count
        shutil.copytree(folder, copies / f"{count:03}", dirs_exist_ok=True)
        if half is not None:
            os.truncate(copies / f"{count:03}" / half, (folder / half).stat().st_size // 2)
        count += 1

    def synced(descriptor: int) -> None:
        copy(Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(folder.resolve()))
        fsync(descriptor)

    def replaced(source: Path, target: Path) -> Path:
        copy()
        found = replace(source, target)
        copy()
        return found

    files.os.fsync = synced  # type: ignore[attr-defined,assignment]
    Path.replace = replaced  # type: ignore[method-assign,assignment]
    begin(tiny(*SETTINGS, preset="digits-matching"), folder)


def go_on(folder: Path) -> None:
    """Resume, or begin again where there is nothing to resume yet."""
    try:
        resume(folder)
    except InputError:
        begin(tiny(*SETTINGS, preset="digits-matching"), folder, overwrite=True)


def main(folder: Path, every: int) -> None:
    """Train, and resume every so many of the copies; the others are removed."""
    load_digits()  # what takes time is done before processes are forked
    in_child(lambda: train(folder / "whole", folder / "killed"))
    for number, killed in enumerate(sorted((folder / "killed").iterdir())):
        if number % every:
            shutil.rmtree(killed)
        else:
            in_child(lambda killed=killed: go_on(killed))  # type: ignore[misc]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
