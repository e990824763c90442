"""What runs would cost: a real iteration of each at a tiny batch, and the reference's speed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from infocnf.data import CATALOGUE, Dataset, load_data
from infocnf.data.dataset import Raw, split
from infocnf.data.images import shrink
from infocnf.experiments.declaration import Recipe
from infocnf.random import combine_seeds
from infocnf.runs.build import build_model
from infocnf.runs.config import Config
from infocnf.training.optim import Muon, parameter_groups, set_rates
from infocnf.training.stages import Plan, Sampler, epochs_of

__all__ = ["Forecast", "forecast"]

SHAPES = {"mnist": (1, 28, 28), "fashion_mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
TRAINED = {"mnist": 60_000, "fashion_mnist": 60_000, "cifar10": 50_000}
TINY = 2  # examples of the iteration
# seconds of one evaluation and how many graphics cards, as the reference's logs have them
REFERENCE = {
    ("cifar10", 900): (0.0245, 4),
    ("cifar10", 8000): (0.09, 8),
    ("mnist", 900): (0.0205, 3),
}


@dataclass(frozen=True)
class Forecast:
    """What a run would take.

    Arguments:
        parameters: Numbers that are learned.
        steps: Iterations of the whole run.
        evaluations: Of the first iteration, forward and backward, over all blocks; they grow.
        loss: The loss of that iteration.
        hours: On one graphics card of the reference's, at these evaluations; None where the
            reference has no such run.
    """

    parameters: int
    steps: int
    evaluations: float
    loss: float
    hours: float | None


def forecast(recipe: Recipe) -> Forecast:
    """Take one real iteration of a run, with few examples."""
    config = recipe.config
    data = few_examples(config)
    model = build_model(config, data).train()
    plan = Plan(config, len(data.parts["train"]), data.preparation)
    x, labels = data.examples("train")
    x, labels = x[:TINY], {name: y[:TINY] for name, y in labels.items()}
    seeds = combine_seeds(config.training.seed, torch.arange(len(x)))
    model.policy.begin_step(0.0)
    objective = plan.stages[0].objective(
        model, data.preparation(x, model.dtype, seeds), labels, seeds=seeds
    )
    objective.total.backward()
    optimizer = Muon(parameter_groups(model), lr=0.0)
    recipe_of = plan.stages[0].recipe
    set_rates(optimizer.param_groups, recipe_of, config.training.policy_learning_rate, 1.0)
    optimizer.step()
    steps = epochs_of(config) * steps_per_epoch(config, data)
    stats = getattr(objective, "stats")  # noqa: B009
    evaluations = float(stats.forward.double().mean() + stats.backward.double().mean())
    return Forecast(
        parameters=sum(p.numel() for p in model.parameters()),
        steps=steps,
        evaluations=evaluations,
        loss=float(objective.losses.detach().mean()),
        hours=hours(config, steps * evaluations),
    )


def few_examples(config: Config) -> Dataset:
    """Examples of the shape of a run's data: its own where they need no files, else noise."""
    name = config.data.name
    if CATALOGUE[name].make is not None:
        return load_data(name, validation=config.data.validation, test=config.data.test)
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(40, *SHAPES[name]), dtype=np.uint8)
    y = np.arange(len(x)) % 10
    raw = Raw(x, {"label": y}, {"label": tuple("0123456789")}, levels=256, official=10)
    raw = shrink(raw, config.data.shrink, name)
    return Dataset(name, raw, split(raw, 10, 10, 0, name))


def steps_per_epoch(config: Config, data: Dataset) -> int:
    """Iterations of an epoch of the real data."""
    name, own = config.data.name, config.data.validation
    total = TRAINED.get(name)
    if total is None:
        count = len(data.parts["train"])
    else:
        count = total - (round(own * total) if own < 1 else int(own))
    count = min(count, config.data.limit or count)
    return Sampler(count, config.training.batch_size, 0).steps


def hours(config: Config, evaluations: float) -> float | None:
    """Hours of one graphics card for so many evaluations."""
    known = REFERENCE.get((config.data.name, config.training.batch_size))
    return None if known is None else evaluations * known[0] * known[1] / 3600.0
