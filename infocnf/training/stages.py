"""What a run does, one after the other: matching, then maximum likelihood, each with its own
epochs, batches, rates and objective.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from infocnf.data import Preparation
from infocnf.matching import Matching, matching_objective, refit
from infocnf.models import InfoCNF, LatentODE
from infocnf.models.base import is_missing
from infocnf.objectives import (
    Objective,
    Variational,
    likelihood_objective,
    variational_objective,
)
from infocnf.runs.config import Config, Recipe

__all__ = ["Plan", "Sampler", "Stage", "epochs_of", "finish_matching", "labelled", "pieces"]


if TYPE_CHECKING:
    from infocnf.training.loop import Training

log = logging.getLogger("infocnf")
Labels = dict[str, Tensor]
LARGEST_WEIGHT = 50.0  # of one label among many examples without


@dataclass(frozen=True)
class Stage:
    """A part of a run.

    Arguments:
        name: ``matching``, ``likelihood`` or ``variational``.
        first: Its first epoch, counted from 0.
        recipe: How it minimises.
        sampler: Which examples a step sees.
        objective: What a step minimises, of a model, prepared examples and their labels.
    """

    name: str
    first: int
    recipe: Recipe
    sampler: Sampler
    objective: Callable[..., Objective | Matching | Variational]

    @property
    def end(self) -> int:
        """The epoch after its last."""
        return self.first + self.recipe.epochs

    @property
    def steps(self) -> int:
        """Number of its steps."""
        return self.recipe.epochs * self.sampler.steps

    def number(self, epoch: int, step: int) -> int:
        """Number of a step of an epoch within the stage."""
        return (epoch - self.first) * self.sampler.steps + step

    def validates(self, epoch: int) -> bool:
        """Whether an epoch ends with an exact validation: every so many do, and the last one."""
        return (epoch + 1 - self.first) % self.recipe.validate_every == 0 or epoch + 1 == self.end


class Plan:
    """The stages of a run.

    Arguments:
        config: The run.
        examples: Number of training examples.
        preparation: How examples become what the model reads.
        labelled: Share of training examples whose labels are known.
    """

    def __init__(
        self, config: Config, examples: int, preparation: Preparation, labelled: float = 1.0
    ) -> None:
        self.config, self.preparation, self.labelled = config, preparation, labelled
        own = config.objective
        objectives: dict[str, Callable[..., Objective | Matching | Variational]] = {
            "matching": self.matching,
            "variational": self.variational,
            "likelihood": partial(self.likelihood, kinetic=own.kinetic, jacobian=own.jacobian),
        }
        stages: list[Stage] = []
        for name, recipe in recipes(config).items():
            first = stages[-1].end if stages else 0
            sampler = Sampler(examples, recipe.batch_size, config.training.seed)
            stages.append(Stage(name, first, recipe, sampler, objectives[name]))
        self.stages = tuple(stages)

    @property
    def epochs(self) -> int:
        """Epochs of all stages."""
        return self.stages[-1].end

    @property
    def steps(self) -> int:
        """Steps of all stages."""
        return sum(stage.steps for stage in self.stages)

    @property
    def matched(self) -> bool:
        """Whether it begins with matching."""
        return self.stages[0].name == "matching"

    @property
    def exact(self) -> Callable[..., Objective | Variational]:
        """What a validation measures."""
        return self.variational if self.stages[-1].name == "variational" else self.likelihood

    @property
    def names(self) -> tuple[str, ...]:
        """Metrics that training and validation report."""
        if self.stages[-1].name == "variational":
            return ("loss", "elbo", "mse", "kl", "error_percent", "squared_error")
        extra = ["matching"] if self.matched else []
        return ("loss", "bits_per_dim", "bits_per_dim_marginal", "error_percent", *extra)

    def at(self, epoch: int) -> Stage:
        """The stage of an epoch; the last one after the end."""
        return next((stage for stage in self.stages if epoch < stage.end), self.stages[-1])

    def done(self, epoch: int, step: int) -> int:
        """Number of steps before a step of an epoch."""
        stage = self.at(epoch)
        before = [other for other in self.stages if other.first < stage.first]
        return sum(other.steps for other in before) + stage.number(epoch, step)

    def likelihood(
        self,
        model: InfoCNF,
        x: Tensor,
        labels: Labels,
        **options: Any,  # noqa: ANN401
    ) -> Objective:
        """The paper's objective, the likelihood in units of the data."""
        return likelihood_objective(
            model,
            x,
            labels or None,
            beta=self.config.objective.beta,
            levels=self.preparation.levels,
            log_scale=self.preparation.log_scale,
            **options,
        )

    def variational(
        self,
        model: LatentODE,
        series: Tensor,
        labels: Labels,
        **options: Any,  # noqa: ANN401
    ) -> Variational:
        """The objective of a latent ODE."""
        own = self.config.series
        return variational_objective(
            model,
            series,
            {name: y for name, y in labels.items() if name in model.code.heads},
            shortest=own.shortest,
            kl=own.kl,
            kl_supervised=own.kl_supervised,
            beta=own.beta,
            log_scale=self.preparation.log_scales.to(series),
            **options,
        )

    @property
    def matching_beta(self) -> float:
        """Weight of a label in matching: few weigh as much as all would, up to a bound."""
        return self.config.matching.beta * min(1.0 / self.labelled, LARGEST_WEIGHT)

    def matching(
        self,
        model: InfoCNF,
        x: Tensor,
        labels: Labels,
        *,
        seeds: Tensor | None = None,
        stepping: str | None = None,
    ) -> Matching:
        """The loss of matching, which knows no steps."""
        own = self.config.matching
        return matching_objective(
            model,
            x,
            labels or None,
            beta=self.matching_beta,
            end=own.end,
            share=own.share,
            times=own.times,
            erase=own.erase,
            shift=own.shift,
            precision=own.precision,
            pseudo_label_threshold=own.pseudo_label_threshold,
            coupling=own.coupling,
            seeds=seeds,
        )


def recipes(config: Config) -> dict[str, Recipe]:
    """How each stage of a run minimises, in sampler."""
    known: dict[str, Recipe] = {
        "matching": config.matching,
        "likelihood": config.training,
        "variational": config.training,
    }
    return {name: known[name] for name in config.training.stages}


def epochs_of(config: Config) -> int:
    """Epochs of all stages."""
    return sum(recipe.epochs for recipe in recipes(config).values())


def pieces(total: int, largest: int) -> list[slice]:
    """Consecutive pieces of nearly equal size that are none too large.

    >>> pieces(10, 4)
    [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """
    count = -(-total // largest)
    edges = [total * i // count for i in range(count + 1)] if count else [0]
    return [slice(a, b) for a, b in pairwise(edges)]


@dataclass(frozen=True)
class Sampler:
    """The order of the training examples: a function of seed, epoch and step, so that nothing has
    to be remembered.

    Every epoch visits each example once, in batches that differ in size by at most one: no example
    is left over, and no step is made of a few.

    Arguments:
        examples: Number of examples.
        batch_size: Largest number of examples per step, over all processes.
        seed: Seed of the run.
    """

    examples: int
    batch_size: int
    seed: int

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        return len(pieces(self.examples, self.batch_size))

    def batch(self, epoch: int, step: int, rank: int = 0, world: int = 1) -> Tensor:
        """The share of one process in the examples of a step."""
        permutation = np.random.default_rng((self.seed, epoch)).permutation(self.examples)
        chosen = permutation[pieces(self.examples, self.batch_size)[step]]
        return torch.from_numpy(chosen[rank::world].copy())


def labelled(examples: tuple[Tensor, dict[str, Tensor]]) -> Tensor:
    """Indices of the examples whose labels are all known."""
    x, labels = examples
    known = torch.ones(len(x), dtype=torch.bool)
    for values in labels.values():
        known &= ~is_missing(values)
    return known.nonzero().flatten()


def finish_matching(training: Training) -> None:
    """Go on from the averaged weights, with a sharper field and a prior fitted to their codes."""
    model, own = training.model, training.config.matching
    assert isinstance(model, InfoCNF)
    if training.average is not None:
        model.load_state_dict(training.evaluated.state_dict())
    if own.sharpness > 1.0 and model.code.heads:
        model.sharpen(own.sharpness)
    usable = {part: labelled(training.examples[part]) for part in ("train", "validation")}
    if own.refit and all(len(indices) for indices in usable.values()):
        parts = []
        for part, indices in usable.items():
            chosen = torch.linspace(0, len(indices) - 1, min(own.refit, len(indices))).long()
            x, labels = training.take(part, indices[chosen])
            parts.append((training.preparation(x, model.dtype), labels))
        size = training.config.evaluation.batch_size
        gains = refit(model.eval(), parts[0], parts[1], batch_size=size)
        model.train()
        told = ", ".join(f"{name} {gain:.2f}" for name, gain in gains.items())
        log.info("prior fitted to codes; nats gained per validation example: %s", told)
    if training.average is not None:
        training.evaluated.load_state_dict(model.state_dict())
