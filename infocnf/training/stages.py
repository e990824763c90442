"""What a run does, one after the other: matching, then maximum likelihood, each with its own
epochs, batches, rates and objective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from infocnf.data import Preparation
from infocnf.models import InfoCNF, LatentODE
from infocnf.objectives import (
    Matching,
    Objective,
    Variational,
    likelihood_objective,
    matching_objective,
    variational_objective,
)
from infocnf.training.config import Config, Recipe
from infocnf.training.order import Order

__all__ = ["Plan", "Stage", "epochs_of"]

Labels = dict[str, Tensor]
LARGEST_WEIGHT = 50.0  # of one label among many examples without


@dataclass(frozen=True)
class Stage:
    """A part of a run.

    Arguments:
        name: ``matching``, ``likelihood`` or ``variational``.
        first: Its first epoch, counted from 0.
        recipe: How it minimises.
        order: Which examples a step sees.
        objective: What a step minimises, of a model, prepared examples and their labels.
    """

    name: str
    first: int
    recipe: Recipe
    order: Order
    objective: Callable[..., Objective | Matching | Variational]

    @property
    def end(self) -> int:
        """The epoch after its last."""
        return self.first + self.recipe.epochs

    @property
    def steps(self) -> int:
        """Number of its steps."""
        return self.recipe.epochs * self.order.steps

    def number(self, epoch: int, step: int) -> int:
        """Number of a step of an epoch within the stage."""
        return (epoch - self.first) * self.order.steps + step

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
            order = Order(examples, recipe.batch_size, config.training.seed)
            stages.append(Stage(name, first, recipe, order, objectives[name]))
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
        """Figures that training and validation report."""
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
            confident=own.confident,
            transport=own.transport,
            seeds=seeds,
        )


def recipes(config: Config) -> dict[str, Recipe]:
    """How each stage of a run minimises, in order."""
    known: dict[str, Recipe] = {
        "matching": config.matching,
        "likelihood": config.training,
        "variational": config.training,
    }
    return {name: known[name] for name in config.training.stages}


def epochs_of(config: Config) -> int:
    """Epochs of all stages."""
    return sum(recipe.epochs for recipe in recipes(config).values())
