"""Which flow a shape of samples gets, and what does not fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from infocnf.flows import ScaledFlow, flat_flow, multiscale_flow, single_flow
from infocnf.flows.multiscale import BlockFactory
from infocnf.ode.gradients import GRADIENTS
from infocnf.ode.tableaus import tableau
from infocnf.tolerances import Fixed, Policy

__all__ = ["ARCHITECTURES", "build_flow", "check_samples", "check_shape", "check_solver"]

ARCHITECTURES = ("auto", "multiscale", "flat", "unet", "residual")


def build_flow(
    shape: tuple[int, ...],
    architecture: str,
    make_block: BlockFactory,
    common: Mapping[str, Any],
    own: Mapping[str, Mapping[str, Any]],
) -> ScaledFlow:
    """The flow of an architecture for samples of a shape.

    Arguments:
        shape: Shape of one sample.
        architecture: Its name; ``auto`` goes by the shape.
        make_block: Makes a continuous block of a field, a shape and an index.
        common: Arguments that every architecture has.
        own: Further arguments by architecture.
    """
    architecture = check_architecture(architecture, shape)
    scales = own["multiscale"]["scales"]
    if architecture != "multiscale" and scales is not None:
        raise ValueError(
            f"architecture {architecture!r} has no scales, got {scales}: leave them out "
            "(levels of a U-Net are the widths in hidden)"
        )
    single = architecture in ("unet", "residual")
    if own["unet"]["marginals"] and not single:
        raise ValueError(
            f"architecture {architecture!r} does not make marginals normal: leave marginals out, "
            "or use 'unet' for images, 'residual' for rows"
        )
    if single and not common["hidden"]:
        raise ValueError(f"architecture {architecture!r} needs widths in hidden, got none")
    arguments = {**common, **own[architecture]}
    if single:
        return single_flow(shape, make_block, **arguments)
    if architecture == "flat":
        return flat_flow(shape[0], make_block, **arguments)
    channels, height, width = shape
    return multiscale_flow((channels, height, width), make_block, **arguments)


def check_architecture(architecture: str, shape: tuple[int, ...]) -> str:
    """The architecture of a shape; an error where they do not fit."""
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
    return fitting[0] if architecture == "auto" else architecture


def check_solver(method: str, training_method: str | None, gradient: str, policy: Policy) -> None:
    """Refuse a solver that does not exist, or whose tolerance nobody asks for."""
    if gradient not in GRADIENTS:
        raise ValueError(f"gradient must be one of {', '.join(GRADIENTS)}, got {gradient!r}")
    if training_method is not None and not tableau(training_method).adaptive:
        raise ValueError(f"training_method must be adaptive, got {training_method!r}")
    used = training_method or method
    if not tableau(used).adaptive and not isinstance(policy, Fixed):
        raise ValueError(f"{used} has no tolerance: leave the policy fixed, or use dopri5")


def check_samples(x: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse samples of another shape or type."""
    if tuple(x.shape[1:]) != shape:
        raise ValueError(
            f"samples must have shape (batch, {', '.join(map(str, shape))}), got {tuple(x.shape)}"
        )
    if x.dtype != dtype:
        raise ValueError(f"samples are {x.dtype} but the model is {dtype}: convert one of them")


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Whole numbers of a shape."""
    if not isinstance(shape, Sequence) or any(int(size) != size for size in shape):
        raise ValueError(f"shape must be a tuple of whole numbers such as (2,), got {shape!r}")
    return tuple(int(size) for size in shape)
