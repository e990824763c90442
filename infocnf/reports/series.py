"""Pictures of series: what was observed, what is true, what the model makes of it before, within
and after the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from infocnf.data import Dataset, Preparation
from infocnf.models import LatentODE
from infocnf.random import Stream, combine_seeds, draw_normal
from infocnf.reports.figures import BLUE, GREEN, GREY, RED, Rows, plain, plot, png, tidy

__all__ = ["draw_trajectories", "plot_series", "plot_trajectories", "series_curves"]

MARGIN = 1.0  # how far beyond the window, in windows, where no truth says how far
DRAWS = 5


def draw_trajectories(model: LatentODE, data: Dataset, preparation: Preparation) -> bytes:
    """As :func:`plot_trajectories`, as the bytes of a PNG."""
    return png(plot_trajectories(model, data, preparation))


@torch.no_grad()
def plot_trajectories(
    model: LatentODE,
    data: Dataset,
    preparation: Preparation,
    part: str = "test",
    count: int = 6,
    tolerance: float = 1e-4,
) -> Figure:
    """Some series: observations as dots, the truth in green, the reconstruction in blue, what comes
    before and after in red; thin lines are draws of the hidden state. Two channels are drawn as a
    path in the plane, others over time.
    """
    x, _ = data.examples(part)
    chosen = torch.linspace(0, len(x) - 1, min(count, len(x))).long()
    series, truth = x[chosen], data.truth(part)
    paths = paths_of(model, preparation, series, truth is not None, tolerance)
    flat = series.shape[2] == 3
    columns = min(3, len(chosen))
    rows = -(-len(chosen) // columns)
    figure = Figure(figsize=(4.0 * columns, (3.6 if flat else 2.8) * rows), layout="constrained")
    panels: Any = figure.subplots(rows, columns, squeeze=False)
    for i, axes in enumerate(panels.flat):
        if i >= len(chosen):
            axes.axis("off")
            continue
        times, values = paths[i]
        seen = series[i].double().numpy()
        seen = seen[np.isfinite(seen[:, 0])]
        end = seen[-1, 0] - seen[0, 0]
        known = None if truth is None else truth[chosen[i]].double().numpy()
        channels = [0] if flat else range(min(3, series.shape[2] - 1))
        for channel in channels:
            if known is not None:
                axes.plot(
                    *line(known[:, 0], known[:, 1:], flat, channel),
                    color=GREEN,
                    lw=2.5,
                    alpha=0.5,
                    label="truth",
                )
            axes.plot(
                *line(seen[:, 0] - seen[0, 0], seen[:, 1:], flat, channel),
                ".",
                color=GREY,
                ms=3,
                label="observed",
            )
            for draw, path in enumerate(values):
                style = {"lw": 2.0} if draw == 0 else {"lw": 0.6, "alpha": 0.5}
                inside = (times >= 0) & (times <= end)
                for where, colour, name in (
                    (times <= 0, RED, "extrapolation"),
                    (times >= end, RED, None),
                    (inside, BLUE, "reconstruction"),
                ):
                    label = name if draw == 0 else None
                    axes.plot(
                        *line(times[where], path[where], flat, channel),
                        color=colour,
                        label=label,
                        **style,
                    )
        names = data.raw.columns[1:3] if flat else (data.raw.columns[0], "value")
        tidy(axes, f"series {int(chosen[i])}", *names)
        if i == 0:
            handles, labels = axes.get_legend_handles_labels()
            unique = dict(zip(labels, handles, strict=True))
            axes.legend(unique.values(), unique.keys(), frameon=False, fontsize=8)
        if known is not None and flat:
            frame(axes, np.concatenate([known[:, 1:], seen[:, 1:]]))
    return figure


def line(
    times: np.ndarray, values: np.ndarray, flat: bool, channel: int
) -> tuple[np.ndarray, np.ndarray]:
    """What is drawn against what."""
    return (values[:, 0], values[:, 1]) if flat else (times, values[:, channel])


def frame(axes: Any, points: np.ndarray) -> None:  # noqa: ANN401
    """Limits by what is known: a path that runs away must not shrink the picture."""
    low, high = points.min(0), points.max(0)
    edge = 0.15 * (high - low).max()
    axes.set_xlim(low[0] - edge, high[0] + edge)
    axes.set_ylim(low[1] - edge, high[1] + edge)


def paths_of(
    model: LatentODE, preparation: Preparation, series: Tensor, beyond: bool, tolerance: float
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Times from the first observation, in the data's units, and values ``(1 + draws, times,
    channels)`` of each series: from the mean of the hidden state, then from draws.
    """
    prepared = preparation(series.to(model.device), model.dtype)
    posterior = model.encode(prepared)
    seeds = combine_seeds(0, torch.arange(len(series))).to(model.device)
    found = []
    spans = prepared[..., 0].nan_to_num(nan=-torch.inf).amax(1)
    margin = MARGIN if beyond else 0.25
    grid = torch.linspace(-margin, 1.0 + margin, 301).to(prepared)
    times = grid * spans.unsqueeze(1)
    for draw in range(-1, DRAWS):
        noise = draw_normal(combine_seeds(draw, seeds), posterior.mean, Stream.NOISE)
        z = posterior.mean if draw < 0 else posterior.draw(noise)
        values, _ = model.decode(model.code.merge(*model.split(z)), times, tolerance=tolerance)
        found.append(preparation.restore(values))
    drawn = torch.stack(found, 1).cpu().numpy()
    real = (times.double() * preparation.scale[0]).cpu().numpy()
    return list(zip(real, drawn, strict=True))


def plot_series(series: np.ndarray, labels: Sequence[str], columns: Sequence[str]) -> bytes:
    """Series that a model made ``(series, times, 1 + channels)``, coloured by label."""
    times, values = series[0, :, 0], series[..., 1:]
    flat = values.shape[2] == 2
    figure = Figure(figsize=(5, 4.4), layout="constrained")
    axes = figure.subplots()
    names = sorted(set(labels)) or [""]
    for i, path in enumerate(values):
        name = labels[i] if len(labels) else ""
        colour = matplotlib.colormaps["tab10"](names.index(name) % 10)
        first = list(labels).index(name) == i if len(labels) else False
        axes.plot(
            *line(times, path, flat, 0),
            color=colour,
            lw=1,
            alpha=0.7,
            label=plain(name) if first else None,
        )
    tidy(axes, "Series drawn from the model", *(columns[1:3] if flat else columns[:2]))
    if 1 < len(names) <= 12:
        axes.legend(frameon=False, fontsize=8)
    return png(figure)


def series_curves(rows: Rows) -> bytes:
    """Lower bound, mean squared error, wrong labels and field evaluations over the epochs."""
    figure = Figure(figsize=(14, 3.2), layout="constrained")
    bound, fit, error, cost = figure.subplots(1, 4)
    for part, colour in (("train", GREY), ("validation", BLUE)):
        plot(bound, rows, f"{part}_elbo", part, colour)
        plot(fit, rows, f"{part}_mse", part, colour)
        plot(error, rows, f"{part}_error_percent", part, colour)
    plot(cost, rows, "nfe_forward", "forward", GREEN)
    plot(cost, rows, "nfe_backward", "backward", RED)
    tidy(bound, "Lower bound of log p", "epoch", "nats per series")
    tidy(fit, "Reconstruction", "epoch", "mean squared error")
    tidy(error, "Wrong labels", "epoch", "percent")
    tidy(cost, "Field evaluations per step", "epoch", "evaluations")
    fit.set_yscale("log")
    found = np.array([v for row in rows if (v := row.get("train_elbo")) is not None])
    if len(found):  # the first epochs would hide the rest
        height = abs(float(found.max() - np.median(found))) + 1.0
        bound.set_ylim(float(np.median(found)) - 3.0 * height, float(found.max()) + height)
    for axes in (bound, fit, error, cost):
        if axes.get_lines():
            axes.legend(frameon=False, fontsize=9)
        else:
            axes.text(0.5, 0.5, "this model reads no label", ha="center", transform=axes.transAxes)
    return png(figure)
