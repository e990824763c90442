"""Bijections that only move numbers: volume is preserved, log-determinants are zero."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from infocnf.flows.bijection import Bijection, Traversal

__all__ = ["Flatten", "Squeeze", "join", "split"]


class Squeeze(Bijection):
    """Space to channels: ``(batch, c, h, w)`` to ``(batch, 4 c, h / 2, w / 2)``, each 2x2 patch to
    four channels.
    """

    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        if x.shape[-1] % 2 or x.shape[-2] % 2:
            raise ValueError(
                f"an image of {x.shape[-2]}x{x.shape[-1]} cannot be squeezed: height and width "
                "must be even; pad or resize it, or use fewer scales"
            )
        return F.pixel_unshuffle(x, 2), x.new_zeros(len(x))

    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        return F.pixel_shuffle(z, 2)


class Flatten(Bijection):
    """Any shape to a vector.

    Arguments:
        shape: Shape of one sample before.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        return x.flatten(1), x.new_zeros(len(x))

    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        return z.unflatten(1, self.shape)


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Channels that go on to the next scale, and those that are factored out as finished code."""
    onward, factored = torch.tensor_split(x, 2, dim=1)
    return onward, factored


def join(onward: Tensor, factored: Tensor) -> Tensor:
    """Undo :func:`split`."""
    return torch.cat([onward, factored], dim=1)
