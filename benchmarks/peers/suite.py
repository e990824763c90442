"""The parts of the suite, and the page they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.peers import (
    density,
    divergence,
    memory,
    processes,
    scaling,
    solver,
    stiff,
    training,
)
from benchmarks.peers.context import Context
from benchmarks.peers.measure import machine, publish_part
from infocnf.errors import InputError

__all__ = ["PARTS", "run"]

PARTS: dict[str, tuple[str, Callable[[Context], str]]] = {
    "solver": ("The solver alone", solver.section),
    "density": ("Densities", density.section),
    "training": ("A training iteration", training.section),
    "stiff": ("A few stiff samples", stiff.section),
    "memory": ("Memory", memory.section),
    "samples": ("The number of samples", scaling.by_samples),
    "scaling": ("Dimensions and blocks", scaling.section),
    "processes": ("Two processes", processes.section),
    "divergence": ("Divergence", divergence.section),
}

HEAD = """# Benchmarks

Made by `make bench`. Every table is one interleaved run of all its rows on the same data,
weights and probes. Times are medians, and only their ratios within a table mean anything: the
machine is shared. Every contender is swept over tolerances; a row shows the cheapest tolerance
that is exact enough, and the last column compares times at the *same error*, interpolated between
tolerances (more than 1: slower than the row in bold).
"""


def run(
    names: Sequence[str],
    folder: Path,
    work: Path,
    say: Callable[[str], None],
    *,
    threads: int = 2,
    quick: bool = False,
) -> Path:
    """Measure the parts named, or all, and write ``results/benchmarks.md`` and
    ``images/bench-*.png`` below the folder; parts that were measured before and are not named stay.
    Trained flows are kept in ``work``.
    """
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise InputError(f"there is no benchmark {unknown[0]!r}: choose from {', '.join(PARTS)}")
    torch.set_num_threads(threads)
    page, pictures = folder / "results" / "benchmarks.md", folder / "images"
    for place in (page.parent, pictures):
        place.mkdir(parents=True, exist_ok=True)
    context = Context(work, pictures, say, quick)
    for name in names or PARTS:
        title, section = PARTS[name]
        say(f"== {title}")
        text = f"## {title}\n\n{machine()}\n\n{section(context)}"
        publish_part(page, HEAD, name, text, PARTS)

    return page
