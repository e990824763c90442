"""``infocnf report``: one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(run: Annotated[Path, typer.Argument(help="Run directory.")]) -> None:
    """Write report.html: figures, curves, samples, mistakes, counterfactuals, configuration.

    The file needs no other and no network. Evaluate first to have the test figures in it.
    """
    from infocnf.cli.console import console
    from infocnf.reports import write_report
    from infocnf.training import Run

    console.print(f"written: {write_report(Run.open(run, writing=True))}")
