"""Part (c): one training iteration, of a flow of columns and of multiscale flows of images."""

from __future__ import annotations

import copy

from benchmarks.peers import jax_peer
from benchmarks.peers.contenders import gradients, iteration, relative_error
from benchmarks.peers.context import Context
from benchmarks.peers.curves import plot, sweep, table, with_peaks
from benchmarks.peers.flows import prepare
from benchmarks.peers.peers import installed

__all__ = ["section"]

TARGETS = (1e-1, 1e-3)
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
OURS = "infocnf, checkpoint"
SETTINGS = {"43-D": 256, "8x8": 64, "28x28": 8, "28x28, untrained": 8}  # batch

INTRODUCTION = """\
Loss and gradient of all weights: of the trained flow of 43 columns, and of multiscale flows of
images (handwritten digits, enlarged for the larger ones; one block before and after each squeeze,
three layers of 32 channels per field), trained and as initialised; one probe, single precision.
Error is the relative distance of the gradient to that of a solve in double precision at 1e-10.
Evaluations are of field and divergence, summed over blocks, forward + backward. Ours start with
the step of the iteration before, as in training; peers estimate theirs, as they do. On images
diffrax is left out: JAX on a CPU takes seconds to differentiate a convolution inside a compiled
loop (11.8 s against 0.2 s for the forward solve of one block, when we tried)."""


def section(context: Context) -> str:
    """Markdown of this part."""
    parts, panels = [INTRODUCTION], {}
    for name, batch in SETTINGS.items():
        context.say(f"training iteration of the {name} flow")
        bench = prepare(name, context.work, context.say)
        x = bench.test[: 4 if context.quick else batch]
        exact = iteration(copy.deepcopy(bench.flow).double(), x.double(), "checkpoint")
        error = relative_error(exact(1e-6 if context.quick else 1e-10).values)

        made = gradients(bench.flow, x, context.say)
        # convolutions inside a compiled loop take JAX 50 times longer to differentiate than to
        # evaluate on a CPU (seconds per iteration): diffrax takes part where there are none
        if x.ndim == 2 and installed("diffrax", context.say):
            made["diffrax (jit), checkpoint"] = jax_peer.iteration(bench.flow, x)
        curves = sweep(made, context.few(TOLERANCES), error, context.rounds(3), context.say)
        title = f"{name} {'images' if x.ndim > 2 else 'columns'}, batch {len(x)}"
        panels[title] = curves
        parts.append(f"### {title}")
        for target in TARGETS:
            curves = with_peaks(curves, made, target)
            parts.append(table(curves, OURS, target, "error of the gradient"))
    plot(context.pictures / "bench-training.png", panels, "relative error of the gradient")

    return "\n\n".join([*parts, "![Work-precision of iterations](../images/bench-training.png)"])
