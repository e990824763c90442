"""Who decides how exactly a block is solved.

A policy is asked before each solve, with the index of the block and the block's input, and answers
with a :class:`Choice`. The flow does not know which policy it has; a number wherever a policy is
expected means :class:`Fixed`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

__all__ = ["Choice", "Fixed", "PerBlock", "Policy", "as_policy", "policy_from_config"]


@dataclass(frozen=True)
class Choice:
    """The tolerance of one solve, ``()`` or ``(batch,)``, and its log-probability where it was
    drawn.
    """

    tolerance: float | Tensor
    log_prob: Tensor | None = None


class Policy(nn.Module, ABC):
    """Chooses tolerances."""

    @abstractmethod
    def forward(self, block: int, features: Tensor) -> Choice:
        """Tolerance for the solve of a block whose input is ``features``."""

    def check(self, blocks: int) -> None:
        """Refuse a flow of ``blocks`` blocks that the policy was not made for."""

    def begin_step(self, progress: float) -> None:
        """Told before each step of training how much of it is done, in [0, 1)."""

    def end_step(self, figures: Mapping[str, float]) -> None:
        """Told after each step what it gave and took, averaged over the batch and all processes:
        ``loss``, ``forward``, ``backward`` and others.
        """

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

    def forward(self, block: int, features: Tensor) -> Choice:
        return Choice(self.tolerance)

    def config(self) -> dict[str, Any]:
        if isinstance(self.tolerance, Tensor):
            raise ValueError(
                "tolerances per sample belong to one call and cannot be saved with the model"
            )
        return {"name": "fixed", "tolerance": self.tolerance}


class PerBlock(Policy):
    """A tolerance for each block.

    Arguments:
        tolerances: In the order of the blocks, from data to latent.

    >>> PerBlock([1e-5, 1e-4])(block=1, features=None).tolerance
    0.0001
    """

    def __init__(self, tolerances: Sequence[float]) -> None:
        super().__init__()
        self.tolerances = tuple(check_tolerance(tolerance) for tolerance in tolerances)

    def forward(self, block: int, features: Tensor) -> Choice:
        self.check(max(block + 1, len(self.tolerances)))
        return Choice(self.tolerances[block])

    def check(self, blocks: int) -> None:
        if blocks != len(self.tolerances):
            raise ValueError(
                f"the flow has {blocks} blocks or more, but there are {len(self.tolerances)} "
                "tolerances: give one for each"
            )

    def config(self) -> dict[str, Any]:
        return {"name": "per_block", "tolerances": list(self.tolerances)}


POLICIES = {"fixed": Fixed, "per_block": PerBlock}


def as_policy(tolerance: float | Tensor | Sequence[float] | Policy) -> Policy:
    """A policy of a number (fixed), a tensor (per sample), a sequence (per block) or a policy
    (itself).
    """
    if isinstance(tolerance, Policy):
        return tolerance
    if isinstance(tolerance, str | bytes | None):
        raise ValueError(f"tolerance must be a number, numbers or a policy, got {tolerance!r}")
    return PerBlock(tolerance) if isinstance(tolerance, Sequence) else Fixed(tolerance)


def policy_from_config(config: dict[str, Any]) -> Policy:
    """The policy that :meth:`Policy.config` described."""
    arguments = dict(config)
    name = arguments.pop("name", None)
    if name not in POLICIES:
        raise ValueError(f"tolerance policy must be one of {', '.join(POLICIES)}, got {name!r}")
    return POLICIES[name](**arguments)


def check_tolerance(tolerance: float) -> float:
    """A tolerance as a positive number."""
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise ValueError(f"tolerance must be positive and finite, got {tolerance}")
    return float(tolerance)
