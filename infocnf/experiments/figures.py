"""Pictures as the paper draws them: a line for each arm and a band over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from infocnf.experiments.outcomes import Results, Row, total
from infocnf.reports.figures import tidy

__all__ = ["COLOURS", "Panel", "band", "column", "curves", "spent"]

COLOURS = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]
Value = Callable[[Row], float | None]
Panel = tuple[str, str, Value]  # title, label of the axis, what is drawn


def column(name: str) -> Value:
    """A column of the epochs."""
    return lambda row: row.get(name)


ERROR: Panel = ("Test error", "percent", column("test_error_percent"))
BITS: Panel = ("Test likelihood", "bits per dimension", column("test_bits_per_dim"))
MARGINAL: Panel = ("Marginal", "bits per dimension", column("test_bits_per_dim_marginal"))
NFE: Panel = ("Evaluations per iteration", "forward and backward", total)


def band(axes: Axes, x: Sequence[float], values: Any, colour: Any, label: str) -> None:  # noqa: ANN401
    """Mean and a band of one standard deviation of ``values`` ``(points, seeds)``."""
    found = np.asarray(values, dtype=float)
    middle, spread = found.mean(1), found.std(1, ddof=1) if found.shape[1] > 1 else 0.0
    axes.plot(x, middle, color=colour, label=label, lw=1.8, marker="o" if len(x) < 4 else None)
    axes.fill_between(x, middle - spread, middle + spread, color=colour, alpha=0.15, lw=0)


def curves(
    results: Results,
    panels: Sequence[Panel] = (ERROR, BITS, NFE),
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Figure:
    """Panels over the epochs; a row of them for each group of arms."""
    rows = groups or {"": [arm.name for arm in results.experiment.arms]}
    size = (4.2 * len(panels), 3.4 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    grid: Any = figure.subplots(len(rows), len(panels), squeeze=False)
    for line, (group, arms) in zip(grid, rows.items(), strict=True):
        for axes, (title, label, value) in zip(line, panels, strict=True):
            for i, arm in enumerate(arms):
                points = results.curve(arm, value)
                if points:
                    epochs, values = zip(*points, strict=True)
                    band(axes, epochs, values, COLOURS[i % 10], arm)
            tidy(axes, f"{title}, {group}" if group else title, "epoch", label)
        line[0].legend(frameon=False, fontsize=7)
    return figure


def spent(results: Results, panels: Sequence[Panel] = (ERROR, BITS)) -> Figure:
    """Panels over the evaluations that were spent since the beginning, in logarithms."""
    figure = Figure(figsize=(5.2 * len(panels), 3.6), layout="constrained")
    for axes, (title, label, value) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for i, (arm, outcomes) in enumerate(results.outcomes.items()):
            paths = [over_cost(outcome.rows, value) for outcome in outcomes]
            x = np.mean([[cost for cost, _ in path] for path in paths], axis=0)
            values = np.array([[found for _, found in path] for path in paths]).T
            band(axes, x, values, COLOURS[i % 10], arm)
        tidy(axes, title, "evaluations since the beginning", label)
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    figure.axes[0].legend(frameon=False, fontsize=7)
    return figure


def over_cost(rows: Sequence[Row], value: Value) -> list[tuple[float, float]]:
    """Evaluations so far (iterations times evaluations of each), and a value, at each epoch that
    has one.
    """
    before = [0.0, *(row["step"] for row in rows)]
    each = [
        (row["step"] - last) * (total(row) or 0.0) for row, last in zip(rows, before, strict=False)
    ]
    pairs = zip(accumulate(each), map(value, rows), strict=True)
    return [(cost, found) for cost, found in pairs if found is not None]
