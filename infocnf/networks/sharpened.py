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

from collections.abc import Callable, Iterator
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
    def pushforward(self) -> Callable[..., tuple[Tensor, Tensor]] | None:
        """Slopes and their derivatives along tangents, where the field itself has such."""
        own = getattr(self.field, "pushforward", None)
        return own if own is None or self.sharpness == 1.0 else self.push

    @property
    def kinks(self) -> tuple[float, ...]:
        """Times at which the field bends abruptly: where the sharpening ends."""
        return () if self.sharpness == 1.0 else (UNTIL,)

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
        left, weight = self.coefficients(t)
        expected = z.flatten(1) + left * slopes.flatten(1)
        change = torch.zeros_like(expected)
        for means, inverse in self.patterns():
            q, s, _ = self.decide(1.0 / len(means) + (expected - means.mean(0)) @ inverse)
            change = change + (weight * (s - q)) @ means
        return slopes + change.view_as(z)

    def push(
        self, t: Tensor, z: Tensor, tangents: Tensor, *context: Tensor
    ) -> tuple[Tensor, Tensor]:
        r"""Slopes, and their derivatives along ``tangents`` ``(tangents, batch, ...)``: with
        :math:`\dot u = d \log q`, those of the shares are :math:`\dot q = q\, \dot u` and
        :math:`\dot s = \gamma\, s\, (\dot u - \sum s\, \dot u)`.
        """
        slopes, pushed = cast("Any", self.field).pushforward(t, z, tangents, *context)
        left, weight = self.coefficients(t)
        expected = z.flatten(1) + left * slopes.flatten(1)
        turned = tangents.flatten(2) + left * pushed.flatten(2)
        change, bent = torch.zeros_like(expected), torch.zeros_like(turned)
        for means, inverse in self.patterns():
            q, s, steep = self.decide(1.0 / len(means) + (expected - means.mean(0)) @ inverse)
            log_turned = steep * (turned @ inverse)
            log_turned = log_turned - (q * log_turned).sum(-1, keepdim=True)
            firm = log_turned - (s * log_turned).sum(-1, keepdim=True)
            change = change + (weight * (s - q)) @ means
            bent = bent + (weight * (self.sharpness * s * firm - q * log_turned)) @ means
        return slopes + change.view_as(z), pushed + bent.view_as(pushed)

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        r"""Time that is left, and the weight :math:`w(t) / (1 - t)`, ``(batch or 1, 1)``."""
        left = (1.0 - t).reshape(-1, 1)
        weight = (1.0 - t / UNTIL).clamp(min=0.0).square().reshape(-1, 1) / left.clamp(min=0.1)
        return left, weight

    def patterns(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Means of each factor, ``(classes, D)``, and what reads shares off them."""
        for i in range(self.count):
            yield cast("Tensor", getattr(self, f"means_{i}")), getattr(self, f"inverse_{i}")

    def decide(self, shares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""The positive part :math:`q` of shares ``(batch, classes)``, the sharper :math:`s`, and
        the slope of the logarithm of the positive part.
        """
        scaled = shares / SOFTNESS
        positive = F.softplus(scaled)
        q = positive / positive.sum(1, keepdim=True)
        s = torch.softmax(self.sharpness * q.log(), 1)
        # far below zero softplus is its own derivative, and may round to nothing
        ratio = torch.where(scaled < -20.0, 1.0, scaled.sigmoid() / positive)
        return q, s, ratio / SOFTNESS
