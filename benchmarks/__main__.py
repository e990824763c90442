"""``python -m benchmarks``: this package against its peers, in speed, memory and error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.suite import PARTS, run


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the parts named, or all, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="All contenders do the same work in one interleaved run, and are compared at "
        "equal error. A peer that is not installed is left out; 'pip install infocnf[bench]' "
        "installs them. All parts take about an hour on two cores; the flows that are measured are "
        "trained first and kept.",
    )
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; all when left out")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs"), help="folder of the page")
    parser.add_argument("--work", type=Path, default=Path("outputs/bench"), help="trained flows")
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch")
    parser.add_argument("--quick", action="store_true", help="as little as shows that all works")
    given = parser.parse_args(arguments)
    page = run(
        given.parts,
        given.out,
        given.work,
        lambda line: print(line, flush=True),
        threads=given.threads,
        quick=given.quick,
    )
    print(f"written: {page}")


if __name__ == "__main__":
    main(sys.argv[1:])
