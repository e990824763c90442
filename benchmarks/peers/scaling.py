"""Part (g): cost against the number of samples, of dimensions and of blocks."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.peers.contenders import density, iteration
from benchmarks.peers.context import Context
from benchmarks.peers.curves import Contender, Outcome, remember
from benchmarks.peers.flows import prepare
from benchmarks.peers.measure import interleaved, median
from benchmarks.peers.peers import FFJORD, installed, with_peer
from infocnf.models import InfoCNF

__all__ = ["by_samples", "section"]

TOLERANCE = 1e-5


def timed(runs: dict[str, Contender], rounds: int) -> dict[str, tuple[float, Outcome]]:
    """Median seconds and outcome of each."""
    outcomes: dict[str, Outcome] = {}
    seconds = interleaved(
        {name: partial(remember, outcomes, name, run, TOLERANCE) for name, run in runs.items()},
        rounds,
    )
    return {name: (median(seconds[name]), outcomes[name]) for name in runs}


def by_samples(context: Context) -> str:
    """Markdown of the part about the number of samples: microseconds per sample."""
    counts = (1, 10, 100) if context.quick else (1, 10, 100, 1000, 10_000)
    lines = [
        "Log-likelihood at tolerance 1e-5, individual steps, one call for all samples: "
        "microseconds per sample (evaluations per sample), and relative to those at the largest "
        "number.\n",
        "| samples | 2-D flow | | 8x8 flow | |",
        "|---|---|---|---|---|",
    ]
    found: dict[str, dict[int, tuple[float, Outcome]]] = {}
    for name in ("2-D", "8x8"):
        bench = prepare(name, context.work, context.say)
        rows = torch.arange(counts[-1]) % len(bench.test)
        data = bench.test[rows]
        how = {"stepping": "individual", "quadrature": True}
        runs = {str(n): density(bench.flow, data[:n], **how) for n in counts}
        found[name] = {int(n): got for n, got in timed(runs, context.rounds(3)).items()}
        context.say(f"{name} flow: {[round(s / n * 1e6) for n, (s, _) in found[name].items()]}")
    for n in counts:
        cells = []
        for by_count in found.values():
            each, last = by_count[n][0] / n, by_count[counts[-1]][0] / counts[-1]
            cells += [f"{each * 1e6:.0f} ({by_count[n][1].forward:.1f})", f"{each / last:.2f}"]
        lines.append(f"| {n:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def against_ffjord(
    context: Context, title: str, word: str, flows: dict[int, tuple[nn.Module, Tensor]]
) -> str:
    """Training iterations of ours and of the FFJORD recipe."""
    lines = [
        f"### {title}\n",
        f"| {word} | infocnf, ms | evaluations | FFJORD recipe, ms | evaluations | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for value, (flow, x) in flows.items():
        runs = {"ours": iteration(flow, x, "checkpoint")}
        if installed("torchdiffeq", context.say):
            runs[FFJORD] = iteration(with_peer(flow, FFJORD), x, "adjoint")
        found = timed(runs, context.rounds(3))
        cells = [
            f"{seconds * 1e3:.0f} | {outcome.forward:.0f} + {outcome.backward:.0f}"
            for seconds, outcome in found.values()
        ]
        if FFJORD in found:
            cells.append(f"{found[FFJORD][0] / found['ours'][0]:.2f}")
        else:
            cells.append("| |")  # nothing to compare with
        lines.append(f"| {value} | " + " | ".join(cells) + " |")
        context.say(lines[-1])
    return "\n".join(lines)


def section(context: Context) -> str:
    """Markdown of this part."""

    def flow(features: int, blocks: int) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        made = InfoCNF((features,), blocks=blocks, hidden=(64, 64, 64), trace="hutchinson").flow
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.mul_(1.5)
        return made, torch.randn(256, features)

    return "\n\n".join(
        [
            "Flows of vectors with three hidden layers of 64, weights half as large again as at "
            "the start of training, one probe, batch 256, tolerance 1e-5 for both sides: a "
            "picture of growth, not a comparison at equal error.",
            against_ffjord(
                context, "Dimensions", "dimensions", {d: flow(d, 2) for d in (2, 16, 128, 512)}
            ),
            against_ffjord(context, "Blocks", "blocks", {b: flow(16, b) for b in (1, 2, 4, 8)}),
        ]
    )
