"""Flows of a single block, which can be trained without simulation: a U-Net's for images, a
residual network's for vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from infocnf.flows.bijection import Bijection, Chain
from infocnf.flows.marginals import Gaussianise
from infocnf.flows.multiscale import BlockFactory, ScaledFlow
from infocnf.flows.pixels import Logit, Scale
from infocnf.flows.reshaping import Squeeze
from infocnf.networks.residual import residual_field, unet_field

__all__ = ["fit_marginals", "single_flow"]

LEVELS = 4  # grey levels that the field of images is told
FEW = 16  # or all, where there are no more


def single_flow(
    shape: tuple[int, ...],
    make_block: BlockFactory,
    *,
    blocks: int = 1,
    hidden: Sequence[int] = (32, 64),
    alpha: float = 1e-6,
    marginals: int = 0,
) -> ScaledFlow:
    """Flow of images ``(batch, channels, height, width)`` with pixels in [0, 1], or of vectors
    ``(batch, features)``.

    From data to latent: the marginals made normal (or the logit of pixels), a squeeze where sides
    are even, the block, and a scale, which is the identity until it is fitted.

    Arguments:
        shape: Shape of one sample.
        make_block: Makes a continuous block of a field, a shape and an index.
        blocks: Residual blocks on each side of a level.
        hidden: Channels at each level; widths of the residual network of vectors.
        alpha: Mass beyond either end of a pixel's range, or margin of the logit.
        marginals: Bins of the histograms by which marginals become normal; 0: none.
    """
    images = len(shape) == 3
    parts: list[Bijection] = []
    if marginals:
        parts.append(Gaussianise(shape, marginals, alpha))
    elif images:
        parts.append(Logit(alpha))
    state = shape
    if images and shape[1] % 2 == 0 and shape[2] % 2 == 0:
        parts.append(Squeeze())
        state = (4 * shape[0], shape[1] // 2, shape[2] // 2)
    if len(state) == 3:
        boundaries = max(marginals - 1, 0)
        levels = boundaries if boundaries <= FEW else LEVELS
        field = unet_field((state[0], state[1], state[2]), hidden, blocks, levels)
    else:
        field = residual_field(state[0], hidden, blocks)
    parts += [make_block(field, state, 0), Scale(torch.zeros(state), torch.ones(state))]

    flow = ScaledFlow([Chain(parts)], [state])
    tell_levels(flow)
    return flow


def fit_marginals(flow: ScaledFlow, knots: Tensor, shares: Tensor) -> None:
    """Make marginals normal by tables (:meth:`Gaussianise.fit`), and tell the field."""
    first = flow.single[0][0]
    assert isinstance(first, Gaussianise)
    first.fit(knots, shares)
    tell_levels(flow)


@torch.no_grad()
def tell_levels(flow: ScaledFlow) -> None:
    """Tell the field of images where grey levels are once marginals are normal."""
    before, block, _ = flow.single
    levels = getattr(block.dynamics.field, "levels", None)
    if levels is None:
        return
    gaussianise = before[0]
    assert isinstance(gaussianise, Gaussianise)
    count, bins = len(levels.thresholds), gaussianise.below.shape[1] - 1
    # the darkest but black, the others evenly between it and the brightest
    chosen = [1 + (bins - 1) * i // count for i in range(count)]
    thresholds = torch.special.ndtri(gaussianise.below[:, chosen]).t()
    thresholds = thresholds.reshape(count, *gaussianise.shape)
    if isinstance(before[-1], Squeeze):
        thresholds = F.pixel_unshuffle(thresholds, 2)
    levels.thresholds.copy_(thresholds)
