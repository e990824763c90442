"""Flows of continuous blocks: flat ones for vectors, the paper's multiscale architecture for
images.

Scales 1 to n-1 of an image flow are ``blocks`` continuous blocks, a squeeze, as many blocks again,
and a split that factors half of the channels out as finished code; the last scale is ``blocks``
blocks. 32x32x3 with four scales has 14 blocks, 28x28x1 with three has 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from infocnf.flows.bijection import Bijection, Chain, Traversal
from infocnf.flows.continuous import ContinuousBlock
from infocnf.flows.pixels import Logit
from infocnf.flows.reshaping import Flatten, Squeeze, join, split
from infocnf.networks.fields import ConvField, DenseField

__all__ = ["SMALLEST_SCALE", "ScaledFlow", "allowed_scales", "flat_flow", "multiscale_flow"]

SMALLEST_SCALE = 4  # pixels of the shorter side below which no scale is added by default

BlockFactory = Callable[[nn.Module, tuple[int, ...], int], ContinuousBlock]


class ScaledFlow(Bijection):
    """Scales with a split after each but the last; the code is what each scale factored out,
    flattened, in their order.

    Arguments:
        scales: The bijections of each scale.
        shapes: Shape of what each scale contributes to the code.
    """

    def __init__(self, scales: Sequence[Bijection], shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.scales = nn.ModuleList(scales)
        self.flattens = nn.ModuleList(Flatten(shape) for shape in shapes)
        self.sizes = tuple(math.prod(shape) for shape in shapes)

    @property
    def code_shape(self) -> tuple[int, ...]:
        """Shape of the code of one sample before it is flattened; flat where there are scales."""
        shapes = [cast("Flatten", flatten).shape for flatten in self.flattens]
        return shapes[0] if len(shapes) == 1 else (sum(self.sizes),)

    @property
    def blocks(self) -> list[ContinuousBlock]:
        """The continuous blocks from data to latent."""
        return [module for module in self.modules() if isinstance(module, ContinuousBlock)]

    @property
    def places(self) -> list[tuple[tuple[int, ...], int]]:
        """Shape of one sample and scale of each block."""
        return [
            (block.shape, position)
            for position, scale in enumerate(self.scales)
            for block in scale.modules()
            if isinstance(block, ContinuousBlock)
        ]

    @property
    def single(self) -> tuple[list[Bijection], ContinuousBlock, list[Bijection]]:
        """What comes before the only block, the block, and what comes after it; an error where
        there are several.
        """
        parts = [*cast("Chain", self.scales[0]).bijections] if len(self.scales) == 1 else []
        places = [i for i, part in enumerate(parts) if isinstance(part, ContinuousBlock)]
        if len(places) != 1:
            raise ValueError(
                f"matching and one-step answers need a flow of a single block, and this one has "
                f"{len(self.blocks)}: use architecture 'unet' or 'residual', or one flat block"
            )
        before, block, after = parts[: places[0]], parts[places[0]], parts[places[0] + 1 :]
        return before, cast("ContinuousBlock", block), after

    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        codes, total = [], torch.zeros(len(x), dtype=x.dtype, device=x.device)
        for position, (scale, flatten) in enumerate(zip(self.scales, self.flattens, strict=True)):
            x, log_det = scale(x, traversal)
            total = total + log_det
            x, factored = split(x) if position < len(self.scales) - 1 else (x, x)
            codes.append(flatten(factored, traversal)[0])

        return torch.cat(codes, dim=1), total

    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        x: Tensor | None = None
        codes = z.split(self.sizes, dim=1)
        for scale, flatten, code in reversed(
            list(zip(self.scales, self.flattens, codes, strict=True))
        ):
            factored = flatten.inverse(code, traversal)
            x = scale.inverse(factored if x is None else join(x, factored), traversal)
        assert x is not None

        return x


def flat_flow(
    features: int,
    make_block: BlockFactory,
    *,
    blocks: int = 2,
    hidden: Sequence[int] = (64, 64, 64),
    activation: str = "softplus",
    time: str = "concat",
) -> ScaledFlow:
    """Flow of vectors ``(batch, features)``: dense blocks one after the other, one scale."""
    shape = (features,)
    chain = [
        make_block(DenseField(features, hidden, time, activation), shape, index)
        for index in range(blocks)
    ]

    return ScaledFlow([Chain(chain)], [shape])


def multiscale_flow(
    shape: tuple[int, int, int],
    make_block: BlockFactory,
    *,
    scales: int | None = None,
    blocks: int = 2,
    hidden: Sequence[int] = (64, 64, 64),
    activation: str = "softplus",
    alpha: float = 1e-6,
) -> ScaledFlow:
    """Flow of images ``(batch, channels, height, width)`` with pixels in [0, 1].

    Arguments:
        shape: Channels, height, width.
        make_block: Makes a continuous block of a field, a shape and an index.
        scales: Number of scales; as many as the size allows when None.
        blocks: Continuous blocks before and after each squeeze: 2 in the paper, 4 in its "2x"
            model.
        hidden: Hidden channels of each field.
        activation: Activation of each field.
        alpha: Margin of the logit at the data end.
    """
    scales = allowed_scales(shape) if scales is None else check_scales(shape, scales)
    channels, height, width = shape
    index, chains, shapes = 0, [], []

    def group() -> list[Bijection]:
        nonlocal index
        made: list[Bijection] = []
        for _ in range(blocks):
            made.append(
                make_block(
                    ConvField(channels, hidden, activation), (channels, height, width), index
                )
            )
            index += 1
        return made

    for scale in range(scales):
        parts: list[Bijection] = [Logit(alpha)] if scale == 0 else []
        parts += group()
        if scale < scales - 1:
            channels, height, width = 4 * channels, height // 2, width // 2
            parts += [Squeeze(), *group()]
            channels //= 2
        chains.append(Chain(parts))
        shapes.append((channels, height, width))

    return ScaledFlow(chains, shapes)


def allowed_scales(shape: tuple[int, int, int]) -> int:
    """As many scales as leave at least 4 pixels a side and squeeze even sizes only.

    >>> [allowed_scales((1, size, size)) for size in (32, 28, 8, 7)]
    [4, 3, 2, 1]
    """
    _, height, width = shape
    scales = 1
    while height % 2 == 0 and width % 2 == 0 and min(height, width) >= 2 * SMALLEST_SCALE - 1:
        height, width, scales = height // 2, width // 2, scales + 1

    return scales


def check_scales(shape: tuple[int, int, int], scales: int) -> int:
    """The number of scales, or an error that names the size at which the squeezing stops."""
    _, height, width = shape
    for done in range(1, scales):
        if height % 2 or width % 2:
            raise ValueError(
                f"images of {shape[1]}x{shape[2]} cannot have {scales} scales: after {done - 1} "
                f"squeezes they are {height}x{width}, which cannot be halved; use scales={done}, "
                "or pad or resize the images"
            )
        height, width = height // 2, width // 2
    if scales < 1:
        raise ValueError(f"scales must be at least 1, got {scales}")

    return scales
