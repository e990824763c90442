"""Part (b): log-likelihoods of a trained plane flow and of a trained flow of 43 columns."""

from __future__ import annotations

import copy
import math

from benchmarks.peers import jax_peer
from benchmarks.peers.contenders import densities, density, rms_error
from benchmarks.peers.context import Context
from benchmarks.peers.curves import plot, sweep, table, with_peaks
from benchmarks.peers.flows import prepare
from benchmarks.peers.peers import installed

__all__ = ["section"]

TARGETS = (1e-3, 1e-5)
TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
OURS = "infocnf, individual steps"

INTRODUCTION = """\
Log-likelihood of 1,000 samples by flows trained by maximum likelihood: two blocks, in the plane
(two half circles) and on 43 columns (handwritten digits by their principal components), with the
exact trace: an estimate by one probe is off by nats for a sample, whatever its solver. Single
precision. Error is the root mean square over samples, in nats, against a solve in double precision
at 1e-10; evaluations are means over samples, summed over blocks (ours by quadrature need a trace at
some of them only, and take that of the 43-D flow, which has two hidden layers, in closed form). All
contenders but ours and torchode's take steps that are shared by the batch, so that a sample's error
depends on its neighbours; torchode's are individual but leave finished samples in the batch."""


def section(context: Context) -> str:
    """Markdown of this part."""
    parts, panels = [INTRODUCTION], {}
    for name in ("2-D", "43-D"):
        context.say(f"density of the {name} flow")
        bench = prepare(name, context.work, context.say)
        for block in bench.flow.blocks:  # type: ignore[union-attr]
            block.dynamics.most = math.inf
        x = bench.test[: 100 if context.quick else 1000]
        x = x.repeat(-(-1000 // len(x)), 1)[:1000] if not context.quick else x
        exact = density(copy.deepcopy(bench.flow).double(), x.double(), stepping="individual")
        truth = exact(1e-10).values
        error = rms_error(truth)
        made = densities(bench.flow, x, context.say)
        if installed("diffrax", context.say):
            made["diffrax (jit)"] = jax_peer.density(bench.flow, x)
        curves = sweep(made, context.few(TOLERANCES), error, context.rounds(3), context.say)
        panels[f"{name} flow"] = curves
        parts.append(f"### {name} flow")
        for target in TARGETS:
            curves = with_peaks(curves, made, target)
            parts.append(table(curves, OURS, target, "error of log p, nats"))
    plot(context.pictures / "bench-density.png", panels, "error of log p (nats, rms)")

    return "\n\n".join([*parts, "![Work-precision of densities](../images/bench-density.png)"])
