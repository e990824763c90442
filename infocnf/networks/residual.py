r"""Fields for flows that are trained without simulation: a time-conditioned U-Net for images, a
residual network for vectors.

A field is the drift that carries the standard normal onto itself along straight mixtures :math:`z_t
= (1 - t)\, x + t\, z`, whose variance is :math:`v(t) = (1 - t)^2 + t^2`, and a network for the
rest,

.. math:: f(z, t) = \frac{\dot v(t)}{2 v(t)}\, z + g\big(z / \sqrt{v(t)},\, t\big) ,

so that at the start, where :math:`g = 0`, the flow over a unit of time is the identity.

Layers have no offsets. All that is not linear in the features is one operation, norm, modulation by
time and activation; through everything else a tangent passes as features do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from infocnf.networks.levels import Levels

__all__ = ["MixtureField", "residual_field", "unet_field"]

GROUP = 8  # channels in a group of the norm, at least
FREQUENCIES = 8  # of the features of time
TIMES = 64  # size of the embedding of time
EPSILON = 1e-5  # of the norm


class Modulated(nn.Module):
    r"""Group norm, modulation by time and activation,

    .. math:: \phi\big( (1 + a(t)) \odot \mathrm{norm}(h) + b(t) \big), \qquad \phi(u) = u\,
        \sigma(u) .

    Arguments:
        channels: Channels of the features.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.groups = max(g for g in range(1, max(channels // GROUP, 1) + 1) if channels % g == 0)
        self.modulation = nn.Linear(TIMES, 2 * channels)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, h: Tensor, time: Tensor) -> Tensor:
        """Features ``(batch, channels, ...)`` at embedded times ``(batch or 1, times)``."""
        scale, shift = self.coefficients(h, time)
        return F.silu(torch.addcmul(shift, F.group_norm(h, self.groups, eps=EPSILON), scale))

    def coefficients(self, h: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and shift, in a shape that broadcasts to features."""
        shape = (len(time), -1, *[1] * (h.ndim - 2))
        scale, shift = self.modulation(time).chunk(2, dim=-1)
        return 1.0 + scale.reshape(shape), shift.reshape(shape)

    def push(self, stack: Tensor, time: Tensor) -> Tensor:
        r"""The same of a stack ``(1 + tangents, batch, channels, ...)`` of features and tangents.

        With :math:`n = (h - \mu) / \sigma` the tangent of the norm is :math:`(\dot h -
        \overline{\dot h} - n\, \overline{n \dot h}) / \sigma`, means over a group.
        """
        centred = stack - self.means(stack)
        inverse = (self.means(centred[:1].square()) + EPSILON).rsqrt()
        n, turned = (centred * inverse).split([1, len(stack) - 1])
        turned = turned - n * self.means(n * turned)

        scale, shift = self.coefficients(stack[0], time)
        u = torch.addcmul(shift, n, scale)
        gate = u.sigmoid()
        slope = torch.addcmul(gate, u * gate, 1.0 - gate) * scale
        return torch.cat([u * gate, turned * slope])

    def means(self, stack: Tensor) -> Tensor:
        """Means over groups of a stack, in a shape that broadcasts to it."""
        each = stack.mean((-2, -1)) if stack.ndim == 5 else stack
        grouped = each.unflatten(2, (self.groups, -1)).mean(-1, keepdim=True)
        spread = grouped.expand(-1, -1, -1, stack.shape[2] // self.groups).flatten(2)
        return spread.reshape(*spread.shape, *[1] * (stack.ndim - 3))


Activate = Callable[[Modulated, Tensor, Tensor], Tensor]
"""Norm, modulation and activation of features, or of a stack."""


class Layer(nn.Module):
    """A linear map of channels without offset: a convolution of images, or a matrix of vectors.

    Arguments:
        inputs: Channels before.
        outputs: Channels after.
        kernel: Side of the convolution; None for vectors.
        zero: Whether it starts at zero.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int | None, zero: bool = False) -> None:
        super().__init__()
        shape = (outputs, inputs) if kernel is None else (outputs, inputs, kernel, kernel)
        weight = torch.zeros(shape)
        if not zero:
            nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
        if kernel is not None:
            weight = weight.contiguous(memory_format=torch.channels_last)
        self.weight, self.kernel = nn.Parameter(weight), kernel

    def forward(self, h: Tensor) -> Tensor:
        """Features, or a stack of them and their tangents."""
        if self.kernel is None:
            return F.linear(h, self.weight)
        images = h.flatten(0, -4).contiguous(memory_format=torch.channels_last)
        return F.conv2d(images, self.weight, padding=self.kernel // 2).unflatten(0, h.shape[:-3])


class Residual(nn.Module):
    """Features and a correction by two layers.

    Arguments:
        inputs: Channels before.
        outputs: Channels after.
        kernel: Side of the convolutions; None for vectors.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int | None) -> None:
        super().__init__()
        self.before, self.between = Modulated(inputs), Modulated(outputs)
        self.first = Layer(inputs, outputs, kernel)
        self.second = Layer(outputs, outputs, kernel, zero=True)
        self.carry = Layer(inputs, outputs, kernel and 1) if inputs != outputs else None

    def forward(self, h: Tensor, time: Tensor, activate: Activate) -> Tensor:
        """Features, or a stack, at embedded times."""
        inner = self.first(activate(self.before, h, time))
        inner = self.second(activate(self.between, inner, time))
        return inner + (h if self.carry is None else self.carry(h))


class Network(nn.Module):
    """A U-Net for images: residual blocks at each level, from fine to coarse and back with the
    features of the way down beside. For vectors, residual blocks one after the other.

    Arguments:
        channels: Channels of the state.
        hidden: Channels at each level; each has half of the pixels a side of the one before.
        blocks: Residual blocks on each side of a level.
        size: Pixels of the state, height and width; None for vectors.
        more: Channels that enter beside the state's.
    """

    def __init__(
        self,
        channels: int,
        hidden: Sequence[int],
        blocks: int,
        size: tuple[int, int] | None,
        more: int = 0,
    ) -> None:
        super().__init__()
        kernel = None if size is None else 3
        self.enter = Layer(channels + more, hidden[0], kernel)
        # where a pixel is, which convolutions cannot know: the patterns of classes depend on it
        self.position = None if size is None else nn.Parameter(torch.zeros(hidden[0], *size))
        self.down, self.up, self.between = (nn.ModuleList() for _ in range(3))
        for level, width in enumerate(hidden):
            self.down.append(
                nn.ModuleList(
                    Residual(hidden[max(level - 1, 0)] if i == 0 else width, width, kernel)
                    for i in range(blocks)
                )
            )
        for fine, coarse in reversed(list(pairwise(hidden)) if size else []):
            self.between.append(Layer(coarse, fine, kernel and 1))
            self.up.append(
                nn.ModuleList(
                    Residual(2 * fine if i == 0 else fine, fine, kernel) for i in range(blocks)
                )
            )
        final = hidden[0] if size else hidden[-1]
        self.last = Modulated(final)
        self.leave = Layer(final, channels, kernel, zero=True)

    def forward(self, h: Tensor, time: Tensor, activate: Activate) -> Tensor:
        """Features, or a stack, at embedded times."""
        h, kept = self.enter(h), []
        if self.position is not None:
            stacked = h.ndim == 5
            h = torch.cat([h[:1] + self.position, h[1:]]) if stacked else h + self.position
        for level, group in enumerate(self.down):
            if level and self.position is not None:
                kept.append(h)
                h = halve(h)
            for block in cast("nn.ModuleList", group):
                h = block(h, time, activate)
        for layer, group in zip(self.between, self.up, strict=True):
            h = torch.cat([kept.pop(), double(layer(h))], dim=-3)
            for block in cast("nn.ModuleList", group):
                h = block(h, time, activate)
        return self.leave(activate(self.last, h, time))


def halve(h: Tensor) -> Tensor:
    """Images ``(..., channels, height, width)`` with half of the pixels a side, by averages."""
    return F.avg_pool2d(h.flatten(0, -4), 2).unflatten(0, h.shape[:-3])


def double(h: Tensor) -> Tensor:
    """Images with twice the pixels a side, each repeated."""
    return F.interpolate(h.flatten(0, -4), scale_factor=2.0).unflatten(0, h.shape[:-3])


class MixtureField(nn.Module):
    """The drift of the standard normal along straight mixtures, and a network.

    Arguments:
        network: Called with features or a stack, embedded times and how to activate.
        levels: What it sees beside the state.
    """

    frequencies: Tensor

    def __init__(self, network: nn.Module, levels: Levels | None = None) -> None:
        super().__init__()
        self.network, self.levels = network, levels
        self.embed = nn.Sequential(
            nn.Linear(FREQUENCIES, TIMES), nn.SiLU(), nn.Linear(TIMES, TIMES), nn.SiLU()
        )
        frequencies = math.pi * torch.arange(1.0, FREQUENCIES + 1)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """Slopes ``(batch, ...)`` of states ``(batch, ...)``."""
        return self.run(t, z, z.ndim, Modulated.forward)

    def pushforward(self, t: Tensor, z: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        """Slopes, and the derivatives of the slopes along ``tangents`` of shape ``(tangents, batch,
        ...)``.
        """
        stack = torch.cat([z.unsqueeze(0), tangents])
        slopes, pushed = self.run(t, stack, z.ndim, Modulated.push).split([1, len(tangents)])
        return slopes[0], pushed

    def run(self, t: Tensor, z: Tensor, dimensions: int, activate: Activate) -> Tensor:
        """Slopes of states, or of a stack, whose samples have so many dimensions with the batch."""
        time = self.embed((t.reshape(-1, 1) * self.frequencies).cos())
        t = t.reshape(-1, *[1] * (dimensions - 1))
        variance = (1.0 - t).square() + t.square()
        h = z * variance.rsqrt()
        if self.levels is not None:
            h = torch.cat([h, self.levels(z, t, variance)], -3)
        slopes = self.network(h, time, activate)
        return torch.addcmul(slopes, z, (2.0 * t - 1.0) / variance)


def unet_field(
    shape: tuple[int, int, int],
    hidden: Sequence[int] = (32, 64),
    blocks: int = 1,
    levels: int = 0,
) -> MixtureField:
    """Field of images ``(batch, channels, height, width)``, whose sides can be halved as often as
    there are levels after the first.

    Arguments:
        shape: Channels, height and width of the state.
        hidden: Channels at each level.
        blocks: Residual blocks on each side of a level.
        levels: Number of grey levels that the field is told.
    """
    channels, height, width = shape
    times = 2 ** (len(hidden) - 1)
    if not hidden or height % times or width % times:
        raise ValueError(
            f"states of {height}x{width} pixels cannot have {len(hidden)} levels: give hidden "
            f"{allowed_levels(height, width)} or fewer widths"
        )
    told = Levels(shape, levels) if levels else None
    more = 0 if told is None else told.channels
    return MixtureField(Network(channels, hidden, blocks, (height, width), more), told)


def allowed_levels(height: int, width: int) -> int:
    """How many levels an image can have.

    >>> allowed_levels(14, 14), allowed_levels(16, 16)
    (2, 5)
    """
    both = math.gcd(height, width)
    return 1 + (both & -both).bit_length() - 1


def residual_field(
    features: int, hidden: Sequence[int] = (64, 64, 64), blocks: int = 1
) -> MixtureField:
    """Field of vectors ``(batch, features)``.

    Arguments:
        features: Size of the state.
        hidden: Widths, one after the other.
        blocks: Residual blocks of each width.
    """
    return MixtureField(Network(features, hidden, blocks, None))
