r"""How weights move: the optimiser, its groups and learning rates, and the moving average.

The gradient of a matrix :math:`W` has few large singular values, and a step along it moves little
else. *Muon* (Jordan et al. 2024) keeps a moving average :math:`M` of gradients like Adam, and goes
a step of the same size in all of its singular directions,

.. math:: M = U S V^\top, \qquad W \leftarrow (1 - \eta\lambda)\, W - 0.2\, \eta\,
    \sqrt{\max(m, n)}\; U V^\top ,

whose root mean square is that of a usual step of Adam (Liu et al. 2025), so that learning rates
mean the same. :math:`U V^\top` is found up to a third of its length by five iterations of a
polynomial, which costs three products of matrices each. A convolution is the matrix of its outputs
by all it looks at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from infocnf.models import PartitionedModel
from infocnf.runs.config import Recipe

__all__ = [
    "Muon",
    "average_gradients",
    "averaging",
    "orthogonalise",
    "parameter_groups",
    "rate_factor",
    "set_rates",
]

SMALLEST = 16  # channels or features of a matrix that is worth it, on either side
MOMENTUM = 0.95
ITERATIONS = 5
LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315  # steepest at 0 while values stay near 1
MATCHED = 0.2  # root mean square of a step of Adam, in learning rates


class Muon(AdamW):
    """AdamW, but for the matrices of groups whose ``orthogonal`` is true.

    PyTorch has an optimiser of that name; it refuses convolutions, and always multiplies in
    bfloat16, which is slow on many CPUs. Here the ``products`` of a group name a type, or None.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; gradients of matrices are gone afterwards."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"] if group.get("orthogonal") else ():
                if weight.grad is not None and is_matrix(weight):
                    self.step_matrix(weight, group)
                    weight.grad = None
        super().step()
        return loss

    def step_matrix(self, weight: Tensor, group: dict[str, Any]) -> None:
        """An orthogonal step; the state has the names of Adam's."""
        rate, decay, products = group["lr"], group["weight_decay"], group.get("products")
        state = self.state[weight]
        if not state:
            state["step"], state["exp_avg"] = torch.zeros(()), torch.zeros_like(weight)
        assert weight.grad is not None
        state["step"] += 1
        average = state["exp_avg"].lerp_(weight.grad, 1.0 - MOMENTUM)
        ahead = weight.grad.lerp(average, MOMENTUM).flatten(1)
        size = MATCHED * max(ahead.shape) ** 0.5
        weight.mul_(1.0 - rate * decay)
        weight.sub_(orthogonalise(ahead, products).view_as(weight), alpha=rate * size)


def is_matrix(weight: Tensor) -> bool:
    """Whether a weight is a matrix or a convolution, and not a narrow one."""
    return weight.ndim in (2, 4) and min(weight.shape[:2]) >= SMALLEST


def orthogonalise(matrix: Tensor, products: torch.dtype | None = None) -> Tensor:
    """A matrix ``(m, n)`` with the same singular vectors, and singular values near 1 in place of
    all that are not tiny; by products in its own type, or in another.
    """
    wide = matrix if len(matrix) <= matrix.shape[1] else matrix.T
    wide = (wide / wide.norm().clamp(min=1e-20)).to(products or matrix.dtype)
    for _ in range(ITERATIONS):
        gram = wide @ wide.T
        even = torch.addmm(gram, gram, gram, beta=CUBIC, alpha=QUINTIC)
        wide = torch.addmm(wide, even, wide, beta=LINEAR)
    return (wide if len(matrix) <= matrix.shape[1] else wide.T).to(matrix.dtype)


def parameter_groups(model: PartitionedModel) -> list[dict[str, Any]]:
    """The flow's weights, and those of a tolerance policy, whose gradients are much noisier: they
    share neither learning rate, nor decay, nor the norm to which gradients are clipped. Rates and
    decay are set at every step.
    """
    policy = list(model.policy.parameters())
    known = {id(parameter) for parameter in policy}
    flow = [p for p in model.parameters() if id(p) not in known and p.requires_grad]
    return [{"params": group, "weight_decay": 0.0} for group in (flow, policy) if group]


def set_rates(
    groups: Sequence[dict[str, Any]], recipe: Recipe, gates: float, factor: float
) -> None:
    """Rates of a step: the recipe's and that of gates, times a factor; gates do not decay."""
    flow, *policy = groups
    flow.update(
        lr=recipe.learning_rate * factor,
        weight_decay=recipe.weight_decay,
        orthogonal=recipe.optimizer == "muon",
        products=torch.bfloat16 if recipe.precision == "bfloat16" else None,
    )
    for group in policy:
        group["lr"] = gates * factor


def average_gradients(
    groups: Sequence[dict[str, Any]], examples: float, clip: float | None
) -> float:
    """Turn sums over examples into means, each group clipped by itself; returns the norm of the
    flow's, or what is not finite.
    """
    norms = []
    for group in groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad /= examples
        norm = torch.nn.utils.clip_grad_norm_(group["params"], clip or math.inf)
        norms.append(float(norm))
    return norms[0] if all(map(math.isfinite, norms)) else math.nan


def rate_factor(config: Recipe, step: int, steps_per_epoch: int) -> float:
    r"""Factor of the learning rate at a step :math:`s`, counted from 0,

    .. math:: \min\!\Big(1, \frac{s + 1}{w}\Big) \cdot \gamma^{\#\{m \le e(s)\}} \cdot c(s)

    with warm-up over :math:`w` steps, a factor :math:`\gamma` after each of the epochs :math:`m`,
    and a cosine :math:`c` from 1 to 0.01 where asked for.
    """
    factor = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    epoch = step // steps_per_epoch
    factor *= config.gamma ** sum(epoch >= milestone for milestone in config.milestones)
    if config.schedule == "cosine":
        share = step / (config.epochs * steps_per_epoch)
        factor *= 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))
    return factor


def averaging(decay: Callable[[], float]) -> Callable[[Any, Any, Any], None]:
    """Exponential moving average whose memory grows to that of ``decay`` over the first steps."""

    @torch.no_grad()
    def update(averaged: list[Tensor], current: list[Tensor], count: Tensor | int) -> None:
        keep = min(decay(), (1.0 + float(count)) / (10.0 + float(count)))
        torch._foreach_lerp_(averaged, current, 1.0 - keep)

    return update
