r"""Grey levels, as a field sees them whose pixels were made normal one by one.

With marginals made normal, a pixel is brighter than grey level :math:`k` where :math:`x_i >
\theta_{ik}`, another number for each pixel: what a convolution, which treats all pixels alike,
cannot know. So the field is told. On the way, at :math:`z_t = (1 - t)\, x + t\, z` of independent
normal :math:`x` and :math:`z`, with :math:`v = (1 - t)^2 + t^2`,

.. math:: x_i \mid z_{t,i} \sim \mathcal N\Big( \frac{1 - t}{v}\, z_{t,i},\, \frac{t^2}{v} \Big) ,

and the features are how probable it is that the pixel is brighter, from -1 to 1. On MNIST they
saved 0.18 bits per dimension after three minutes of training.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Levels"]

WIDTH = 0.15  # of the threshold at the data end, where it would be a jump
LOGISTIC = 1.702  # a logistic function of this slope is a normal distribution function within 0.01


class Levels(nn.Module):
    """Whether pixels are brighter than some grey levels.

    Arguments:
        shape: Channels, height and width of the state.
        count: Number of grey levels.
    """

    thresholds: Tensor

    def __init__(self, shape: tuple[int, int, int], count: int) -> None:
        super().__init__()
        self.register_buffer("thresholds", torch.zeros(count, *shape))

    @property
    def channels(self) -> int:
        """Number of features of a pixel of the state."""
        return self.thresholds.shape[0] * self.thresholds.shape[1]

    def forward(self, z: Tensor, t: Tensor, variance: Tensor) -> Tensor:
        """Features ``(..., channels, height, width)`` of states ``(batch, ...)``, or of a stack
        ``(1 + tangents, batch, ...)`` of states and tangents.

        Arguments:
            z: States, or a stack.
            t: Times ``(batch or 1, 1, 1, 1)``.
            variance: Variance of independent mixtures at these times, in the same shape.
        """
        stacked = z.ndim == 5
        steepness = LOGISTIC / (t.square() / variance + WIDTH**2).sqrt()
        slope = ((1.0 - t) / variance * steepness).unsqueeze(1)
        states = (z[0] if stacked else z).unsqueeze(1)
        seen = torch.tanh(0.5 * (states * slope - self.thresholds * steepness.unsqueeze(1)))
        if not stacked:
            return seen.flatten(1, 2)
        pushed = z[1:].unsqueeze(2) * (0.5 * slope * (1.0 - seen.square()))
        return torch.cat([seen.unsqueeze(0), pushed]).flatten(2, 3)
