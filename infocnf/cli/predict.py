"""``infocnf predict``: labels and likelihoods of new examples."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

import typer

from infocnf.cli.outputs import check_output
from infocnf.errors import InputError

__all__ = ["predict"]


def predict(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    source: Annotated[
        Path,
        typer.Argument(metavar="INPUT", help="Image, folder of images, .npz, .csv or .parquet."),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Table to write; printed otherwise.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Tolerance of the solver.  [default: that of the run]", show_default=False
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Examples solved at a time; changes no result.")
    ] = 500,
    exact_trace: Annotated[
        bool,
        typer.Option("--exact-trace", help="No estimated traces: slower, for single likelihoods."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of -o.")] = False,
) -> None:
    """Predict labels of new images or rows: class, probabilities, log-likelihood and NFE, as CSV.

    The log-likelihood is log p(x) in nats, averaged over the labels. Images of 256 grey levels are
    brought to those of the model.
    """
    check_output(out, overwrite)
    if tolerance is not None and not 0 < tolerance < 1:
        raise InputError(f"--tolerance must lie between 0 and 1, got {tolerance:g}")
    if batch_size < 1:
        raise InputError(f"--batch-size must be at least 1, got {batch_size}")

    import torch

    from infocnf import evaluation
    from infocnf.cli.progress import console, counting
    from infocnf.data.inputs import read_inputs
    from infocnf.files import write
    from infocnf.training import Run

    opened = Run.open(run)
    names, x = read_inputs(source, opened.facts)
    model = opened.model(exact_trace)
    with counting("predicting", len(x)) as progress:
        found = evaluation.predict(
            model,
            opened.preparation,
            torch.from_numpy(x),
            opened.facts["classes"],
            tolerance=tolerance or opened.config.evaluation.tolerance,
            batch_size=batch_size,
            progress=progress,
        )
    if found.unsolved:
        console.print(
            f"{found.unsolved} of {len(x):,} examples are so far from the data that they have no "
            "finite likelihood"
        )
    text = as_csv({"example": list(names), **found.columns})
    if out is None:
        print(text, end="")
        return
    write(out, text.encode())
    console.print(f"written: {out} ({len(x):,} rows)")


def as_csv(columns: dict[str, list[object]]) -> str:
    """Columns as a table."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        table.writerow([f"{cell:.12g}" if isinstance(cell, float) else cell for cell in row])
    return text.getvalue()
