r"""Marginal Gaussianisation: every pixel or column alone becomes standard normal.

.. math:: z_i = \Phi^{-1}\big(F_i(x_i)\big), \qquad
    \log \Big| \frac{\partial z_i}{\partial x_i} \Big| = \log F_i'(x_i) - \log \varphi(z_i) ,

with :math:`F_i` the piecewise linear distribution function of a smoothed histogram. A flow that
starts at the identity then has the likelihood of independent pixels, and only has to learn how they
depend on each other. Beyond the outermost knots, where a little of the mass is, :math:`z` is linear
in :math:`x`.
"""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from infocnf.flows.bijection import Bijection, Traversal

__all__ = ["Gaussianise", "column_tables", "pixel_tables"]

BLURS = (1 / 128, 1 / 50, 1 / 25, 1 / 12, 1 / 6)  # of a pixel's grey levels, as shares of all
LEAST_GAIN = 1e-3  # nats a pixel, for which a histogram is blurred


class Gaussianise(Bijection):
    """Every feature by its own distribution function.

    Tables are in double precision, whatever the type of the data: near one a distribution function
    has few digits left. Before :meth:`fit` they are those of uniform numbers in [0, 1].

    Arguments:
        shape: Shape of one sample.
        bins: Bins of each feature.
        margin: Mass beyond either end.
    """

    knots: Tensor
    below: Tensor

    def __init__(self, shape: tuple[int, ...], bins: int, margin: float = 1e-6) -> None:
        super().__init__()
        if bins < 1:
            raise ValueError(f"bins must be at least 1, got {bins}")
        if not 0.0 < margin < 0.5:
            raise ValueError(f"margin must lie between 0 and 0.5, got {margin}")
        self.shape, self.margin, features = shape, margin, math.prod(shape)
        knots = torch.linspace(0.0, 1.0, bins + 1, dtype=torch.float64).repeat(features, 1)
        self.register_buffer("knots", knots)
        self.register_buffer("below", torch.empty_like(knots))
        self.fit(knots, knots.diff())

    def _apply(self, fn: Any, recurse: bool = True) -> Self:  # noqa: ANN401
        tables = {name: getattr(self, name) for name in ("knots", "below")}
        super()._apply(fn, recurse)
        for name, table in tables.items():  # moved with the model, but not converted
            setattr(self, name, table.to(getattr(self, name).device))
        return self

    @torch.no_grad()
    def fit(self, knots: Tensor, shares: Tensor) -> None:
        """Take tables over.

        Arguments:
            knots: Ends of the bins, rising, ``(features, bins + 1)``.
            shares: Positive masses of the bins, in any unit, ``(features, bins)``.
        """
        sums = F.pad(shares.double().cumsum(1), (1, 0))
        self.knots.copy_(knots)
        self.below.copy_(self.margin + (1.0 - 2.0 * self.margin) * sums / sums[:, -1:])

    @property
    def ends(self) -> tuple[Tensor, Tensor, Tensor]:
        """First and last of :math:`z` within the knots, and the slope beyond, for each feature."""
        low = torch.special.ndtri(self.below[:, 0])
        high = torch.special.ndtri(self.below[:, -1])
        return low, high, (high - low) / (self.knots[:, -1] - self.knots[:, 0])

    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        rows = x.flatten(1).double()
        first, last = self.knots[:, 0], self.knots[:, -1]
        inside = rows.clamp(first, last)
        bin_ = self.bin_of(self.knots, inside)
        left, width = self.look_up(self.knots, bin_)
        below, share = self.look_up(self.below, bin_)
        z = torch.special.ndtri(below + share * ((inside - left) / width))
        slope = (share / width).log() + 0.5 * z.square() + 0.5 * math.log(2.0 * math.pi)

        beyond = rows - inside
        outside = beyond != 0.0
        steep = self.ends[2]
        z = torch.where(outside, z + beyond * steep, z)
        slope = torch.where(outside, steep.log(), slope)
        return z.to(x.dtype).view_as(x), slope.sum(1).to(x.dtype)

    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        rows = z.flatten(1).double()
        low, high, steep = self.ends
        inside = rows.clamp(low, high)
        mass = torch.special.ndtr(inside).clamp(self.below[:, 0], self.below[:, -1])
        bin_ = self.bin_of(self.below, mass)
        left, width = self.look_up(self.knots, bin_)
        below, share = self.look_up(self.below, bin_)
        x = left + width * ((mass - below) / share) + (rows - inside) / steep
        return x.to(z.dtype).view_as(z)

    @staticmethod
    def bin_of(table: Tensor, values: Tensor) -> Tensor:
        """In which bin values ``(batch, features)`` lie."""
        found = torch.searchsorted(table, values.t().contiguous(), right=True).t()
        return (found - 1).clamp(0, table.shape[1] - 2)

    @staticmethod
    def look_up(table: Tensor, bin_: Tensor) -> tuple[Tensor, Tensor]:
        """Where bins begin in a table, and how long they are."""
        columns = torch.arange(len(table), device=table.device)
        begin = table[columns, bin_]
        return begin, table[columns, bin_ + 1] - begin


def pixel_tables(
    images: Tensor,
    levels: int,
    *,
    neighbours: float = 1.0,
    everywhere: float = 1.0,
    worth: float = 0.1,
) -> tuple[Tensor, Tensor]:
    """Knots and shares of the grey levels of each pixel of whole-numbered images ``(count,
    channels, height, width)``, whose pixels become :math:`(k + u) / L`.

    A pixel's own histogram is blurred over grey levels by as much as makes the training images most
    likely, each left out in its turn; and smoothed by those of its neighbours and of all pixels, as
    if so many more images had been seen, and by half an image of evenly spread levels, so that no
    level is impossible. Where that hardly makes images more likely than one histogram for all
    pixels of a channel, as in photographs, that one is taken: then a grey level means the same
    number everywhere, as a convolution wants it.

    Arguments:
        images: Training images.
        levels: Their grey levels :math:`L`.
        neighbours: Weight of the mean histogram of the 3x3 pixels around, in images.
        everywhere: Weight of the mean histogram of all pixels of the channel, in images.
        worth: Nats a pixel for which each pixel has a histogram of its own.
    """
    count, channels, height, width = images.shape
    flat = images.long().flatten(1)
    places = torch.arange(flat.shape[1]) * levels
    own = torch.bincount((flat + places).flatten(), minlength=flat.shape[1] * levels).double()
    own = own.view(channels, height, width, levels).permute(3, 0, 1, 2)
    near = F.avg_pool2d(own, 3, stride=1, padding=1, count_include_pad=False)
    overall = own.mean((2, 3), keepdim=True)
    others = (neighbours * near + everywhere * overall) / count + 0.5 / levels
    blurred, likelihood = blur(own.flatten(1), others.flatten(1))
    shares = blurred.view_as(own) + others
    common = (overall + 0.5 / levels).expand_as(own)
    gain = likelihood - float((own * (common / common.sum(0)).log()).sum())
    if gain < worth * float(own.sum()):
        shares = common
    knots = torch.linspace(0.0, 1.0, levels + 1, dtype=torch.float64)
    return knots.expand(flat.shape[1], -1), shares.permute(1, 2, 3, 0).reshape(-1, levels)


def blur(counts: Tensor, others: Tensor) -> tuple[Tensor, float]:
    """Counts ``(levels, pixels)`` blurred over levels, in that of several ways in which images are
    most likely by all but themselves, and how likely; ``others`` is what is added anyway.
    """
    levels = torch.arange(len(counts), dtype=torch.float64)
    best, most = counts, leave_one_out(counts, counts, 1.0, others)
    for share in BLURS:
        distance = (levels.unsqueeze(1) - levels) / (share * len(counts))
        kernel = torch.exp(-0.5 * distance.square())
        kernel = kernel / kernel.sum(0)
        blurred, itself = kernel @ counts, kernel.diagonal().unsqueeze(1)
        for weight in (0.5, 0.9, 1.0):
            mixed = torch.lerp(counts, blurred, weight)
            found = leave_one_out(counts, mixed, 1.0 + weight * (itself - 1.0), others)
            if found > most + LEAST_GAIN * float(counts.sum()):
                best, most = mixed, found
    return best, most


def leave_one_out(
    counts: Tensor, smoothed: Tensor, itself: Tensor | float, others: Tensor
) -> float:
    """Log-likelihood of images of these counts, each by the smoothed counts without ``itself``."""
    rest = (smoothed - itself).clamp(min=0.0) + others
    total = counts.sum(0) - 1.0 + others.sum(0)
    return float((counts * (rest / total).log()).sum())


def column_tables(rows: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Knots and shares of the columns of rows ``(count, features)``, with about as many rows in
    each bin; each bin is smoothed as if it held one more.
    """
    rows = rows.double()
    quantiles = torch.linspace(0.0, 1.0, bins + 1, dtype=torch.float64)
    knots = torch.quantile(rows, quantiles, dim=0).t()
    spread = (knots[:, -1:] - knots[:, :1]).clamp(min=1e-6)
    # repeated numbers would make bins of no width
    least = torch.arange(bins + 1, dtype=torch.float64) * spread / (50.0 * bins)
    knots = (knots - least).cummax(1).values + least
    shares = torch.stack(
        [torch.histogram(column, knot)[0] for column, knot in zip(rows.t(), knots, strict=True)]
    )
    return knots, shares + 1.0
