"""What commands share: the terminal, bars over long work, options, and where they may write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from infocnf.errors import InputError

__all__ = [
    "BatchSize",
    "ExactTrace",
    "Tolerance",
    "adding_up",
    "check_output",
    "check_solving",
    "console",
    "counting",
]

console = Console(highlight=False, soft_wrap=True, markup=False)


@contextmanager
def counting(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar over a number of examples."""
    columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task(text, total=total)
        yield lambda count: bars.advance(task, count)


@contextmanager
def adding_up(title: str, total: int) -> Iterator[Callable[[str, int, int], None]]:
    """Progress of many things at once: a bar over all of them, or a line for each that is done."""
    done: dict[str, int] = {}
    with counting(title, total) as advance:

        def told(name: str, now: int, of: int) -> None:
            before = done.get(name, 0)
            done[name] = max(now, before)
            advance(done[name] - before)
            if not console.is_terminal and now == of > before:
                console.print(f"{name}: {of} epochs; {sum(done.values())} of {total} in all")

        yield told


def check_output(path: Path | None, overwrite: bool, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse a file that cannot be written or would replace one unasked."""
    if path is None:
        return
    if suffixes and path.suffix not in suffixes:
        raise InputError(f"-o must end in {' or '.join(suffixes)}, got {path}")
    if path.is_dir():
        raise InputError(f"-o {path} is a folder: name a file")
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists: replace it with --overwrite, or choose another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"-o {path} cannot be written ({error.strerror})") from None
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"-o {path} cannot be written: its folder is read-only")


Tolerance = Annotated[
    float | None,
    typer.Option(help="Tolerance of the solver.  [default: that of the run]", show_default=False),
]
BatchSize = Annotated[
    int | None, typer.Option(help="Examples solved at a time; changes no result.")
]
ExactTrace = Annotated[
    bool,
    typer.Option("--exact-trace", help="No estimated traces: slower, for single likelihoods."),
]


def check_solving(tolerance: float | None, batch_size: int | None) -> None:
    """Refuse values that no solve can have."""
    if tolerance is not None and not 0 < tolerance < 1:
        raise InputError(f"--tolerance must lie between 0 and 1, got {tolerance:g}")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"--batch-size must be at least 1, got {batch_size}")
