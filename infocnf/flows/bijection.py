r"""Bijections, and what travels through them beside the data.

A bijection maps :math:`x` to :math:`z` and knows :math:`\log |\det \partial z / \partial x|`, so
that densities follow by :math:`\log p(x) = \log p(z) + \log |\det \partial z / \partial x|`.

Here are the interface, compositions (:class:`Chain`, :class:`ScaledFlow`), and the bijections that
need no solver: those that only move numbers, an affine one, and the data end of an image flow. Bits
per dimension count the density of dequantised images in units of one grey level, so an image
:math:`k \in \{0, \dots, L-1\}^D` becomes :math:`x = (k + u) / L` with uniform noise :math:`u`, and
:math:`\log p(k) \ge \log p(x) - D \log L`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from infocnf.ode import Solution, SolverOptions, Stats
from infocnf.random import Stream, draw_uniform

__all__ = [
    "Bijection",
    "BlockSolve",
    "Chain",
    "Choice",
    "Flatten",
    "FlowStats",
    "Logit",
    "Scale",
    "ScaledFlow",
    "Squeeze",
    "Traversal",
    "dequantise",
    "join",
    "quantise",
    "split",
]


class Choice(Protocol):
    """What a tolerance policy decided for one block: the tolerance, its log-probability where it
    was drawn, and how many times the given number of steps a method without error estimate takes.
    """

    @property
    def tolerance(self) -> float | Tensor: ...

    @property
    def log_prob(self) -> Tensor | None: ...

    @property
    def refine(self) -> int: ...


@dataclass(frozen=True)
class LogDet:
    r"""A log-determinant by quadrature, with its errors; ``(batch,)`` each.

    Arguments:
        value: :math:`\int \mathrm{tr}(\partial f / \partial z)\, dt`.
        quadrature: Error of the quadrature.
        variance: Of the estimated trace; zero where it is exact.
        size: The integral of the absolute value of the trace, which rounding is relative to.
        fixed: The same integral by a few probes that are the same all along the path, so that two
            solves can be compared without the cost and without the noise of the others.
        nodes: Where the divergence was looked at: sample, time and weight of each node.
        mesh: Steps of each sample's path, as :meth:`infocnf.ode.Path.mesh` has them.
    """

    value: Tensor
    quadrature: Tensor
    variance: Tensor
    size: Tensor
    fixed: Tensor
    nodes: tuple[Any, Any, Any]
    mesh: Any


@dataclass(frozen=True)
class BlockSolve:
    """What happened in one continuous block."""

    block: int
    choice: Choice
    solution: Solution
    log_det: LogDet | None = None

    @property
    def auxiliary(self) -> tuple[Tensor, ...]:
        """Kinetic energy and squared norm of the Jacobian, ``(batch,)`` each, where they were
        integrated.
        """
        state = self.solution.state
        return () if isinstance(state, Tensor) else tuple(state[2:])


@dataclass(frozen=True)
class FlowStats:
    """What the solves of all blocks took; sums over blocks are ``(batch,)``, or ``()`` under shared
    stepping.

    Counts of the backward pass are zero until it has run.
    """

    solves: tuple[BlockSolve, ...]

    @property
    def blocks(self) -> tuple[Stats, ...]:
        """The account of each block, from data to latent."""
        return tuple(entry.solution.stats for entry in self.solves)

    def total(self, count: str) -> Tensor:
        """Sum over blocks of one of the counts of :class:`infocnf.ode.Stats`."""
        return torch.stack([getattr(stats, count) for stats in self.blocks]).sum(0)

    @property
    def forward(self) -> Tensor:
        """Evaluations of the forward solves."""
        return self.total("forward")

    @property
    def products(self) -> Tensor:
        """Products with the Jacobian of a field, for the trace."""
        return self.total("products")

    @property
    def backward(self) -> Tensor:
        """Evaluations of the gradient."""
        return self.total("backward")

    @property
    def evaluations(self) -> Tensor:
        """Both together: the NFE of the paper's tables."""
        return self.total("evaluations")

    @property
    def accepted(self) -> Tensor:
        """Accepted steps."""
        return self.total("accepted")

    @property
    def rejected(self) -> Tensor:
        """Rejected steps."""
        return self.total("rejected")


@dataclass(frozen=True)
class Traversal:
    """How one batch travels through a flow, and the account of it.

    Arguments:
        policy: Chooses the tolerance, called with the index of a block, the block's input and the
            seeds.
        options: Changes to the blocks' solvers: stepping, gradient, method.
        seeds: Seeds of each sample's noise ``(batch,)``; None when log-determinants are not wanted.
        context: Covariates of the fields ``(batch, context)``, where they have such.
        draw: Whether the policy may draw, for which it gets the seeds.
        warm: Whether a block starts with the step its previous solve proposed.
        auxiliary: Whether to integrate kinetic energy and Jacobian norm on the way.
        quadrature: Whether log-determinants are integrated along the solved paths, with their
            errors, instead of beside the states.
        effort: How much more than usual to spend on the traces of quadrature.
        again: The solves of another traversal of the same samples, to be repeated with the same
            steps and nodes; log-determinants are then those of the fixed probes.
        halves: Whether these steps are halved, which shows the solver's error; else the inputs of
            blocks are moved by a unit of rounding, which shows the error of that.
        solves: Filled in by the blocks on the way.
    """

    policy: Callable[[int, Tensor, Tensor | None], Choice]
    options: Mapping[str, Any] = field(default_factory=lambda: {"stepping": "individual"})
    seeds: Tensor | None = None
    context: Tensor | None = None
    draw: bool = False
    warm: bool = False
    auxiliary: bool = False
    quadrature: bool = False
    effort: float = 1.0
    again: Sequence[BlockSolve] = ()
    halves: bool = True
    solves: list[BlockSolve] = field(default_factory=list)


class Bijection(nn.Module, ABC):
    """An invertible map of ``(batch, ...)`` tensors."""

    @abstractmethod
    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        r"""From data towards latent: :math:`z`, and :math:`\log |\det \partial z / \partial x|` of
        shape ``(batch,)``.
        """

    @abstractmethod
    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        """From latent towards data."""


class Block(Bijection):
    """A bijection that is solved for: the flow of a field over a unit of time.

    Attributes:
        field: The field.
        shape: Shape of one sample.
        first_step: With which the next solve in training begins; None for an estimate.
    """

    shape: tuple[int, ...]
    solver: SolverOptions
    first_step: float | None

    @property
    @abstractmethod
    def field(self) -> nn.Module:
        """The field."""

    @property
    @abstractmethod
    def matched_field(self) -> nn.Module:
        """The field as matching trains it and labels are read off it in one step."""


class Chain(Bijection):
    """Bijections one after the other.

    Arguments:
        bijections: In the order from data to latent.
    """

    def __init__(self, bijections: Iterable[Bijection]) -> None:
        super().__init__()
        self.bijections = nn.ModuleList(bijections)

    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        total = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        for bijection in self.bijections:
            x, log_det = bijection(x, traversal)
            total = total + log_det

        return x, total

    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        for bijection in reversed(self.bijections):
            z = bijection.inverse(z, traversal)  # type: ignore[operator]

        return z


class Squeeze(Bijection):
    """Space to channels: ``(batch, c, h, w)`` to ``(batch, 4 c, h / 2, w / 2)``, each 2x2 patch to
    four channels.
    """

    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        if x.shape[-1] % 2 or x.shape[-2] % 2:
            raise ValueError(
                f"an image of {x.shape[-2]}x{x.shape[-1]} cannot be squeezed: height and width "
                "must be even; pad or resize it, or use fewer scales"
            )
        return F.pixel_unshuffle(x, 2), x.new_zeros(len(x))

    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        return F.pixel_shuffle(z, 2)


class Flatten(Bijection):
    """Any shape to a vector.

    Arguments:
        shape: Shape of one sample before.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        return x.flatten(1), x.new_zeros(len(x))

    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        return z.unflatten(1, self.shape)


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Channels that go on to the next scale, and those that are factored out as finished code."""
    onward, factored = torch.tensor_split(x, 2, dim=1)
    return onward, factored


def join(onward: Tensor, factored: Tensor) -> Tensor:
    """Undo :func:`split`."""
    return torch.cat([onward, factored], dim=1)


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
        noise = draw_uniform(seeds, like, Stream.DEQUANTISE)

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
    def blocks(self) -> list[Block]:
        """The continuous blocks from data to latent."""
        return [module for module in self.modules() if isinstance(module, Block)]

    @property
    def block_shapes(self) -> list[tuple[tuple[int, ...], int]]:
        """Shape of one sample and scale of each block."""
        return [
            (block.shape, position)
            for position, scale in enumerate(self.scales)
            for block in scale.modules()
            if isinstance(block, Block)
        ]

    @property
    def single(self) -> tuple[list[Bijection], Block, list[Bijection]]:
        """What comes before the only block, the block, and what comes after it; an error where
        there are several.
        """
        parts = [*cast("Chain", self.scales[0]).bijections] if len(self.scales) == 1 else []
        found = [i for i, part in enumerate(parts) if isinstance(part, Block)]
        if len(found) != 1:
            raise ValueError(
                f"matching and one-step readouts need a flow of a single block, and this one has "
                f"{len(self.blocks)}: use architecture 'unet' or 'residual', or one flat block"
            )
        before, block, after = parts[: found[0]], parts[found[0]], parts[found[0] + 1 :]
        return before, cast("Block", block), after

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
