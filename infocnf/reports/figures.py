"""Figures of a run, as PNG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from infocnf.reports.samples import Grid

matplotlib.use("Agg")

__all__ = [
    "areas",
    "confusion",
    "curves",
    "density",
    "grid",
    "plot_grid",
    "reliability",
    "scatter",
    "tolerances",
]

Rows = Sequence[Mapping[str, float | None]]
GREY, BLUE, RED, GREEN = "#8a8f98", "#2563a8", "#c2452d", "#2f855a"


def png(figure: Figure, dpi: int = 120) -> bytes:
    """A figure as the bytes of a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi, format="png", facecolor="white")
    return buffer.getvalue()


def plain(text: str) -> str:
    r"""A name as it is: no formula, whatever dollars it has, and nothing that cannot be seen.

    >>> print(plain(r"$\frac$ x^{"))
    \$\frac\$ x^{
    """
    seen = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return seen.replace("$", r"\$")


def tidy(axes: Axes, title: str, x: str, y: str) -> None:
    """Titles, and no more lines than needed."""
    axes.set_title(plain(title), fontsize=11, loc="left")
    axes.set_xlabel(plain(x))
    axes.set_ylabel(plain(y))
    axes.spines[["top", "right"]].set_visible(False)
    if x == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25, linewidth=0.6)


def grid(images: Grid) -> bytes:
    """Images in rows and columns with their titles."""
    return png(plot_grid(images), dpi=140)


def plot_grid(images: Grid, size: float = 0.55) -> Figure:
    """Images in rows and columns with their titles."""
    rows, columns = images.images.shape[:2]
    left = 0.16 * max((len(name) for name in images.rows), default=0)
    longest = max((len(name) for name in images.columns), default=0)
    slanted = longest * 0.075 > size
    top = (0.1 + 0.07 * longest if slanted else 0.3) if images.columns else 0.0
    width, height = left + columns * size, top + rows * size
    figure = Figure(figsize=(width, height))
    for i in range(rows):
        for j in range(columns):
            position = (
                (left + j * size + 0.02) / width,
                (height - top - (i + 1) * size + 0.02) / height,
                (size - 0.04) / width,
                (size - 0.04) / height,
            )
            axes = figure.add_axes(position)
            show(axes, images.images[i, j])
    for i, name in enumerate(images.rows):
        y = (height - top - (i + 0.5) * size) / height
        figure.text((left - 0.08) / width, y, plain(name), ha="right", va="center", fontsize=10)
    for j, name in enumerate(images.columns):
        x = (left + (j + 0.5) * size) / width
        y = (height - top + 0.05) / height
        figure.text(x, y, plain(name), ha="center", va="bottom", fontsize=8, rotation=90 * slanted)
    return figure


def show(axes: Axes, image: Tensor) -> None:
    """One image ``(channels, height, width)`` without axes."""
    pixels = image.permute(1, 2, 0).clamp(0, 1).cpu().numpy()
    axes.imshow(pixels.squeeze(-1) if pixels.shape[2] == 1 else pixels, cmap="gray", vmin=0, vmax=1)
    axes.axis("off")


def curves(rows: Rows) -> bytes:
    """Error, bits per dimension and field evaluations over the epochs."""
    matched = "train_matching" in rows[0]
    figure = Figure(figsize=(14 if matched else 11, 3.2), layout="constrained")
    *first, likelihood, error, cost = figure.subplots(1, 4 if matched else 3)
    for part, colour in (("train", GREY), ("validation", BLUE)):
        for axes in first:
            plot(axes, rows, f"{part}_matching", part, colour)
        plot(likelihood, rows, f"{part}_bits_per_dim", part, colour)
        plot(error, rows, f"{part}_error_percent", part, colour)
    plot(cost, rows, "nfe_forward", "forward", GREEN)
    plot(cost, rows, "nfe_backward", "backward", RED)
    for axes in first:
        tidy(axes, "Matching", "epoch", "squared error of the field")
    tidy(likelihood, "Likelihood", "epoch", "bits per dimension")
    tidy(error, "Wrong labels", "epoch", "percent")
    tidy(cost, "Field evaluations per step", "epoch", "evaluations, all blocks")
    cost.set_ylim(bottom=0)
    for axes in (*first, likelihood, error, cost):
        if axes.get_lines():
            axes.legend(frameon=False, fontsize=9)
        else:
            axes.text(0.5, 0.5, "this model reads no label", ha="center", transform=axes.transAxes)
    return png(figure)


def plot(axes: Axes, rows: Rows, name: str, label: str, colour: str) -> None:
    """One column over the epochs, where it has values."""
    points = [(row["epoch"], row[name]) for row in rows if row.get(name) is not None]
    if points:
        epochs, values = zip(*points, strict=True)
        mark = "o" if len(points) < 5 else None
        axes.plot(epochs, values, color=colour, label=plain(label), linewidth=1.8, marker=mark)


def tolerances(rows: Rows) -> bytes:
    """The tolerance of each block over the epochs, with its spread where it was drawn."""
    names = [name for name in rows[0] if name.removeprefix("tolerance_").isdigit()]
    figure = Figure(figsize=(4.5, 2.6), layout="constrained")
    axes = figure.subplots()
    colours = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.9, len(names)))
    for name, colour in zip(names, colours, strict=True):
        block = name.removeprefix("tolerance_")
        plot(axes, rows, name, f"block {block}", colour)
        drawn = [
            (row["epoch"], tolerance, 10.0**spread)
            for row in rows
            if (tolerance := row[name]) and (spread := row.get(f"tolerance_spread_{block}"))
        ]
        if drawn:
            epochs, middle, factor = (np.array(column) for column in zip(*drawn, strict=True))
            axes.fill_between(epochs, middle / factor, middle * factor, color=colour, alpha=0.15)
    found = [value for row in rows for name in names if (value := row[name]) is not None]
    axes.set_ylim(min(found, default=1e-5) / 3.0, max(found, default=1e-5) * 3.0)
    axes.set_yscale("log")
    tidy(axes, "Tolerance of the solver in training", "epoch", "tolerance")
    if found:
        axes.legend(frameon=False, fontsize=8, ncols=1 + len(names) // 8)
    return png(figure)


def confusion(matrix: Sequence[Sequence[int]], classes: Sequence[str]) -> bytes:
    """Which class is taken for which, in numbers of examples."""
    counts = np.array(matrix)
    size = max(1.6 + 0.42 * len(counts), 3.6)
    figure = Figure(figsize=(size, size), layout="constrained")
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for i, j in zip(*np.nonzero(counts), strict=True):
        colour = "white" if shares[i, j] > 0.5 else "black"
        axes.text(j, i, str(counts[i, j]), ha="center", va="center", fontsize=8, color=colour)
    ticks, classes = range(len(classes)), [plain(name) for name in classes]
    long = max(map(len, classes)) > 3
    axes.set_xticks(ticks, classes, rotation=60 if long else 0, ha="right" if long else "center")
    axes.set_yticks(ticks, classes)
    axes.set_xlabel("predicted")
    axes.set_ylabel("truth")
    axes.set_title("Which class is taken for which", fontsize=11, loc="left")
    return png(figure)


def reliability(rows: Sequence[Sequence[float]]) -> bytes:
    """How often predictions are right against how sure they were; dots as large as their bins."""
    confidence, right, count = np.array(rows).T
    figure = Figure(figsize=(3.8, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
    axes.scatter(confidence, right, s=20 + 180 * count / count.sum(), color=BLUE, alpha=0.7)
    axes.plot(confidence, right, color=BLUE, lw=1)
    tidy(
        axes, "Are probabilities what they say?", "probability of the prediction", "share of right"
    )
    return png(figure)


def areas(table: Mapping[str, Mapping[str, float]]) -> bytes:
    """Areas under ROC curves by kind of outlier and score: blue is told apart, red is
    mistaken for usual.
    """
    kinds, scores = list(table), list(next(iter(table.values())))
    values = np.array([[table[kind][score] for score in scores] for kind in kinds])
    figure = Figure(
        figsize=(2.4 + 1.0 * len(scores), 1.2 + 0.42 * len(kinds)), layout="constrained"
    )
    axes = figure.subplots()
    axes.imshow(values, cmap="RdBu", vmin=0, vmax=1, aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        colour = "white" if abs(value - 0.5) > 0.35 else "black"
        axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=9, color=colour)
    axes.set_xticks(range(len(scores)), scores, fontsize=9)
    axes.set_yticks(range(len(kinds)), kinds, fontsize=9)
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return png(figure)


def density(x: np.ndarray, values: np.ndarray, data: np.ndarray) -> bytes:
    """A learned density on a line over a histogram of the data."""
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    axes.hist(data, bins=80, density=True, color="0.85", label="test data")
    axes.plot(x, values, color=RED, linewidth=2, label="learned density")
    tidy(axes, "The learned density", "x", "density")
    axes.legend(frameon=False)
    return png(figure)


def scatter(
    panels: Mapping[str, tuple[np.ndarray, Sequence[str]]], columns: Sequence[str]
) -> bytes:
    """Rows in their first two columns, coloured by label, a panel for each title."""
    figure = Figure(figsize=(4.4 * len(panels), 4), layout="constrained")
    row: Any = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (title, (points, labels)) in zip(row, panels.items(), strict=True):
        for i, name in enumerate(sorted(set(labels)) or [""]):
            mine = points[[label == name for label in labels]] if labels else points
            colour = matplotlib.colormaps["tab10"](i % 10)
            axes.plot(
                mine[:, 0],
                mine[:, 1],
                ".",
                color=colour,
                markersize=4,
                alpha=0.6,
                label=plain(name),
            )
        tidy(axes, title, columns[0], columns[1])
    if 1 < len(row[0].get_lines()) <= 12:
        row[0].legend(frameon=False, fontsize=8)
    return png(figure)
