"""Training, top to bottom: one step after the other.

A step is a batch of the whole run: each process takes its share, solves it in micro-batches, adds
up gradients and metrics over examples, and shares both sums with the others at once. So a step does
not depend on micro-batches or on the number of processes (but for rounding, the steps of the solver
and tolerances drawn per batch), and an example that cannot be solved is left out everywhere alike.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from infocnf.data import Dataset, spread_over
from infocnf.errors import WorkError
from infocnf.matching import Matching
from infocnf.models import InfoCNF, PartitionedModel
from infocnf.objectives import Objective, Variational
from infocnf.ode import AdjointError, set_aside
from infocnf.random import combine_seeds
from infocnf.runs.config import Config
from infocnf.training.distributed import (
    add_gradients,
    add_sums,
    mean_first_steps,
    same_weights,
)
from infocnf.training.metrics import (
    CSVLog,
    MetricSums,
    sum_names,
    sums_of,
    validation_of_matching,
)
from infocnf.training.optim import (
    Muon,
    average_gradients,
    averaging,
    parameter_groups,
    rate_factor,
    set_rates,
)
from infocnf.training.recovery import Checkpointer, Rollback
from infocnf.training.stages import Plan, Stage, finish_matching, labelled, pieces

__all__ = ["Observer", "Training"]

log = logging.getLogger("infocnf")
LARGEST_FAILED = 0.01  # share of an epoch's examples that may fail


def losses_of(found: Objective | Matching | Variational) -> Tensor:
    """What must be finite for an example to count."""
    return found.losses


class Observer(Protocol):
    """Who watches a training: a progress bar, a test."""

    def started(self, training: Training) -> None:
        """Before the first step."""

    def stepped(self, training: Training) -> None:
        """After each step, whose metrics are in ``training.latest``."""

    def ended(self) -> None:
        """After the last step, or where it broke off."""


class Training:
    """A model in training.

    Arguments:
        config: The run.
        model: The model.
        data: The examples.
        fabric: Its processes.
        folder: Where checkpoints, metrics and the model go; None for training in memory.
        observer: Who watches.
        validate_last: Whether only the last epoch is validated.
    """

    def __init__(
        self,
        config: Config,
        model: PartitionedModel,
        data: Dataset,
        fabric: Fabric,
        *,
        folder: Path | None = None,
        observer: Observer | None = None,
        validate_last: bool = False,
    ) -> None:
        self.config, self.fabric, self.device = config, fabric, fabric.device
        self.model = model.to(self.device)
        same_weights(fabric, model)
        self.preparation, self.classes = data.preparation, data.raw.classes
        self.examples = {part: data.examples(part) for part in ("train", "validation")}
        self.examples["test"] = spread_over(*data.examples("test"), config.training.watch_test)
        count, known = len(self.examples["train"][0]), len(labelled(self.examples["train"]))
        self.plan = Plan(config, count, self.preparation, max(known, 1) / count)
        self.optimizer = Muon(parameter_groups(model), lr=0.0)
        averaged = any(stage.recipe.ema for stage in self.plan.stages)
        decay = averaging(lambda: self.stage.recipe.ema)
        self.average = AveragedModel(model, multi_avg_fn=decay) if averaged else None
        if self.average is not None:
            self.average.requires_grad_(False)

        self.epoch = self.batch = self.steps = 0  # done: epochs, steps of this one, steps in all
        self.sums, self.validation, self.watched = MetricSums(), MetricSums(), MetricSums()
        self.latest: dict[str, float] = {}  # metrics of the last step
        self.rollback = Rollback(config.training.patience)
        self.decided: dict[str, bool] = {}  # what any process voted for
        self.waited = 0.0  # seconds, for other processes
        self.validate_last, self.observer = validate_last, observer
        self.csv = None if folder is None else CSVLog(folder)
        self.checkpointer = None if folder is None else Checkpointer(folder)

    # --------------------------------------------------------------------------------- the loop

    def run(self, checkpoint: Path | None = None) -> None:
        """Train until the last epoch; from a checkpoint that :meth:`load_state_dict` has read, or
        from the beginning.
        """
        if self.checkpointer is not None:
            self.checkpointer.start(self, checkpoint)
        if self.observer is not None:
            self.observer.started(self)
        try:
            while self.epoch < self.plan.epochs:
                self.run_epoch()
        finally:
            if self.observer is not None:
                self.observer.ended()
            if self.csv is not None:
                self.csv.close()
            if self.checkpointer is not None:
                self.checkpointer.stop()

    def run_epoch(self) -> None:
        """The steps that are left of an epoch, its validation, and what is written of it."""
        while self.batch < self.stage.sampler.steps:
            self.step()
            self.batch += 1
            if self.observer is not None:
                self.observer.stepped(self)
            if self.checkpointer is not None:
                self.checkpointer.after_step(self)

        if not self.validate_last or self.epoch + 1 == self.plan.epochs:
            self.validate()
            if self.checkpointer is not None:
                self.checkpointer.after_validation(self)
        if self.csv is not None and (failed := self.csv.write(self)["samples_failed"]):
            log.warning(
                "%d examples of epoch %d could not be solved and were left out",
                failed,
                self.epoch + 1,
            )
        self.sums, self.rollback.skipped = MetricSums(), 0
        self.epoch, self.batch = self.epoch + 1, 0
        if self.checkpointer is not None:
            self.checkpointer.after_epoch(self)

    def step(self) -> None:
        """One step: batch, micro-batches, sums over processes, and the optimiser."""
        started, stage = perf_counter(), self.stage
        number = stage.number(self.epoch, self.batch)
        if number == 0 and stage.first:
            self.begin_stage()
        self.model.train()
        self.model.policy.begin_step(number / stage.steps)
        # for a policy of one's own that draws from it; all other noise belongs to the examples
        rank, world = self.fabric.global_rank, self.fabric.world_size
        torch.manual_seed(int(combine_seeds(self.config.training.seed, number, rank)) % 2**63)
        if self.batch == 0:
            self.rollback.begin_epoch(self, number)

        self.optimizer.zero_grad()
        indices, sums = stage.sampler.batch(self.epoch, self.batch, rank, world), MetricSums()
        for piece in pieces(len(indices), stage.recipe.micro_batch or stage.sampler.examples):
            sums.add(self.learn(indices[piece]))
        votes = {} if self.checkpointer is None else self.checkpointer.votes(self)
        sums.add(votes)
        self.reduce(sums)
        self.decided = {name: sums.sums.pop(name) > 0 for name in votes}
        self.improve(number, sums)
        if number + 1 == stage.steps and stage.name == "matching":
            finish_matching(self)

        self.sums.add({**sums.sums, "seconds": perf_counter() - started})
        self.check_failures()

    def learn(self, indices: Tensor) -> dict[str, float]:
        """Add the gradients of some training examples, and return their sums."""
        x, labels = self.take("train", indices)
        seeds = combine_seeds(self.config.training.seed, self.epoch, indices).to(self.device)

        def attempt(kept: Tensor, stepping: str | None) -> Objective | Matching | Variational:
            return self.stage.objective(
                self.model,
                self.preparation(x[kept], self.model.dtype, seeds[kept]),
                {name: y[kept] for name, y in labels.items()},
                seeds=seeds[kept],
                stepping=stepping,
            )

        objective, kept = set_aside(attempt, len(x), losses_of)
        failed = {"failed": float(len(x) - len(kept))}
        if objective is None:
            return failed
        try:
            objective.total.backward()
        except AdjointError as error:  # the gradient is not complete: the step will be skipped
            log.warning("%s", error)
            return {"examples": float(len(kept)), "loss": math.nan}
        mine = {name: y[kept] for name, y in labels.items()}
        return {**failed, **sums_of(self.model, objective, mine)}

    def improve(self, number: int, sums: MetricSums) -> None:
        """Take the step, unless it is no good."""
        recipe, groups = self.stage.recipe, self.optimizer.param_groups
        norm, gates = math.nan, self.model.policy.gradients()
        if sums.examples:
            norm = average_gradients(groups, sums.examples, recipe.clip)
        reason = ""
        if sums.sums.get("failed", 0.0) > sums.examples:
            reason = "most of its examples could not be solved"
        elif not (math.isfinite(norm) and math.isfinite(sums.mean("loss") or 0.0)):
            reason = "its loss or gradient is not finite"
        if reason:
            sums.sums.clear()  # the step counts as skipped, not its examples as failed
            self.rollback.failed(self, number, reason)
            return

        factor = rate_factor(recipe, number, self.stage.sampler.steps)
        factor *= 0.5**self.rollback.halvings
        set_rates(groups, recipe, self.config.training.policy_learning_rate, factor)
        self.optimizer.step()
        self.steps += 1
        self.rollback.succeeded()
        if gates:
            sums.add({**gates, "learning": sums.examples})
        metrics = {name: value for name, value in sums.means().items() if value is not None}
        if self.stage.name != "matching":
            self.model.policy.end_step(metrics)
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.latest = {**metrics, "gradient_norm": norm, "rate": factor}

    def begin_stage(self) -> None:
        """Forget what belongs to the stage before: moments of gradients, roll-backs, averages."""
        self.optimizer.state.clear()
        self.rollback.begin_stage()
        if self.average is not None:
            self.average.n_averaged.zero_()

    def check_failures(self) -> None:
        """Stop where too many examples of an epoch could not be solved."""
        failed, examples = self.sums.sums.get("failed", 0.0), self.stage.sampler.examples
        if failed > max(LARGEST_FAILED * examples, 1.0):
            raise WorkError(
                f"{failed:.0f} of {examples} examples could not be solved in epoch "
                f"{self.epoch}: loosen tolerance, raise model.max_steps, lower "
                "training.learning_rate, or set objective.kinetic"
            )

    # ------------------------------------------------------------------------------- validation

    @torch.no_grad()
    def validate(self) -> None:
        """Metrics of the validation part, and of the test examples that are watched."""
        self.validation, self.watched = MetricSums(), MetricSums()
        rank, world = self.fabric.global_rank, self.fabric.world_size
        for part in ("validation", "test") if self.validates else ("validation",):
            sums = self.validation if part == "validation" else self.watched
            total = len(self.examples[part][0])
            first, end = total * rank // world, total * (rank + 1) // world
            for piece in pieces(end - first, self.config.evaluation.batch_size):
                indices = torch.arange(first + piece.start, first + piece.stop)
                sums.add(self.validate_batch(part, indices))
        self.reduce(self.validation, training=False)
        self.reduce(self.watched, training=False)
        self.model.train()

    def validate_batch(self, part: str, indices: Tensor) -> dict[str, float]:
        """Sums over some examples: of the exact objective where this epoch has it, of matching
        where it goes on.
        """
        x, labels = self.take(part, indices)
        model, kept, sums = self.evaluated.eval(), torch.arange(len(x)), MetricSums()

        def attempt(kept: Tensor, stepping: str | None) -> Objective | Variational:
            return self.plan.exact(
                model,
                self.preparation(x[kept], model.dtype),
                {name: y[kept] for name, y in labels.items()},
                tolerance=self.config.evaluation.tolerance,
            )

        if self.validates:
            objective, kept = set_aside(attempt, len(x), losses_of)
            sums.add({"failed": float(len(x) - len(kept))})
            if objective is None:
                return sums.sums
            labels = {name: y[kept] for name, y in labels.items()}
            sums.add(sums_of(model, objective, labels))
        matches = self.validates or self.stage.name == "matching"
        if isinstance(model, InfoCNF) and self.plan.matched and matches:
            prepared = self.preparation(x[kept], model.dtype)
            read = sums_of(model, self.plan.matching(model, prepared, labels), labels)
            sums.add(validation_of_matching(read, alone=not self.validates))
        return sums.sums

    @property
    def validates(self) -> bool:
        """Whether this epoch ends with an exact validation."""
        return self.stage.validates(self.epoch)

    @property
    def evaluated(self) -> PartitionedModel:
        """The model as it is evaluated and kept: averaged, where that was asked for."""
        return self.model if self.average is None else cast("Any", self.average.module)

    @property
    def readout(self) -> str:
        """How the validation says that labels are best read."""
        once = self.validation.mean("one_step_error_percent")
        flow = self.validation.mean("error_percent")
        return "flow" if once is None or flow is None or once > flow else "one_step"

    # ------------------------------------------------------------------------ data and processes

    @property
    def stage(self) -> Stage:
        """What the run is doing."""
        return self.plan.at(self.epoch)

    @property
    def is_leader(self) -> bool:
        """Whether this process writes."""
        return self.fabric.is_global_zero

    def take(self, part: str, indices: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Examples as read, and their labels."""
        x, labels = self.examples[part]
        mine = {name: y[indices].to(self.device) for name, y in labels.items()}
        return x[indices].to(self.device), mine

    def reduce(self, sums: MetricSums, training: bool = True) -> None:
        """Add sums up over all processes; in training gradients, too, and share first steps."""
        if self.fabric.world_size == 1:
            return
        started = perf_counter()
        sums.sums = add_sums(self.fabric, sums.sums, sum_names(self.model), self.device)
        self.waited += perf_counter() - started
        if training:
            add_gradients(self.fabric, self.optimizer.param_groups)
            self.first_steps = mean_first_steps(self.fabric, self.first_steps, self.device)

    # ----------------------------------------------------------------------------- checkpoints

    def weights(self) -> dict[str, dict[str, Tensor]]:
        """Weights of the model and of the moving average."""
        found = {"model": self.model.state_dict()}
        return found if self.average is None else {**found, "average": self.average.state_dict()}

    def load_weights(self, weights: dict[str, dict[str, Tensor]]) -> None:
        """Undo :meth:`weights`."""
        self.model.load_state_dict(weights["model"])
        if self.average is not None:
            self.average.load_state_dict(weights["average"])

    @property
    def first_steps(self) -> list[float | None]:
        """The steps with which the blocks' next solves begin."""
        return [block.first_step for block in self.model.blocks]

    @first_steps.setter
    def first_steps(self, steps: list[float | None]) -> None:
        for block, step in zip(self.model.blocks, steps, strict=True):
            block.first_step = step

    def state_dict(self) -> dict[str, Any]:
        """All that the steps to come depend on, and the rows so far."""
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "steps": self.steps,
            "weights": self.weights(),
            "optimizer": self.optimizer.state_dict(),
            "blocks": self.first_steps,
            "sums": dict(self.sums.sums),
            "rollback": self.rollback.state_dict(),
            "rows": [] if self.csv is None else self.csv.rows,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo :meth:`state_dict`."""
        self.epoch, self.batch, self.steps = state["epoch"], state["batch"], state["steps"]
        self.load_weights(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.first_steps = state["blocks"]
        self.sums = MetricSums(dict(state["sums"]))
        self.rollback.load_state_dict(state["rollback"])
        if self.csv is not None:
            self.csv.rows = list(state["rows"])
        if self.checkpointer is not None:
            self.checkpointer.load_state_dict(state["checkpointer"])
