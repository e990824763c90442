"""The latent ODE with and without a partitioned state: fit and extrapolation."""

from __future__ import annotations

from matplotlib.figure import Figure

from infocnf.experiments.declaration import Arm, Column, Experiment
from infocnf.experiments.outcomes import Results
from infocnf.reports.series import plot_trajectories

BASELINE, PARTITIONED = "latent ODE", "with a partitioned state"


def draw(results: Results) -> dict[str, Figure]:
    """Trajectories of the first seed of each arm, on the same curves."""
    found = {}
    for name, arm in (("figure", PARTITIONED), ("baseline", BASELINE)):
        run = results.outcomes[arm][0].run
        found[name] = plot_trajectories(run.latent_ode(), run.data(), run.preparation)
    return found


EXPERIMENT = Experiment(
    name="spirals",
    title="Spirals: the latent ODE with and without a partitioned state",
    claim="The paper, in pictures: with the partition it fits better and extrapolates better.",
    arms=(
        Arm(BASELINE, "spirals", ("series.supervised=0.0",)),
        Arm(PARTITIONED, "spirals"),
    ),
    columns=(
        Column("rmse_fit", "rmse within the window", ".3f"),
        Column("rmse_after", "after it", ".3f"),
        Column("rmse_before", "before it", ".3f"),
        Column("a_rmse", "rmse of a", ".4f"),
        Column("b_rmse", "rmse of b", ".4f"),
        Column("direction_error_percent", "wrong directions, %", ".2f"),
    ),
    draw=draw,
    caption="Errors are against the truth without noise, on draws of the hidden state of the test "
    "curves. There is one protocol here: the model that the validation split chose.",
)
