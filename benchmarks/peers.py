"""One training iteration of the same continuous blocks, by this package and by its peers.

All integrate the same fields from the same data with the same probes and weights, at the same
tolerance, and differentiate ``mean(-log p)`` with respect to all weights. Peers are given either of
two divergences: ``vjp``, how FFJORD and its descendants compute it (a vector-Jacobian product with
a graph), or ``stacked``, this package's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from infocnf.flows import Chain, ContinuousBlock, Traversal
from infocnf.ode.divergence import divergence
from infocnf.tolerances import Fixed


class Augmented(nn.Module):
    """Slopes of ``(z, log_det)`` for a solver that knows nothing of probes."""

    def __init__(self, field: nn.Module, probes: Tensor, stacked: bool) -> None:
        super().__init__()
        self.field, self.stacked, self.evaluations = field, stacked, 0
        self.probes = probes

    def forward(self, t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        self.evaluations += 1
        z, _ = state
        if self.stacked:
            return divergence(self.field, t, z, self.probes)
        return divergence(
            self.field.forward, t, z, self.probes
        )  # a bare function has no pushforward


class FlatAugmented(Augmented):
    """The same for torchode: one row per sample, the log-determinant in its last column."""

    def forward(self, t: Tensor, state: Tensor) -> Tensor:  # type: ignore[override]
        z = state[:, :-1].reshape(self.probes.shape[1:])
        slopes, trace = super().forward(t, (z, state[:, -1]))
        return torch.cat([slopes.flatten(1), trace.unsqueeze(1)], 1)


def base_loss(z: Tensor, log_det: Tensor) -> Tensor:
    """Negative log-likelihood under a standard normal base, per sample and dimension."""
    energy = 0.5 * z.flatten(1).square().sum(1) + 0.5 * z[0].numel() * math.log(2.0 * math.pi)
    return (energy - log_det).mean() / z[0].numel()


Iteration = Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, int, int]]
"""Data and probes of each block to loss (differentiated), forward and backward evaluations."""


def ours(blocks: Chain, gradient: str, tolerance: float, stepping: str = "shared") -> Iteration:
    """This package, in training mode: steps are warm-started from the iteration before."""

    def iteration(x: Tensor, probes: Sequence[Tensor]) -> tuple[Tensor, int, int]:
        traversal = Traversal(
            Fixed(tolerance),
            stepping,
            gradient,
            seeds=torch.zeros(len(x), dtype=torch.int64),
            warm=True,
        )
        z, log_det = x, x.new_zeros(len(x))
        for block, probe in zip(blocks.bijections, probes, strict=True):
            z, change = block.solve(
                (z, x.new_zeros(len(x))), (0.0, 1.0), traversal, (probe.transpose(0, 1),)
            )
            log_det = log_det + change
        loss = base_loss(z, log_det)
        loss.backward()
        stats = [entry.solution.stats for entry in traversal.solves]
        return (
            loss.detach(),
            sum(int(s.forward.double().mean()) for s in stats),
            sum(int(s.backward.double().mean()) for s in stats),
        )

    return iteration


def torchdiffeq(blocks: Chain, gradient: str, tolerance: float, stacked: bool) -> Iteration:
    """torchdiffeq's dopri5 with its default options."""
    from torchdiffeq import odeint, odeint_adjoint

    integrate = odeint_adjoint if gradient == "adjoint" else odeint
    times = torch.tensor([0.0, 1.0])

    def iteration(x: Tensor, probes: Sequence[Tensor]) -> tuple[Tensor, int, int]:
        z, log_det, fields = x, x.new_zeros(len(x)), []
        for block, probe in zip(blocks.bijections, probes, strict=True):
            fields.append(Augmented(block.dynamics.field, probe, stacked))
            path, change = integrate(
                fields[-1],
                (z, x.new_zeros(len(x))),
                times.to(x),
                rtol=tolerance,
                atol=tolerance,
                method="dopri5",
            )
            z, log_det = path[-1], log_det + change[-1]
        forward = sum(field.evaluations for field in fields)
        loss = base_loss(z, log_det)
        loss.backward()
        return loss.detach(), forward, sum(field.evaluations for field in fields) - forward

    return iteration


def torchode(blocks: Chain, tolerance: float, stacked: bool) -> Iteration:
    """torchode's dopri5 with individual steps and backpropagation, its default."""
    import torchode as to

    def iteration(x: Tensor, probes: Sequence[Tensor]) -> tuple[Tensor, int, int]:
        z, log_det, forward = x, x.new_zeros(len(x)), 0
        for block, probe in zip(blocks.bijections, probes, strict=True):
            field = FlatAugmented(block.dynamics.field, probe, stacked)
            term = to.ODETerm(field)
            solver = to.AutoDiffAdjoint(
                to.Dopri5(term=term),
                to.IntegralController(atol=tolerance, rtol=tolerance, term=term),
            )
            start = torch.cat([z.flatten(1), x.new_zeros(len(x), 1)], 1)
            ends = x.new_tensor([[0.0, 1.0]]).expand(len(x), 2)
            end = solver.solve(to.InitialValueProblem(y0=start, t_eval=ends)).ys[:, -1]
            z, log_det = end[:, :-1].reshape(x.shape), log_det + end[:, -1]
            forward += field.evaluations
        loss = base_loss(z, log_det)
        loss.backward()
        return loss.detach(), forward, 0

    return iteration


def make_blocks(shape: tuple[int, int, int], count: int, hidden: int, strength: float) -> Chain:
    """Convolutional blocks whose weights are scaled by ``strength``: 1 as at the start of training,
    more as later.
    """
    from infocnf.networks import ConvField

    chain = Chain(
        ContinuousBlock(ConvField(shape[0], (hidden,) * 3), shape, index, trace="hutchinson")
        for index in range(count)
    )
    with torch.no_grad():
        for parameter in chain.parameters():
            parameter *= strength
    return chain
