r"""Fields for flows that are trained without simulation: a time-conditioned U-Net for images, a
residual network for vectors.

A field is the drift that carries the standard normal onto itself along straight mixtures :math:`z_t
= (1 - t)\, x + t\, z`, whose variance is :math:`v(t) = (1 - t)^2 + t^2`, and a network for the
rest,

.. math:: f(z, t) = \frac{\dot v(t)}{2 v(t)}\, z + g\big(z / \sqrt{v(t)},\, t\big) ,

so that at the start, where :math:`g = 0`, the flow over a unit of time is the identity. The network
sees the time itself, or the logarithm of the ratio of signal and noise, :math:`\log ((1 - t)^2 /
t^2)`: what can be known of an image changes as much from :math:`t = 0.02` to 0.04 as from 0.2 to
0.4.

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

__all__ = ["MixtureField", "Thresholds", "residual_field", "unet_field"]

WIDTH = 0.15  # of the threshold at the data end, where it would be a jump
LOGISTIC = 1.702  # a logistic function of this slope is a normal distribution function within 0.01


class Thresholds(nn.Module):
    """Whether pixels are brighter than some grey levels.

    Arguments:
        shape: Channels, height and width of the state.
        count: Number of grey levels.
        whitened: Whether the state's channels are mixtures of pixels, which ``pixels`` undoes.
    """

    values: Tensor
    pixels: Tensor

    def __init__(self, shape: tuple[int, int, int], count: int, whitened: bool = False) -> None:
        super().__init__()
        self.register_buffer("values", torch.zeros(count, *shape))
        if whitened:
            self.register_buffer("pixels", torch.eye(shape[0]))
        self.whitened = whitened

    @property
    def channels(self) -> int:
        """Number of features of a pixel of the state."""
        return self.values.shape[0] * self.values.shape[1]

    def forward(self, z: Tensor, t: Tensor, variance: Tensor) -> Tensor:
        """Features ``(..., channels, height, width)`` of states ``(batch, ...)``, or of a stack
        ``(1 + tangents, batch, ...)`` of states and tangents.

        Arguments:
            z: States, or a stack.
            t: Times ``(batch or 1, 1, 1, 1)``.
            variance: Variance of independent mixtures at these times, in the same shape.
        """
        stacked = z.ndim == 5
        if self.whitened:  # of pixels of variance one, so that their noise has that of the state's
            z = torch.einsum("ij,...jhw->...ihw", self.pixels, z)
        steepness = LOGISTIC / (t.square() / variance + WIDTH**2).sqrt()
        slope = ((1.0 - t) / variance * steepness).unsqueeze(1)
        states = (z[0] if stacked else z).unsqueeze(1)
        seen = torch.tanh(0.5 * (states * slope - self.values * steepness.unsqueeze(1)))
        if not stacked:
            return seen.flatten(1, 2)
        pushed = z[1:].unsqueeze(2) * (0.5 * slope * (1.0 - seen.square()))
        return torch.cat([seen.unsqueeze(0), pushed]).flatten(2, 3)


GROUP = 8  # channels in a group of the norm, at least
FREQUENCIES = 8  # of the features of time
NOTHING = 1e-3  # noise, or signal, that is as good as none
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
    """A U-Net for images: residual blocks at each resolution, from fine to coarse and back with the
    features of the way down beside. For vectors, residual blocks one after the other.

    Arguments:
        channels: Channels of the state.
        hidden: Channels at each resolution, which has half of the pixels a side of the one before.
        blocks: Residual blocks on each side of a resolution.
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
        for resolution, width in enumerate(hidden):
            self.down.append(
                nn.ModuleList(
                    Residual(hidden[max(resolution - 1, 0)] if i == 0 else width, width, kernel)
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
        """Slopes of features that have entered, or of a stack, at embedded times."""
        kind = h.device.type
        if torch.is_autocast_enabled(kind):
            h = h.to(torch.get_autocast_dtype(kind))
        kept: list[Tensor] = []
        if self.position is not None:
            stacked = h.ndim == 5
            h = torch.cat([h[:1] + self.position, h[1:]]) if stacked else h + self.position
        for resolution, group in enumerate(self.down):
            if resolution and self.position is not None:
                kept.append(h)
                h = halve(h)
            for block in cast("nn.ModuleList", group):
                h = block(h, time, activate)
        for layer, group in zip(self.between, self.up, strict=True):
            fine = kept.pop()
            h = torch.cat([fine, double(layer(h), fine)], dim=-3)
            for block in cast("nn.ModuleList", group):
                h = block(h, time, activate)
        return self.leave(activate(self.last, h, time))


def halve(h: Tensor) -> Tensor:
    """Images ``(..., channels, height, width)`` with half of the pixels a side, by averages; an odd
    side keeps its last pixel.
    """
    return F.avg_pool2d(h.flatten(0, -4), 2, ceil_mode=True).unflatten(0, h.shape[:-3])


def double(h: Tensor, like: Tensor) -> Tensor:
    """Images with twice the pixels a side, each repeated, as many of them as ``like`` has."""
    twice = F.interpolate(h.flatten(0, -4), scale_factor=2.0).unflatten(0, h.shape[:-3])
    return twice[..., : like.shape[-2], : like.shape[-1]]


class MixtureField(nn.Module):
    """The drift of the standard normal along straight mixtures, and a network.

    Arguments:
        network: Called with features or a stack that entered, embedded times and how to activate.
        thresholds: What it sees beside the state.
        context: Size of the covariates that modulate it beside the time; 0 for none.
        log_snr: Whether it sees the ratio of signal and noise instead of the time.
    """

    frequencies: Tensor

    def __init__(
        self,
        network: Network,
        thresholds: Thresholds | None = None,
        context: int = 0,
        log_snr: bool = False,
    ) -> None:
        super().__init__()
        self.network, self.thresholds, self.log_snr = network, thresholds, log_snr
        self.embed = nn.Sequential(
            nn.Linear(FREQUENCIES, TIMES), nn.SiLU(), nn.Linear(TIMES, TIMES), nn.SiLU()
        )
        self.context = None
        if context:
            self.context = nn.Sequential(
                nn.Linear(context, TIMES), nn.SiLU(), nn.Linear(TIMES, TIMES)
            )
        frequencies = torch.arange(1.0, FREQUENCIES + 1)  # exact in every type
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, t: Tensor, z: Tensor, *context: Tensor) -> Tensor:
        """Slopes ``(batch, ...)`` of states ``(batch, ...)``."""
        return self.run(t, z, z.ndim, Modulated.forward, context)

    def pushforward(
        self, t: Tensor, z: Tensor, tangents: Tensor, *context: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Slopes, and the derivatives of the slopes along ``tangents`` of shape ``(tangents, batch,
        ...)``.
        """
        stack = torch.cat([z.unsqueeze(0), tangents])
        both = self.run(t, stack, z.ndim, Modulated.push, context)
        slopes, pushed = both.split([1, len(tangents)])
        return slopes[0], pushed

    def run(
        self,
        t: Tensor,
        z: Tensor,
        dimensions: int,
        activate: Activate,
        context: Sequence[Tensor],
    ) -> Tensor:
        """Slopes of states, or of a stack, whose samples have so many dimensions with the batch."""
        with torch.autocast(z.device.type, enabled=False):  # small noise needs all digits
            t, z, *context = (part.to(self.frequencies) for part in (t, z, *context))
            time = self.embed((self.angle(t.reshape(-1, 1)) * self.frequencies).cos())
            if self.context is not None:
                time = time + self.context(context[0])
            t = t.reshape(-1, *[1] * (dimensions - 1))
            variance = (1.0 - t).square() + t.square()
            h = z * variance.rsqrt()
            if self.thresholds is not None:
                h = torch.cat([h, self.thresholds(z, t, variance)], -3)
            h = self.network.enter(h)
        slopes = self.network(h, time, activate).to(z)
        return torch.addcmul(slopes, z, (2.0 * t - 1.0) / variance)

    def angle(self, t: Tensor) -> Tensor:
        r"""From one end of the way to the other, 0 to :math:`\pi` or back: even in time, or in the
        logarithm of the ratio of signal and noise but for the ends, where that would be infinite.
        """
        if not self.log_snr:
            return math.pi * t
        ratio = ((1.0 - t).square() + NOTHING**2).log() - (t.square() + NOTHING**2).log()
        return 0.5 * math.pi * (1.0 - ratio / (2.0 * math.log(NOTHING)))


def unet_field(
    shape: tuple[int, int, int],
    hidden: Sequence[int] = (32, 64),
    blocks: int = 1,
    thresholds: int = 0,
    whitened: bool = False,
    context: int = 0,
    log_snr: bool = False,
) -> MixtureField:
    """Field of images ``(batch, channels, height, width)``.

    Arguments:
        shape: Channels, height and width of the state.
        hidden: Channels at each resolution.
        blocks: Residual blocks on each side of a resolution.
        thresholds: Number of grey levels that the field is told.
        whitened: Whether the state's channels are mixtures of pixels.
        context: Size of its covariates.
        log_snr: Whether it sees the ratio of signal and noise instead of the time.
    """
    channels, height, width = shape
    most = 1 + (min(height, width) - 1).bit_length()  # until a pixel is left
    if not 0 < len(hidden) <= most:
        raise ValueError(
            f"states of {height}x{width} pixels cannot have {len(hidden)} resolutions: give hidden "
            f"1 to {most} widths"
        )
    told = Thresholds(shape, thresholds, whitened) if thresholds else None
    more = 0 if told is None else told.channels
    network = Network(channels, hidden, blocks, (height, width), more)
    return MixtureField(network, told, context, log_snr)


def residual_field(
    features: int,
    hidden: Sequence[int] = (64, 64, 64),
    blocks: int = 1,
    context: int = 0,
    log_snr: bool = False,
) -> MixtureField:
    """Field of vectors ``(batch, features)``.

    Arguments:
        features: Size of the state.
        hidden: Widths, one after the other.
        blocks: Residual blocks of each width.
        context: Size of its covariates.
        log_snr: Whether it sees the ratio of signal and noise instead of the time.
    """
    network = Network(features, hidden, blocks, None)
    return MixtureField(network, context=context, log_snr=log_snr)
