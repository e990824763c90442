"""What a person sees while a model trains."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from infocnf.cli.console import console
from infocnf.errors import StoppedError
from infocnf.models import InfoCNF, LatentODE
from infocnf.models.labels import is_missing
from infocnf.objectives.likelihood import weight_in_nats
from infocnf.processes import is_leader
from infocnf.training.module import FlowModule

__all__ = ["Display", "announce"]

QUIET_SECONDS = 20.0  # between lines where there is no terminal


@contextmanager
def announce(folder: Path) -> Iterator[None]:
    """Show the library's warnings; say at the end where everything is, or how to go on."""
    log = logging.getLogger("infocnf")
    if not is_leader():
        log.addHandler(logging.NullHandler())
        log.propagate = False
    elif not log.handlers:
        log.addHandler(RichHandler(console=console, show_time=False, show_path=False))
    try:
        yield
    except StoppedError as error:
        raise StoppedError(
            f"{error}, and saved; continue with 'infocnf train --resume --out {folder}'"
        ) from None
    if is_leader():
        console.print(f"trained: {folder}; next: infocnf evaluate {folder}")


class Display(Callback):
    """A progress bar with the figures of the last steps, or a line now and then where there is no
    terminal.
    """

    def __init__(self) -> None:
        self.bars: Progress | None = None
        self.told = 0.0
        self.begun = monotonic()
        self.first = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what is about to happen."""
        assert isinstance(pl_module, FlowModule)
        if not trainer.is_global_zero:
            return
        console.print(introduction(pl_module))
        total = pl_module.plan.steps
        done = pl_module.plan.done(trainer.current_epoch, trainer.fit_loop.batch_idx + 1)
        self.begun, self.first = monotonic(), max(done, 0) if trainer.global_step else 0
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self.bars = Progress(*columns, TimeRemainingColumn(), console=console)
            self.bars.start()
            self.task = self.bars.add_task("training", total=total, completed=self.first)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Show the figures of this step."""
        assert isinstance(pl_module, FlowModule)
        if not trainer.is_global_zero:
            return
        plan = pl_module.plan
        done = plan.done(trainer.current_epoch, batch_idx + 1)
        text = f"epoch {trainer.current_epoch + 1}/{plan.epochs}  {figures(pl_module.latest)}"
        if self.bars is not None:
            self.bars.update(self.task, description=text, completed=done)
        elif monotonic() - self.told > QUIET_SECONDS or done == plan.steps:
            left = (monotonic() - self.begun) / max(done - self.first, 1) * (plan.steps - done)
            console.print(f"{text}  {duration(left)} left")
            self.told = monotonic()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the bar as it is."""
        if self.bars is not None:
            self.bars.stop()
            self.bars = None


def introduction(module: FlowModule) -> str:
    """The run in a few lines."""
    model, config = module.model, module.config
    sizes = {part: len(x) for part, (x, _) in module.examples.items()}
    parameters = sum(p.numel() for p in model.parameters())
    kind = kind_in_words(model)
    lines = [
        f"{sizes['train']:,} {kind} to train on, "
        f"{sizes['validation']:,} to validate; {parameters:,} parameters",
    ]
    lines += [f"{name}: {label_in_words(module, name)}" for name in model.code.heads]
    if "matching" in config.training.stages:
        labels = f" + {module.plan.matching_beta:.2g} cross-entropy" if model.code.heads else ""
        lines.append(f"matching: squared error of the field{labels}")
    if isinstance(model, LatentODE):
        own = config.series
        lines.append(
            f"objective: -log p(x | z) + {own.kl:g} KL(z_u) + {own.kl_supervised:g} KL(z_y) + "
            f"{own.beta:g} cross-entropy"
        )
    elif model.code.heads and "likelihood" in config.training.stages:
        weight = weight_in_nats(config.objective.beta, model.dimensions)
        lines.append(
            f"objective: bits/dim + {config.objective.beta:g} cross-entropy "
            f"(likelihood in nats: + {weight:.0f} cross-entropy)"
        )
    return "\n".join(lines)


def kind_in_words(model: InfoCNF | LatentODE) -> str:
    """What the examples are."""
    if isinstance(model, LatentODE):
        return f"series of {model.channels} channel{'s' * (model.channels > 1)}"
    shape = "x".join(map(str, model.shape))
    return f"images of {shape}" if len(model.shape) == 3 else f"rows of {shape}"


def label_in_words(module: FlowModule, name: str) -> str:
    """What kind of label it is, and how many examples to train on do not have it."""
    values = module.examples["train"][1][name]
    unknown = is_missing(values)
    without = f"; not known of {int(unknown.sum()):,}" if unknown.any() else ""
    if name in module.classes:
        names = module.classes[name]
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        return f"{len(names)} classes ({shown}){without}"
    known = values[~unknown]
    return f"an amount from {known.min():g} to {known.max():g}{without}"


def figures(latest: dict[str, float]) -> str:
    """The figures of a step."""
    parts = []
    if "bits_per_dim" in latest:
        parts.append(f"bits/dim {latest['bits_per_dim']:.3f}")
    if "elbo" in latest:
        parts.append(f"ELBO {latest['elbo']:.1f}  RMSE {latest['mse'] ** 0.5:.3f}")
    if "matching" in latest:
        parts.append(f"matching {latest['matching']:.3f}")
    if "error_percent" in latest:
        parts.append(f"error {latest['error_percent']:.1f}%")
    if "forward" in latest:
        parts.append(f"NFE {latest['forward'] + latest['backward']:.0f}")
    tolerances = [value for name, value in latest.items() if name.startswith("tolerance_")]
    if tolerances:
        low, high = min(tolerances), max(tolerances)
        parts.append(f"tol {low:.0e}" if high < 1.01 * low else f"tol {low:.0e}-{high:.0e}")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """Time in words.

    >>> duration(61), duration(7200)
    ('1 min', '2.0 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
