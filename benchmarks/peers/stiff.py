"""Part (d): evaluation where a few samples are stiff."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from benchmarks.peers.contenders import densities, density, rms_error
from benchmarks.peers.context import Context
from benchmarks.peers.curves import cheapest, plot, sweep, table, with_peaks
from infocnf.flows import Chain, ContinuousBlock
from infocnf.networks import DenseField

__all__ = ["section", "stiff_flow", "stiff_samples"]

TARGET = 1e-3
TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5)
OURS, SHARED = "infocnf, individual steps", "infocnf, shared steps"
FEATURES, STIFF, RATE = 8, 0.05, 40.0

INTRODUCTION = f"""\
Log-likelihood of 2,000 samples of {FEATURES} numbers under a flow whose field also turns
{STIFF:.0%} of them, {RATE:g} radians in all (the last coordinate says how far, and stays).
Individual steps with removal cost the sum of what the samples need; shared steps cost all samples
what the stiffest needs. Evaluations are means over samples."""


class Turning(nn.Module):
    """A field that also turns a sample in three planes, at the rate of its last coordinate."""

    def __init__(self, field: nn.Module) -> None:
        super().__init__()
        self.field = field

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """Slopes ``(batch, features)``."""
        first, second, rest, rate = z.split([3, 3, FEATURES - 7, 1], 1)
        turn = torch.cat([-rate * second, rate * first, torch.zeros_like(rest)], 1)
        return torch.cat([self.field(t, z[:, :-1]) + turn, torch.zeros_like(rate)], 1)


def stiff_flow() -> Chain:
    """One block with such a field."""
    torch.manual_seed(0)
    field = Turning(DenseField(FEATURES - 1, (128, 128, 128)))
    return Chain([ContinuousBlock(field, (FEATURES,), trace="exact")])


def stiff_samples(count: int) -> Tensor:
    """Samples, the first few of them stiff."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, FEATURES, generator=generator)
    x[:, -1] = 0.0
    x[: round(STIFF * count), -1] = RATE
    return x


def section(context: Context) -> str:
    """Markdown of this part."""
    flow, x = stiff_flow(), stiff_samples(100 if context.quick else 2000)
    truth = density(copy.deepcopy(flow).double(), x.double(), stepping="individual")(1e-10).values
    made = densities(flow, x, context.say)
    made.pop("torchdiffeq, our divergence", None)  # not for a field that is not of this package
    curves = sweep(made, context.few(TOLERANCES), rms_error(truth), context.rounds(3), context.say)
    curves = with_peaks(curves, made, TARGET)
    plot(context.pictures / "bench-stiff.png", {"5 % stiff samples": curves}, "error of log p")

    parts = [INTRODUCTION, table(curves, OURS, TARGET, "error of log p, nats")]
    own, shared = (cheapest(curves[name], TARGET) for name in (OURS, SHARED))
    if own is not None and shared is not None:
        parts.append(
            f"Shared steps need {shared.forward / own.forward:.1f} times the evaluations of "
            f"individual ones here."
        )
    return "\n\n".join([*parts, "![Work-precision, stiff samples](../images/bench-stiff.png)"])
