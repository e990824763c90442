"""The area under a learned density on a line, by tolerance and precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from infocnf.data.synthetic import mixture_log_density
from infocnf.evaluation.driver import Driver
from infocnf.experiments.analysis import COLOURS, Results, band
from infocnf.experiments.arms import GATES
from infocnf.experiments.declaration import Arm, Column, Experiment, Probe, Scale
from infocnf.models import InfoCNF
from infocnf.reports.figures import GREY, tidy
from infocnf.runs import Run
from infocnf.tolerances import Policy

LOW, HIGH = -15.0, 15.0
EXPONENTS = range(1, 9)
PRECISIONS = {"float64": torch.float64, "float32": torch.float32}
AT_ONCE = 10_000
DRAWN = 400


def measure(run: Run, scale: Scale) -> dict[str, Any]:
    """|1 - area| by precision and tolerance, at the model's own tolerances, and the density."""
    points = torch.linspace(LOW, HIGH, scale.points, dtype=torch.float64)
    found: dict[str, Any] = {}
    for name, dtype in PRECISIONS.items():
        model = run.model().to(dtype)
        for exponent in EXPONENTS:
            values = density(model, run, points, 10.0**-exponent)
            found[f"{name} 1e-{exponent}"] = abs(1.0 - area(points, values))
        found[f"{name} own"] = abs(1.0 - area(points, density(model, run, points, model.policy)))
    few = torch.linspace(-6.0, 6.0, DRAWN, dtype=torch.float64)
    found["density"] = density(run.model(), run, few, 1e-5).tolist()
    return found


def density(model: InfoCNF, run: Run, points: Tensor, tolerance: float | Policy) -> Tensor:
    """The learned density at points of the line, in the data's units."""
    found = Driver(model, run.preparation, AT_ONCE).collect(
        points.unsqueeze(1),
        lambda x, _: {"log_prob": model.log_prob(x, tolerance=tolerance).double()},
    )
    return (found["log_prob"] - run.preparation.log_scale).exp()


def area(points: Tensor, values: Tensor) -> float:
    """The paper's Riemann sum."""
    return float((values[:-1] * points.diff()).sum())


def draw(results: Results) -> dict[str, Figure]:
    """The densities over the truth, and errors of the area against the tolerance."""
    figure = Figure(figsize=(12.0, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    x = np.linspace(-6.0, 6.0, DRAWN)
    left.fill_between(x, np.exp(mixture_log_density(x)), color="0.88", label="the mixture")
    tolerances = [10.0**-exponent for exponent in EXPONENTS]
    for i, (arm, runs) in enumerate(results.runs.items()):
        found = [result.probes["area"] for result in runs]
        band(left, list(x), np.array([one["density"] for one in found]).T, COLOURS[i], arm)
        for name, style in (("float64", "-"), ("float32", "--")):
            values = [[one[f"{name} 1e-{e}"] for one in found] for e in EXPONENTS]
            middle = np.exp(np.log(np.maximum(values, 1e-12)).mean(1))
            right.plot(tolerances, middle, style, color=COLOURS[i], label=f"{arm}, {name}")
    right.axvline(1e-5, color=GREY, lw=0.8, ls=":")
    right.set_xscale("log")
    right.set_yscale("log")
    right.invert_xaxis()
    tidy(left, "Learned densities", "x", "density")
    tidy(right, "Error of the area under the density", "tolerance", "|1 - area|")
    left.legend(frameon=False, fontsize=8)
    right.legend(frameon=False, fontsize=8)
    return {"figure": figure}


DENSITY_1D = Experiment(
    name="density-1d",
    title="The area under a density on a line, against the tolerance",
    claim="The paper: the area's error is negligible at tolerances of 1e-5 and below, and 0.00014 "
    "at learned tolerances.",
    arms=(
        Arm("fixed 1e-5", "density"),
        Arm("learned", "density", GATES, {"area_float64 own": "0.00014"}),
    ),
    columns=(
        *(Column(f"area_float64 1e-{e}", f"1e-{e}", ".1e") for e in EXPONENTS),
        Column("area_float64 own", "at its own", ".1e"),
        Column("area_float32 1e-5", "float32, 1e-5", ".1e"),
        Column("area_float32 1e-8", "float32, 1e-8", ".1e"),
        Column("tolerance", "tolerance in training", ".1e"),
    ),
    draw=draw,
    probes=(Probe("area", measure),),
    caption="The error is |1 - area| over [-15, 15], in double precision unless it says float32.",
)
