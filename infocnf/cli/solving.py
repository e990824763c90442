"""Options of the commands that solve a model for examples."""

from __future__ import annotations

from typing import Annotated

import typer

from infocnf.errors import InputError

__all__ = ["BatchSize", "ExactTrace", "Tolerance", "check_solving"]

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
