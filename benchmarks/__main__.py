"""Run all benchmarks and write ``docs/results/benchmarks.md``: ``make bench``."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks import divergence, training
from benchmarks.measure import machine, publish

THREADS = 2
RESULT = Path(__file__).parent.parent / "docs" / "results" / "benchmarks.md"

HEAD = """# Benchmarks

Made by `make bench`. Every table is one interleaved run of all its rows on the same data, weights
and probes; times are medians, and only their ratios mean anything (the machine is shared). NFE are
evaluations of field and divergence, summed over the four blocks, in one iteration after the timed
ones (those of timed iterations vary a little with the batch). *Gradient error* is the relative
distance of the gradient of all weights to that of a solve in double precision at tolerance 1e-9.
In single precision rounding hides the solver's own error, so the same is given for a run in double
precision. *Peak MB* is the most that one iteration held allocated.

Peers are given two divergences: `vjp` as FFJORD computes it (a vector-Jacobian product with a
graph), and `stacked`, this package's own, handed to them. Everyone solves at tolerance 1e-5 in
single precision with dopri5.
"""


def main() -> None:
    """Measure, print, write."""
    torch.set_num_threads(THREADS)
    parts = [HEAD, machine(), "## Divergence", divergence.section(), "## Training iteration"]
    for setting in training.SETTINGS:
        print(setting.title, flush=True)
        parts.append(training.section(setting))
        publish(RESULT, parts)
    print(f"written: {RESULT}")


if __name__ == "__main__":
    main()
