r"""Fields :math:`f(z, t; \theta)`: the right-hand sides of continuous flows.

A field is called as ``field(t, z)`` with ``t`` of shape ``()`` or ``(batch,)``. Those here also
offer ``pushforward(t, z, tangents)``, which returns :math:`f` and :math:`(\partial f / \partial
z)\, \dot z` for several tangents in one stacked pass: the divergence then costs one wider
evaluation, and its gradient one ordinary backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from infocnf.networks.layers import (
    ACTIVATIONS,
    ConcatConv2d,
    ConcatLinear,
    ConcatSquashLinear,
    TimedLayer,
    activate_stack,
)

__all__ = ["ConvField", "DenseField", "LayeredField", "check_field"]


class LayeredField(nn.Module):
    r"""Timed layers with a smooth activation between them,

    .. math:: f(z, t) = L_n\big(\phi(L_{n-1}(\cdots \phi(L_1(z, t)) \cdots, t)), t\big).

    Arguments:
        layers: The layers :math:`L_i`.
        activation: ``softplus`` (the paper's) or ``tanh``.
    """

    def __init__(self, layers: Sequence[TimedLayer], activation: str) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}"
            )
        self.layers = nn.ModuleList(layers)
        self.activation = activation

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """Slopes ``(batch, ...)`` of states ``(batch, ...)``."""
        phi = ACTIVATIONS[self.activation]
        h = z
        for layer in self.layers[:-1]:
            h = phi.value(layer(t, h))

        return self.layers[-1](t, h)

    def pushforward(self, t: Tensor, z: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        """Slopes, and the derivatives of the slopes along ``tangents`` of shape ``(tangents, batch,
        ...)``.
        """
        stack = torch.cat([z.unsqueeze(0), tangents])
        *hidden, last = cast("list[TimedLayer]", list(self.layers))
        for layer in hidden:
            stack = activate_stack(layer.linear(t, stack), layer.offset(t, stack), self.activation)

        slopes, pushed = last.linear(t, stack).split([1, len(tangents)])
        return slopes[0] + last.offset(t, stack), pushed


def DenseField(  # noqa: N802
    features: int,
    hidden: Sequence[int] = (64, 64, 64),
    time: str = "concat",
    activation: str = "softplus",
) -> LayeredField:
    """Field of vectors ``(batch, features)``.

    Arguments:
        features: Size of the state.
        hidden: Widths of the hidden layers.
        time: ``concat``, time as one more feature of each layer, or ``concat_squash``, time as a
            gate on it.
        activation: ``softplus`` or ``tanh``.
    """
    layers = {"concat": ConcatLinear, "concat_squash": ConcatSquashLinear}
    if time not in layers:
        raise ValueError(f"time must be one of {', '.join(layers)}, got {time!r}")
    sizes = [features, *hidden, features]

    return LayeredField([layers[time](i, o) for i, o in pairwise(sizes)], activation)


def ConvField(  # noqa: N802
    channels: int, hidden: Sequence[int] = (64, 64, 64), activation: str = "softplus"
) -> LayeredField:
    """Field of images ``(batch, channels, height, width)``: the paper's 3x3 convolutions with time
    as a channel.

    Arguments:
        channels: Channels of the state.
        hidden: Channels of the hidden layers; three of 64 in the paper.
        activation: ``softplus`` or ``tanh``.
    """
    sizes = [channels, *hidden, channels]

    return LayeredField([ConcatConv2d(i, o) for i, o in pairwise(sizes)], activation)


def check_field(field: nn.Module) -> None:
    """Refuse a field that is random or looks at its batch: no ODE has such a right-hand side."""
    for name, module in field.named_modules():
        rate = (
            getattr(module, "p", 0.0) if isinstance(module, nn.modules.dropout._DropoutNd) else 0.0
        )
        rate = rate or getattr(module, "dropout", 0.0)
        if isinstance(rate, float) and rate > 0.0:
            raise ValueError(
                f"the field's module {name or type(module).__name__!r} drops features at random: "
                "every evaluation would be another field and the solver's steps would shrink to "
                "nothing; remove it"
            )
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"the field's module {name or type(module).__name__!r} is a batch norm: a sample's "
                "path would depend on its batch and on the solver's steps; use GroupNorm or none"
            )
