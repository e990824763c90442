"""Runs that experiments need: each is trained once, whoever wants it, and found again by its
configuration.

A run is a process of its own. Its log is locked while it lives, so that a second call, or one after
a kill that left children behind, waits for it instead of training beside it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infocnf.errors import InputError, StoppedError, WorkError
from infocnf.experiments.analysis import Result, Results, mean_tolerance, read_rows, summary
from infocnf.experiments.declaration import Arm, Experiment, Probe, Recipe, Scale
from infocnf.experiments.publishing import publish
from infocnf.files import write_json
from infocnf.runs import Run, checkpoints
from infocnf.runs.parsing import old_names
from infocnf.runs.records import read_json
from infocnf.training.stages import epochs_of

__all__ = [
    "ExperimentRunner",
    "ProgressCallback",
    "epochs_in_all",
    "identity",
    "recipes_of",
    "reproduce",
]

NOT_IDENTITY: dict[str, Any] = {"data": {"directory", "path"}, "trainer": True}  # where, not what
ProgressCallback = Callable[[str, int, int], None]  # of a run, its epochs so far, and of how many
POLL_SECONDS = 2.0


def identity(recipe: Recipe) -> str:
    """The name of a run: its data, and a digest of all that decides what is trained."""
    config = recipe.config
    # a setting that comes later, at its default, leaves the names of old runs alone, and so does
    # one that was renamed
    plain = old_names(config.model_dump(mode="json", exclude=NOT_IDENTITY, exclude_defaults=True))
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    return f"{config.data.name}-{digest[:12]}"


@dataclass
class ExperimentRunner:
    """A folder of runs.

    Arguments:
        folder: Where they are.
        settings: What all are given besides: where their data is.
        jobs: How many are trained at a time, each on one core.
        told: ProgressCallback of the epochs of runs, now and then.
    """

    folder: Path
    settings: tuple[str, ...] = ()
    jobs: int = 1
    told: ProgressCallback = lambda name, done, total: None
    threads: int = 1
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    stopping: bool = False

    def folder_of(self, recipe: Recipe) -> Path:
        """Where a run is."""
        return self.folder / identity(recipe)

    def is_done(self, recipe: Recipe) -> bool:
        """Whether a run is trained and evaluated."""
        return (self.folder_of(recipe) / "evaluation.json").is_file()

    def make(self, recipes: Iterable[Recipe]) -> None:
        """Train and evaluate what is missing; what can be done is done before a failure is told."""
        wanted = {identity(recipe): recipe for recipe in recipes}
        missing = [recipe for recipe in wanted.values() if not self.is_done(recipe)]
        for name, recipe in wanted.items():
            if recipe not in missing:
                self.told(name, *[epochs_of(recipe.config)] * 2)
        self.folder.mkdir(parents=True, exist_ok=True)
        failed: list[str] = []
        with ThreadPoolExecutor(self.jobs) as pool, forwarding(self):
            work = {pool.submit(self.finish, recipe): recipe for recipe in missing}
            for future in as_completed(work):
                try:
                    future.result()
                except WorkError as error:
                    failed.append(str(error))
        if self.stopping:
            raise StoppedError("stopped, and saved; the same command goes on")
        if failed:
            raise WorkError("; ".join(failed))

    def finish(self, recipe: Recipe) -> None:
        """Train and evaluate one run, from wherever it was left."""
        run_folder = self.folder_of(recipe)
        with (self.folder / f"{run_folder.name}.log").open("ab") as log:
            fcntl.flock(log, fcntl.LOCK_EX)  # the child has it, too, and keeps it if we die
            if self.stopping or self.is_done(recipe):
                return
            if len(rows_so_far(run_folder)) < epochs_of(recipe.config):
                self.call(self.training(recipe, run_folder), log, recipe)
            if not self.stopping:
                self.call(["evaluate", str(run_folder)], log, recipe)

    def training(self, recipe: Recipe, run_folder: Path) -> list[str]:
        """Arguments that continue a run, or begin it over what was left by one that was stopped
        before its first checkpoint.
        """
        if is_resumable(run_folder):
            return ["train", "--resume", "--out", str(run_folder)]
        settings = (*recipe.settings, *self.settings)
        given = [part for setting in settings for part in ("--set", setting)]
        return ["train", recipe.preset, *given, "--out", str(run_folder), "--overwrite"]

    def call(self, arguments: Sequence[str], log: Any, recipe: Recipe) -> None:  # noqa: ANN401
        """Run a command of the package, and tell of its progress."""
        run_folder = self.folder_of(recipe)
        child = subprocess.Popen(
            [sys.executable, "-m", "infocnf", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": str(self.threads)},
            start_new_session=True,  # Ctrl-C reaches it through us, once
        )
        self.children.append(child)
        if self.stopping:
            child.send_signal(signal.SIGINT)
        while True:
            try:
                code = child.wait(POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                pass
            self.told(run_folder.name, len(rows_so_far(run_folder)), epochs_of(recipe.config))
        self.children.remove(child)
        self.told(run_folder.name, len(rows_so_far(run_folder)), epochs_of(recipe.config))
        if code and not self.stopping:
            raise WorkError(
                f"'infocnf {arguments[0]}' of {run_folder.name} failed: see {self.folder}/"
                f"{run_folder.name}.log; the same command tries again"
            )

    def stop(self) -> None:
        """Have all children save and end; nothing new begins."""
        self.stopping = True
        for child in list(self.children):
            child.send_signal(signal.SIGINT)

    def probe(self, recipe: Recipe, probe: Probe, scale: Scale) -> dict[str, Any]:
        """What a probe finds in a run; it is measured once."""
        run = Run.open(self.folder_of(recipe))
        path = self.folder / f"{run.folder.name}.{probe.name}-{scale.name}.json"
        if path.is_file():
            kept: dict[str, Any] = json.loads(path.read_text())
            if kept["model_sha256"] == run.model_digest:
                return {name: value for name, value in kept.items() if name != "model_sha256"}
        found = probe.measure(run, scale)
        write_json(path, {**found, "model_sha256": run.model_digest})
        return found


def rows_so_far(run_folder: Path) -> list[dict[str, float]]:
    """The epochs that a run has behind it."""
    return read_rows(run_folder) if (run_folder / "metrics.csv").is_file() else []


def is_resumable(run_folder: Path) -> bool:
    """Whether a run has a checkpoint of this version."""
    try:
        checkpoints.read(checkpoints.latest(run_folder / "checkpoints"))
    except InputError:
        return False
    return True


class forwarding:  # noqa: N801
    """While this lasts, Ctrl-C and SIGTERM stop a runner instead of this process."""

    def __init__(self, runner: ExperimentRunner) -> None:
        self.runner = runner
        self.before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, lambda *_: self.runner.stop())

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def recipes_of(
    experiment: Experiment, scale: Scale, runner: ExperimentRunner | None = None
) -> Iterator[tuple[Arm, int, Recipe]]:
    """Every run of an experiment. Those that match a tolerance which is still to be learned are
    there only where a runner has it.
    """
    for arm in experiment.arms:
        tolerance = None
        if arm.matches is not None:
            if runner is not None:
                tolerance = learned_mean(experiment.arm(arm.matches), scale, runner)
            if tolerance is None:
                continue
        for seed in scale.seeds:
            yield arm, seed, arm.recipe(scale, seed, tolerance)


def learned_mean(arm: Arm, scale: Scale, runner: ExperimentRunner) -> float | None:
    """The mean tolerance that an arm learned, over its seeds; None where it is not known yet."""
    recipes = [arm.recipe(scale, seed) for seed in scale.seeds]
    if not all(runner.is_done(recipe) for recipe in recipes):
        return None
    found = summary([mean_tolerance(read_rows(runner.folder_of(recipe))) for recipe in recipes])
    return None if found is None else found.mean


def reproduce(
    experiments: Sequence[Experiment],
    scale: Scale,
    runner: ExperimentRunner,
    out: Path,
    done: Callable[[Experiment, Path], None] = lambda experiment, folder: None,
) -> None:
    """Train what is missing, then publish; an experiment is published as soon as it can be.

    Arms that match a learned tolerance come after what they match: everything else is trained first
    so that no core waits.
    """
    runner.make(recipe for e in experiments for _, _, recipe in recipes_of(e, scale))
    runner.make(recipe for e in experiments for _, _, recipe in recipes_of(e, scale, runner))
    for experiment in experiments:
        publish(gather(experiment, scale, runner), out / experiment.name)
        done(experiment, out / experiment.name)


def gather(experiment: Experiment, scale: Scale, runner: ExperimentRunner) -> Results:
    """The runs of an experiment whose runs are done."""
    runs: dict[str, list[Result]] = {}
    for arm, seed, recipe in recipes_of(experiment, scale, runner):
        probes = {probe.name: runner.probe(recipe, probe, scale) for probe in experiment.probes}
        run_folder = runner.folder_of(recipe)
        evaluation = read_json(run_folder / "evaluation.json")
        runs.setdefault(arm.name, []).append(
            Result(seed, recipe, run_folder, read_rows(run_folder), evaluation, probes)
        )
    return Results(experiment, scale, runs)


def epochs_in_all(experiments: Sequence[Experiment], scale: Scale) -> int:
    """Epochs of all runs, those that share one counted once."""
    wanted: dict[str, int] = {}
    for experiment in experiments:
        for arm in experiment.arms:
            for seed in scale.seeds:
                tolerance = 1e-3 if arm.matches else None
                recipe = arm.recipe(scale, seed, tolerance)
                name = identity(recipe) + (experiment.name if arm.matches else "")
                wanted[name] = epochs_of(recipe.config)
    return sum(wanted.values())
