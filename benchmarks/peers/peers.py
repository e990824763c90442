"""How the peers integrate a continuous block: the same field, probes and tolerance, their solver
and their gradient.

A peer takes the place of the solver of :class:`infocnf.flows.ContinuousBlock`; everything around it
(logit, squeezes, splits, probes) stays the same code.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from infocnf.flows import ContinuousBlock, Traversal
from infocnf.flows.bijection import Bijection
from infocnf.ode.divergence import divergence, draw_probes, unit_probes

__all__ = ["FFJORD", "PEERS", "Augmented", "PeerBlock", "base_loss", "installed", "with_peer"]

FFJORD = "FFJORD recipe"
Pair = tuple[Tensor, Tensor]


class Augmented(nn.Module):
    """Slopes of ``(z, log_det)`` for a solver that knows nothing of probes.

    The divergence is a vector-Jacobian product with a graph, as FFJORD and its descendants compute
    it, or this package's own stacked pass.
    """

    def __init__(
        self, field: nn.Module, probes: Tensor, weight: float = 1.0, stacked: bool = False
    ) -> None:
        super().__init__()
        self.field, self.probes, self.weight, self.stacked = field, probes, weight, stacked
        self.evaluations = 0

    def forward(self, t: Tensor, state: Pair) -> Pair:
        self.evaluations += 1
        # a bare function has no pushforward
        field = self.field if self.stacked else self.field.forward
        return divergence(field, t, state[0], self.probes, self.weight)


class Flat(nn.Module):
    """One row per sample, the log-determinant in its last column: torchode's form of state."""

    def __init__(self, augmented: Augmented) -> None:
        super().__init__()
        self.augmented = augmented

    def forward(self, t: Tensor, state: Tensor) -> Tensor:
        z = state[:, :-1].reshape(self.augmented.probes.shape[1:])
        slopes, trace = self.augmented(t, (z, state[:, -1]))
        return torch.cat([slopes.flatten(1), trace.unsqueeze(1)], 1)


def torchdiffeq(adjoint: bool) -> Callable[[Augmented, Pair, float], Pair]:
    """Dopri5 of torchdiffeq with its default options."""

    def integrate(augmented: Augmented, state: Pair, tolerance: float) -> Pair:
        from torchdiffeq import odeint, odeint_adjoint

        z, log_det = (odeint_adjoint if adjoint else odeint)(
            augmented,
            state,
            state[0].new_tensor([0.0, 1.0]),
            rtol=tolerance,
            atol=tolerance,
            method="dopri5",
        )
        return z[-1], log_det[-1]

    return integrate


def torchode(augmented: Augmented, state: Pair, tolerance: float) -> Pair:
    """Dopri5 of torchode: individual steps, and backpropagation, its default."""
    import torchode as to

    z, log_det = state
    term = to.ODETerm(Flat(augmented))
    solver = to.AutoDiffAdjoint(
        to.Dopri5(term=term), to.IntegralController(atol=tolerance, rtol=tolerance, term=term)
    )
    start = torch.cat([z.flatten(1), log_det.unsqueeze(1)], 1)
    ends = z.new_tensor([[0.0, 1.0]]).expand(len(z), 2)
    end = solver.solve(to.InitialValueProblem(y0=start, t_eval=ends)).ys[:, -1]
    return end[:, :-1].reshape(z.shape), end[:, -1]


def zuko(augmented: Augmented, state: Pair, tolerance: float) -> Pair:
    """The adaptive checkpoint adjoint of zuko, with the log-determinant scaled down in its error
    norm as its CNF does.
    """
    from zuko.utils import odeint

    relaxed = 1e-2

    def field(t: Tensor, z: Tensor, log_det: Tensor) -> Pair:
        slopes, trace = augmented(t, (z, log_det))
        return slopes, relaxed * trace

    phi = [parameter for parameter in augmented.parameters() if parameter.requires_grad]
    z, log_det = odeint(field, state, 0.0, 1.0, phi=phi, atol=tolerance, rtol=tolerance)
    return z, log_det / relaxed


PEERS: Mapping[str, tuple[str, Any, bool]] = {
    # name: package, how it integrates, whether it is handed this package's divergence
    FFJORD: ("torchdiffeq", torchdiffeq(adjoint=True), False),
    "torchdiffeq, backprop": ("torchdiffeq", torchdiffeq(adjoint=False), False),
    "torchode, backprop": ("torchode", torchode, False),
    "zuko, checkpoint adjoint": ("zuko", zuko, False),
    "torchdiffeq, backprop, our divergence": ("torchdiffeq", torchdiffeq(adjoint=False), True),
}
"""The FFJORD recipe is torchdiffeq's dopri5 with the continuous adjoint over vector-Jacobian
products.
"""


def installed(package: str, say: Callable[[str], None] = lambda _: None) -> bool:
    """Whether a peer can take part; said where it cannot."""
    if find_spec(package):
        return True
    say(f"{package} is not installed: left out (pip install 'infocnf[bench]')")
    return False


class PeerBlock(Bijection):
    """A continuous block solved by a peer."""

    def __init__(self, block: ContinuousBlock, integrate: Any, stacked: bool) -> None:
        super().__init__()
        self.field, self.index = block.dynamics.field, block.index
        self.exact, self.probes, self.count = block.exact, block.probes, block.probe_count
        self.integrate, self.stacked = integrate, stacked
        self.used: Augmented | None = None

    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        assert traversal.seeds is not None
        if self.exact:
            probes, weight = unit_probes(x), 1.0
        else:
            drawn = draw_probes(traversal.seeds, x, self.count, self.probes, stream=self.index)
            probes, weight = drawn.transpose(0, 1), 1.0 / self.count
        self.used = Augmented(self.field, probes, weight, self.stacked)
        tolerance = float(traversal.policy(self.index, x, None).tolerance)
        z, log_det = self.integrate(self.used, (x, x.new_zeros(len(x))), tolerance)
        return z, log_det

    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        raise AttributeError("peers are measured from data to latent only")


def with_peer(flow: nn.Module, name: str) -> nn.Module:
    """A copy of a flow whose blocks are solved by a peer."""
    _, integrate, stacked = PEERS[name]
    made = copy.deepcopy(flow)
    for module in list(made.modules()):
        for child, block in list(module.named_children()):
            if isinstance(block, ContinuousBlock):
                setattr(module, child, PeerBlock(block, integrate, stacked))
    return made


def base_loss(z: Tensor, log_det: Tensor) -> Tensor:
    """Negative log-likelihood under a standard normal base, per sample and dimension."""
    energy = 0.5 * z.flatten(1).square().sum(1) + 0.5 * z[0].numel() * math.log(2.0 * math.pi)
    return (energy - log_det).mean() / z[0].numel()
