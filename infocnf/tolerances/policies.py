"""Who decides how exactly a block is solved.

A policy is asked before each solve, with the index of the block, the block's input and the seeds of
its samples, and answers with a :class:`Choice`. The flow does not know which policy it has; a
number wherever a policy is expected means :class:`Fixed`.

In training mode a random policy draws; in evaluation mode, and where samples have no seeds, it
answers with its mean. What a policy learns from its own steps is kept in buffers, so that it is
saved, resumed and rolled back with the weights.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

__all__ = [
    "MEASURED",
    "POLICIES",
    "BlockShape",
    "Choice",
    "ErrorProbe",
    "Fixed",
    "MetricsLog",
    "PerBlock",
    "Policy",
    "Schedule",
    "as_policy",
    "log_ratio",
    "measured",
    "policy_from_config",
]

POLICIES: dict[str, type[Policy]] = {}
"""Policies by name; a subclass of :class:`Policy` enters itself."""


@dataclass(frozen=True)
class Choice:
    """The tolerance of one solve, ``()`` or ``(batch,)``, its log-probability where it was drawn,
    and how many times the given number of steps a method without error estimate takes.
    """

    tolerance: float | Tensor
    log_prob: Tensor | None = None
    refine: int = 1


class BlockShape(NamedTuple):
    """What a policy is told of a block: the shape of one sample there, and its scale, from 0."""

    shape: tuple[int, ...]
    scale: int


@dataclass(frozen=True)
class ErrorProbe:
    """How the error of :math:`log p` is measured in training: the first few samples of a batch are
    solved again at a tighter tolerance.

    Arguments:
        reference: The tighter tolerance; errors below its own cannot be seen.
        every: Steps between two measurements.
        samples: Samples measured of each batch (of each micro-batch, where there are such).
    """

    reference: float = 1e-5
    every: int = 4
    samples: int = 16

    def __post_init__(self) -> None:
        check_tolerance(self.reference, "reference")
        for name in ("every", "samples"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name} must be a whole number of at least 1, got {value}")


class Policy(nn.Module, ABC):
    """Chooses tolerances.

    A subclass may have a name of its own, ``class Mine(Policy, name="mine")``, by which
    configurations and saved models know it; without one it is known by its import path,
    ``my_package.my_module:Mine``.
    """

    name: ClassVar[str]
    probe: ErrorProbe | None = None
    """How this policy wants errors to be measured, if at all."""

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init_subclass__(**kwargs)
        cls.name = name or f"{cls.__module__}:{cls.__qualname__}"
        POLICIES[cls.name] = cls

    @abstractmethod
    def forward(self, block: int, features: Tensor, seeds: Tensor | None = None) -> Choice:
        """Tolerance for the solve of a block.

        Arguments:
            block: Index of the block.
            features: Its input ``(batch, ...)``.
            seeds: Seeds of the samples ``(batch,)``, from which draws are made.
        """

    def bind(self, blocks: Sequence[BlockShape]) -> None:
        """Told of the flow's blocks before the first solve; refuses a flow that the policy was not
        made for.
        """

    def begin_step(self, progress: float) -> None:
        """Told before each step of training how much of it is done, in [0, 1)."""

    def end_step(self, metrics: Mapping[str, float]) -> None:
        """Told after each step what it gave and took, averaged over the batch and all processes:
        ``loss``, ``forward``, ``backward``, those of :attr:`metrics` and others.
        """

    @property
    def due(self) -> bool:
        """Whether errors are to be measured in this step."""
        return False

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of further metrics that :meth:`end_step` needs."""
        return ()

    def gradients(self) -> dict[str, float]:
        """Figures of the gradient that the policy's weights have now."""
        return {}

    def report(self, means: Mapping[str, float | None]) -> dict[str, float | None]:
        """What an epoch's averages say of the policy, for ``metrics.csv``."""
        return {}

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Name and arguments, from which :func:`policy_from_config` makes it again."""


class Fixed(Policy, name="fixed"):
    """One tolerance for every block and sample.

    Arguments:
        tolerance: A number, or one per sample ``(batch,)`` for a single call.

    >>> Fixed(1e-4)(block=3, features=None).tolerance
    0.0001
    """

    def __init__(self, tolerance: float | Tensor = 1e-5) -> None:
        super().__init__()
        self.tolerance = tolerance if isinstance(tolerance, Tensor) else check_tolerance(tolerance)

    def forward(self, block: int, features: Tensor, seeds: Tensor | None = None) -> Choice:
        return Choice(self.tolerance)

    def config(self) -> dict[str, Any]:
        if isinstance(self.tolerance, Tensor):
            raise ValueError(
                "tolerances per sample belong to one call and cannot be saved with the model"
            )
        return {"name": "fixed", "tolerance": self.tolerance}


class PerBlock(Policy, name="per_block"):
    """A tolerance for each block: all of them, or one for the first block of each scale and one for
    the others.

    Arguments:
        tolerances: In the order of the blocks, from data to latent.
        first: That of the first block of each scale.
        others: That of all others.

    >>> PerBlock([1e-5, 1e-4])(block=1, features=None).tolerance
    0.0001
    >>> policy = PerBlock(first=1e-5, others=1e-4)
    >>> policy.bind([BlockShape((3,), scale) for scale in (0, 0, 1)])
    >>> policy.tolerances
    (1e-05, 0.0001, 1e-05)
    """

    def __init__(
        self,
        tolerances: Sequence[float] | None = None,
        *,
        first: float | None = None,
        others: float | None = None,
    ) -> None:
        super().__init__()
        pair = (first, others)
        if (tolerances is None) == (pair == (None, None)) or (tolerances is None and None in pair):
            raise ValueError("give tolerances, one for each block, or both first and others")
        self.tolerances = tuple(check_tolerance(tolerance) for tolerance in tolerances or ())
        self.first, self.others = (None if t is None else check_tolerance(t) for t in pair)

    def forward(self, block: int, features: Tensor, seeds: Tensor | None = None) -> Choice:
        if block >= len(self.tolerances):
            raise ValueError(
                f"there is no tolerance for block {block}: there are {len(self.tolerances)}, "
                "give one for each"
            )
        return Choice(self.tolerances[block])

    def bind(self, blocks: Sequence[BlockShape]) -> None:
        if self.first is not None and self.others is not None:
            before = [-1, *(block.scale for block in blocks)]
            self.tolerances = tuple(
                self.first if block.scale != last else self.others
                for block, last in zip(blocks, before, strict=False)
            )
        if len(blocks) != len(self.tolerances):
            raise ValueError(
                f"the flow has {len(blocks)} blocks, but there are {len(self.tolerances)} "
                "tolerances: give one for each"
            )

    def config(self) -> dict[str, Any]:
        if self.first is not None:
            return {"name": "per_block", "first": self.first, "others": self.others}
        return {"name": "per_block", "tolerances": list(self.tolerances)}


class Schedule(Policy, name="schedule"):
    r"""From loose to tight in the course of training, evenly in :math:`\log \tau`:

    .. math:: \tau(s) = \tau_0^{1 - u}\, \tau_1^{u}, \qquad u = \min(1, s / s_1)

    at progress :math:`s \in [0, 1]`.

    Arguments:
        start: The tolerance :math:`\tau_0` at the beginning.
        end: The tolerance :math:`\tau_1` at the end.
        until: The progress :math:`s_1` at which the end is reached.

    >>> policy = Schedule(1e-2, 1e-4)
    >>> policy.begin_step(0.5)
    >>> f"{policy(block=0, features=None).tolerance:.0e}"
    '1e-03'
    """

    progress: Tensor

    def __init__(self, start: float = 1e-2, end: float = 1e-5, until: float = 1.0) -> None:
        super().__init__()
        self.start, self.end = check_tolerance(start, "start"), check_tolerance(end, "end")
        if not 0.0 < until <= 1.0:
            raise ValueError(f"until must be a share of training in (0, 1], got {until}")
        self.until = float(until)
        self.register_buffer("progress", torch.zeros((), dtype=torch.float64))

    def forward(self, block: int, features: Tensor, seeds: Tensor | None = None) -> Choice:
        share = min(1.0, float(self.progress) / self.until)
        return Choice(self.start ** (1.0 - share) * self.end**share)

    def begin_step(self, progress: float) -> None:
        self.progress.fill_(progress)

    def config(self) -> dict[str, Any]:
        return {"name": "schedule", "start": self.start, "end": self.end, "until": self.until}


def check_tolerance(tolerance: float, name: str = "tolerance") -> float:
    """A tolerance as a positive number."""
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise ValueError(f"{name} must be positive and finite, got {tolerance}")
    return float(tolerance)


def check_bounds(smallest: float, largest: float) -> tuple[float, float]:
    """Bounds of tolerances, in their order."""
    bounds = check_tolerance(smallest, "smallest"), check_tolerance(largest, "largest")
    if bounds[0] >= bounds[1]:
        raise ValueError(
            f"smallest must be below largest, got smallest={smallest} and largest={largest}"
        )
    return bounds


def check_start(start: float, bounds: tuple[float, float]) -> float:
    """A first tolerance, between the bounds."""
    if not bounds[0] < start < bounds[1]:
        raise ValueError(
            f"start must be between smallest={bounds[0]} and largest={bounds[1]}, got {start}"
        )
    return float(start)


MEASURED = ("measured", "error", "measuring")
"""Figures of a measurement: samples measured, the sum of their errors in bits per dimension, and of
the evaluations it took. Averaged over a batch these are shares of it; their ratios are means over
the samples measured.
"""


def measured(means: Mapping[str, float | None]) -> dict[str, float | None]:
    """The error of log p in bits per dimension, and the evaluations per example that measuring it
    took, of averages over an epoch.
    """
    share, error = means.get("measured") or 0.0, means.get("error")
    return {
        "log_prob_error": error / share if share and error is not None else None,
        "nfe_measuring": means.get("measuring"),
    }


def log_ratio(value: float, target: float, largest: float) -> float:
    """Logarithm of a value relative to its target, within bounds."""
    ratio = math.log(max(value, 1e-300) / target)
    return max(min(ratio, largest), -largest)


class MetricsLog(nn.Module):
    """Counts the steps, and keeps a moving average of the evaluations that exact solves take.

    Arguments:
        probe: How errors are measured.
        decay: Decay of the moving average per measurement.
    """

    steps: Tensor
    weight: Tensor
    total: Tensor

    def __init__(self, probe: ErrorProbe, decay: float = 0.9) -> None:
        super().__init__()
        self.probe, self.decay = probe, decay
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64))
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))

    def begin_step(self) -> None:
        """Count a step."""
        self.steps += 1

    @property
    def due(self) -> bool:
        """Whether this step is one of measurement: the first, every so many after it, and as long
        as nothing could be measured.
        """
        return not self.weight or (int(self.steps) - 1) % self.probe.every == 0

    def end_step(self, metrics: Mapping[str, float]) -> float | None:
        """Enter what a step measured, if it did; returns the error of log p."""
        share = metrics.get("measured", 0.0)
        if not share:
            return None
        self.total += (1.0 - self.decay) * (metrics["measuring"] / share - float(self.total))
        self.weight += (1.0 - self.decay) * (1.0 - float(self.weight))
        return metrics["error"] / share

    @property
    def evaluations(self) -> float:
        """Mean evaluations per sample at the reference tolerance; NaN before the first
        measurement.
        """
        return float(self.total / self.weight)


def as_policy(tolerance: float | Tensor | Sequence[float] | Policy) -> Policy:
    """A policy of a number (fixed), a tensor (per sample), a sequence (per block) or a policy
    (itself).
    """
    if isinstance(tolerance, Policy):
        return tolerance
    if isinstance(tolerance, str | bytes | None):
        raise ValueError(f"tolerance must be a number, numbers or a policy, got {tolerance!r}")
    if isinstance(tolerance, Sequence):
        return PerBlock(tolerance)
    if isinstance(tolerance, Tensor) and not tolerance.ndim:
        tolerance = float(tolerance)
    return Fixed(tolerance)


def policy_from_config(config: Mapping[str, Any], trusted: bool = False) -> Policy:
    """The policy that :meth:`Policy.config` described; see :func:`policy_class`."""
    arguments = dict(config)
    return policy_class(arguments.pop("name", None), trusted)(**arguments)


def policy_class(name: object, trusted: bool = False) -> type[Policy]:
    """A policy by its name, or by its import path ``my_package.my_module:MyPolicy``.

    The module is imported only where the name is ``trusted``, as a user's own command or file is: a
    saved model may come from strangers.
    """
    path = name if isinstance(name, str) and ":" in name else None
    if path is not None and path not in POLICIES:
        module, _, attribute = path.partition(":")
        if not trusted:
            raise ValueError(
                f"the tolerance policy {path} is not one of this package: import {module} first "
                f"(infocnf --import {module} ...)"
            )
        try:
            import_from_here(module)
        except ImportError as error:
            raise ValueError(f"the tolerance policy {path} cannot be imported ({error})") from None
        if path not in POLICIES:
            raise ValueError(f"{module} has no subclass of Policy called {attribute!r}")
    if not isinstance(name, str) or name not in POLICIES:
        known = ", ".join(n for n in POLICIES if ":" not in n)
        raise ValueError(
            f"tolerance policy must be one of {known}, or my_module:MyPolicy, got {name!r}"
        )
    return POLICIES[name]


def import_from_here(module: str) -> None:
    """Import a module that is installed or in the working directory, as Python itself would."""
    sys.path.insert(0, "")
    try:
        import_module(module)
    finally:
        sys.path.remove("")
