"""What became of runs: their metrics under two protocols, means over seeds, and pictures as the
paper draws them.

*Ours*: the model that the validation split chose, on the test set, once. *The paper's*: the minimum
over epochs of the metric of the test set, each at an epoch of its own, which is no honest
estimate but the one that was published. Evaluations are means over the iterations of training.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from infocnf.experiments.declaration import Experiment, Recipe, Scale
from infocnf.reports.figures import tidy
from infocnf.reports.page import read_metrics
from infocnf.runs import Run

__all__ = [
    "COLOURS",
    "Panel",
    "Result",
    "Results",
    "Summary",
    "band",
    "column",
    "curves",
    "mean_tolerance",
    "read_rows",
    "spent",
    "summary",
]

Row = dict[str, float]


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation over seeds."""

    mean: float
    spread: float
    count: int

    def text(self, form: str) -> str:
        """For people."""
        return f"{self.mean:{form}} ± {self.spread:{form}}"


def summary(values: Sequence[float | None]) -> Summary | None:
    """Of the values of all seeds; None where one has none."""
    found = [value for value in values if value is not None and math.isfinite(value)]
    if not found or len(found) < len(values):
        return None
    spread = statistics.stdev(found) if len(found) > 1 else 0.0
    return Summary(statistics.mean(found), spread, len(found))


@dataclass(frozen=True)
class Result:
    """A finished run.

    Arguments:
        seed: Its seed.
        recipe: What it was given.
        folder: Where it is.
        rows: Its epochs.
        evaluation: Its ``evaluation.json``.
        probes: What else was measured, by name.
    """

    seed: int
    recipe: Recipe
    folder: Path
    rows: list[Row]
    evaluation: Mapping[str, Any]
    probes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> Run:
        """The run directory."""
        return Run.open(self.folder)

    @property
    def metrics(self) -> dict[str, float | None]:
        """All metrics by name."""
        found = self.evaluation
        names = ("error_percent", "bits_per_dim", "bits_per_dim_marginal", "nfe_forward")
        own = {f"evaluated_{name}": found.get(name) for name in names}
        least = {f"least_{name}": self.least(f"test_{name}") for name in names[:3]}
        series = {name: found.get(name) for name in ("rmse_fit", "rmse_after", "rmse_before")}
        factors = {
            f"{factor}_{name}": value
            for factor, values in found.get("factors", {}).items()
            for name, value in values.items()
        }
        probed = {
            f"{probe}_{name}": value
            for probe, values in self.probes.items()
            for name, value in values.items()
            if isinstance(value, int | float)
        }
        return {
            **own,
            **least,
            "nfe_forward": self.average("nfe_forward"),
            "nfe": self.nfe,
            "nfe_growth": self.growth,
            "tolerance": mean_tolerance(self.rows),
            "numerical_error": found.get("numerical_error_bits_per_dim"),
            **series,
            **factors,
            **probed,
        }

    def least(self, name: str) -> float | None:
        """Minimum of a column over the epochs."""
        return min((row[name] for row in self.rows if name in row), default=None)

    def average(self, name: str) -> float | None:
        """Mean of a column over the epochs."""
        values = [row[name] for row in self.rows if name in row]
        return statistics.mean(values) if values else None

    @property
    def nfe(self) -> float | None:
        """Evaluations of an iteration, forward and backward."""
        forward, backward = self.average("nfe_forward"), self.average("nfe_backward")
        return None if forward is None or backward is None else forward + backward

    @property
    def growth(self) -> float | None:
        """Evaluations of the last epoch over those of the first."""
        first, last = (total(self.rows[i]) for i in (0, -1))
        return last / first if first and last else None


def total(row: Row) -> float | None:
    """Evaluations of an iteration in an epoch."""
    if "nfe_forward" not in row or "nfe_backward" not in row:
        return None
    return row["nfe_forward"] + row["nfe_backward"]


def mean_tolerance(rows: Sequence[Row]) -> float | None:
    """Geometric mean over blocks and epochs."""
    logs = [
        math.log10(value)
        for row in rows
        for name, value in row.items()
        if name.removeprefix("tolerance_").isdigit() and value > 0
    ]
    return 10.0 ** statistics.mean(logs) if logs else None


def read_rows(folder: Path) -> list[Row]:
    """The epochs of a run; metrics that are not there are left out."""
    rows = read_metrics(Run(folder))
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


@dataclass(frozen=True)
class Results:
    """All runs of an experiment, arm by arm."""

    experiment: Experiment
    scale: Scale
    runs: Mapping[str, Sequence[Result]]

    def of(self, arm: str, metric: str) -> Summary | None:
        """A metric of an arm, over its seeds."""
        return summary([result.metrics.get(metric) for result in self.runs[arm]])

    def curve(
        self, arm: str, value: Callable[[Row], float | None]
    ) -> list[tuple[float, list[float]]]:
        """Epochs, and the values of all seeds at each."""
        points: dict[float, list[float]] = {}
        for result in self.runs[arm]:
            for row in result.rows:
                found = value(row)
                if found is not None:
                    points.setdefault(row["epoch"], []).append(found)
        seeds = len(self.runs[arm])
        return [(epoch, values) for epoch, values in sorted(points.items()) if len(values) == seeds]

    def plain(self) -> dict[str, Any]:
        """As plain values: settings, commands and every metric of every seed."""
        arms = {}
        for arm in self.experiment.arms:
            mine = self.runs[arm.name]
            names = dict.fromkeys(name for result in mine for name in result.metrics)
            means = {name: self.of(arm.name, name) for name in names}
            arms[arm.name] = {
                "means": {n: vars(found) for n, found in means.items() if found is not None},
                "paper": dict(arm.paper),
                "reference": dict(arm.reference),
                "runs": [
                    {
                        "seed": result.seed,
                        "run": result.folder.name,
                        "preset": result.recipe.preset,
                        "settings": list(result.recipe.settings),
                        "metrics": result.metrics,
                        "probes": dict(result.probes),
                    }
                    for result in mine
                ],
            }
        own = self.experiment
        return {
            "name": own.name,
            "title": own.title,
            "claim": own.claim,
            "scale": self.scale.name,
            "arms": arms,
        }


COLOURS = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]
Value = Callable[[Row], float | None]
Panel = tuple[str, str, Value]  # title, label of the axis, what is drawn


def column(name: str) -> Value:
    """A column of the epochs."""
    return lambda row: row.get(name)


ERROR: Panel = ("Test error", "percent", column("test_error_percent"))
BITS: Panel = ("Test likelihood", "bits per dimension", column("test_bits_per_dim"))
MARGINAL_BITS: Panel = ("Marginal", "bits per dimension", column("test_bits_per_dim_marginal"))
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
        for i, (arm, runs) in enumerate(results.runs.items()):
            paths = [over_cost(result.rows, value) for result in runs]
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
