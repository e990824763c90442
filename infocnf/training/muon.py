r"""Adam for vectors, orthogonal steps for matrices.

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

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import AdamW

__all__ = ["Muon", "orthogonalise"]

SMALLEST = 16  # channels or features of a matrix that is worth it, on either side
MOMENTUM = 0.95
ITERATIONS = 5
LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315  # steepest at 0 while values stay near 1
MATCHED = 0.2  # root mean square of a step of Adam, in learning rates


class Muon(AdamW):
    """AdamW, but for the matrices of groups whose ``orthogonal`` is true.

    PyTorch has an optimiser of that name; it refuses convolutions, and computes in bfloat16, which
    is slow on a CPU.
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
                    self.step_matrix(weight, group["lr"], group["weight_decay"])
                    weight.grad = None
        super().step()
        return loss

    def step_matrix(self, weight: Tensor, rate: float, decay: float) -> None:
        """An orthogonal step; the state has the names of Adam's."""
        state = self.state[weight]
        if not state:
            state["step"], state["exp_avg"] = torch.zeros(()), torch.zeros_like(weight)
        assert weight.grad is not None
        state["step"] += 1
        average = state["exp_avg"].lerp_(weight.grad, 1.0 - MOMENTUM)
        ahead = weight.grad.lerp(average, MOMENTUM).flatten(1)
        size = MATCHED * max(ahead.shape) ** 0.5
        weight.mul_(1.0 - rate * decay)
        weight.sub_(orthogonalise(ahead).view_as(weight), alpha=rate * size)


def is_matrix(weight: Tensor) -> bool:
    """Whether a weight is a matrix or a convolution, and not a narrow one."""
    return weight.ndim in (2, 4) and min(weight.shape[:2]) >= SMALLEST


def orthogonalise(matrix: Tensor) -> Tensor:
    """A matrix ``(m, n)`` with the same singular vectors, and singular values near 1 in place of
    all that are not tiny.
    """
    wide = matrix if len(matrix) <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=1e-20)
    for _ in range(ITERATIONS):
        gram = wide @ wide.T
        even = torch.addmm(gram, gram, gram, beta=CUBIC, alpha=QUINTIC)
        wide = torch.addmm(wide, even, wide, beta=LINEAR)
    return wide if len(matrix) <= matrix.shape[1] else wide.T
