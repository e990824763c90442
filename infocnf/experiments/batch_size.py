"""Evaluation at learned tolerances in batches of many sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from infocnf.evaluation.calibration import judge, mean_of
from infocnf.evaluation.driver import Driver, take
from infocnf.evaluation.likelihood import logits_of, score
from infocnf.experiments.analysis import COLOURS, Results, band
from infocnf.experiments.arms import LEARNED, learned, learned_per_sample
from infocnf.experiments.declaration import Column, Experiment, Probe, Scale
from infocnf.objectives import bits_per_dim
from infocnf.reports.figures import tidy
from infocnf.runs import Run


def measure(run: Run, scale: Scale) -> dict[str, Any]:
    """Error, bits per dimension and mean tolerance of the test set, by size of the batch."""
    model, preparation = run.model(), run.preparation
    x, labels = run.data().examples("test")
    found: dict[str, Any] = {}
    for size in scale.batches:
        columns = Driver(model, preparation, size).collect(
            x,
            lambda some, rows: score(
                model,
                some,
                take(labels, rows, model.device),
                model.policy,
                preparation.log_scale,
            ),
        )
        bits = bits_per_dim(columns["log_prob"], model.dimensions, preparation.levels)
        metrics, _ = judge(model, logits_of(columns), labels)
        found[f"error {size}"] = mean_of(metrics, "error_percent")
        found[f"bits {size}"] = float(bits.mean())
        found[f"tolerance {size}"] = 10.0 ** float(columns["tolerances"].log10().mean())
    return found


def draw(results: Results) -> dict[str, Figure]:
    """Error, bits per dimension and tolerance against the size of the batch."""
    figure = Figure(figsize=(12.6, 3.4), layout="constrained")
    sizes = results.scale.batches
    panels = (
        ("error", "Test error", "percent"),
        ("bits", "Test likelihood", "bits per dimension"),
        ("tolerance", "Tolerance", "geometric mean"),
    )
    for axes, (name, title, label) in zip(figure.subplots(1, 3), panels, strict=True):
        for i, (arm, runs) in enumerate(results.runs.items()):
            values = [[o.probes["batches"][f"{name} {size}"] for o in runs] for size in sizes]
            band(axes, sizes, np.array(values), COLOURS[i], arm)
        tidy(axes, title, "batch size in evaluation", label)
        axes.set_xscale("log")
    figure.axes[2].set_yscale("log")
    figure.axes[0].legend(frameon=False, fontsize=8)
    return {"figure": figure}


def columns(scale: Scale) -> tuple[Column, ...]:
    """Error and bits per dimension at every size."""
    return tuple(
        Column(f"batches_{name} {size}", f"{title}, {size}", form)
        for name, title, form in (("error", "error %", ".2f"), ("bits", "bits/dim", ".5f"))
        for size in scale.batches
    )


BATCH_SIZE = Experiment(
    name="batch-size",
    title="Evaluation with learned tolerances, in batches of many sizes",
    claim="The paper: evaluation with learned tolerances is sensitive to large batches (a bug of "
    "the reference, which divided by images that it had not looked at).",
    arms=(learned("small", LEARNED), learned_per_sample("small")),
    columns=columns,
    draw=draw,
    probes=(Probe("batches", measure),),
)
