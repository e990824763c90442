"""Fields with known solutions, a field that counts, for the tests of the solver."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Swirl(nn.Module):
    """A nonlinear, time-dependent field of vectors with weights; ``strength`` scales its Lipschitz
    constant.
    """

    def __init__(self, features: int = 3, strength: float = 2.0) -> None:
        super().__init__()
        self.first = nn.Linear(features + 1, 16)
        self.second = nn.Linear(16, features)
        self.strength = strength

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        time = t.expand(len(z)).unsqueeze(1)
        return self.strength * self.second(torch.tanh(self.first(torch.cat([z, time], 1))))


class Counted(nn.Module):
    """Counts how often each sample's field is evaluated, by the sample's number in the last tensor
    it is given.
    """

    def __init__(self, field: Callable[..., Tensor], samples: int) -> None:
        super().__init__()
        self.field = field
        self.calls = torch.zeros(samples, dtype=torch.int64)

    def forward(self, t: Tensor, z: Tensor, number: Tensor) -> Tensor:
        self.calls[number.long()] += 1
        return self.field(t, z)


def rotation(t: Tensor, z: Tensor) -> Tensor:
    """Turns (x, y) by one radian per unit of time."""
    return torch.stack([-z[..., 1], z[..., 0]], -1)


def stiffness(t: Tensor, z: Tensor) -> Tensor:
    """Decays at rates from 1 to 300 that the second feature of each sample names."""
    return torch.stack([-z[:, 1] * (z[:, 0] - 1.0), torch.zeros_like(z[:, 1])], -1)
