"""``infocnf predict``: labels and likelihoods of new examples."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infocnf.cli.options import BatchSize, ExactTrace, Tolerance, check_output, check_solving
from infocnf.errors import InputError

if TYPE_CHECKING:
    from infocnf.models import PartitionedModel

__all__ = ["predict"]


def predict(
    run: Annotated[
        Path, typer.Argument(help="Run directory, or digits: the model of the package.")
    ],
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="INPUT", help="Images, folder of images, .npz, .csv or .parquet."),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Table to write; printed otherwise.")
    ] = None,
    tolerance: Tolerance = None,
    batch_size: BatchSize = None,
    exact_trace: ExactTrace = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of -o.")] = False,
) -> None:
    """Predict labels of new images, rows or series: class, probabilities, log-likelihood, NFE.

    The log-likelihood is log p(x) in nats, averaged over the labels; of series a lower bound.
    Outlier
    scores: percentile (percent of test examples that are less likely) and typicality
    (distance from their mean, in nats) once the run was evaluated, entropy of the label's
    probabilities, distance of its code from that of any label.
    Images are brought to the size and the grey levels of the model: their middle, scaled.
    The digits of the package are white on black.
    """
    check_output(out, overwrite)
    check_solving(tolerance, batch_size)

    import numpy as np
    import torch

    from infocnf import evaluation
    from infocnf.cli.evaluate import refuse
    from infocnf.cli.options import console, counting
    from infocnf.data.inputs import read_inputs
    from infocnf.data.labels import wanted_labels
    from infocnf.data.series import read_new_series
    from infocnf.evaluation import ReferenceLikelihood
    from infocnf.evaluation.series import predict_series
    from infocnf.runs import Run

    opened = Run.open(run)
    config = opened.config.evaluation
    if opened.is_series:
        refuse(exact_trace=exact_trace)
        if len(sources) > 1:
            raise InputError(f"{sources[1]}: give one file of series at a time")
        own, label = opened.config.data, wanted_labels(opened.config.data.label)
        names, x = read_new_series(sources[0], opened.facts["columns"], own.series, own.time, label)
        model: PartitionedModel = opened.latent_ode()
        work: Any = partial(predict_series, draws=opened.config.series.draws)
    else:
        inputs = [read_inputs(source, opened.facts) for source in sources]
        names = [name for some, _ in inputs for name in some]
        x = np.concatenate([examples for _, examples in inputs])
        reference = ReferenceLikelihood.told(opened.evaluation)
        model = opened.model(exact_trace)
        work = partial(evaluation.predict, reference=reference)
    with counting("predicting", len(x)) as progress:
        size = batch_size or config.batch_size
        found = work(
            evaluation.Driver(model, opened.preparation, size, progress),
            torch.from_numpy(x),
            opened.facts["classes"],
            tolerance=tolerance or config.tolerance,
        )
    if found.unsolved:
        console.print(
            f"{found.unsolved} of {len(x):,} examples are so far from the data that they have no "
            "finite likelihood"
        )
    deliver({"example": [*names], **found.columns}, out)


def deliver(columns: dict[str, list[object]], out: Path | None) -> None:
    """Print the table, or write it where it was asked for."""
    from infocnf.cli.options import console
    from infocnf.files import to_csv, write

    text = to_csv(columns, zip(*columns.values(), strict=True))
    if out is None:
        print(text, end="")
        return
    write(out, text.encode())
    console.print(f"written: {out} ({len(columns['example']):,} rows)")
