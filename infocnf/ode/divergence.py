r"""The divergence :math:`\nabla \cdot f = \mathrm{tr}(\partial f / \partial z)` of a field, exactly
or estimated.

Both are one formula over probes :math:`\epsilon_1 \dots \epsilon_K`,

.. math:: w \sum_{k=1}^K \epsilon_k^\top \frac{\partial f}{\partial z}\, \epsilon_k ,

exact for the unit vectors with :math:`w = 1`, Hutchinson's unbiased estimate for random signs or
standard normal numbers with :math:`w = 1/K`. Draw the probes once per solve: redrawn at every
evaluation the integrand would no longer be a function of the state, and an adaptive solver would
shrink its steps chasing noise.

Products are taken in forward mode where the field offers a ``pushforward`` (one stacked pass) and
in reverse mode elsewhere: measured (``make bench``), PyTorch's own forward mode is
slower than either.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from infocnf.random import draw_normal, draw_words

__all__ = ["PROBES", "contract", "divergence", "draw_probes", "products", "unit_probes"]

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
