"""From experiments to results: what is missing is trained, then everything is published."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from infocnf.experiments.declaration import Arm, Experiment, Recipe, Scale
from infocnf.experiments.outcomes import Outcome, Results, mean_tolerance, read_rows, summary
from infocnf.experiments.publishing import publish
from infocnf.experiments.runs import Workshop, identity
from infocnf.training import Run
from infocnf.training.stages import epochs_of

__all__ = ["epochs_in_all", "recipes_of", "reproduce"]


def recipes_of(
    experiment: Experiment, scale: Scale, workshop: Workshop | None = None
) -> Iterator[tuple[Arm, int, Recipe]]:
    """Every run of an experiment. Those that match a tolerance which is still to be learned are
    there only where a workshop has it.
    """
    for arm in experiment.arms:
        tolerance = None
        if arm.matches is not None:
            if workshop is not None:
                tolerance = learned_mean(experiment.arm(arm.matches), scale, workshop)
            if tolerance is None:
                continue
        for seed in scale.seeds:
            yield arm, seed, arm.recipe(scale, seed, tolerance)


def learned_mean(arm: Arm, scale: Scale, workshop: Workshop) -> float | None:
    """The mean tolerance that an arm learned, over its seeds; None where it is not known yet."""
    recipes = [arm.recipe(scale, seed) for seed in scale.seeds]
    if not all(workshop.is_done(recipe) for recipe in recipes):
        return None
    found = summary([mean_tolerance(read_rows(workshop.place(recipe))) for recipe in recipes])
    return None if found is None else found.mean


def reproduce(
    experiments: Sequence[Experiment],
    scale: Scale,
    workshop: Workshop,
    out: Path,
    done: Callable[[Experiment, Path], None] = lambda experiment, folder: None,
) -> None:
    """Train what is missing, then publish; an experiment is published as soon as it can be.

    Arms that match a learned tolerance come after what they match: everything else is trained first
    so that no core waits.
    """
    workshop.make(recipe for e in experiments for _, _, recipe in recipes_of(e, scale))
    workshop.make(recipe for e in experiments for _, _, recipe in recipes_of(e, scale, workshop))
    for experiment in experiments:
        publish(gather(experiment, scale, workshop), out / experiment.name)
        done(experiment, out / experiment.name)


def gather(experiment: Experiment, scale: Scale, workshop: Workshop) -> Results:
    """The outcomes of an experiment whose runs are done."""
    outcomes: dict[str, list[Outcome]] = {}
    for arm, seed, recipe in recipes_of(experiment, scale, workshop):
        probes = {probe.name: workshop.probe(recipe, probe, scale) for probe in experiment.probes}
        place = workshop.place(recipe)
        evaluation = Run.open(place).read_json("evaluation.json")
        outcomes.setdefault(arm.name, []).append(
            Outcome(seed, recipe, place, read_rows(place), evaluation, probes)
        )
    return Results(experiment, scale, outcomes)


def epochs_in_all(experiments: Sequence[Experiment], scale: Scale) -> int:
    """Epochs of all runs, those that share one counted once."""
    wanted: dict[str, int] = {}
    for experiment in experiments:
        for arm in experiment.arms:
            for seed in scale.seeds:
                tolerance = 1e-3 if arm.matches else None
                recipe = arm.recipe(scale, seed, tolerance)
                name = identity(recipe) + (experiment.name if arm.matches else "")
                wanted[name] = epochs_of(recipe.config)
    return sum(wanted.values())
