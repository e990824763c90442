"""Work against precision: what each contender needs for a given error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.peers.measure import allocated, interleaved, median

__all__ = ["Contender", "Curve", "Outcome", "Point", "cells", "plot", "sweep", "table"]


@dataclass(frozen=True)
class Outcome:
    """What a contender computed, and with how many evaluations of the field per sample."""

    values: Tensor
    forward: float
    backward: float = 0.0


Contender = Callable[[float], Outcome]
"""Does the work at a tolerance."""


@dataclass(frozen=True)
class Point:
    """One contender at one tolerance."""

    tolerance: float
    error: float
    seconds: float
    forward: float
    backward: float
    peak: float = math.nan  # bytes


Curve = list[Point]


def sweep(
    contenders: Mapping[str, Contender],
    tolerances: Sequence[float],
    error: Callable[[Tensor], float],
    rounds: int,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Curve]:
    """Each contender at each tolerance, all of them in turn in every round.

    A contender that fails is out from there on, and said to be.
    """
    curves: dict[str, Curve] = {name: [] for name in contenders}
    running = dict(contenders)
    for tolerance in tolerances:
        for name in list(running):  # also warms caches, compilers and first steps up
            try:
                running[name](tolerance)
            except (RuntimeError, ValueError, AssertionError) as failure:
                say(f"{name} failed at tolerance {tolerance:g}: {str(failure).splitlines()[0]}")
                del running[name]
        outcomes: dict[str, Outcome] = {}

        seconds = interleaved(
            {name: partial(remember, outcomes, name, running[name], tolerance) for name in running},
            rounds,
        )
        for name in running:
            done = outcomes[name]
            point = Point(
                tolerance, error(done.values), median(seconds[name]), done.forward, done.backward
            )
            curves[name].append(point)
            say(
                f"{name:34s} tolerance {tolerance:.0e} error {point.error:.1e} "
                f"evaluations {point.forward:.1f}+{point.backward:.1f} {point.seconds * 1e3:.1f} ms"
            )

    return curves


def remember(
    outcomes: dict[str, Outcome], name: str, run: Contender, tolerance: float, _: int
) -> None:
    """Run a contender and keep what it found."""
    outcomes[name] = run(tolerance)


def with_peaks(
    curves: Mapping[str, Curve], contenders: Mapping[str, Contender], target: float
) -> dict[str, Curve]:
    """The curves with the peak memory of the point that each contender would be used at; not of
    JAX, whose memory PyTorch does not see.
    """
    measured = {}
    for name, curve in curves.items():
        chosen = cheapest(curve, target)
        if chosen is not None and not name.startswith("diffrax"):
            run = contenders[name]
            _, peak = allocated(lambda run=run, at=chosen.tolerance: run(at))  # type: ignore[misc]
            curve = [replace(p, peak=peak) if p is chosen else p for p in curve]
        measured[name] = curve
    return measured


def cheapest(curve: Curve, target: float) -> Point | None:
    """The cheapest measured point that is exact enough."""
    enough = [point for point in curve if point.error <= target]
    return min(enough, key=lambda point: point.seconds, default=None)


def seconds_at(curve: Curve, target: float) -> float | None:
    """Seconds for an error, interpolated on logarithmic axes between tolerances; never more than at
    the cheapest measured point that is exact enough, None where no point is.
    """
    best = cheapest(curve, target)
    if best is None:
        return None
    found = best.seconds
    for one in curve:
        for other in curve:
            if one.error < target < other.error and one.seconds > other.seconds:
                share = math.log(target / one.error) / math.log(other.error / one.error)
                between = one.seconds ** (1 - share) * other.seconds**share
                neighbours = not any(one.error < p.error < other.error for p in curve)
                found = min(found, between) if neighbours else found

    return found


def cells(curves: Mapping[str, Curve], ours: str, target: float) -> dict[str, float | None]:
    """Seconds of each contender relative to ours, at the same error."""
    base = seconds_at(curves[ours], target)
    ratios: dict[str, float | None] = {}
    for name, curve in curves.items():
        seconds = seconds_at(curve, target)
        ratios[name] = None if seconds is None or base is None else seconds / base
    return ratios


def table(curves: Mapping[str, Curve], ours: str, target: float, error: str) -> str:
    """Markdown: for each contender its cheapest point that is exact enough, and its time at equal
    error relative to ours.
    """
    lines = [
        f"| | tolerance | {error} | evaluations | median ms | peak MB | "
        f"time at error {target:g}, relative to ours |",
        "|---|---|---|---|---|---|---|",
    ]
    ratios = cells(curves, ours, target)
    for name, curve in curves.items():
        point, ratio = cheapest(curve, target), ratios[name]
        if point is None or ratio is None:
            reached = min((p.error for p in curve), default=math.nan)
            lines.append(f"| {name} | | best {reached:.1e} | | | | not reached |")
            continue
        evaluations = f"{point.forward:.1f}" + (
            f" + {point.backward:.1f}" if point.backward else ""
        )
        peak = "" if math.isnan(point.peak) else f"{point.peak / 1e6:.1f}"
        shown = f"**{ratio:.2f}**" if name == ours else f"{ratio:.2f}"
        lines.append(
            f"| {name} | {point.tolerance:.0e} | {point.error:.1e} | {evaluations} | "
            f"{point.seconds * 1e3:.1f} | {peak} | {shown} |"
        )
    return "\n".join(lines)


def plot(path: Path, panels: Mapping[str, Mapping[str, Curve]], error: str) -> None:
    """Work-precision diagrams side by side: error against time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    colours = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    figure = Figure(figsize=(1.2 + 4.6 * len(panels), 4.4), layout="constrained")
    axes: Any = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        for name, curve in curves.items():
            own = name.startswith("infocnf")
            axis.plot(
                [point.seconds * 1e3 for point in curve],
                [point.error for point in curve],
                marker="o" if own else "s",
                markersize=4,
                linewidth=2.2 if own else 1.2,
                linestyle="-" if own else "--",
                color=colours[(2 * names.index(name)) % 19],
                label=name,
            )
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_xlabel("milliseconds")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, linewidth=0.6)
    axes[0].set_ylabel(error)
    handles = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, facecolor="white")
