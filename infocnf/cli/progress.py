"""What a person sees while a model trains."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from infocnf.cli.options import console
from infocnf.errors import StoppedError, is_leader
from infocnf.models import InfoCNF, LatentODE, PartitionedModel
from infocnf.models.base import is_missing
from infocnf.objectives.likelihood import weight_in_nats
from infocnf.training import Training

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


class Display:
    """A progress bar with the metrics of the last steps, or a line now and then where there is no
    terminal.
    """

    def __init__(self) -> None:
        self.bars: Progress | None = None
        self.told = 0.0
        self.begun = monotonic()
        self.first = 0

    def started(self, training: Training) -> None:
        """Say what is about to happen."""
        if not training.is_leader:
            return
        console.print(introduction(training))
        self.begun = monotonic()
        self.first = training.plan.done(training.epoch, training.batch)
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self.bars = Progress(*columns, TimeRemainingColumn(), console=console)
            self.bars.start()
            total = training.plan.steps
            self.task = self.bars.add_task("training", total=total, completed=self.first)

    def stepped(self, training: Training) -> None:
        """Show the metrics of this step."""
        if not training.is_leader:
            return
        plan = training.plan
        done = plan.done(training.epoch, training.batch)
        text = f"epoch {training.epoch + 1}/{plan.epochs}  {metrics_in_words(training.latest)}"
        if self.bars is not None:
            self.bars.update(self.task, description=text, completed=done)
        elif monotonic() - self.told > QUIET_SECONDS or done == plan.steps:
            left = (monotonic() - self.begun) / max(done - self.first, 1) * (plan.steps - done)
            console.print(f"{text}  {duration(left)} left")
            self.told = monotonic()

    def ended(self) -> None:
        """Leave the bar as it is."""
        if self.bars is not None:
            self.bars.stop()
            self.bars = None


def introduction(training: Training) -> str:
    """The run in a few lines."""
    model, config = training.model, training.config
    sizes = {part: len(x) for part, (x, _) in training.examples.items()}
    parameters = sum(p.numel() for p in model.parameters())
    kind = kind_in_words(model)
    lines = [
        f"{sizes['train']:,} {kind} to train on, "
        f"{sizes['validation']:,} to validate; {parameters:,} parameters",
    ]
    lines += [f"{name}: {label_in_words(training, name)}" for name in model.code.heads]
    if "matching" in config.training.stages:
        labels = f" + {training.plan.matching_beta:.2g} cross-entropy" if model.code.heads else ""
        lines.append(f"matching: squared error of the field{labels}")
    if isinstance(model, LatentODE):
        own = config.series
        lines.append(
            f"objective: -log p(x | z) + {own.kl:g} KL(z_u) + {own.kl_supervised:g} KL(z_y) + "
            f"{own.beta:g} cross-entropy"
        )
    elif isinstance(model, InfoCNF) and model.code.heads and "likelihood" in config.training.stages:
        weight = weight_in_nats(config.objective.beta, model.dimensions)
        lines.append(
            f"objective: bits/dim + {config.objective.beta:g} cross-entropy "
            f"(likelihood in nats: + {weight:.0f} cross-entropy)"
        )
    return "\n".join(lines)


def kind_in_words(model: PartitionedModel) -> str:
    """What the examples are."""
    if isinstance(model, LatentODE):
        return f"series of {model.channels} channel{'s' * (model.channels > 1)}"
    assert isinstance(model, InfoCNF)
    shape = "x".join(map(str, model.shape))
    return f"images of {shape}" if len(model.shape) == 3 else f"rows of {shape}"


def label_in_words(training: Training, name: str) -> str:
    """What kind of label it is, and how many examples to train on do not have it."""
    values = training.examples["train"][1][name]
    unknown = is_missing(values)
    without = f"; not known of {int(unknown.sum()):,}" if unknown.any() else ""
    if name in training.classes:
        names = training.classes[name]
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        return f"{len(names)} classes ({shown}){without}"
    known = values[~unknown]
    return f"a number from {known.min():g} to {known.max():g}{without}"


def metrics_in_words(latest: dict[str, float]) -> str:
    """The metrics of a step."""
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
