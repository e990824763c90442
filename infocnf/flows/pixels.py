r"""The data end of an image flow: from whole grey levels to the real line.

Bits per dimension count the density of dequantised images in units of one grey level, so an image
:math:`k \in \{0, \dots, L-1\}^D` becomes :math:`x = (k + u) / L` with uniform noise :math:`u`, and
:math:`\log p(k) \ge \log p(x) - D \log L`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from infocnf.flows.bijection import Bijection, Traversal
from infocnf.ode.streams import DEQUANTISE, draw_uniform

__all__ = ["Logit", "Scale", "dequantise", "quantise"]


def dequantise(
    levels_in: Tensor,
    levels: int = 256,
    generator: torch.Generator | None = None,
    *,
    seeds: Tensor | None = None,
) -> Tensor:
    """Whole numbers ``0 .. levels - 1`` to real numbers in [0, 1) by uniform noise, drawn from the
    generator, or from a seed of each sample ``(batch,)``.

    >>> images = torch.tensor([[0, 3]])
    >>> torch.equal(quantise(dequantise(images, levels=4), levels=4), images)
    True
    """
    if levels_in.numel() and (levels_in.min() < 0 or levels_in.max() >= levels):
        low, high = float(levels_in.min()), float(levels_in.max())
        raise ValueError(
            f"grey levels must lie in 0 .. {levels - 1}, got {low:g} .. {high:g}; set levels to fit"
        )
    dtype = levels_in.dtype if levels_in.is_floating_point() else torch.get_default_dtype()
    like = levels_in.to(dtype)
    if seeds is None:
        noise = torch.rand(like.shape, dtype=dtype, device=like.device, generator=generator)
    else:
        noise = draw_uniform(seeds, like, DEQUANTISE)

    # the largest number below one: (255 + 0.99999997) / 256 would round up to 1 in float32
    return ((like + noise) / levels).clamp(max=1.0 - torch.finfo(dtype).eps / 2)


def quantise(x: Tensor, levels: int = 256) -> Tensor:
    """Real numbers in [0, 1) to the grey levels they came from."""
    return (x * levels).floor().clamp(0, levels - 1).long()


class Scale(Bijection):
    r""":math:`z = (x - \mathrm{shift}) / \mathrm{scale}`, for each feature or for all.

    Arguments:
        shift: What becomes zero.
        scale: What becomes one; positive.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: Tensor | float = 0.0, scale: Tensor | float = 1.0) -> None:
        super().__init__()
        self.register_buffer("shift", torch.as_tensor(shift))
        self.register_buffer("scale", torch.as_tensor(scale))
        if not (self.scale > 0).all():
            raise ValueError(f"scale must be positive, got {self.scale.min().item():g}")

    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        log_det = -self.scale.log().to(x).expand(x.shape[1:]).sum()
        return (x - self.shift.to(x)) / self.scale.to(x), log_det.expand(len(x))

    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        return z * self.scale.to(z) + self.shift.to(z)


class Logit(Bijection):
    r""":math:`z = \log s - \log(1 - s)` with :math:`s = \alpha + (1 - 2\alpha)\, x`, from the unit
    interval to the real line.

    Arguments:
        alpha: How far the ends of the interval are kept from infinity.
    """

    def __init__(self, alpha: float = 1e-6) -> None:
        super().__init__()
        if not 0.0 < alpha < 0.5:
            raise ValueError(f"alpha must lie between 0 and 0.5, got {alpha}")
        self.alpha = alpha

    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        # not 1 - s: near white that would be a difference of rounded numbers
        s, rest = (self.alpha + (1.0 - 2.0 * self.alpha) * part for part in (x, 1.0 - x))
        if s.numel() and not (s.min() > 0.0 and rest.min() > 0.0):
            raise ValueError(
                f"pixels must lie in [0, 1], got {x.min().item():.7g} to {x.max().item():.7g}: "
                "turn grey levels into them with infocnf.flows.dequantise"
            )
        log_s, log_rest = s.log(), rest.log()
        slope = math.log(1.0 - 2.0 * self.alpha) - log_s - log_rest

        return log_s - log_rest, slope.flatten(1).sum(1)

    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        return (F.sigmoid(z) - self.alpha) / (1.0 - 2.0 * self.alpha)
