"""Part (f): peak memory of a training iteration against its evaluations."""

from __future__ import annotations

from benchmarks.peers.contenders import gradients
from benchmarks.peers.context import Context
from benchmarks.peers.curves import Outcome
from benchmarks.peers.flows import prepare
from benchmarks.peers.measure import allocated

__all__ = ["section"]

TOLERANCES = (1e-1, 1e-3, 1e-5, 1e-6)
SHOWN = (
    "infocnf, checkpoint",
    "infocnf, checkpoint, nothing kept",
    "infocnf, backprop",
    "infocnf, adjoint",
    "FFJORD recipe",
    "torchdiffeq, backprop",
    "zuko, checkpoint adjoint",
)

INTRODUCTION = """\
The most that one iteration of the trained 28x28 flow, batch 8, holds allocated at a time, in MB (in
brackets: forward evaluations, summed over blocks). Tighter tolerances make more steps. By default
``checkpoint`` keeps up to 256 MiB of a block's graphs (``keep``) rather than recompute them."""


def section(context: Context) -> str:
    """Markdown of this part."""
    bench = prepare("8x8" if context.quick else "28x28", context.work, context.say)
    made = gradients(bench.flow, bench.test[:8], context.say)
    tolerances = context.few(TOLERANCES)
    lines = [
        "| tolerance | " + " | ".join(name for name in SHOWN if name in made) + " |",
        "|---|" + "---|" * sum(name in made for name in SHOWN),
    ]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in SHOWN if name in made}
    for tolerance in tolerances:
        cells = []
        for name, points in found.items():
            outcomes: list[Outcome] = []
            run = made[name]
            run(tolerance)  # warms first steps up
            _, peak = allocated(lambda run=run, to=outcomes: to.append(run(tolerance)))  # type: ignore[misc] # noqa: B023
            points.append((outcomes[0].forward, peak / 1e6))
            cells.append(f"{peak / 1e6:.0f} ({outcomes[0].forward:.0f})")
        lines.append(f"| {tolerance:.0e} | " + " | ".join(cells) + " |")
        context.say(lines[-1])
    picture(context, found)

    return "\n\n".join(
        [INTRODUCTION, "\n".join(lines), "![Peak memory](../images/bench-memory.png)"]
    )


def picture(context: Context, found: dict[str, list[tuple[float, float]]]) -> None:
    """Peak memory against forward evaluations."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, points in found.items():
        own = name.startswith("infocnf")
        axes.plot(*zip(*points, strict=True), "o-" if own else "s--", label=name, markersize=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("forward evaluations of an iteration")
    axes.set_ylabel("peak memory (MB)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.legend(fontsize=8)
    figure.savefig(context.pictures / "bench-memory.png", dpi=120, facecolor="white")
