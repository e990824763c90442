"""Every table and figure of the paper, each a declaration over shared runs."""

from infocnf.errors import InputError
from infocnf.experiments import paper
from infocnf.experiments.batch_size import BATCH_SIZE
from infocnf.experiments.declaration import Experiment
from infocnf.experiments.density_1d import DENSITY_1D
from infocnf.experiments.tolerances import TOLERANCES

__all__ = ["EXPERIMENTS", "experiments_of"]

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        DENSITY_1D,
        paper.SMALL_BATCH,
        paper.LARGE_BATCH,
        TOLERANCES,
        BATCH_SIZE,
        paper.MARGINAL,
        paper.SMALL_VS_LARGE,
        paper.PARTITION,
        paper.UNCONDITIONAL,
        paper.LARGE_BATCH_METHODS,
        paper.BIGGER,
        paper.MNIST,
        paper.SPIRALS,
    )
}


def experiments_of(name: str) -> list[Experiment]:
    """One by its name, or all."""
    if name == "all":
        return list(EXPERIMENTS.values())
    if name not in EXPERIMENTS:
        raise InputError(
            f"no result is called {name!r}: choose among all, {', '.join(EXPERIMENTS)}"
        )
    return [EXPERIMENTS[name]]
