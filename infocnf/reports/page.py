"""The report of a run: one HTML file that needs no other."""

from __future__ import annotations

import base64
import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from infocnf.data import Dataset, Preparation
from infocnf.errors import InputError
from infocnf.evaluation.likelihood import LARGEST_ERROR
from infocnf.files import write
from infocnf.models import InfoCNF, LatentODE, PartitionedModel
from infocnf.reports import figures, series
from infocnf.reports.samples import class_grid, counterfactual_grid, draw_samples, main_factor
from infocnf.runs import Run

__all__ = ["read_metrics", "write_report"]

SHOWN = (
    "epoch",
    "train_matching",
    "train_elbo",
    "validation_elbo",
    "train_mse",
    "validation_mse",
    "train_bits_per_dim",
    "validation_bits_per_dim",
    "train_error_percent",
    "validation_error_percent",
    "nfe_forward",
    "nfe_backward",
    "samples_failed",
    "seconds",
)


@dataclass(frozen=True)
class Part:
    """A part of the page: a title, what is to be seen, and pictures."""

    title: str
    text: str
    pictures: Sequence[bytes]

    @property
    def images(self) -> list[str]:
        """The pictures as text."""
        return [base64.b64encode(picture).decode() for picture in self.pictures]


def write_report(run: Run) -> Path:
    """Write ``report.html`` into a run directory."""
    from jinja2 import Environment, PackageLoader

    facts, evaluation, rows = facts_of(run), run.evaluation, read_metrics(run)
    model, data = run.any_model(), run.data()
    if isinstance(model, LatentODE):
        parts = series_parts(model, data, run.preparation, rows)
    else:
        assert isinstance(model, InfoCNF)
        parts = [*pictures_of(model, data, run.preparation), progress(rows)]
    if evaluation:
        parts += [*mistakes(evaluation, data), *trust(evaluation)]
    page = Environment(loader=PackageLoader("infocnf.reports", "."), autoescape=True)
    text = page.get_template("page.html.j2").render(
        title=f"{kind(model)} on {data.name}",
        summary=summary(model, data, len(rows)),
        run=run.folder,
        evaluation=evaluation,
        metrics=headline_of(model)(evaluation) if evaluation else [],
        warnings=warnings_of(evaluation) if evaluation and isinstance(model, InfoCNF) else [],
        sections=parts,
        table=last_rows(rows),
        config=(run.folder / "config.toml").read_text(),
        facts=facts,
    )
    path = run.folder / "report.html"
    write(path, text.encode())
    return path


def last_rows(rows: list[dict[str, float | None]]) -> dict[str, Any]:
    """The end of the metrics of training, in those columns that it has."""
    last = rows[-8:]
    names = [name for name in SHOWN if any(row.get(name) is not None for row in last)]
    return {"names": names, "rows": [[cell(row[name]) for name in names] for row in last]}


def kind(model: PartitionedModel) -> str:
    """The paper's name of a model."""
    if isinstance(model, LatentODE):
        return "Partitioned latent ODE" if model.code.heads else "Latent ODE"
    supervised, unsupervised = model.code.sizes
    return "CNF" if not supervised else "CCNF" if not unsupervised else "InfoCNF"


def summary(model: PartitionedModel, data: Dataset, epochs: int) -> str:
    """What the run is, in a sentence."""
    parameters = sum(p.numel() for p in model.parameters())
    sizes = {part: len(indices) for part, indices in data.parts.items()}
    return (
        f"{parameters:,} parameters in {blocks_in_words(model)}, trained for "
        f"{epochs} epochs on {sizes['train']:,} examples; {sizes['validation']:,} for validation, "
        f"{sizes['test']:,} for the test."
    )


def blocks_in_words(model: PartitionedModel) -> str:
    """How many continuous blocks there are."""
    count = len(model.blocks)
    return "one continuous block" if count == 1 else f"{count} continuous blocks"


def read_metrics(run: Run) -> list[dict[str, float | None]]:
    """The rows of ``metrics.csv``."""
    try:
        with (run.folder / "metrics.csv").open() as stream:
            rows = list(csv.DictReader(stream))
        if not rows or not rows[0].get("epoch"):
            raise ValueError("it has no rows of epochs")
        return [
            {k: float(v) if v else None for k, v in row.items() if k != "stage"} for row in rows
        ]
    except (OSError, ValueError, TypeError) as error:  # a row with more cells than columns, too
        raise InputError(
            f"{run.folder / 'metrics.csv'} cannot be read ({error}): train for an epoch first"
        ) from None


def headline_of(
    model: PartitionedModel,
) -> Callable[[Mapping[str, Any]], list[dict[str, str]]]:
    """What makes the metrics everyone looks for."""
    return series_headline if isinstance(model, LatentODE) else headline


def series_headline(evaluation: Mapping[str, Any]) -> list[dict[str, str]]:
    """The metrics of series."""
    against = "the truth" if evaluation["truth"] else "observations"
    found = [
        (f"rmse within the window, against {against}", evaluation["rmse_fit"], "{:.3f}"),
        ("rmse after the window", evaluation["rmse_after"], "{:.3f}"),
        ("rmse before the window", evaluation["rmse_before"], "{:.3f}"),
        ("wrong labels", evaluation["error_percent"], "{:.2f} %"),
        *(
            (
                f"rmse of {name} (the mean: {values['rmse_of_the_mean']:.3g})",
                values["rmse"],
                "{:.3g}",
            )
            for name, values in evaluation["factors"].items()
            if "rmse" in values
        ),
        ("lower bound of log p(x), nats", evaluation["elbo"], "{:.1f}"),
        ("field evaluations per series", evaluation["nfe_forward"], "{:.0f}"),
    ]
    return [{"name": n, "value": form.format(v)} for n, v, form in found if v is not None]


def series_parts(
    model: LatentODE,
    data: Dataset,
    preparation: Preparation,
    rows: list[dict[str, float | None]],
) -> list[Part]:
    """Pictures of series and of their training."""
    text = (
        "Series of the test set: what was observed, and the model's path through the window and on "
        "both sides of it. Thin lines are draws of the hidden state."
    )
    return [
        Part("Trajectories", text, [series.draw_trajectories(model, data, preparation)]),
        Part("Training", "Metrics of each epoch.", [series.series_curves(rows)]),
    ]


def headline(evaluation: Mapping[str, Any]) -> list[dict[str, str]]:
    """The metrics everyone looks for."""
    one_step, parts = evaluation.get("one_step", {}), evaluation.get("numerical_error", {})
    read = preferred(evaluation)
    once, flow = one_step.get("error_percent"), evaluation["error_percent"]
    errors = [
        ("test error, labels read in one step", once, "{:.2f} %"),
        ("test error" if once is None else "test error, read through the flow", flow, "{:.2f} %"),
    ]
    found = [
        *(errors if evaluation.get("readout") == "one_step" else errors[::-1]),
        ("bits per dimension, labels given", evaluation["bits_per_dim"], "{:.3f}"),
        ("bits per dimension, over all labels", evaluation["bits_per_dim_marginal"], "{:.3f}"),
        ("numerical error, bits/dim", evaluation["numerical_error_bits_per_dim"], "{:.1e}"),
        ("bound on the error of log p, nats", parts.get("total"), "{:.1g}"),
        ("field evaluations per example", evaluation["nfe_forward"], "{:.0f}"),
        ("calibration error", read["calibration_error"], "{:.3f}"),
    ]
    return [{"name": n, "value": form.format(v)} for n, v, form in found if v is not None]


def preferred(evaluation: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metrics of labels, read in the way that the model's predictions do."""
    found = evaluation["one_step"] if evaluation.get("readout") == "one_step" else evaluation
    return cast("Mapping[str, Any]", found)


def warnings_of(evaluation: Mapping[str, Any]) -> list[str]:
    """What a reader must know about these metrics."""
    error = evaluation["numerical_error_bits_per_dim"]
    if error <= LARGEST_ERROR:
        return []
    return [
        f"The likelihood of an example is known to {error:.1e} bits per dimension, not to "
        f"{LARGEST_ERROR}. Evaluate at a tighter tolerance, or with --exact-trace where the trace "
        "is what errs."
    ]


def pictures_of(model: InfoCNF, data: Dataset, preparation: Preparation) -> list[Part]:
    """What the model makes."""
    name = main_factor(model)
    classes = data.raw.classes.get(name, ()) if name else ()
    if not preparation.is_images:
        return plots_of_rows(model, data, preparation)
    samples = draw_samples(model, preparation, 12 * len(classes) or 64)
    text = "Drawn from the model, class by class." if classes else "Drawn from the model."
    parts = [
        Part("Samples", text, [figures.grid(class_grid(samples, classes, preparation.levels))])
    ]
    if classes and name:
        raw, labels = data.examples("test")
        firsts = [
            int((labels[name] == i).nonzero()[0])
            for i in range(len(classes))
            if (labels[name] == i).any()
        ]
        chosen = counterfactual_grid(model, preparation, raw[firsts[:10]], data.raw.classes)
        text = (
            "Test examples (first column) and what they would be with each label: the part of "
            "the code that does not know the label is kept."
        )
        parts.append(Part("The same, with another label", text, [figures.grid(chosen)]))
    return parts


def plots_of_rows(model: InfoCNF, data: Dataset, preparation: Preparation) -> list[Part]:
    """Density or samples of rows."""
    examples, labels = data.examples("test")
    raw = examples.numpy()
    name = main_factor(model)
    if raw.shape[1] > 1:
        count = min(max(len(raw), 100), 2000)
        samples = draw_samples(model, preparation, count, tolerance=1e-4).double().cpu().numpy()
        columns = data.raw.columns or tuple(f"feature {i}" for i in range(raw.shape[1]))
        classes = data.raw.classes[name] if name else ()
        true = [classes[i] for i in labels[name][:count].tolist()] if name else []
        drawn = [classes[i % len(classes)] for i in range(count)] if name else []
        panels = {"Test data": (raw[:count], true), "Samples": (samples, drawn)}
        text = "Test data and samples of the model, classes in turn, in the first two columns."
        return [Part("Samples", text, [figures.scatter(panels, columns)])]
    low, high = raw.min(), raw.max()
    x = np.linspace(low - 0.2 * (high - low), high + 0.2 * (high - low), 600)
    with torch.no_grad():
        values = model.log_prob(preparation(torch.from_numpy(x[:, None]), model.dtype))
    learned = (values.double() - preparation.log_scale).exp().cpu().numpy()
    return [Part("Density", "Learned from the data.", [figures.density(x, learned, raw[:, 0])])]


def progress(rows: list[dict[str, float | None]]) -> Part:
    """How training went."""
    text = "Training metrics are those of each epoch's steps, at the tolerances of training."
    if "train_matching" in rows[0]:
        text += (
            " Epochs of matching have a loss of their own, read labels in one step and see no "
            "likelihood until their end."
        )
    pictures = [figures.curves(rows)]
    if any(row.get("tolerance_0") is not None for row in rows):
        pictures.append(figures.tolerances(rows))
    return Part("Training", text, pictures)


def mistakes(evaluation: Mapping[str, Any], data: Dataset) -> list[Part]:
    """Which classes are mistaken for which."""
    how = "in one step" if evaluation.get("readout") == "one_step" else "through the flow"
    text = "Numbers of test examples" + (f", read {how}." if evaluation.get("one_step") else ".")
    return [
        Part(f"Mistakes in {name}", text, [figures.confusion(matrix, classes)])
        for name, matrix in preferred(evaluation)["confusion"].items()
        if len(classes := data.raw.classes[name]) <= 40
    ]


def trust(evaluation: Mapping[str, Any]) -> list[Part]:
    """Whether its probabilities can be believed, and whether it knows what it does not know."""
    parts = []
    for name, rows in preferred(evaluation).get("reliability", {}).items():
        text = "On the line, a probability of 0.8 is right four times in five."
        parts.append(Part(f"Probabilities of {name}", text, [figures.reliability(rows)]))
    table = evaluation.get("outliers")
    if table:
        text = (
            "Area under the ROC curve by which a score tells outliers from test examples: "
            "1 is perfect, 0.5 is guessing, less is worse than guessing. The likelihood alone "
            "takes simple outliers for usual examples."
        )
        parts.append(Part("Outliers", text, [figures.areas(table)]))
    return parts


def facts_of(run: Run) -> list[tuple[str, str]]:
    """Where it ran and on what."""
    facts, environment = run.facts, run.environment
    return [
        ("data", f"{facts['name']}, sha256 {facts['sha256'][:16]}..."),
        ("begun", environment["begun"]),
        ("command", " ".join(environment["command"])),
        ("machine", environment["machine"]),
        ("python", environment["python"]),
        *sorted(environment["versions"].items()),
    ]


def cell(value: float | None) -> str:
    """A number as short as it can be read."""
    if value is None:
        return ""
    return f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"
