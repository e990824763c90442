"""What keeps a run alive: bad steps are given up and rolled back, everything is saved, and signals
are heard.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from copy import deepcopy
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any

from infocnf.errors import StoppedError, WorkError
from infocnf.models import InfoCNF, load
from infocnf.runs import checkpoints
from infocnf.runs.manifest import seal

if TYPE_CHECKING:
    from infocnf.training.loop import Training

__all__ = ["Checkpointer", "Rollback"]

log = logging.getLogger("infocnf")
LARGEST_HALVINGS = 10


def is_model(folder: Path) -> bool:
    """Whether a folder holds a model that can be read."""
    try:
        load(folder)
    except ValueError:
        return False
    return True


class Rollback:
    """Steps that are no good leave the weights as they are; after several in a row they go back to
    where they were good, with half the learning rate.

    What it would go back to is the start of an epoch, good once a step from there has succeeded.

    Arguments:
        patience: Bad steps in a row until a roll-back.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.halvings = self.streak = self.skipped = 0
        self.candidate: dict[str, Any] | None = None
        self.good: dict[str, Any] | None = None

    def begin_stage(self) -> None:
        """Forget what belongs to the stage before."""
        self.halvings = self.streak = 0
        self.candidate = self.good = None

    def begin_epoch(self, training: Training, number: int) -> None:
        """Remember the state before the first step of an epoch."""
        state = training.weights()
        self.candidate = {
            "number": number,
            "weights": {part: {n: v.clone() for n, v in state[part].items()} for part in state},
            "optimizer": deepcopy(training.optimizer.state_dict()),
            "blocks": training.first_steps,
        }

    def succeeded(self) -> None:
        """A step was taken."""
        self.streak = 0
        if self.candidate is not None:
            self.good, self.candidate = self.candidate, None

    def failed(self, training: Training, number: int, reason: str) -> None:
        """A step was given up; go back where it was one too many."""
        self.skipped += 1
        self.streak += 1
        log.warning("step %d skipped: %s", number, reason)
        if self.streak < self.patience:
            return
        if self.halvings >= LARGEST_HALVINGS:
            raise WorkError(
                f"training keeps diverging after {self.halvings} roll-backs: "
                "lower training.learning_rate or set training.clip"
            )
        target = self.good or self.candidate
        assert target is not None
        training.load_weights(target["weights"])
        training.optimizer.load_state_dict(deepcopy(target["optimizer"]))
        training.first_steps = target["blocks"]
        self.halvings, self.streak = self.halvings + 1, 0
        if target is self.good:
            self.candidate = None  # ruined, or the same
        log.warning(
            "rolled back to the weights before step %d; the learning rate is halved (now %g of the "
            "schedule's)",
            target["number"],
            0.5**self.halvings,
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything but the patience."""
        return {name: value for name, value in vars(self).items() if name != "patience"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo :meth:`state_dict`."""
        vars(self).update(state)


class Checkpointer:
    """Checkpoints after each epoch, every so many minutes and on request; the best model.

    Arguments:
        folder: The run directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.best: list[float] | None = None
        self.improved = False
        self.readout = "flow"
        self.saved = monotonic()
        self.asked = 0
        self.before: dict[signal.Signals, Any] = {}

    @property
    def last(self) -> Path:
        """Where the last checkpoint is."""
        return self.folder / "checkpoints" / checkpoints.LAST

    def start(self, training: Training, source: Path | None) -> None:
        """Listen to signals, and have a checkpoint from the beginning."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self.ask)
        if source is None:
            self.save(training)
        elif training.is_leader:
            self.mend(training, source)
        self.improved = False

    def mend(self, training: Training, source: Path) -> None:
        """Write again what a kill or damage took, from the checkpoint that was read."""
        if self.improved:
            checkpoints.copy_best(source)
        if training.csv is not None and training.csv.rows:
            training.csv.save()
        own = training.config.training.select == "best"
        kept = self.last.with_name(checkpoints.BEST) if own else source
        done = self.best is not None if own else training.epoch == training.plan.epochs
        if done and not is_model(self.folder / "model") and checkpoints.intact(kept):
            now = deepcopy(training.weights())
            training.load_weights(checkpoints.read(kept)["weights"])
            self.keep(training)
            training.load_weights(now)
            log.warning("%s was damaged: restored from %s", self.folder / "model", kept)
        seal(self.folder)

    def stop(self) -> None:
        """Give the signals back."""
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before.clear()

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Stop after this step; at once when asked again."""
        self.asked += 1
        if self.asked > 1:
            os._exit(1)
        log.warning("stopping after this step; once more to stop at once")

    def votes(self, training: Training) -> dict[str, float]:
        """What this process would have; one that wants it is enough."""
        minutes = (monotonic() - self.saved) / 60.0
        save = minutes >= training.config.training.checkpoint_minutes
        return {"save": float(save), "stop": float(self.asked > 0)}

    def after_step(self, training: Training) -> None:
        """Save or stop where any process wanted it; after an epoch's last step its end does."""
        if training.batch == training.stage.sampler.steps:
            return
        if any(training.decided.values()):
            self.save(training)
        if training.decided.get("stop"):
            raise StoppedError(f"stopped in epoch {training.epoch + 1}, step {training.batch}")

    def after_validation(self, training: Training) -> None:
        """Keep the model where it is the best so far."""
        loss = training.validation.mean("loss")
        if loss is None:
            return
        # a model that solves fewer examples is worse, whatever their loss
        score = [training.validation.sums.get("failed", 0.0), loss]
        self.improved = self.best is None or score < self.best
        if self.improved:
            self.best, self.readout = score, training.readout
            if training.config.training.select == "best":
                self.keep(training)

    def after_epoch(self, training: Training) -> None:
        """Save, and stop where any process wanted it; the epoch that ended counts as done."""
        final = training.epoch == training.plan.epochs
        select = training.config.training.select
        if final and select == "last":
            self.readout = training.readout
            self.keep(training)
        self.save(training)
        self.improved = False
        if final and self.best is None and select == "best":
            raise WorkError(
                "no validation example could be solved, so there is no model to keep: loosen "
                "tolerance and evaluation.tolerance, or raise model.max_steps"
            )
        if training.decided.get("stop") and not final:
            raise StoppedError(f"stopped after epoch {training.epoch}")

    def save(self, training: Training) -> None:
        """Write the last checkpoint, which may be the best, too, and the manifest after it."""
        if training.is_leader:
            own = {"best": self.best, "improved": self.improved, "readout": self.readout}
            checkpoints.save({**training.state_dict(), "checkpointer": own}, self.last)
            if self.improved:
                checkpoints.copy_best(self.last)
            seal(self.folder)
        training.fabric.barrier()
        self.saved = monotonic()

    def keep(self, training: Training) -> None:
        """Write the model for others to use."""
        if training.is_leader:
            if isinstance(training.evaluated, InfoCNF):
                training.evaluated.readout = self.readout
            training.evaluated.save_pretrained(self.folder / "model")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The best score so far, whether this is its checkpoint, and how its labels are read."""
        self.best, self.improved = state["best"], state["improved"]
        self.readout = state.get("readout", self.readout)
