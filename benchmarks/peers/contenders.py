"""Contenders: a flow solved by this package or by a peer, for a density or for a training
iteration.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.peers.curves import Contender, Outcome
from benchmarks.peers.peers import PEERS, PeerBlock, base_loss, installed, with_peer
from infocnf.flows import Traversal
from infocnf.random import combine_seeds
from infocnf.tolerances import Fixed

__all__ = ["densities", "gradients", "relative_error", "rms_error"]


def solved(
    flow: nn.Module,
    x: Tensor,
    tolerance: float,
    *,
    warm: bool = False,
    quadrature: bool = False,
    **how: object,
) -> tuple[Tensor, Tensor, Traversal]:
    """Code and log-determinant of samples, and the account."""
    traversal = Traversal(
        Fixed(tolerance),
        {"stepping": "shared", **how},
        seeds=combine_seeds(0, torch.arange(len(x))),
        warm=warm,
        quadrature=quadrature,
    )
    return *flow(x, traversal), traversal


def evaluations(flow: nn.Module, traversal: Traversal) -> tuple[float, float]:
    """Evaluations of field and divergence per sample, forward and all, summed over blocks."""
    blocks = [block for block in flow.modules() if isinstance(block, PeerBlock)]
    if blocks:
        return sum(block.used.evaluations for block in blocks if block.used is not None), 0.0
    stats = [entry.solution.stats for entry in traversal.solves]
    forward = sum(float(s.forward.double().mean()) for s in stats)
    return forward, sum(float(s.backward.double().mean()) for s in stats)


def density(flow: nn.Module, x: Tensor, **how: object) -> Contender:
    """Log-likelihoods ``(batch,)`` under a standard normal base."""

    def run(tolerance: float) -> Outcome:
        with torch.no_grad():
            z, log_det, traversal = solved(flow, x, tolerance, **how)  # type: ignore[arg-type]
        log_prob = -0.5 * (z * z).flatten(1).sum(1) + log_det
        return Outcome(log_prob, evaluations(flow, traversal)[0])

    return run


def iteration(flow: nn.Module, x: Tensor, gradient: str, **how: object) -> Contender:
    """Gradient of all weights, as one vector."""

    def run(tolerance: float) -> Outcome:
        flow.zero_grad(set_to_none=True)
        z, log_det, traversal = solved(
            flow,
            x,
            tolerance,
            gradient=gradient,
            warm=True,
            **how,
        )
        forward, _ = evaluations(flow, traversal)
        base_loss(z, log_det).backward()
        total, backward = evaluations(flow, traversal)
        found = [p.grad.flatten() for p in flow.parameters() if p.grad is not None]
        return Outcome(torch.cat(found), forward, backward or total - forward)

    return run


def peers(
    flow: nn.Module, make: Callable[[nn.Module], Contender], say: Callable[[str], None]
) -> dict[str, Contender]:
    """Those that are installed."""
    return {
        name: make(with_peer(flow, name))
        for name, (package, *_) in PEERS.items()
        if installed(package, say)
    }


def densities(flow: nn.Module, x: Tensor, say: Callable[[str], None]) -> dict[str, Contender]:
    """Ways to a density of the same samples; adjoint and backpropagation are the same there."""
    made = {
        "infocnf, individual steps": density(flow, x, stepping="individual", quadrature=True),
        "infocnf, shared steps": density(flow, x, quadrature=True),
        "infocnf, trace beside the state": density(flow, x, stepping="individual"),
    }
    for name, run in peers(flow, lambda other: density(other, x), say).items():
        if "backprop" in name or "zuko" in name:
            made[name.replace(", backprop", "").replace(", checkpoint adjoint", "")] = run
    return made


def gradients(flow: nn.Module, x: Tensor, say: Callable[[str], None]) -> dict[str, Contender]:
    """Ways to one training iteration on the same batch."""
    ways: dict[str, dict[str, object]] = {
        "checkpoint": {},
        "checkpoint, nothing kept": {"keep": 0},
        "checkpoint, bosh3": {"method": "bosh3"},
        "backprop": {},
        "adjoint": {},
    }
    made = {
        f"infocnf, {name}": iteration(copy.deepcopy(flow), x, name.split(",")[0], **how)
        for name, how in ways.items()
    }
    return made | peers(flow, lambda other: iteration(other, x, "backprop"), say)


def rms_error(truth: Tensor) -> Callable[[Tensor], float]:
    """Root mean square distance to the truth."""

    def error(values: Tensor) -> float:
        return float((values.double() - truth).square().mean().sqrt())

    return error


def relative_error(truth: Tensor) -> Callable[[Tensor], float]:
    """Distance to the truth, relative to its length."""

    def error(values: Tensor) -> float:
        return float((values.double() - truth).norm() / truth.norm())

    return error
