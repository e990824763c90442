"""One training step after the other, as Lightning asks for them.

A step is a batch of the whole run: each process takes its share, solves it in micro-batches, adds
up gradients and figures over examples, and shares both sums with the others at once. So a step does
not depend on micro-batches or on the number of processes (but for rounding, the steps of the solver
and tolerances drawn per batch), and an example that cannot be solved is left out everywhere alike.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from copy import deepcopy
from time import perf_counter
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from infocnf.data import Dataset, spread_over
from infocnf.errors import WorkError
from infocnf.models import InfoCNF, LatentODE
from infocnf.objectives import Matching, Objective, Variational
from infocnf.ode import AdjointError
from infocnf.ode.streams import combine_seeds
from infocnf.training.account import (
    Account,
    account_names,
    account_of,
    account_of_matching,
)
from infocnf.training.average import averaging
from infocnf.training.config import Config
from infocnf.training.failures import solvable
from infocnf.training.groups import average_gradients, parameter_groups, set_rates
from infocnf.training.muon import Muon
from infocnf.training.order import Order, Steps, pieces
from infocnf.training.rates import rate_factor
from infocnf.training.sharing import add_figures, add_gradients, mean_first_steps
from infocnf.training.stages import Plan, Stage
from infocnf.training.transition import begin_stage, finish_matching, labelled
from infocnf.training.validation import validate

__all__ = ["FlowModule"]

log = logging.getLogger("infocnf")
LARGEST_FAILED = 0.01  # share of an epoch's examples that may fail
LARGEST_HALVINGS = 10


class FlowModule(LightningModule):
    """A model in training.

    Arguments:
        config: The run.
        model: The model.
        data: The examples.
    """

    def __init__(self, config: Config, model: InfoCNF | LatentODE, data: Dataset) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.config, self.model = config, model
        self.preparation, self.classes = data.preparation, data.raw.classes
        self.examples = {part: data.examples(part) for part in ("train", "validation")}
        self.examples["test"] = spread_over(*data.examples("test"), config.training.watch_test)
        count, known = len(self.examples["train"][0]), len(labelled(self.examples["train"]))
        self.plan = Plan(config, count, self.preparation, max(known, 1) / count)
        averaged = any(stage.recipe.ema for stage in self.plan.stages)
        decay = averaging(lambda: self.stage.recipe.ema)
        self.average = AveragedModel(model, multi_avg_fn=decay) if averaged else None
        if self.average is not None:
            self.average.requires_grad_(False)
        self.names = account_names(model)

        self.epoch, self.validation, self.watched = Account(), Account(), Account()
        self.latest: dict[str, float] = {}  # of the last step
        self.halvings = self.streak = self.skipped = 0
        # where to go back to: the start of an epoch, good once a step from there has succeeded
        self.candidate: dict[str, Any] | None = None
        self.good: dict[str, Any] | None = None
        self.votes = {"stop": False, "save": False}  # of this process; `decided` is of all
        self.decided = dict.fromkeys(self.votes, False)
        self.waited = 0.0

    @property
    def stage(self) -> Stage:
        """What the run is doing."""
        return self.plan.at(self.current_epoch)

    @property
    def order(self) -> Order:
        """Which examples the steps of this epoch see."""
        return self.stage.order

    @property
    def evaluated(self) -> InfoCNF | LatentODE:
        """The model as it is evaluated and kept: averaged, where that was asked for."""
        return self.model if self.average is None else cast("Any", self.average.module)

    @property
    def read(self) -> str:
        """How the validation says that labels are best read."""
        once = self.validation.mean("one_step_error_percent")
        flow = self.validation.mean("error_percent")
        return "flow" if once is None or flow is None or once > flow else "one_step"

    @property
    def validates(self) -> bool:
        """Whether this epoch ends with an exact validation."""
        return self.stage.validates(self.current_epoch)

    @property
    def blocks(self) -> Sequence[Any]:
        """The continuous blocks in training."""
        return self.model.blocks

    # ------------------------------------------------------------------ what Lightning asks for

    def train_dataloader(self) -> Steps:
        """The steps of an epoch."""
        return Steps(self.order.steps)

    def val_dataloader(self) -> Steps:
        """The batches of a validation."""
        return Steps(len(self.validation_pieces()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """For the flow, and for the weights of a tolerance policy apart."""
        return Muon(parameter_groups(self.model), lr=0.0)

    def training_step(self, batch: object, batch_idx: int) -> None:
        """One step; the batch is that of this epoch and number."""
        started, stage = perf_counter(), self.stage
        number = stage.number(self.current_epoch, batch_idx)
        if number == 0 and stage.first:
            begin_stage(self)
        self.model.policy.begin_step(number / stage.steps)
        # for a policy of one's own that draws from it; all other noise belongs to the examples
        torch.manual_seed(
            int(combine_seeds(self.config.training.seed, number, self.global_rank)) % 2**63
        )
        indices = self.order.batch(
            self.current_epoch, batch_idx, self.global_rank, self.trainer.world_size
        )

        if batch_idx == 0:
            self.candidate = self.snapshot(number)
        self.optimizer.zero_grad()
        sums = Account()
        for piece in pieces(len(indices), stage.recipe.micro_batch or self.order.examples):
            sums.add(self.learn(indices[piece]))
        sums.add({name: float(vote) for name, vote in self.votes.items()})
        self.reduce(sums)
        self.decided = {name: sums.sums.pop(name) > 0 for name in self.votes}
        self.improve(number, sums)
        if number + 1 == stage.steps and stage.name == "matching":
            finish_matching(self)

        self.epoch.add({**sums.sums, "seconds": perf_counter() - started})
        self.check_failures()

    def validation_step(self, batch: object, batch_idx: int) -> None:
        """Figures of one batch of the validation part, or of the test examples that are watched."""
        part, piece = self.validation_pieces()[batch_idx]
        account = self.validation if part == "validation" else self.watched
        account.add(validate(self, part, piece))

    def on_validation_epoch_start(self) -> None:
        """Count anew."""
        self.validation, self.watched = Account(), Account()

    def on_validation_epoch_end(self) -> None:
        """Add up over processes."""
        self.reduce(self.validation, training=False)
        self.reduce(self.watched, training=False)

    # ------------------------------------------------------------------------------- the step

    def learn(self, indices: Tensor) -> dict[str, float]:
        """Add the gradients of some training examples, and return their figures."""
        x, labels = self.take("train", indices)
        seeds = combine_seeds(self.config.training.seed, self.current_epoch, indices)
        seeds = seeds.to(self.device)

        def attempt(kept: Tensor, stepping: str | None) -> Objective | Matching | Variational:
            return self.stage.objective(
                self.model,
                self.preparation(x[kept], self.model_dtype, seeds[kept]),
                {name: y[kept] for name, y in labels.items()},
                seeds=seeds[kept],
                stepping=stepping,
            )

        objective, kept = solvable(attempt, len(x))
        failed = {"failed": float(len(x) - len(kept))}
        if objective is None:
            return failed
        try:
            objective.total.backward()
        except AdjointError as error:  # half of a gradient is none: the step will be skipped
            log.warning("%s", error)
            return {"examples": float(len(kept)), "loss": math.nan}
        mine = {name: y[kept] for name, y in labels.items()}
        if isinstance(objective, Matching):
            assert isinstance(self.model, InfoCNF)
            return {**failed, **account_of_matching(self.model, objective, mine)}
        return {**failed, **account_of(self.model, objective, mine)}

    def improve(self, number: int, sums: Account) -> None:
        """Take the step, unless it is no good."""
        norm, gates = math.nan, self.model.policy.gradients()
        if sums.examples:
            norm = average_gradients(
                self.optimizer.param_groups, sums.examples, self.stage.recipe.clip
            )
        reason = ""
        if sums.sums.get("failed", 0.0) > sums.examples:
            reason = "most of its examples could not be solved"
        elif not (math.isfinite(norm) and math.isfinite(sums.mean("loss") or 0.0)):
            reason = "its loss or gradient is not finite"
        if reason:
            sums.sums.clear()  # the step counts as skipped, not its examples as failed
            self.give_up_step(number, reason)
            return

        recipe = self.stage.recipe
        factor = rate_factor(recipe, number, self.order.steps) * 0.5**self.halvings
        gate_rate = self.config.training.policy_learning_rate
        set_rates(self.optimizer.param_groups, recipe, gate_rate, factor)
        self.optimizer.step()
        self.streak = 0
        if self.candidate is not None:
            self.good, self.candidate = self.candidate, None
        if gates:
            sums.add({**gates, "learning": sums.examples})
        figures = {name: value for name, value in sums.means().items() if value is not None}
        if self.stage.name != "matching":
            self.model.policy.end_step(figures)
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.latest = {**figures, "gradient_norm": norm, "rate": factor}

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser, through which Lightning counts the steps."""
        return cast("torch.optim.Optimizer", self.optimizers())

    def give_up_step(self, number: int, reason: str) -> None:
        """Leave the weights as they are; after several times go back to where they were good."""
        self.skipped += 1
        self.streak += 1
        log.warning("step %d skipped: %s", number, reason)
        if self.streak < self.config.training.patience:
            return
        if self.halvings >= LARGEST_HALVINGS:
            raise WorkError(
                f"training keeps diverging after {self.halvings} roll-backs: "
                "lower training.learning_rate or set training.clip"
            )
        target = self.good or self.candidate
        assert target is not None
        self.load_state_dict(target["weights"])
        self.plain_optimizer.load_state_dict(deepcopy(target["optimizer"]))
        self.restore(target["blocks"])
        self.halvings, self.streak = self.halvings + 1, 0
        if target is self.good:
            self.candidate = None  # ruined, or the same
        log.warning(
            "rolled back to the weights before step %d; the learning rate is halved (now %g of the "
            "schedule's)",
            target["number"],
            0.5**self.halvings,
        )

    def snapshot(self, number: int) -> dict[str, Any]:
        """The state before a step, to go back to."""
        return {
            "number": number,
            "weights": {name: value.clone() for name, value in self.state_dict().items()},
            "optimizer": deepcopy(self.plain_optimizer.state_dict()),
            "blocks": self.first_steps,
        }

    @property
    def plain_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser itself."""
        return cast("Any", self.optimizer).optimizer

    def check_failures(self) -> None:
        """Stop where too many examples of an epoch could not be solved."""
        failed = self.epoch.sums.get("failed", 0.0)
        if failed > max(LARGEST_FAILED * self.order.examples, 1.0):
            raise WorkError(
                f"{failed:.0f} of {self.order.examples} examples could not be solved in epoch "
                f"{self.current_epoch}: loosen tolerance, raise model.max_steps, lower "
                "training.learning_rate, or set objective.kinetic"
            )

    # ------------------------------------------------------------------------ data and processes

    def take(self, part: str, indices: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Examples as read, and their labels."""
        x, labels = self.examples[part]
        return x[indices].to(self.device), {
            k: y[indices].to(self.device) for k, y in labels.items()
        }

    @property
    def model_dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.model.dtype

    def validation_pieces(self) -> list[tuple[str, slice]]:
        """The share of this process in what is validated, in batches."""
        rank, world = (
            (self.global_rank, self.trainer.world_size) if self._trainer is not None else (0, 1)
        )
        found = []
        for part in ("validation", "test") if self.validates else ("validation",):
            total = len(self.examples[part][0])
            mine = slice(total * rank // world, total * (rank + 1) // world)
            for batch in pieces(mine.stop - mine.start, self.config.evaluation.batch_size):
                found.append((part, slice(mine.start + batch.start, mine.start + batch.stop)))
        return found

    def reduce(self, sums: Account, training: bool = True) -> None:
        """Add figures up over all processes; in training gradients, too, and share first steps."""
        if self.trainer.world_size == 1:
            return
        strategy, started = self.trainer.strategy, perf_counter()
        sums.sums = add_figures(strategy, sums.sums, self.names, self.device)
        self.waited += perf_counter() - started
        if training:
            add_gradients(strategy, self.optimizer.param_groups)
            self.restore(mean_first_steps(strategy, self.first_steps, self.device))

    # ----------------------------------------------------------------------------- checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """What is not in weights and optimiser."""
        checkpoint["infocnf"] = {
            "blocks": self.first_steps,
            "candidate": self.candidate,
            "good": self.good,
            "epoch": dict(self.epoch.sums),
            "halvings": self.halvings,
            "streak": self.streak,
            "skipped": self.skipped,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Undo :meth:`on_save_checkpoint`."""
        saved = checkpoint["infocnf"]
        self.restore(saved["blocks"])
        self.epoch = Account(dict(saved["epoch"]))
        self.halvings, self.streak = saved["halvings"], saved["streak"]
        self.skipped = saved["skipped"]
        self.candidate, self.good = saved["candidate"], saved["good"]

    @property
    def first_steps(self) -> list[float | None]:
        """The steps with which the blocks' next solves begin."""
        return [block.first_step for block in self.blocks]

    def restore(self, first_steps: list[float | None]) -> None:
        """Undo :attr:`first_steps`."""
        for block, step in zip(self.blocks, first_steps, strict=True):
            block.first_step = step
