"""What a run directory should hold: every file with its size and digest, written when something was
finished; and whether it still does.

A kill can come between a file and the manifest. Such a file differs from the manifest, is newer
than it and sound by itself: that is said, and is no damage.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infocnf.errors import InputError
from infocnf.files import digest_of, write_json
from infocnf.models.pretrained import CONFIG, WEIGHTS, load
from infocnf.runs import checkpoints
from infocnf.runs.directory import Run, contents, draft_of, environment, hold
from infocnf.runs.records import Record, check, read_json

__all__ = ["MANIFEST", "Finding", "seal", "seal_if_free", "verify"]

MANIFEST = "manifest.json"
FREE = ("events.out", MANIFEST, ".lock", ".holder")  # files that change on their own


class FileRecord(Record):
    """A file as it was."""

    bytes: int
    sha256: str
    modified: int


class Manifest(Record):
    """``manifest.json``."""

    files: dict[str, FileRecord]


@dataclass(frozen=True)
class Finding:
    """What became of a file (``ok``, ``newer``, ``missing``, ``damaged``) and what to do."""

    name: str
    state: str
    remedy: str = ""


def seal(folder: Path) -> None:
    """Write the manifest of a run as it is; only files that have changed are read."""
    before: dict[str, Any] = {}
    if (folder / MANIFEST).is_file():
        try:
            before = known(folder)
        except InputError:
            before = {}  # damaged: made again
    files = {}
    for path in sorted(contents(folder)):
        name = path.relative_to(folder).as_posix()
        if name.startswith(FREE) or draft_of(path.name):
            continue
        stat = path.stat()
        entry = {"bytes": stat.st_size, "modified": stat.st_mtime_ns}
        old = before.get(name, {})
        same = all(old.get(key) == value for key, value in entry.items())
        files[name] = {**entry, "sha256": old["sha256"] if same else digest_of(path)}
    write_json(folder / MANIFEST, {**environment(), "files": files})


def seal_if_free(folder: Path) -> None:
    """The same after a command has written something; a training that holds the run will do it."""
    try:
        with hold(folder):
            seal(folder)
    except InputError:
        return


def known(folder: Path) -> dict[str, Any]:
    """The files of a manifest."""
    path = folder / MANIFEST
    return check(Manifest, read_json(path), path)["files"]


def verify(run: Run) -> list[Finding]:
    """What became of every file of a run, by its manifest, and by what files know of themselves."""
    recorded = known(run.folder) if (run.folder / MANIFEST).is_file() else {}
    present = {path.relative_to(run.folder).as_posix() for path in contents(run.folder)}
    names = sorted(name for name in present | set(recorded) if not name.startswith(FREE))
    return [verified(run, name, recorded) for name in names if not draft_of(Path(name).name)]


def verified(run: Run, name: str, recorded: dict[str, Any]) -> Finding:
    """What became of a file."""
    path, entry = run.folder / name, recorded.get(name)
    if not path.is_file():
        return Finding(name, "missing", remedy(run, name))
    if entry and path.stat().st_size == entry["bytes"] and digest_of(path) == entry["sha256"]:
        return Finding(name, "ok")
    sealed = (run.folder / MANIFEST).stat().st_mtime_ns if recorded else 0
    stat = path.stat()  # a file that got another name has changed, too
    if max(stat.st_mtime_ns, stat.st_ctime_ns) >= sealed and sound(run, name):
        return Finding(name, "newer", "written after the manifest, and whole" if recorded else "")
    return Finding(name, "damaged", remedy(run, name))


def sound(run: Run, name: str) -> bool:
    """Whether a file is whole by what it knows of itself."""
    path = run.folder / name
    if path.suffix in (".ckpt", ".npz"):
        return checkpoints.intact(path)
    tests: dict[str, Callable[[], Any]] = {
        "config.toml": lambda: run.config,
        "metrics.csv": lambda: is_table(path),
        "data.json": lambda: run.facts,
        "environment.json": lambda: run.environment,
        "evaluation.json": lambda: run.evaluation,
        f"model/{CONFIG}": lambda: load(run.folder / "model"),
        f"model/{WEIGHTS}": lambda: load(run.folder / "model"),
    }
    try:
        return name in tests and tests[name]() is not False
    except ValueError:
        return False


def is_table(path: Path) -> bool:
    """Whether all rows of a table are as long as its header."""
    with path.open(newline="") as stream:
        return len({len(row) for row in csv.reader(stream)}) == 1


def remedy(run: Run, name: str) -> str:
    """What can be done about a file that is lost."""
    folder, inner = run.folder / "checkpoints", Path(name).name
    again = f"infocnf train --resume --out {run.folder}"
    if inner == checkpoints.LAST and checkpoints.intact(folder / checkpoints.PREVIOUS):
        return f"'{again}' goes on from {checkpoints.PREVIOUS}, which is whole"
    if inner in (checkpoints.PREVIOUS, checkpoints.BEST, checkpoints.DAMAGED):
        return "nothing else needs it"
    if name.startswith("model/") or name == "metrics.csv":
        source = checkpoints.BEST if name.startswith("model/") else checkpoints.LAST
        if checkpoints.intact(folder / source):
            return f"'{again}' restores it from checkpoints/{source}"
    made = {"evaluation": "evaluate", "report": "report", "samples": "sample"}
    for start, command in made.items():
        if name.startswith(start):
            return f"'infocnf {command} {run.folder}' makes it again"
    if name == "environment.json":
        return "only a report needs it"
    return "copy it from a backup, or train again"
