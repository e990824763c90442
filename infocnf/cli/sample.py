"""``infocnf sample``: pictures or rows of a chosen class."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infocnf.cli.options import check_output
from infocnf.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from infocnf.runs import Run

__all__ = ["sample"]

LARGEST = 1_000_000
MOST_STEPS = 10_000


def sample(
    run: Annotated[
        Path, typer.Argument(help="Run directory, or digits: the model of the package.")
    ],
    label: Annotated[str | None, typer.Option(help="Class to draw; all in turn otherwise.")] = None,
    number: Annotated[int, typer.Option("-n", "--number", help="How many.")] = 100,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Picture .png, array .npz, or table .csv.  [default: samples in RUN, or here]",
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Below 1: more typical, less varied.")] = 1.0,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Equal steps of the midpoint rule, two evaluations each: 10 to 25 are a quick "
            "look.  [default: as exact as the model's tolerance]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed, other samples.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of -o.")] = False,
) -> None:
    """Draw samples from a model, as a grid of images by class or as rows."""
    if not 1 <= number <= LARGEST:
        raise InputError(f"-n must be at least 1 and at most {LARGEST:,}, got {number}")
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed must be a whole number from 0 to 2**63 - 1, got {seed}")
    if not 0 <= temperature < 100:
        raise InputError(f"--temperature must not be negative or huge, got {temperature:g}")
    if steps is not None and not 1 <= steps <= MOST_STEPS:
        raise InputError(f"--steps must be at least 1 and at most {MOST_STEPS:,}, got {steps}")
    check_output(out, overwrite, (".png", ".npz", ".csv"))

    from infocnf.cli.options import console, counting
    from infocnf.files import write
    from infocnf.reports.samples import draw_samples, draw_series, main_factor
    from infocnf.runs import Run
    from infocnf.runs.manifest import seal_if_free

    opened = Run.open(run)
    model, preparation = opened.any_model(), opened.preparation
    name = main_factor(model)
    classes = opened.facts["classes"].get(name, []) if name else []
    chosen = index_of(label, classes)
    folder = run if run.is_dir() else Path()  # one of the package's is not written to
    pictured = preparation.is_images or opened.is_series
    path = out or folder / f"samples.{'png' if pictured else 'csv'}"
    if out is None and folder != run:
        check_output(path, overwrite)
    if path.suffix == ".png" and not pictured and preparation.columns == 1:
        raise InputError("a picture of samples needs two columns: use -o FILE.csv")
    if steps is not None and opened.is_series:
        raise InputError(
            "--steps is for images and rows, and this model is of series: leave it out"
        )
    draw: Any = (
        partial(draw_series, span=opened.facts["span"])
        if opened.is_series
        else partial(draw_samples, steps=steps)
    )
    with counting("sampling", number) as progress:
        samples = draw(
            model,
            preparation,
            number,
            chosen,
            temperature=temperature,
            seed=seed,
            progress=progress,
        )
    labels = [
        classes[i % len(classes) if chosen is None else chosen]
        for i in range(number if classes else 0)
    ]
    if path.suffix == ".png":
        content = picture_of(samples, classes if chosen is None else [], labels, opened)
    else:
        content = table_of(path, samples, name or "label", labels, opened)
    write(path, content)
    if path.resolve().parent == opened.folder.resolve():
        seal_if_free(opened.folder)
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


def table_of(path: Path, samples: Tensor, name: str, labels: list[str], run: Run) -> bytes:
    """Samples and their labels as ``.npz`` or ``.csv``; series as a long table, times first."""
    import io

    import numpy as np

    from infocnf.files import to_csv

    values = samples.cpu().numpy()
    if path.suffix == ".npz":
        buffer = io.BytesIO()
        named = {"y": np.array(labels)} if labels else {}
        if run.is_series:
            named["times"] = values[0, :, 0]
            values = values[..., 1:]
        np.savez_compressed(buffer, x=values, **named)  # type: ignore[arg-type]
        return buffer.getvalue()
    columns = run.facts["columns"] or [f"x{i}" for i in range(values[0].size)]
    own = [run.config.data.series or "series"] if run.is_series else []
    rows = (
        [*([i] if own else []), *row.tolist(), *labels[i : i + 1]]
        for i, sample in enumerate(values)
        for row in (sample if run.is_series else [sample.reshape(-1)])
    )
    return to_csv([*own, *columns, *([name] if labels else [])], rows).encode()


def picture_of(samples: Tensor, classes: list[str], labels: list[str], run: Run) -> bytes:
    """Samples as a grid of images, as dots, or as lines."""
    from infocnf.reports import class_grid, figures
    from infocnf.reports.series import plot_series

    if run.preparation.is_images:
        return figures.grid(class_grid(samples, classes, run.preparation.levels))
    if run.is_series:
        return plot_series(samples.cpu().numpy(), labels, run.facts["columns"])
    columns = run.facts["columns"] or ["x0", "x1"]
    return figures.scatter({"Samples": (samples.cpu().numpy(), labels)}, columns)
