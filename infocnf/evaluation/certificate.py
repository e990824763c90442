r"""The numerical error of a likelihood: how much it changes when it is solved ten times tighter,

.. math:: \Delta(x) = \big| \log p_{\tau}(x) - \log p_{\tau / 10}(x) \big| ,

with the same probes, so that nothing but the solver differs; a method without error estimate takes
twice as many steps instead. (It does not see the noise of Hutchinson's estimate, which the standard
error of an average does.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from infocnf.models import InfoCNF, LatentODE
from infocnf.tolerances import Choice, Place, Policy

__all__ = ["LARGEST_ERROR", "Tighter", "more_steps"]

LARGEST_ERROR = 1e-3  # bits per dimension up to which a likelihood is reported without a warning


@contextmanager
def more_steps(model: InfoCNF | LatentODE) -> Iterator[None]:
    """Twice as many steps where their number is given, for a while."""
    blocks: Sequence[Any] = model.blocks
    given = [block for block in blocks if block.solver["steps"] is not None]
    for block in given:
        block.solver["steps"] *= 2
    try:
        yield
    finally:
        for block in given:
            block.solver["steps"] //= 2


class Tighter(Policy):
    """Another policy's tolerances, ten times tighter.

    Arguments:
        policy: The other policy.
        factor: How much tighter.

    >>> from infocnf.tolerances import Fixed
    >>> f"{Tighter(Fixed(1e-5))(block=0, features=None).tolerance:.0e}"
    '1e-06'
    """

    def __init__(self, policy: Policy, factor: float = 0.1) -> None:
        super().__init__()
        self.policy, self.factor = policy, factor

    def forward(self, block: int, features: Tensor, seeds: Tensor | None = None) -> Choice:
        choice = self.policy(block, features, seeds)
        return replace(choice, tolerance=choice.tolerance * self.factor)

    def bind(self, places: Sequence[Place]) -> None:
        self.policy.bind(places)

    def config(self) -> dict[str, Any]:
        raise ValueError("a certificate's policy belongs to one evaluation and is not saved")
