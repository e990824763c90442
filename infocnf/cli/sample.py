"""``infocnf sample``: pictures or rows of a chosen class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infocnf.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from infocnf.training import Run

__all__ = ["sample"]


def sample(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    label: Annotated[str | None, typer.Option(help="Class to draw; all in turn otherwise.")] = None,
    number: Annotated[int, typer.Option("-n", "--number", help="How many.")] = 100,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Picture .png, array .npz, or table .csv.  [default: samples in RUN]",
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Below 1: more typical, less varied.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Another seed, other samples.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of -o.")] = False,
) -> None:
    """Draw samples from a model, as a grid of images by class or as rows."""
    if number < 1:
        raise InputError(f"-n must be at least 1, got {number}")
    if not 0 <= temperature < 100:
        raise InputError(f"--temperature must not be negative or huge, got {temperature:g}")
    if out is not None and out.suffix not in (".png", ".npz", ".csv"):
        raise InputError(f"-o must end in .png, .npz or .csv, got {out}")
    if out is not None and out.exists() and not overwrite:
        raise InputError(f"{out} exists: replace it with --overwrite, or choose another name")

    from infocnf.cli.progress import console
    from infocnf.files import write
    from infocnf.reports.samples import draw_samples, main_factor
    from infocnf.training import Run

    opened = Run.open(run)
    model, preparation = opened.model(), opened.preparation
    name = main_factor(model)
    classes = opened.facts["classes"].get(name, []) if name else []
    chosen = index_of(label, classes)
    samples = draw_samples(model, preparation, number, chosen, temperature=temperature, seed=seed)
    path = out or run / f"samples.{'png' if preparation.is_images else 'csv'}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, content_of(path, samples, classes if chosen is None else [], opened))
    console.print(f"written: {path}")


def index_of(label: str | None, classes: list[str]) -> int | None:
    """Number of a class."""
    if label is None:
        return None
    if not classes:
        raise InputError(f"--label {label}: this model knows no classes, leave it out")
    if label not in classes:
        raise InputError(f"--label must be one of {', '.join(classes)}, got {label!r}")
    return classes.index(label)


def content_of(path: Path, samples: Tensor, classes: list[str], run: Run) -> bytes:
    """Samples in the format that a file's name asks for."""
    import io

    import numpy as np

    from infocnf.reports import class_grid, figures

    preparation = run.preparation
    values = samples.cpu().numpy()
    if path.suffix == ".npz":
        buffer = io.BytesIO()
        np.savez_compressed(buffer, x=values)
        return buffer.getvalue()
    if path.suffix == ".csv":
        columns = run.facts["columns"] or [f"x{i}" for i in range(values[0].size)]
        text = io.StringIO()
        rows = values.reshape(len(values), -1)
        np.savetxt(text, rows, "%.9g", ",", header=",".join(columns), comments="")
        return text.getvalue().encode()
    if preparation.is_images:
        return figures.grid(class_grid(samples, classes, preparation.levels))
    if values.shape[1] < 2:
        raise InputError("a picture of samples needs two columns: use -o FILE.csv")
    return figures.scatter(values, values[:0], run.facts["columns"] or ["x0", "x1"])
