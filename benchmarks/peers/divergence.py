"""Field and divergence in one evaluation, and their gradient: which products to take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.autograd import forward_ad

from benchmarks.peers.context import Context
from benchmarks.peers.measure import interleaved, median
from infocnf.networks import ConvField
from infocnf.ode.divergence import divergence

Product = Callable[[torch.nn.Module, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def stacked(field: torch.nn.Module, t: Tensor, z: Tensor, probe: Tensor) -> tuple[Tensor, Tensor]:
    """One pass over primal and tangent together: what this package does."""
    return divergence(field, t, z, probe)


def reverse(field: torch.nn.Module, t: Tensor, z: Tensor, probe: Tensor) -> tuple[Tensor, Tensor]:
    """A vector-Jacobian product: what FFJORD does, and this package for foreign fields."""
    return divergence(field.forward, t, z, probe)


def forward(field: torch.nn.Module, t: Tensor, z: Tensor, probe: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's own forward-mode differentiation."""
    with forward_ad.dual_level():
        slopes, pushed = forward_ad.unpack_dual(field(t, forward_ad.make_dual(z, probe[0])))
    return slopes, (pushed * probe[0]).flatten(1).sum(1)


def section(context: Context) -> str:
    """Markdown of this part."""
    lines = [
        "Field with divergence and its gradient: four convolutions, 32 channels.\n",
        "| images | stacked / reverse | stacked / PyTorch's forward mode |",
        "|---|---|---|",
    ]
    for shape in ((64, 1, 8, 8), (16, 1, 28, 28), (16, 4, 14, 14)):
        torch.manual_seed(0)
        field = ConvField(shape[1], (32, 32, 32))
        z, probe = torch.randn(shape), torch.randn(1, *shape).sign()

        def run(
            product: Product,
            _: int,
            field: torch.nn.Module = field,
            z: Tensor = z,
            e: Tensor = probe,
        ) -> None:
            leaf = z.clone().requires_grad_()
            slopes, trace = product(field, torch.tensor(0.3), leaf, e)
            torch.autograd.grad(slopes.sum() + trace.sum(), [leaf, *field.parameters()])

        products = {"stacked": stacked, "reverse": reverse, "forward": forward}
        seconds = interleaved({n: partial(run, p) for n, p in products.items()}, context.rounds(15))
        base = median(seconds["stacked"])
        ratios = [base / median(seconds[name]) for name in ("reverse", "forward")]
        lines.append(f"| {'x'.join(map(str, shape))} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
        context.say(lines[-1])

    return "\n".join(lines)
