r"""A field that decides for a label as firmly as it knows it.

A field that was matched follows, where several labels are possible, the mean of their patterns:
with :math:`p = p(y \mid z_t)` read off the expected code, as in :mod:`infocnf.models.reading`,

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

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from infocnf.models.factors import Categorical

if TYPE_CHECKING:
    from infocnf.flows.multiscale import ScaledFlow
    from infocnf.models.codes import PartitionedCode

__all__ = ["Sharpened", "matched_field", "separate", "sharpen"]

UNTIL = 0.6  # later the code's own noise shows in what is read
SOFTNESS = 0.02  # of the positive part, in units of probability


class Sharpened(nn.Module):
    """A field and what makes it sharper; the field itself while ``sharpness`` is 1.

    Arguments:
        field: The field.
        means: Patterns of each categorical factor in the state of the field, ``(classes, D)``.
    """

    def __init__(self, field: nn.Module, means: list[Tensor]) -> None:
        super().__init__()
        self.field, self.sharpness = field, 1.0
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

    @property
    def levels(self) -> nn.Module | None:
        """The grey levels that the field is told, where it is."""
        return getattr(self.field, "levels", None)

    def get_extra_state(self) -> Tensor:
        """The sharpness, which is kept with the weights."""
        return torch.tensor(self.sharpness, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Undo :meth:`get_extra_state`."""
        self.sharpness = float(state)

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """Slopes ``(batch, ...)`` of states ``(batch, ...)``."""
        slopes = self.field(t, z)
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


def separate(flow: ScaledFlow, code: PartitionedCode, distance: float) -> None:
    """Start with labels apart in the code, and make the field of a flow of one block one that can
    be sharpened.
    """
    code.separate(flow.code_shape, distance)
    parts = code.by_factor(torch.zeros(1, code.sizes[0]))
    if len(flow.blocks) != 1 or not parts:
        return
    means, begin = [], 0
    for head, mine in parts.values():
        end = begin + mine.shape[1]
        if isinstance(head.factor, Categorical):
            patterns = head.patterns
            whole = patterns.new_zeros(len(patterns), code.sizes[0])
            whole[:, begin:end] = patterns
            rest = patterns.new_zeros(len(patterns), code.sizes[1])
            means.append(code.merge(whole, rest))
        begin = end
    dynamics = flow.blocks[0].dynamics
    dynamics.field = Sharpened(dynamics.field, means)


def matched_field(flow: ScaledFlow) -> nn.Module:
    """The field of a flow of one block as matching trains it and labels are read off it in one
    step: never sharpened.
    """
    field = flow.single[1].dynamics.field
    return field.field if isinstance(field, Sharpened) else field


def sharpen(flow: ScaledFlow, sharpness: float) -> None:
    """Set the sharpness of a field that was made to have one."""
    field = flow.blocks[0].dynamics.field
    if not isinstance(field, Sharpened):
        raise ValueError("only a flow of one block whose labels start apart can be sharpened")
    if not sharpness >= 1.0:
        raise ValueError(f"sharpness must be at least 1, got {sharpness}")
    field.sharpness = float(sharpness)
