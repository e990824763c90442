"""The distribution of learned tolerances in every block, on training and test examples."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from infocnf.evaluation.driver import Driver
from infocnf.evaluation.likelihood import score
from infocnf.experiments.analysis import COLOURS, Results
from infocnf.experiments.arms import learned
from infocnf.experiments.declaration import Column, Experiment, Probe, Scale
from infocnf.models import InfoCNF
from infocnf.reports.figures import tidy
from infocnf.runs import Run
from infocnf.runs.build import build_model

PARTS = ("train", "test", "untrained")


def measure(run: Run, scale: Scale) -> dict[str, Any]:
    """log10 of the tolerances of each batch, block by block; of the untrained gates, too."""
    config, data = run.config, run.data()
    fresh = build_model(config, data).eval()
    assert isinstance(fresh, InfoCNF)
    found: dict[str, Any] = {}
    for part, model in (("train", run.model()), ("test", run.model()), ("untrained", fresh)):
        x, _ = data.examples("train" if part == "train" else "test")
        logs = tolerances_of(model, run, x, config.training.batch_size)
        found[f"{part} logs"] = logs
        found[part] = 10.0 ** statistics.mean(value for block in logs for value in block)
        found[f"{part} spread"] = statistics.mean(statistics.pstdev(block) for block in logs)
    return found


def tolerances_of(model: InfoCNF, run: Run, x: Tensor, size: int) -> list[list[float]]:
    """log10 of the tolerances of whole batches, ``[block][batch]``."""
    whole = x[: max(len(x) // size, 1) * size]
    columns = Driver(model, run.preparation, size).collect(
        whole, lambda some, _: score(model, some, {}, model.policy, 0.0)
    )
    batches = columns["tolerances"].log10().split(size)
    return torch.stack([batch.mean(0) for batch in batches], 1).tolist()


def draw(results: Results) -> dict[str, Figure]:
    """Boxes of all seeds' batches, three for each block."""
    arms = list(results.runs)
    figure = Figure(figsize=(6.0 * len(arms), 3.6), layout="constrained")
    for axes, arm in zip(figure.subplots(1, len(arms), squeeze=False)[0], arms, strict=True):
        found = [result.probes["tolerances"] for result in results.runs[arm]]
        blocks = range(len(found[0]["train logs"]))
        for i, part in enumerate(PARTS):
            values = [
                10.0 ** np.concatenate([np.array(one[f"{part} logs"][b]) for one in found])
                for b in blocks
            ]
            places = [b + 0.25 * (i - 1) for b in blocks]
            box = axes.boxplot(values, positions=places, widths=0.2, patch_artist=True, sym=".")
            for patch in box["boxes"]:
                patch.set_facecolor(COLOURS[i])
            axes.plot([], [], color=COLOURS[i], lw=6, label=part)
        axes.set_xticks(list(blocks), [str(block) for block in blocks])
        axes.set_yscale("log")
        tidy(axes, arm, "block", "tolerance")
    figure.axes[0].legend(frameon=False, fontsize=8)
    return {"figure": figure}


TOLERANCES = Experiment(
    name="tolerances",
    title="Learned tolerances, block by block",
    claim="The paper: they are distributed alike on training and test data (its figure equals that "
    "of gates which learned nothing, as the reference's could not).",
    arms=(learned("small", "small batches"), learned("large", "large batches")),
    columns=tuple(
        Column(f"tolerances_{part}{more}", f"{part}{title}", form)
        for more, title, form in (("", ", mean", ".1e"), (" spread", ", spread of log10", ".3f"))
        for part in PARTS
    ),
    draw=draw,
    probes=(Probe("tolerances", measure),),
    caption="Geometric means over blocks and batches, without the noise by which gates explore; "
    "the spread is that of batches within a block.",
)
