r"""The divergence :math:`\nabla \cdot f = \mathrm{tr}(\partial f / \partial z)` of a field, exactly
or estimated.

Both are one formula over probes :math:`\epsilon_1 \dots \epsilon_K`,

.. math:: w \sum_{k=1}^K \epsilon_k^\top \frac{\partial f}{\partial z}\, \epsilon_k ,

exact for the unit vectors with :math:`w = 1`, Hutchinson's unbiased estimate for random signs or
standard normal numbers with :math:`w = 1/K`. A solver that integrates the divergence beside the
state needs probes that are drawn once per solve: redrawn at every evaluation the integrand would no
longer be a function of the state, and steps would shrink chasing noise.

Where the divergence is integrated along a path that is solved already, none of this holds, and
:func:`estimate_trace` does three things better. Probes are drawn anew at every node, so that their
noise averages out along the path. They are *orthogonal*: with a colour :math:`c(i)` for each
coordinate and :math:`H` a Hadamard matrix,

.. math:: \epsilon_k(i) = s_i\, H_{c(i), k}, \qquad s_i = \pm 1 \text{ at random},

all interactions between coordinates of different colours cancel (Bekas, Kokiopoulou and Saad,
2007), and neighbouring pixels have different colours. And they come in two groups of independent
signs, whose difference tells the variance of their mean.

Products are taken in forward mode where the field offers a ``pushforward`` (one stacked pass) and
in reverse mode elsewhere: measured (``make bench``), PyTorch's own forward mode is
slower than either. A field that knows its exact trace offers ``with_trace``, and says in
``trace_products`` how many products that costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from infocnf.random import draw_normal, draw_words

__all__ = [
    "PROBES",
    "contract",
    "divergence",
    "draw_probes",
    "estimate_trace",
    "exact_products",
    "orthogonal_probes",
    "products",
    "unit_probes",
]

PROBES = ("rademacher", "gaussian")
AT_ONCE = 256  # unit vectors of an exact trace, which would not fit into memory all together


def divergence(
    field: Callable[[Tensor, Tensor], Tensor],
    t: Tensor,
    z: Tensor,
    probes: Tensor,
    weight: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The field at ``z`` and its divergence ``(batch,)``.

    Arguments:
        field: Called as ``field(t, z)``; it may offer ``pushforward(t, z, tangents)``.
        t: Time, ``()`` or ``(batch,)``.
        z: State ``(batch, ...)``.
        probes: ``(probes, batch, ...)``.
        weight: The factor :math:`w`.

    >>> z = torch.randn(5, 2, requires_grad=True)
    >>> divergence(lambda t, z: 3 * z, torch.tensor(0.0), z, torch.ones(1, 5, 2))[1].detach()
    tensor([6., 6., 6., 6., 6.])
    """
    slopes, turned = products(field, t, z, probes)
    return slopes, contract(turned, probes, weight)


def contract(turned: Tensor, probes: Tensor, weight: float) -> Tensor:
    """The divergence ``(batch,)`` of probes and their products with the Jacobian."""
    return weight * (turned * probes).flatten(2).sum(2).sum(0)


def products(
    field: Callable[..., Tensor], t: Tensor, z: Tensor, probes: Tensor, *context: Tensor
) -> tuple[Tensor, Tensor]:
    r"""The field at ``z``, and the probes multiplied by its Jacobian, ``(probes, batch, ...)``.

    ``context`` is handed to the field. From the left or from the right, whichever is cheaper:
    :math:`\epsilon^\top J \epsilon` and the mean of :math:`|J \epsilon|^2` are the same for both.
    """
    pushforward = getattr(field, "pushforward", None)
    if pushforward is not None:
        return pushforward(t, z, probes, *context)

    record = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.enable_grad():
        z = z if record and z.requires_grad else z.detach().clone().requires_grad_()
        slopes = field(t.clone() if t.is_inference() else t, z, *context)
        pulled: list[Tensor | None] = [None] * len(probes)
        for k, probe in enumerate(probes if slopes.requires_grad else ()):
            (pulled[k],) = torch.autograd.grad(
                slopes, z, probe.clone(), create_graph=record, retain_graph=True, allow_unused=True
            )
        # None: the field does not depend on its input
        turned = torch.stack([torch.zeros_like(z) if p is None else p for p in pulled])

    return (slopes, turned) if record else (slopes.detach(), turned.detach())


def exact_products(field: Callable[..., Tensor], size: int) -> int:
    """Products of an exact trace in ``size`` dimensions: one with each unit vector, or fewer where
    the field knows better.
    """
    known = getattr(field, "trace_products", None)
    return size if known is None else min(size, known)


def unit_probes(z: Tensor) -> Tensor:
    """The unit vectors of the space of one sample, ``(dimensions, batch, ...)``."""
    size = math.prod(z.shape[1:])
    basis = torch.eye(size, dtype=z.dtype, device=z.device).reshape(size, 1, *z.shape[1:])
    return basis.expand(size, *z.shape)


def draw_probes(
    seeds: Tensor, like: Tensor, count: int, distribution: str = "rademacher", stream: int = 0
) -> Tensor:
    """Probes ``(batch, count, ...)`` for states ``(batch, ...)``, a function of the seeds
    ``(batch,)`` alone.

    The same seeds give unrelated probes in another ``stream``.

    >>> from infocnf.random import sample_seeds
    >>> seeds = sample_seeds(torch.tensor([[0.5, 1.0], [2.0, 3.0]]))
    >>> both = draw_probes(seeds, torch.zeros(2, 3), count=1)
    >>> torch.equal(both[1:], draw_probes(seeds[1:], torch.zeros(1, 3), count=1))
    True
    """
    if distribution not in PROBES:
        raise ValueError(f"probes must be one of {', '.join(PROBES)}, got {distribution!r}")
    shape = (len(seeds), count, *like.shape[1:])
    if distribution == "gaussian":
        return draw_normal(seeds, like.new_empty(()).expand(shape), stream)
    words = draw_words(seeds, math.prod(shape[1:]), stream)
    return torch.where(words < 0, -1.0, 1.0).to(like).reshape(shape)


@lru_cache(maxsize=64)
def colour_signs(shape: tuple[int, ...], count: int) -> Tensor:
    """Rows of a Hadamard matrix by the colours of coordinates, ``(count, *shape)``, for a power of
    two of colours: channels differ first, then positions in a tile of an image; in a vector,
    neighbours.

    >>> colour_signs((1, 2, 2), 4).flatten(1) @ colour_signs((1, 2, 2), 4).flatten(1).T / 4
    tensor([[1., 0., 0., 0.],
            [0., 1., 0., 0.],
            [0., 0., 1., 0.],
            [0., 0., 0., 1.]])
    """
    bits = count.bit_length() - 1
    channels = min((shape[0] - 1).bit_length(), bits) if len(shape) == 3 else bits
    rows, columns = (bits - channels + 1) // 2, (bits - channels) // 2
    sides = [channels, rows, columns] if len(shape) == 3 else [bits, *[0] * (len(shape) - 1)]
    colour = torch.zeros((), dtype=torch.int64)
    for size, own in zip(shape, sides, strict=True):
        colour = (colour * 2**own).unsqueeze(-1) + torch.arange(size) % 2**own
    signs = torch.ones(1, 1)
    for _ in range(bits):
        signs = torch.cat([torch.cat([signs, signs], 1), torch.cat([signs, -signs], 1)])
    return signs[:, colour]


def orthogonal_probes(seeds: Tensor, like: Tensor, count: int) -> Tensor:
    """Two groups of ``count`` orthogonal probes ``(2, count, batch, ...)``, ``count`` a power of
    two, for states ``(batch, ...)``: a function of the seeds ``(batch,)`` alone.
    """
    base = colour_signs(tuple(like.shape[1:]), count).to(like)
    drawn = draw_probes(seeds, like, 2).transpose(0, 1)
    return base.unsqueeze(1) * drawn.unsqueeze(1)


def estimate_trace(
    field: Callable[..., Tensor],
    t: Tensor,
    z: Tensor,
    fixed: Tensor,
    seeds: Tensor | None,
    count: int,
    *context: Tensor,
) -> Tensor:
    """Traces at nodes of a path, ``(batch, 4)``: what tells the error of the quadrature, the trace,
    half the difference of its two groups of probes, and the estimate by the fixed probes alone.

    Arguments:
        field: The field.
        t: Times ``(batch,)``.
        z: States ``(batch, ...)``.
        fixed: Probes that are the same at all nodes of a path, ``(fixed, batch, ...)``.
        seeds: Seeds of the other probes ``(batch,)``; None for the exact trace.
        count: Number of these, an even power of two; 0 for the fixed ones alone.
        context: What else the field needs.
    """
    size = math.prod(z.shape[1:])
    needed = exact_products(field, size)
    # an exact trace that costs no more than the fixed probes takes their place, too
    if needed < size and (seeds is None or (not count and needed <= len(fixed))):
        _, trace = field.with_trace(t, z, *context)  # type: ignore[attr-defined]
        own = trace if needed <= len(fixed) else probed(field, t, z, fixed, *context).mean(0)
        return torch.stack([trace, trace, torch.zeros_like(trace), own], 1)
    if seeds is None:
        flat = fixed.flatten(2)
        trace, own = z.new_zeros(2, len(z)).unbind(0)
        numbers = torch.arange(flat.shape[2], device=z.device)
        units = zip(unit_probes(z).split(AT_ONCE), numbers.split(AT_ONCE), strict=True)
        for some, places in units:
            _, turned = products(field, t, z, some, *context)
            trace = trace + contract(turned, some, 1.0)
            own = own + torch.einsum("fbk,kbi,fbi->b", flat[..., places], turned.flatten(2), flat)
        return torch.stack([trace, trace, torch.zeros_like(trace), own / len(fixed)], 1)
    probes = fixed
    if count:
        probes = torch.cat([fixed, orthogonal_probes(seeds, z, count // 2).flatten(0, 1)])
    each = probed(field, t, z, probes, *context)
    own = each[: len(fixed)].mean(0)
    if not count:
        return torch.stack([own, own, torch.zeros_like(own), own], 1)
    one, other = each[len(fixed) :].unflatten(0, (2, -1)).mean(1)
    return torch.stack([own, (one + other) / 2.0, (one - other) / 2.0, own], 1)


def probed(
    field: Callable[..., Tensor], t: Tensor, z: Tensor, probes: Tensor, *context: Tensor
) -> Tensor:
    """Estimates of the trace by each of ``(probes, batch, ...)``, ``(probes, batch)``."""
    _, turned = products(field, t, z, probes, *context)
    return (turned * probes).flatten(2).sum(2)
