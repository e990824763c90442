"""Every table and figure of the paper, each a declaration over shared runs."""

from infocnf.errors import InputError
from infocnf.experiments import (
    batch_size,
    bigger,
    density_1d,
    large_batch,
    large_batch_methods,
    marginal,
    mnist,
    partition,
    small_batch,
    small_vs_large,
    spirals,
    tolerances,
    unconditional,
)
from infocnf.experiments.declaration import Experiment

__all__ = ["EXPERIMENTS", "experiments_of"]

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        density_1d,
        small_batch,
        large_batch,
        tolerances,
        batch_size,
        marginal,
        small_vs_large,
        partition,
        unconditional,
        large_batch_methods,
        bigger,
        mnist,
        spirals,
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
