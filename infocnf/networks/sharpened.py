r"""A field that decides for a label as firmly as it knows it.

A field that was matched follows, where several labels are possible, the mean of their patterns:
with :math:`p = p(y \mid z_t)` read off the expected code, as in :mod:`infocnf.models.readout`,

.. math:: E[z \mid z_t] = z_t + (1 - t)\, f(z_t, t) = \sum_y p_y\, \mu(y) + \dots

So the flow carries a share :math:`1 - \max_y p_y` of the examples of an ambiguous region onto the
codes of other labels than the most probable, even where that label is right more often than the
network is sure of it. The *sharpened* field follows a sharper distribution instead,

.. math:: f(z, t) + \frac{w(t)}{1 - t} \sum_y (s_y - q_y)\, \mu(y), \qquad s_y \propto q_y^\gamma,
    \qquad w(t) = \max(0, 1 - t / t_s)^2,

with :math:`q` the positive part of :math:`p`. It is one field for all examples, smooth and without
knowledge of the label: the flow is as exact as before, and its likelihood tells what it costs.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

__all__ = ["Sharpened"]

UNTIL = 0.6  # later the code's own noise shows in what is read
SOFTNESS = 0.02  # of the positive part, in units of probability


class Sharpened(nn.Module):
    """A field and what makes it sharper; the field itself while ``sharpness`` is 1.

    Arguments:
        field: The field.
    """

    def __init__(self, field: nn.Module) -> None:
        super().__init__()
        self.field, self.sharpness, self.count = field, 1.0, 0

    def aim_at(self, means: list[Tensor]) -> None:
        """Take over the patterns of each categorical factor in the state of the field, ``(classes,
        D)``.
        """
        self.count = len(means)
        for i, patterns in enumerate(means):
            centred = (patterns - patterns.mean(0)).double()
            inverse = torch.linalg.pinv(centred, rtol=1e-5).to(patterns)
            self.register_buffer(f"means_{i}", patterns, persistent=False)
            self.register_buffer(f"inverse_{i}", inverse, persistent=False)

    @property
    def pushforward(self) -> Any:  # noqa: ANN401
        """The field's own way to derivatives along tangents, where it has one and is unchanged."""
        return getattr(self.field, "pushforward", None) if self.sharpness == 1.0 else None

    def get_extra_state(self) -> Tensor:
        """The sharpness, which is kept with the weights."""
        return torch.tensor(self.sharpness, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Undo :meth:`get_extra_state`."""
        self.sharpness = float(state)

    def forward(self, t: Tensor, z: Tensor, *context: Tensor) -> Tensor:
        """Slopes ``(batch, ...)`` of states ``(batch, ...)``."""
        slopes = self.field(t, z, *context)
        if self.sharpness == 1.0:
            return slopes
        left = (1.0 - t).reshape(-1, 1)
        expected = (z + left.reshape(-1, *[1] * (z.ndim - 1)) * slopes).flatten(1)
        weight = (1.0 - t / UNTIL).clamp(min=0.0).square().reshape(-1, 1) / left.clamp(min=0.1)
        change = torch.zeros_like(expected)
        for i in range(self.count):
            means = cast("Tensor", getattr(self, f"means_{i}"))
            inverse = cast("Tensor", getattr(self, f"inverse_{i}"))
            shares = 1.0 / len(means) + (expected - means.mean(0)) @ inverse
            positive = SOFTNESS * F.softplus(shares / SOFTNESS)
            q = positive / positive.sum(1, keepdim=True)
            s = torch.softmax(self.sharpness * q.log(), 1)
            change = change + (weight * (s - q)) @ means
        return slopes + change.view_as(z)
