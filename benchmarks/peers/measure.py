"""How benchmarks measure: interleaved, by medians, in ratios; memory by the profiler's account of
allocations.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from infocnf import __version__
from infocnf.files import write


def interleaved(
    contenders: Mapping[str, Callable[[int], object]], rounds: int
) -> dict[str, list[float]]:
    """Seconds of each contender in each round; every round runs all of them, in turn first.

    Each is called with the number of the round, so that all can work on the same data. One round
    more is run before and not counted.
    """
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for place in range(len(names)):
            name = names[(place + turn) % len(names)]
            began = time.perf_counter()
            contenders[name](turn)
            if turn:
                seconds[name].append(time.perf_counter() - began)

    return seconds


def median(values: list[float]) -> float:
    """Middle value: one slow moment of a shared machine does not move it."""
    return statistics.median(values)


def allocated(function: Callable[[], object]) -> tuple[int, int]:
    """Bytes that a call leaves allocated as long as its result lives, and the most it held at a
    time.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()
    held = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    del result

    return held, peak


def machine() -> str:
    """What this was measured with."""
    found = []
    for package in ("torch", "torchdiffeq", "torchode", "zuko", "diffrax", "jax", "numpy"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} not installed: skipped")
    return (
        f"infocnf {__version__} ({commit()}), Python {platform.python_version()}, "
        f"{', '.join(found)}; "
        f"{processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, "
        f"{torch.backends.cpu.get_cpu_capability()}."
    )


def commit() -> str:
    """The commit that is measured, where there is one."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "no commit"


def processor() -> str:
    """Name of the processor, where the system tells it."""
    listing = Path("/proc/cpuinfo")
    for line in listing.read_text().splitlines() if listing.exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


NOTES = "<!-- what follows is written by hand -->"


def publish(path: Path, parts: list[str]) -> None:
    """A page of what has been measured so far; notes written by hand below their mark are kept."""
    old = path.read_text() if path.exists() else ""
    notes = old[old.index(NOTES) :] if NOTES in old else NOTES + "\n"
    page = "\n\n".join([*(part.strip() for part in parts), notes])
    write(path, page.encode())


def publish_part(path: Path, head: str, name: str, text: str, order: Iterable[str]) -> None:
    """Put one part into a page, between marks of its name, in its place among the others."""
    old = path.read_text() if path.exists() else ""
    parts = {other: between(old, other) for other in order} | {name: text.strip()}
    marked = [f"<!-- {n} -->\n\n{part}\n\n<!-- end -->" for n, part in parts.items() if part]
    publish(path, [head, *marked])


def between(page: str, name: str) -> str:
    """What stands between the marks of a part, if anything."""
    mark = f"<!-- {name} -->"
    return page.split(mark, 1)[1].split("<!-- end -->", 1)[0].strip() if mark in page else ""


def tell(name: str, done: int, total: int) -> None:
    """A line for each run that is done."""
    if done == total:
        print(f"{name}: {total} epochs", flush=True)
