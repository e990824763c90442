"""A run directory: everything about one training.

config.toml        what was asked for, in full
environment.json   versions, machine, command
data.json          which examples, splits.npz says how they were divided
metrics.csv        one row per epoch; events.* for TensorBoard
checkpoints/       last.ckpt, previous.ckpt, best.ckpt
model/             config.json, model.safetensors
manifest.json      every file with its size and digest, renewed by every command
"""

from __future__ import annotations

import io
import logging
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from infocnf.data import Dataset, Preparation
from infocnf.errors import InputError, cut
from infocnf.files import digest_of, write, write_json
from infocnf.models import InfoCNF, LatentODE, PartitionedModel, load
from infocnf.models.pretrained import bundled
from infocnf.runs.build import build_data
from infocnf.runs.checkpoints import BEST, DAMAGED, LAST, PREVIOUS
from infocnf.runs.config import Config
from infocnf.runs.parsing import parse_config, read_tables, to_toml
from infocnf.runs.records import (
    Environment,
    Facts,
    FlowMetrics,
    SeriesMetrics,
    check,
    read_json,
)
from infocnf.tolerances import policy_class

__all__ = ["Run", "check_data_paths", "claim", "describe", "hold", "remove_drafts"]

LARGE = 256  # dimensions whose exact trace a person waits for


@dataclass(frozen=True)
class Run:
    """A run directory.

    Arguments:
        folder: Where it is.
    """

    folder: Path

    @classmethod
    def open(cls, folder: str | Path, *, writing: bool = False, trusted: bool = False) -> Run:
        """A directory that holds a run, or the name of one that comes with the package and is not
        written to; else an error that says what is missing. One that is ``trusted`` may name a
        tolerance policy of one's own to be imported.
        """
        own = bundled(folder)
        if own is not None:
            if writing:
                raise InputError(
                    f"{folder} comes with the package and stays as it is: predict with it and "
                    f"sample from it, or train one of your own with 'infocnf train {folder}'"
                )
            return cls(own)
        run = cls(Path(folder))
        if not run.folder.is_dir():
            raise InputError(f"{folder} does not exist: train first, or name a run directory")
        if not (run.folder / "config.toml").is_file():
            raise InputError(
                f"{folder} is not a run directory (it has no config.toml): name one that "
                "'infocnf train' wrote"
            )
        if trusted:
            policy = read_tables(str(run.folder / "config.toml")).get("tolerance")
            if isinstance(policy, dict) and ":" in str(policy.get("name")):
                try:
                    policy_class(policy["name"], trusted=True)
                except ValueError as error:
                    raise InputError(str(error)) from None
        return run

    @cached_property
    def config(self) -> Config:
        """What was asked for."""
        source = str(self.folder / "config.toml")
        return parse_config(read_tables(source), source)

    def model(self, exact_trace: bool = False) -> InfoCNF:
        """The flow it kept, in evaluation mode; on request with exact traces, which cost as many
        times more as a block has dimensions.
        """
        model = self.any_model(**({"trace": "exact"} if exact_trace and not self.is_series else {}))
        if not isinstance(model, InfoCNF):
            raise InputError(f"{self.folder} holds a model of series: this is for images and rows")
        if exact_trace and model.dimensions > LARGE:
            logging.getLogger(__name__).warning(
                "exact traces of %d dimensions: expect %d times the usual time",
                model.dimensions,
                model.dimensions,
            )
        return model

    @property
    def is_series(self) -> bool:
        """Whether it is a run of series."""
        return self.config.training.stages == ["variational"]

    def latent_ode(self) -> LatentODE:
        """The model of series it kept, in evaluation mode."""
        model = self.any_model()
        if not isinstance(model, LatentODE):
            raise InputError(f"{self.folder} holds no model of series")
        return model

    def any_model(self, **changes: Any) -> PartitionedModel:  # noqa: ANN401
        """The model it kept; arguments may be changed."""
        if not (self.folder / "model" / "config.json").is_file():
            raise InputError(
                f"{self.folder} has no model yet: let it train to its first validation, "
                f"or continue it with 'infocnf train --resume --out {self.folder}'"
            )
        try:
            return load(self.folder / "model", **changes)
        except ValueError as error:
            raise InputError(str(error)) from None

    @property
    def model_digest(self) -> str:
        """Digest of the weights it kept."""
        return digest_of(self.folder / "model" / "model.safetensors")

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What was recorded of its data."""
        path = self.folder / "data.json"
        return check(Facts, read_json(path), path)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Where and how it ran."""
        path = self.folder / "environment.json"
        return check(Environment, read_json(path), path)

    @cached_property
    def preparation(self) -> Preparation:
        """How examples become what the model reads."""
        saved = self.facts["preparation"]
        return Preparation(
            saved["levels"],
            saved["flip"],
            tuple(saved["mean"]),
            tuple(saved["scale"]),
            saved["series"],
        )

    def data(self) -> Dataset:
        """Its examples, the same as in training."""
        try:
            data = build_data(self.config)
        except InputError as error:
            raise InputError(
                f"{error} (the data of {self.folder}; data.path and data.directory in its "
                "config.toml say where it was)"
            ) from None
        if data.describe()["sha256"] != self.facts["sha256"]:
            raise InputError(
                f"{data.name} is not what {self.folder} was trained on: its content, classes or "
                "division has changed; restore it, or train again"
            )
        return data

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """``evaluation.json``, if the model it kept was evaluated."""
        path = self.folder / "evaluation.json"
        if not path.is_file():
            return None
        found = read_json(path)
        for old, new in (("read", "readout"), ("familiar", "reference_likelihood")):
            if old in found:  # of an earlier version
                found[new] = found.pop(old)
        if found.get("model_sha256") != self.model_digest:
            return None
        return check(SeriesMetrics if self.is_series else FlowMetrics, found, path)


LOCK, HOLDER = ".lock", ".holder"
BEGUN = ("splits.npz", "data.json", "environment.json", "config.toml")  # in the order of writing
FILES = re.compile(
    r"(splits\.npz|(data|environment|evaluation[a-z-]*)\.json|config\.toml|metrics\.csv|"
    r"samples\.(png|csv)|report\.html|hparams\.yaml|events\.out\.tfevents\..*|"
    r"manifest\.json|\.lock|\.holder)"
)
INNER = {
    "checkpoints": re.compile("|".join(map(re.escape, (LAST, PREVIOUS, BEST, DAMAGED)))),
    "model": re.compile(r"config\.json|model\.safetensors"),
}


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keep a run directory, which is made, to this process; another one is told whose it is. The
    system lets go of it whatever becomes of the process.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: choose another --out")
    lock, holder = FileLock(folder / LOCK), folder / HOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        who = holder.read_text() if holder.is_file() else "another process"
        raise InputError(
            f"{folder} is in use by {cut(who.strip())}: wait for it, or choose another --out"
        ) from None
    except OSError as error:
        raise InputError(
            f"{folder} cannot be used ({error.strerror}): choose another --out"
        ) from None
    try:
        words = " ".join(sys.argv)
        write(holder, f"process {os.getpid()} on {platform.node()}, {words!r}\n".encode())
        yield
    finally:
        holder.unlink(missing_ok=True)
        (folder / LOCK).unlink(missing_ok=True)
        lock.release()


def claim(folder: Path, overwrite: bool) -> None:
    """Empty a directory that is held; what is there is removed only where it is a run, and nothing
    else.
    """
    held = {folder / LOCK, folder / HOLDER}
    try:
        if set(folder.iterdir()) - held:
            if not overwrite:
                raise InputError(
                    f"{folder} exists: continue it with --resume, replace it with --overwrite, "
                    "or choose another --out"
                )
            check_run(folder)
            for path in set(contents(folder)) - held:
                path.unlink()
        (folder / "checkpoints").mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be used ({error.strerror}): choose another --out"
        ) from None


def check_run(folder: Path) -> None:
    """Refuse a directory that is not a run, or holds something that is not of one."""
    known = set(contents(folder))
    inner = {folder / name for name in INNER}
    for path in (*folder.iterdir(), *(p for name in INNER for p in (folder / name).glob("*"))):
        if path not in known and not (path in inner and path.is_dir() and not path.is_symlink()):
            raise InputError(
                f"{folder} holds {str(path.relative_to(folder))!r}, which is not of a run: it will "
                "not be overwritten"
            )
    config = folder / "config.toml"
    if config.is_file():
        tables = read_tables(str(config))
        tables.pop("tolerance", None)  # a policy of a stranger's is not imported to be deleted
        parse_config(tables, str(config))
    elif not {p.name for p in known if not draft_of(p.name)} <= {*BEGUN, LOCK, HOLDER}:
        raise InputError(f"{folder} is not a run directory: it will not be overwritten")


def contents(folder: Path) -> Iterator[Path]:
    """The files of a run, and what a kill left half written."""
    places = [(folder, FILES), *((folder / name, names) for name, names in INNER.items())]
    for place, names in places:
        for path in place.iterdir() if place.is_dir() else ():
            if path.is_file() and names.fullmatch(draft_of(path.name) or path.name):
                yield path


def draft_of(name: str) -> str | None:
    """The file that a draft was to become; None for other names."""
    found = re.fullmatch(r"\.(.+)\.\d+", name)
    return found.group(1) if found else None


def remove_drafts(folder: Path) -> None:
    """Remove what a kill left half written."""
    for path in contents(folder):
        if draft_of(path.name):
            path.unlink()


PACKAGES = (
    "infocnf",
    "torch",
    "lightning-fabric",
    "numpy",
    "pydantic",
    "scikit-learn",
    "torchmetrics",
)


def check_data_paths(config: Config, folder: Path) -> None:
    """Refuse a run directory that would be taken for data, or that holds the data."""
    for path in filter(None, (config.data.path, config.data.directory)):
        there, here = Path(path).resolve(), folder.resolve()
        among = path == config.data.path and here.is_relative_to(there)  # would be a class
        if among or there.is_relative_to(here):
            what = "is inside" if among else "holds"
            raise InputError(f"{folder} {what} the data {path}: choose another --out")


def describe(folder: Path, config: Config, data: Dataset) -> None:
    """Write what the run is before it begins."""
    preparation = data.preparation
    facts = {
        **data.describe(),
        "preparation": {
            "levels": preparation.levels,
            "flip": preparation.flip,
            "mean": list(preparation.mean),
            "scale": list(preparation.scale),
            "series": preparation.series,
        },
    }
    if preparation.series:
        times, _ = data.examples("train")
        ends = times[..., 0].double().nan_to_num(nan=-torch.inf).amax(1)
        facts["span"] = float((ends - times[:, 0, 0]).median())
    content = io.BytesIO()
    np.savez_compressed(content, **data.parts)  # type: ignore[arg-type]
    write(folder / "splits.npz", content.getvalue())
    write_json(folder / "data.json", facts)
    write_json(folder / "environment.json", environment())
    write(folder / "config.toml", to_toml(config).encode())  # last: with it, it is a run


def environment() -> dict[str, Any]:
    """Versions, machine and command."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "threads": torch.get_num_threads(),
        "versions": versions,
    }
