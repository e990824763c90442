"""``infocnf bench``: this package against its peers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["bench"]


def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            help="What to measure: solver, density, training, stiff, memory, samples, scaling, "
            "processes, divergence; all when left out."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Folder of results/benchmarks.md and images/.")
    ] = Path("bench"),
    work: Annotated[
        Path, typer.Option(help="Folder of the flows that are trained to be measured.")
    ] = Path("outputs/bench"),
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch.")] = 2,
    quick: Annotated[
        bool, typer.Option("--quick", help="As little as shows that all parts work.")
    ] = False,
) -> None:
    """Measure speed, memory and error against torchdiffeq, torchode, zuko and diffrax.

    All contenders do the same work in one interleaved run, and are compared at equal error. A peer
    that is not installed is left out; 'pip install infocnf[bench]' installs them. All parts take
    about an hour on two cores; the flows that are measured are trained first and kept.
    """
    from infocnf.bench.suite import run
    from infocnf.cli.console import console

    page = run(parts or (), out, work, console.print, threads=threads, quick=quick)
    console.print(f"written: {page}")
