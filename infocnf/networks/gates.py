r"""Gates: small networks that look at the input of a block and say how exactly to solve it.

A gate has features :math:`h(z)` of each sample and a linear read-out of two numbers, from which a
policy makes the mean and the spread of its tolerance. It has no batch norm: a sample's features do
not depend on its batch. All activations are smooth, so that no unit can die.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

__all__ = ["Gate"]

LARGEST = 8  # pixels of a side beyond which images are pooled


class Gate(nn.Module):
    r"""Two convolutions and a mean over the image, or two dense layers for vectors; then a linear
    read-out.

    The input is compressed by :math:`\mathrm{asinh}`, because logits of pixels reach far.

    Arguments:
        shape: Shape of one sample of the block: ``(features,)`` or ``(channels, height, width)``.
        width: Number of features.
    """

    def __init__(self, shape: tuple[int, ...], width: int = 16) -> None:
        super().__init__()
        self.pooling = 1
        if len(shape) == 1:
            layers: list[nn.Module] = [nn.Linear(shape[0], width), nn.Linear(width, width)]
        else:
            channels, height, width_ = shape
            self.pooling = math.ceil(max(height, width_) / LARGEST)
            kernel = 3 if min(height, width_) // self.pooling > 1 else 1
            layers = [
                nn.Conv2d(inputs, width, kernel, padding=kernel // 2)
                for inputs in (channels, width)
            ]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, 2)

    def features(self, z: Tensor) -> Tensor:
        """Features ``(batch, width)`` of block inputs ``(batch, ...)``."""
        h = z.asinh()
        if self.pooling > 1:
            h = F.avg_pool2d(h, self.pooling, ceil_mode=True)
        for layer in self.layers:
            h = F.silu(layer(h))
        return h.mean((2, 3)) if h.ndim == 4 else h

    def forward(self, z: Tensor, over_batch: bool = False) -> tuple[Tensor, Tensor]:
        """The two numbers, ``(batch,)`` each; or ``()``, of the features averaged over the
        batch.
        """
        h = self.features(z)
        first, second = torch.unbind(self.head(h.mean(0) if over_batch else h), -1)
        return first, second
