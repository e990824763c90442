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
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["Choice", "Fixed", "PerBlock", "Place", "Policy", "Schedule", "Survey"]


@dataclass(frozen=True)
class Choice:
    """The tolerance of one solve, ``()`` or ``(batch,)``, and its log-probability where it was
    drawn.
    """

    tolerance: float | Tensor
    log_prob: Tensor | None = None


class Place(NamedTuple):
    """Where a block is: the shape of one sample there, and its scale, counted from 0."""

    shape: tuple[int, ...]
    scale: int


@dataclass(frozen=True)
class Survey:
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
    """Chooses tolerances."""

    survey: Survey | None = None
    """How this policy wants errors to be measured, if at all."""

    @abstractmethod
    def forward(self, block: int, features: Tensor, seeds: Tensor | None = None) -> Choice:
        """Tolerance for the solve of a block.

        Arguments:
            block: Index of the block.
            features: Its input ``(batch, ...)``.
            seeds: Seeds of the samples ``(batch,)``, from which draws are made.
        """

    def bind(self, places: Sequence[Place]) -> None:
        """Told of the flow's blocks before the first solve; refuses a flow that the policy was not
        made for.
        """

    def begin_step(self, progress: float) -> None:
        """Told before each step of training how much of it is done, in [0, 1)."""

    def end_step(self, figures: Mapping[str, float]) -> None:
        """Told after each step what it gave and took, averaged over the batch and all processes:
        ``loss``, ``forward``, ``backward``, those of :attr:`figures` and others.
        """

    @property
    def due(self) -> bool:
        """Whether errors are to be measured in this step."""
        return False

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of further figures that :meth:`end_step` needs."""
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


class Fixed(Policy):
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


class PerBlock(Policy):
    """A tolerance for each block: all of them, or one for the first block of each scale and one for
    the others.

    Arguments:
        tolerances: In the order of the blocks, from data to latent.
        first: That of the first block of each scale.
        others: That of all others.

    >>> PerBlock([1e-5, 1e-4])(block=1, features=None).tolerance
    0.0001
    >>> policy = PerBlock(first=1e-5, others=1e-4)
    >>> policy.bind([Place((3,), scale=0), Place((3,), scale=0), Place((3,), scale=1)])
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

    def bind(self, places: Sequence[Place]) -> None:
        if self.first is not None and self.others is not None:
            before = [-1, *(place.scale for place in places)]
            self.tolerances = tuple(
                self.first if place.scale != last else self.others
                for place, last in zip(places, before, strict=False)
            )
        if len(places) != len(self.tolerances):
            raise ValueError(
                f"the flow has {len(places)} blocks, but there are {len(self.tolerances)} "
                "tolerances: give one for each"
            )

    def config(self) -> dict[str, Any]:
        if self.first is not None:
            return {"name": "per_block", "first": self.first, "others": self.others}
        return {"name": "per_block", "tolerances": list(self.tolerances)}


class Schedule(Policy):
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
