r"""Bijections, and what travels through them beside the data.

A bijection maps :math:`x` to :math:`z` and knows :math:`\log |\det \partial z / \partial x|`, so
that densities follow by :math:`\log p(x) = \log p(z) + \log |\det \partial z / \partial x|`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from infocnf.ode import Solution, Stats

__all__ = ["Bijection", "BlockSolve", "Chain", "Choice", "FlowStats", "Traversal"]


class Choice(Protocol):
    """What a tolerance policy decided for one block: the tolerance, and its log-probability where
    it was drawn.
    """

    @property
    def tolerance(self) -> float | Tensor: ...

    @property
    def log_prob(self) -> Tensor | None: ...


@dataclass(frozen=True)
class BlockSolve:
    """What happened in one continuous block."""

    block: int
    choice: Choice
    solution: Solution

    @property
    def passengers(self) -> tuple[Tensor, ...]:
        """Kinetic energy and squared norm of the Jacobian, ``(batch,)`` each, where they travelled
        along.
        """
        state = self.solution.state
        return () if isinstance(state, Tensor) else tuple(state[2:])


@dataclass(frozen=True)
class FlowStats:
    """What the solves of all blocks took; sums over blocks are ``(batch,)``, or ``()`` under shared
    stepping.

    Counts of the backward pass are zero until it has run.
    """

    solves: tuple[BlockSolve, ...]

    @property
    def blocks(self) -> tuple[Stats, ...]:
        """The account of each block, from data to latent."""
        return tuple(entry.solution.stats for entry in self.solves)

    def total(self, count: str) -> Tensor:
        """Sum over blocks of one of the counts of :class:`infocnf.ode.Stats`."""
        return torch.stack([getattr(stats, count) for stats in self.blocks]).sum(0)

    @property
    def forward(self) -> Tensor:
        """Evaluations of the forward solves."""
        return self.total("forward")

    @property
    def backward(self) -> Tensor:
        """Evaluations of the gradient."""
        return self.total("backward")

    @property
    def evaluations(self) -> Tensor:
        """Both together: the NFE of the paper's tables."""
        return self.total("evaluations")

    @property
    def accepted(self) -> Tensor:
        """Accepted steps."""
        return self.total("accepted")

    @property
    def rejected(self) -> Tensor:
        """Rejected steps."""
        return self.total("rejected")


@dataclass(frozen=True)
class Traversal:
    """How one batch travels through a flow, and the account of it.

    Arguments:
        policy: Chooses the tolerance, called with the index of a block, the block's input and the
            seeds.
        stepping: ``shared`` or ``individual``.
        gradient: How solves are differentiated.
        method: Method of the solver instead of the blocks' own.
        seeds: Seeds of each sample's noise ``(batch,)``; None when log-determinants are not wanted.
        draw: Whether the policy may draw, for which it gets the seeds.
        warm: Whether a block starts with the step its previous solve proposed.
        passengers: Whether to integrate kinetic energy and Jacobian norm on the way.
        solves: Filled in by the blocks on the way.
    """

    policy: Callable[[int, Tensor, Tensor | None], Choice]
    stepping: str = "individual"
    gradient: str = "checkpoint"
    method: str | None = None
    seeds: Tensor | None = None
    draw: bool = False
    warm: bool = False
    passengers: bool = False
    solves: list[BlockSolve] = field(default_factory=list)


class Bijection(nn.Module, ABC):
    """An invertible map of ``(batch, ...)`` tensors."""

    @abstractmethod
    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        r"""From data towards latent: :math:`z`, and :math:`\log |\det \partial z / \partial x|` of
        shape ``(batch,)``.
        """

    @abstractmethod
    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        """From latent towards data."""


class Chain(Bijection):
    """Bijections one after the other.

    Arguments:
        bijections: In the order from data to latent.
    """

    def __init__(self, bijections: Iterable[Bijection]) -> None:
        super().__init__()
        self.bijections = nn.ModuleList(bijections)

    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        total = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        for bijection in self.bijections:
            x, log_det = bijection(x, traversal)
            total = total + log_det

        return x, total

    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        for bijection in reversed(self.bijections):
            z = bijection.inverse(z, traversal)  # type: ignore[operator]

        return z
