"""What became of runs: their figures under two protocols, and means over seeds.

*Ours*: the model that the validation split chose, on the test set, once. *The paper's*: the minimum
over epochs of the figure of the test set, each figure at an epoch of its own, which is no honest
estimate but the one that was published. Evaluations are means over the iterations of training.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infocnf.experiments.declaration import Experiment, Recipe, Scale
from infocnf.reports.page import read_metrics
from infocnf.training import Run

__all__ = ["Outcome", "Results", "Summary", "mean_tolerance", "read_rows", "summary"]

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
class Outcome:
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
    def figures(self) -> dict[str, float | None]:
        """All figures by name."""
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
    """The epochs of a run; figures that are not there are left out."""
    rows = read_metrics(Run(folder))
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


@dataclass(frozen=True)
class Results:
    """All outcomes of an experiment, arm by arm."""

    experiment: Experiment
    scale: Scale
    outcomes: Mapping[str, Sequence[Outcome]]

    def of(self, arm: str, figure: str) -> Summary | None:
        """A figure of an arm, over its seeds."""
        return summary([outcome.figures.get(figure) for outcome in self.outcomes[arm]])

    def curve(
        self, arm: str, value: Callable[[Row], float | None]
    ) -> list[tuple[float, list[float]]]:
        """Epochs, and the values of all seeds at each."""
        points: dict[float, list[float]] = {}
        for outcome in self.outcomes[arm]:
            for row in outcome.rows:
                found = value(row)
                if found is not None:
                    points.setdefault(row["epoch"], []).append(found)
        seeds = len(self.outcomes[arm])
        return [(epoch, values) for epoch, values in sorted(points.items()) if len(values) == seeds]

    def plain(self) -> dict[str, Any]:
        """As plain values: settings, commands and every figure of every seed."""
        arms = {}
        for arm in self.experiment.arms:
            mine = self.outcomes[arm.name]
            names = dict.fromkeys(name for outcome in mine for name in outcome.figures)
            means = {name: self.of(arm.name, name) for name in names}
            arms[arm.name] = {
                "means": {n: vars(found) for n, found in means.items() if found is not None},
                "paper": dict(arm.paper),
                "reference": dict(arm.reference),
                "runs": [
                    {
                        "seed": outcome.seed,
                        "run": outcome.folder.name,
                        "preset": outcome.recipe.preset,
                        "settings": list(outcome.recipe.settings),
                        "figures": outcome.figures,
                        "probes": dict(outcome.probes),
                    }
                    for outcome in mine
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
