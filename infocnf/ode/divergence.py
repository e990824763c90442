r"""The divergence :math:`\nabla \cdot f = \mathrm{tr}(\partial f / \partial z)` of a field, exactly
or estimated.

Both are one formula over probes :math:`\epsilon_1 \dots \epsilon_K`,

.. math:: w \sum_{k=1}^K \epsilon_k^\top \frac{\partial f}{\partial z}\, \epsilon_k ,

exact for the unit vectors with :math:`w = 1`, Hutchinson's unbiased estimate for random signs or
standard normal numbers with :math:`w = 1/K`. Draw the probes once per solve: redrawn at every
evaluation the integrand would no longer be a function of the state, and an adaptive solver would
shrink its steps chasing noise.

Products are taken in forward mode where the field offers a ``pushforward`` (one stacked pass) and
in reverse mode elsewhere: measured (``benchmarks/divergence.py``), PyTorch's own forward mode is
slower than either.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["PROBES", "divergence", "draw_probes", "sample_seeds", "unit_probes"]

PROBES = ("rademacher", "gaussian")


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
    pushforward = getattr(field, "pushforward", None)
    if pushforward is not None:
        slopes, pushed = pushforward(t, z, probes)
        return slopes, weight * (pushed * probes).flatten(2).sum(2).sum(0)

    record = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.enable_grad():
        z = z if record and z.requires_grad else z.detach().clone().requires_grad_()
        slopes = field(t.clone() if t.is_inference() else t, z)
        total = z.new_zeros(len(z))
        for probe in probes if slopes.requires_grad else ():
            (pulled,) = torch.autograd.grad(
                slopes, z, probe.clone(), create_graph=record, retain_graph=True, allow_unused=True
            )
            if pulled is not None:  # None: the field does not depend on its input
                total = total + (pulled * probe).flatten(1).sum(1)

    return (slopes, weight * total) if record else (slopes.detach(), weight * total.detach())


def unit_probes(z: Tensor) -> Tensor:
    """The unit vectors of the space of one sample, ``(dimensions, batch, ...)``."""
    size = math.prod(z.shape[1:])
    basis = torch.eye(size, dtype=z.dtype, device=z.device).reshape(size, 1, *z.shape[1:])
    return basis.expand(size, *z.shape)


def sample_seeds(x: Tensor) -> Tensor:
    """A seed ``(batch,)`` for each sample, from the bits of the sample itself.

    An evaluation that draws its probes from these is repeatable and does not depend on the batch,
    yet the probes of different samples are as good as independent, so that the errors of an average
    still cancel.
    """
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    bits = (x.detach() + 0.0).flatten(1).contiguous().view(integer)  # -0 and 0 are one number
    position = torch.arange(bits.shape[1], device=x.device) * _GOLDEN
    return _mix(_mix(bits.long() + position).sum(1))


def draw_probes(
    seeds: Tensor, like: Tensor, count: int, distribution: str = "rademacher", stream: int = 0
) -> Tensor:
    """Probes ``(batch, count, ...)`` for states ``(batch, ...)``, a function of the seeds
    ``(batch,)`` alone.

    The same seeds give unrelated probes in another ``stream``.

    >>> seeds = sample_seeds(torch.tensor([[0.5, 1.0], [2.0, 3.0]]))
    >>> both = draw_probes(seeds, torch.zeros(2, 3), count=1)
    >>> torch.equal(both[1:], draw_probes(seeds[1:], torch.zeros(1, 3), count=1))
    True
    """
    if distribution not in PROBES:
        raise ValueError(f"probes must be one of {', '.join(PROBES)}, got {distribution!r}")
    size = count * math.prod(like.shape[1:])
    counter = torch.arange(size, device=seeds.device) * _GOLDEN
    start = _mix(seeds ^ _mix(torch.tensor(stream + 1, device=seeds.device)))
    words = _mix(start.unsqueeze(1) + counter)
    if distribution == "rademacher":
        values = torch.where(words < 0, -1.0, 1.0).to(like)
    else:
        first, second = _uniform(words), _uniform(_mix(words + _GOLDEN))
        values = ((-2.0 * first.log()).sqrt() * (2.0 * math.pi * second).cos()).to(like)

    return values.reshape(len(seeds), count, *like.shape[1:])


_GOLDEN = (
    -7046029254386353131
)  # 2**64 / golden ratio as a signed integer: the increment of SplitMix64


def _mix(words: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit flips every output bit
    half of the time.
    """
    words = (words ^ _shift(words, 30)) * -4658895280553007687
    words = (words ^ _shift(words, 27)) * -7723592293110705685
    return words ^ _shift(words, 31)


def _shift(words: Tensor, bits: int) -> Tensor:
    """Logical right shift; PyTorch's own carries the sign along."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _uniform(words: Tensor) -> Tensor:
    """Numbers in (0, 1) from the upper 53 bits."""
    return (_shift(words, 11).double() + 0.5) * 2.0**-53
