"""Which flow a shape of samples gets.

*Flat* flows of vectors are dense blocks one after the other. The paper's *multiscale* flows of
images have, in scales 1 to n-1, ``blocks`` continuous blocks, a squeeze, as many blocks again, and
a split that factors half of the channels out as finished code; the last scale is ``blocks`` blocks.
32x32x3 with four scales has 14 blocks, 28x28x1 with three has 10. Flows of a *single* block, a
U-Net's for images or a residual network's for vectors, can be trained by matching.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from infocnf.flows.bijection import (
    Bijection,
    Chain,
    Logit,
    Scale,
    ScaledFlow,
    Squeeze,
    Traversal,
)
from infocnf.flows.continuous import ContinuousBlock
from infocnf.flows.gaussianise import Gaussianise
from infocnf.flows.whiten import Whiten
from infocnf.networks.fields import ConvField, DenseField
from infocnf.networks.unet import Thresholds, residual_field, unet_field

__all__ = [
    "ARCHITECTURES",
    "SMALLEST_SCALE",
    "allowed_scales",
    "block_count",
    "build_flow",
    "check_architecture",
    "code_shapes",
    "fit_marginals",
    "fit_whitening",
    "flat_flow",
    "multiscale_flow",
    "single_flow",
]

ARCHITECTURES = ("auto", "multiscale", "flat", "unet", "residual")
SMALLEST_SCALE = 4  # pixels of the shorter side below which no scale is added by default
THRESHOLDS = 4  # grey levels that the field of images is told
FEW = 16  # or all, where there are no more
Shape = tuple[int, ...]
BlockFactory = Callable[[nn.Module, Shape, int], ContinuousBlock]
FieldFactory = Callable[[Shape], nn.Module]


def build_flow(
    shape: Shape,
    architecture: str,
    make_block: BlockFactory,
    *,
    blocks: int = 2,
    hidden: Sequence[int] = (64, 64, 64),
    activation: str = "softplus",
    time: str = "concat",
    scales: int | None = None,
    alpha: float = 1e-6,
    marginals: int = 0,
    whiten: bool = False,
    context: int = 0,
    field: nn.Module | FieldFactory | None = None,
) -> ScaledFlow:
    """The flow of an architecture for samples of a shape.

    Arguments:
        shape: Shape of one sample.
        architecture: One of :data:`ARCHITECTURES` that fits the shape; not ``auto``.
        make_block: Makes a continuous block of a field, a shape and an index.
        blocks: Continuous blocks, or residual blocks of a flow of one; see :class:`InfoCNF`.
        hidden: Widths of each field's layers; one for each resolution of a U-Net.
        activation: Of flat and multiscale flows.
        time: How fields see it: ``concat``, or ``concat_squash`` of flat flows, ``log_snr`` of
            single ones.
        scales: Scales of a multiscale flow.
        alpha: Margin of the logit, or mass beyond either end of a pixel's range.
        marginals: Bins by which marginals become normal, of single flows; 0 for none.
        whiten: Whether 2x2 patches are whitened after it, of a U-Net's flow.
        context: Size of the covariates of the fields.
        field: A field of one's own, or what makes one of the shape of a block's state.
    """
    single = architecture in ("unet", "residual")
    if architecture != "multiscale" and scales is not None:
        raise ValueError(
            f"architecture {architecture!r} has no scales, got {scales}: leave them out "
            "(resolutions of a U-Net are the widths in hidden)"
        )
    if marginals and not single:
        raise ValueError(
            f"architecture {architecture!r} does not make marginals normal: leave marginals out, "
            "or use 'unet' for images, 'residual' for rows"
        )
    if whiten and not (marginals and architecture == "unet"):
        raise ValueError(
            "whiten needs architecture 'unet' and marginals, which are whitened: set both, or "
            "leave it out"
        )
    if single and not hidden and field is None:
        raise ValueError(f"architecture {architecture!r} needs widths in hidden, got none")
    if time not in (times := ("concat", "log_snr" if single else "concat_squash")):
        raise ValueError(
            f"time of architecture {architecture!r} must be {' or '.join(times)}, got {time!r}"
        )
    log_snr = time == "log_snr"
    told = max(marginals - 1, 0)  # boundaries between grey levels
    own: dict[str, FieldFactory] = {
        "flat": lambda state: DenseField(state[0], hidden, time, activation, context),
        "multiscale": lambda state: ConvField(state[0], hidden, activation, context),
        "residual": lambda state: residual_field(state[0], hidden, blocks, context, log_snr),
        "unet": lambda state: unet_field(
            cast("Any", state),
            hidden,
            blocks,
            told if told <= FEW else THRESHOLDS,
            whiten,
            context,
            log_snr,
        ),
    }
    make_field = own[architecture] if field is None else custom_fields(field)

    def block(state: Shape, index: int) -> ContinuousBlock:
        return make_block(make_field(state), state, index)

    if single:
        return single_flow(shape, block, alpha=alpha, marginals=marginals, whiten=whiten)
    if architecture == "flat":
        return flat_flow(shape[0], block, blocks=blocks)
    return multiscale_flow(cast("Any", shape), block, scales=scales, blocks=blocks, alpha=alpha)


def custom_fields(field: nn.Module | FieldFactory) -> FieldFactory:
    """What makes fields of the shape of a block's state: a module serves one block."""
    if not isinstance(field, nn.Module):
        return field
    given = [field]

    def once(state: Shape) -> nn.Module:
        if not given:
            raise ValueError(
                "a module is the field of one block, and this flow has several: give its class, or "
                "a function that makes one of a shape"
            )
        return given.pop()

    return once


def check_architecture(architecture: str, shape: Shape, single: bool = False) -> str:
    """The architecture of a shape; an error where they do not fit. ``single``: whether ``auto`` is
    a flow of one block.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"architecture must be one of {', '.join(ARCHITECTURES)}, got {architecture!r}"
        )
    if not shape or min(shape) < 1 or len(shape) not in (1, 3):
        raise ValueError(f"shape must be (features,) or (channels, height, width), got {shape}")
    fitting = ("flat", "residual") if len(shape) == 1 else ("multiscale", "unet")
    if architecture not in ("auto", *fitting):
        raise ValueError(
            f"architecture {architecture!r} does not fit samples of shape {shape}: "
            f"use {fitting[0]!r} or {fitting[1]!r}"
        )
    return fitting[single] if architecture == "auto" else architecture


def code_shapes(shape: Shape, architecture: str, scales: int | None) -> list[Shape]:
    """Shape of what each scale contributes to the code.

    >>> code_shapes((3, 32, 32), "multiscale", 3), code_shapes((1, 8, 8), "unet", None)
    ([(6, 16, 16), (12, 8, 8), (12, 8, 8)], [(4, 4, 4)])
    """
    if architecture != "multiscale":
        return [squeezed(shape) if architecture == "unet" else shape]
    channels, height, width = shape
    number = allowed_scales(cast("Any", shape)) if scales is None else scales
    halves = [(channels << i, height >> i, width >> i) for i in range(1, number)]
    return [*halves, (channels << (number - 1), height >> (number - 1), width >> (number - 1))]


def block_count(shape: Shape, architecture: str, scales: int | None, blocks: int) -> int:
    """Number of continuous blocks of a flow."""
    if architecture in ("unet", "residual"):
        return 1
    return blocks * (2 * len(code_shapes(shape, architecture, scales)) - 1)


def squeezed(shape: Shape) -> Shape:
    """The state of a flow of one block: squeezed where the sides of an image are even."""
    if len(shape) == 3 and shape[1] % 2 == 0 and shape[2] % 2 == 0:
        return (4 * shape[0], shape[1] // 2, shape[2] // 2)
    return shape


def flat_flow(
    features: int, block: Callable[[Shape, int], ContinuousBlock], *, blocks: int = 2
) -> ScaledFlow:
    """Flow of vectors ``(batch, features)``: blocks one after the other, one scale."""
    shape = (features,)
    return ScaledFlow([Chain(block(shape, index) for index in range(blocks))], [shape])


def multiscale_flow(
    shape: tuple[int, int, int],
    block: Callable[[Shape, int], ContinuousBlock],
    *,
    scales: int | None = None,
    blocks: int = 2,
    alpha: float = 1e-6,
) -> ScaledFlow:
    """Flow of images ``(batch, channels, height, width)`` with pixels in [0, 1].

    Arguments:
        shape: Channels, height, width.
        block: Makes a continuous block of a shape and an index.
        scales: Number of scales; as many as the size allows when None.
        blocks: Continuous blocks before and after each squeeze: 2 in the paper, 4 in its "2x"
            model.
        alpha: Margin of the logit at the data end.
    """
    scales = allowed_scales(shape) if scales is None else check_scales(shape, scales)
    state: tuple[int, int, int] = shape
    numbers, chains = count(), []
    for scale in range(scales):
        parts: list[Bijection] = [Logit(alpha)] if scale == 0 else []
        parts += [block(state, next(numbers)) for _ in range(blocks)]
        if scale < scales - 1:
            channels, height, width = state
            state = (4 * channels, height // 2, width // 2)
            parts += [Squeeze(), *(block(state, next(numbers)) for _ in range(blocks))]
            state = (2 * channels, height // 2, width // 2)
        chains.append(Chain(parts))

    return ScaledFlow(chains, code_shapes(shape, "multiscale", scales))


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


def single_flow(
    shape: Shape,
    block: Callable[[Shape, int], ContinuousBlock],
    *,
    alpha: float = 1e-6,
    marginals: int = 0,
    whiten: bool = False,
) -> ScaledFlow:
    """Flow of images ``(batch, channels, height, width)`` with pixels in [0, 1], or of vectors
    ``(batch, features)``, with one block.

    From data to latent: the marginals made normal (or the logit of pixels), a squeeze where sides
    are even, whitened patches, the block, and a scale. Both are the identity until they are fitted.

    Arguments:
        shape: Shape of one sample.
        block: Makes a continuous block of a shape and an index.
        alpha: Mass beyond either end of a pixel's range, or margin of the logit.
        marginals: Bins of the histograms by which marginals become normal; 0: none.
        whiten: Whether patches are whitened.
    """
    state, parts = squeezed(shape), cast("list[Bijection]", [])
    if marginals:
        parts.append(Gaussianise(shape, marginals, alpha))
    elif len(shape) == 3:
        parts.append(Logit(alpha))
    if state != shape:
        parts.append(Squeeze())
    if whiten:
        parts.append(Whiten(state[0]))
    parts += [block(state, 0), Scale(torch.zeros(state), torch.ones(state))]

    flow = ScaledFlow([Chain(parts)], [state])
    set_thresholds(flow)
    return flow


def fit_marginals(flow: ScaledFlow, knots: Tensor, shares: Tensor) -> None:
    """Make marginals normal by tables (:meth:`Gaussianise.fit`), and tell the field."""
    first = flow.single[0][0] if flow.single[0] else None
    if not isinstance(first, Gaussianise):
        raise ValueError("this flow does not make marginals normal: build it with marginals=BINS")
    first.fit(knots, shares)
    set_thresholds(flow)


@torch.no_grad()
def fit_whitening(flow: ScaledFlow, x: Tensor) -> None:
    """Whiten the patches of samples ``(count, *shape)``, and tell the field."""
    before = flow.single[0]
    if not (before and isinstance(before[-1], Whiten)):
        raise ValueError("this flow does not whiten patches: build it with whiten=True")
    for part in before[:-1]:
        x, _ = part(x, Traversal(cast("Any", None)))  # nothing is solved
    before[-1].fit(x)
    set_thresholds(flow)


@torch.no_grad()
def set_thresholds(flow: ScaledFlow) -> None:
    """Tell the field of images where grey levels are once marginals are normal."""
    before, block, _ = flow.single
    told = getattr(block.matched_field, "thresholds", None)
    if not isinstance(told, Thresholds):
        return
    gaussianise = before[0]
    assert isinstance(gaussianise, Gaussianise)
    number, bins = len(told.values), gaussianise.below.shape[1] - 1
    # the darkest but black, the others evenly between it and the brightest
    chosen = [1 + (bins - 1) * i // number for i in range(number)]
    values = torch.special.ndtri(gaussianise.below[:, chosen]).t()
    values = values.reshape(number, *gaussianise.shape)
    if any(isinstance(part, Squeeze) for part in before):
        values = F.pixel_unshuffle(values, 2)
    told.values.copy_(values)
    if isinstance(before[-1], Whiten):
        told.pixels.copy_(before[-1].inverted)
