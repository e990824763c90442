"""Which examples a step sees: a function of seed, epoch and step, so that nothing has to be
remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Order", "Steps", "pieces"]


def pieces(total: int, largest: int) -> list[slice]:
    """Consecutive pieces of nearly equal size that are none too large.

    >>> pieces(10, 4)
    [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """
    count = -(-total // largest)
    edges = [total * i // count for i in range(count + 1)] if count else [0]
    return [slice(a, b) for a, b in pairwise(edges)]


@dataclass(frozen=True)
class Order:
    """The order of the training examples.

    Every epoch visits each example once, in batches that differ in size by at most one: no example
    is left over, and no step is made of a few.

    Arguments:
        examples: Number of examples.
        batch_size: Largest number of examples per step, over all processes.
        seed: Seed of the run.
    """

    examples: int
    batch_size: int
    seed: int

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        return len(pieces(self.examples, self.batch_size))

    def batch(self, epoch: int, step: int, rank: int = 0, world: int = 1) -> Tensor:
        """The share of one process in the examples of a step."""
        permutation = np.random.default_rng((self.seed, epoch)).permutation(self.examples)
        chosen = permutation[pieces(self.examples, self.batch_size)[step]]
        return torch.from_numpy(chosen[rank::world].copy())


class Steps:
    """What Lightning iterates over: the numbers of the steps.

    It has no state of its own; that it says so tells Lightning that it may be resumed anywhere.

    Arguments:
        count: Number of steps.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""
