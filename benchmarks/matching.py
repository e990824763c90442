"""How long until a likelihood is reached, and how many evaluations: ``python -m benchmarks.matching
--data FOLDER`` trains flows by maximum likelihood, by matching, and by both, and writes
``docs/results/matching.md``.

One after the other, each on all cores. Times are those of training steps alone; what is compared is
validated now and then, at tolerance 1e-3, on the same examples. Runs that are there already are
kept, so the command can be interrupted and given again.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from benchmarks.peers.measure import machine, publish, tell
from infocnf.experiments.analysis import read_rows
from infocnf.experiments.declaration import Recipe
from infocnf.experiments.runner import ExperimentRunner

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "docs" / "results" / "matching.md"
PICTURE = ROOT / "docs" / "images" / "matching.png"

HEAD = """# Matching against maximum likelihood

Made by `python -m benchmarks.matching`. Seconds of training, and evaluations of the field (forward
and backward) for each training example, until the validation part is first as likely, or its labels
as well read. Learning rates fall to nothing at the end of each run; shorter runs were no better at
equal time. *Labels* are read through the flow, at the end of the code's path; those read in one
step are in brackets.
"""


@dataclass(frozen=True)
class Arm:
    """A way to train.

    Arguments:
        name: What the table says.
        preset: Where its settings begin.
        settings: What is changed.
        first: What the table calls its first stage alone, where that is of interest.
    """

    name: str
    preset: str
    settings: tuple[str, ...]
    first: str | None = None


@dataclass(frozen=True)
class Task:
    """Data, the ways to train on it, and what is to be reached.

    Arguments:
        title: What the page says.
        arms: The ways.
        common: Settings of all.
        bits: Bits per dimension to reach.
        errors: Errors of labels to reach, in percent.
    """

    title: str
    arms: tuple[Arm, ...]
    common: tuple[str, ...]
    bits: tuple[float, ...]
    errors: tuple[float, ...]


BOTH = "training.stages=['matching','likelihood']"
ALONE = "training.stages=['likelihood']"
MATCHING = "training.stages=['matching']"
SMALL = ("model.hidden=[32,64]", "model.blocks=1", "model.training_method=bosh3", "tolerance=1e-2")

TASKS = {
    "digits": Task(
        "8x8 digits, 1,147 images",
        (
            Arm("maximum likelihood", "digits-likelihood", ("training.validate_every=2",)),
            Arm(
                "maximum likelihood, the same field",
                "digits-matching",
                (ALONE, "training.epochs=5", "training.learning_rate=2e-3"),
            ),
            Arm("both", "digits-matching", (BOTH, "matching.validate_every=5"), first="matching"),
            Arm(
                "maximum likelihood, half as long",
                "digits-likelihood",
                ("training.epochs=14", "training.validate_every=2"),
            ),
            Arm(
                "matching, a quarter as long",
                "digits-matching",
                (MATCHING, "matching.epochs=15", "matching.validate_every=5"),
            ),
        ),
        ("evaluation.tolerance=1e-3",),
        (2.4, 2.2, 2.1, 2.0, 1.95),
        (10.0, 5.0, 3.0),
    ),
    "mnist": Task(
        "MNIST, 10,000 images, a U-Net of a quarter of the size",
        (
            Arm(
                "maximum likelihood, the same field",
                "mnist",
                (*SMALL, ALONE, "training.epochs=2", "training.learning_rate=2e-3"),
            ),
            Arm(
                "both",
                "mnist",
                (
                    *SMALL,
                    BOTH,
                    "matching.epochs=10",
                    "matching.validate_every=1",
                    "training.epochs=1",
                    "training.learning_rate=3e-4",
                ),
                first="matching",
            ),
        ),
        (
            "data.limit=10000",
            "data.validation=200",
            "evaluation.tolerance=1e-3",
            "training.batch_size=64",
            "training.clip=10.0",
            "training.warmup=10",
            "training.schedule=cosine",
        ),
        (1.8, 1.6, 1.5, 1.4, 1.3),
        (10.0, 5.0, 3.0, 2.0),
    ),
}


@dataclass(frozen=True)
class Point:
    """A validation on the way.

    Arguments:
        seconds: Of training until then.
        evaluations: For each example until then.
        bits: Bits per dimension.
        error: Of labels read through the flow, in percent.
        one_step: Of labels read in one step; None where they cannot be.
        stage: What was being done.
    """

    seconds: float
    evaluations: float
    bits: float
    error: float
    one_step: float | None
    stage: str


def course(folder: Path) -> list[Point]:
    """The validations of a run."""
    table, stages = read_rows(folder), stages_of(folder)
    seconds = accumulate(row["seconds"] for row in table)
    evaluations = accumulate(
        row.get("nfe_forward", 0.0) + row.get("nfe_backward", 0.0) for row in table
    )
    return [
        Point(
            time,
            count,
            row["validation_bits_per_dim"],
            row["validation_error_percent"],
            row.get("validation_one_step_error_percent"),
            stage,
        )
        for row, time, count, stage in zip(table, seconds, evaluations, stages, strict=True)
        if "validation_bits_per_dim" in row
    ]


def stages_of(folder: Path) -> list[str]:
    """What was being done in each epoch."""
    with (folder / "metrics.csv").open() as file:
        return [row.get("stage") or "likelihood" for row in csv.DictReader(file)]


def first(points: Sequence[Point], reached: Callable[[Point], bool]) -> str:
    """Time and evaluations until something is reached."""
    point = next((point for point in points if reached(point)), None)
    return "never" if point is None else f"{point.seconds:.0f} s, {point.evaluations:.0f}"


def table_of(task: Task, courses: dict[str, list[Point]]) -> str:
    """One row for each goal, one column for each arm."""
    lines = [f"| | {' | '.join(courses)} |", "|---" * (len(courses) + 1) + "|"]

    def add(title: str, cells: list[str]) -> None:
        lines.append(f"| {title} | {' | '.join(cells)} |")

    for goal in task.bits:
        cells = [first(points, lambda p, g=goal: p.bits <= g) for points in courses.values()]
        add(f"{goal:g} bits/dim", cells)
    for goal in task.errors:
        cells = []
        for points in courses.values():
            flow = first(points, lambda p, g=goal: p.error <= g)
            once = first(points, lambda p, g=goal: p.one_step is not None and p.one_step <= g)
            cells.append(flow if points[0].one_step is None else f"{flow} ({once})")
        add(f"{goal:g} % of labels wrong", cells)
    ends = [points[-1] for points in courses.values()]
    add(
        "at the end: seconds, evaluations",
        [f"{p.seconds:.0f} s, {p.evaluations:.0f}" for p in ends],
    )
    add("bits/dim", [f"{p.bits:.3f}" for p in ends])
    add("labels wrong", [f"{p.error:.1f} %" + once_of(p) for p in ends])
    return "\n".join(lines)


def once_of(point: Point) -> str:
    """The error in one step, in brackets."""
    return "" if point.one_step is None else f" ({point.one_step:.1f} %)"


def draw(courses: dict[str, dict[str, list[Point]]]) -> None:
    """Bits per dimension against time, one panel for each task."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(arm for found in courses.values() for arm in found))
    colours = {arm: f"C{i}" for i, arm in enumerate(names)}
    figure, axes = plt.subplots(1, len(courses), figsize=(5 * len(courses), 3.6), squeeze=False)
    for axis, (name, found) in zip(axes[0], courses.items(), strict=True):
        for arm, points in found.items():
            times, bits = [p.seconds for p in points], [p.bits for p in points]
            axis.plot(times, bits, ".-", label=arm, color=colours[arm])
        axis.set(title=TASKS[name].title, xscale="log", xlabel="seconds of training")
        axis.set_ylabel("validation bits per dimension")
        axis.legend(frameon=False, fontsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    """Train, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist.npz")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "matching")
    arguments = parser.parse_args()

    courses: dict[str, dict[str, list[Point]]] = {}
    threads = os.cpu_count() or 1
    for name, task in TASKS.items():
        given = (f"data.directory={arguments.data.absolute()}",) if name == "mnist" else ()
        runner = ExperimentRunner(arguments.out, given, threads=threads, told=tell)
        found = courses[name] = {}
        for arm in task.arms:
            recipe = Recipe(arm.preset, (*task.common, *arm.settings, "evaluation.limit=200"))
            runner.make([recipe])
            points = course(runner.folder_of(recipe))
            if arm.first:
                found[arm.first] = [point for point in points if point.stage == "matching"]
            found[arm.name] = points
    draw(courses)
    parts = [HEAD, machine(), f"![Bits per dimension against time](../images/{PICTURE.name})"]
    parts += [f"## {TASKS[n].title}\n\n{table_of(TASKS[n], found)}" for n, found in courses.items()]
    publish(RESULT, parts)
    print(f"written: {RESULT}")


if __name__ == "__main__":
    main()
