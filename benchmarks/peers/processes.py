"""Training in two processes on two cores against one process on one core."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.peers.context import Context
from benchmarks.peers.measure import median
from infocnf.errors import WorkError

__all__ = ["section"]

EPOCHS = 3  # the first is not counted: processes start, steps find their size

INTRODUCTION = """\
Examples per second of `infocnf train digits-likelihood`, the trainer and all, one thread per
process, in epochs after the first; runs of one and two processes in turn. A process solves a batch
of 64, so that two make a step of 128 (*the same per process*), or of 32 each (*the same in
all*)."""


def seconds_per_epoch(context: Context, folder: Path, devices: int, batch: int) -> float:
    """Median seconds of a training epoch."""
    command = [
        *(sys.executable, "-m", "infocnf", "train", "digits-likelihood", "--out", str(folder)),
        *("--set", f"training.epochs={EPOCHS}"),
        *("--set", f"training.batch_size={batch}"),
        *("--set", "tolerance=1e-3", "--set", "training.validate_every=100"),
        *("--set", f"trainer.devices={devices}", "--set", "trainer.threads=1"),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode:
        raise WorkError(f"a run of {devices} processes failed: {done.stderr.strip()[-300:]}")
    with (folder / "metrics.csv").open() as file:
        rows = [float(row["seconds"]) for row in csv.DictReader(file) if row["seconds"]]
    context.say(f"{devices} processes, batch {batch}: {[round(s, 2) for s in rows]} s per epoch")
    return median(rows[1:])


def section(context: Context) -> str:
    """Markdown of this part."""
    settings = {
        "one process": (1, 64),
        "the same per process": (2, 128),
        "the same in all": (2, 64),
    }
    found: dict[str, list[float]] = {name: [] for name in settings}
    with TemporaryDirectory() as folder:
        for turn in range(context.rounds(2)):
            for name, (devices, batch) in settings.items():
                place = Path(folder) / f"{turn}-{devices}-{batch}"
                found[name].append(seconds_per_epoch(context, place, devices, batch))
    base = median(found["one process"])
    lines = ["| | seconds per epoch | throughput |", "|---|---|---|"]
    lines += [
        f"| {name} | {median(times):.2f} | {base / median(times):.2f} |"
        for name, times in found.items()
    ]
    return "\n\n".join([INTRODUCTION, "\n".join(lines)])
