"""A run directory: everything about one training, and the way to begin or continue it.

config.toml        what was asked for, in full
environment.json   versions, machine, command
data.json          which examples, splits.npz says how they were divided
metrics.csv        one row per epoch; events.* for TensorBoard
checkpoints/       last.ckpt, previous.ckpt, best.ckpt
model/             config.json, model.safetensors
"""

from __future__ import annotations

import io
import json
import logging
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy

from infocnf.data import Dataset, Preparation
from infocnf.errors import InputError
from infocnf.files import write, write_json
from infocnf.models import InfoCNF, load
from infocnf.processes import is_leader
from infocnf.training.build import build_data, build_model
from infocnf.training.callbacks import Journal, Keeper
from infocnf.training.checkpoints import SafeCheckpoints, latest, set_aside
from infocnf.training.config import Config
from infocnf.training.module import FlowModule
from infocnf.training.settings import apply_settings, parse_config, read_tables, to_toml

__all__ = ["Run", "begin", "resume"]

PACKAGES = ("infocnf", "torch", "lightning", "numpy", "pydantic", "scikit-learn", "torchmetrics")
CHANGEABLE = ("training.epochs", "trainer.", "evaluation.")


class SummedGradients(DDPStrategy):
    """Lightning's processes and their communication; the module adds up gradients itself, once per
    step.

    PyTorch's wrapper would average over processes after each backward pass. A step here is made of
    several, over shares that differ where examples failed, and must be given up everywhere alike.
    """

    def configure_ddp(self) -> None:
        """Begin with the same weights everywhere, without the wrapper."""
        assert self.model is not None
        for tensor in self.model.state_dict().values():
            torch.distributed.broadcast(tensor, src=0)


@dataclass(frozen=True)
class Run:
    """A run directory.

    Arguments:
        folder: Where it is.
    """

    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """A directory that holds a run, or an error that says what is missing."""
        run = cls(Path(folder))
        if not run.folder.is_dir():
            raise InputError(f"{folder} does not exist: train first, or name a run directory")
        if not (run.folder / "config.toml").is_file():
            raise InputError(f"{folder} is not a run directory: it has no config.toml")
        return run

    @property
    def config(self) -> Config:
        """What was asked for."""
        source = str(self.folder / "config.toml")
        return parse_config(read_tables(source), source)

    def model(self, exact_trace: bool = False) -> InfoCNF:
        """The model it kept, in evaluation mode; on request with exact traces, which cost as many
        times more as a block has dimensions.
        """
        if not (self.folder / "model" / "config.json").is_file():
            raise InputError(
                f"{self.folder} has no model yet: let it train to its first validation, "
                f"or continue it with 'infocnf train --resume --out {self.folder}'"
            )
        try:
            model = load(self.folder / "model").eval()
        except ValueError as error:
            raise InputError(str(error)) from None
        for block in model.flow.blocks:
            block.exact = block.exact or exact_trace
        return model

    @property
    def facts(self) -> dict[str, Any]:
        """What was recorded of its data."""
        path = self.folder / "data.json"
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error})") from None

    @property
    def preparation(self) -> Preparation:
        """How examples become what the model reads."""
        saved = self.facts["preparation"]
        return Preparation(
            saved["levels"], saved["flip"], tuple(saved["mean"]), tuple(saved["scale"])
        )

    def data(self) -> Dataset:
        """Its examples, the same as in training."""
        data = build_data(self.config)
        if data.describe()["sha256"] != self.facts["sha256"]:
            raise InputError(
                f"{data.name} is not what {self.folder} was trained on: its content has changed"
            )
        return data


def begin(
    config: Config, folder: Path, *, overwrite: bool = False, callbacks: Sequence[Callback] = ()
) -> Run:
    """Train from the beginning, into a directory that is new or may be overwritten."""
    run, data = Run(folder), build_data(config)
    model = build_model(config, data)
    check_parts(config, data)
    if is_leader():
        claim(folder, overwrite)
        describe(run, config, data)
    fit(run, config, model, data, callbacks, checkpoint=None)
    return run


def resume(
    folder: Path, settings: Sequence[str] = (), *, callbacks: Sequence[Callback] = ()
) -> Run:
    """Continue a run from its last checkpoint, to the weights it would have had uninterrupted."""
    run = Run.open(folder)
    config = run.config
    if settings:
        fixed = [s for s in settings if not s.startswith(CHANGEABLE)]
        if fixed:
            raise InputError(
                f"{fixed[0]!r} cannot change in a run that has begun: start a new one with --out"
            )
        config = parse_config(apply_settings(config.model_dump(), settings), str(folder))
    checkpoint = latest(folder / "checkpoints")
    data = run.data()
    model = build_model(config, data)
    if is_leader():
        set_aside(folder / "checkpoints")
    if is_leader() and settings:
        write(folder / "config.toml", to_toml(config).encode())
    fit(run, config, model, data, callbacks, checkpoint)
    return run


def claim(folder: Path, overwrite: bool) -> None:
    """Make the directory; what is there is removed only where it is a run and may be."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: choose another --out")
    if folder.is_dir() and any(folder.iterdir()):
        if not overwrite:
            raise InputError(
                f"{folder} exists: continue it with --resume, replace it with --overwrite, "
                "or choose another --out"
            )
        if not (folder / "config.toml").is_file():
            raise InputError(f"{folder} is not a run directory, it will not be overwritten")
        shutil.rmtree(folder)
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be made ({error.strerror}): choose another --out"
        ) from None


def check_parts(config: Config, data: Dataset) -> None:
    """Refuse columns without a density, and more processes than there are examples to share."""
    _ = data.preparation
    world = config.trainer.devices * config.trainer.nodes
    if len(data.parts["validation"]) < world:
        raise InputError(f"{world} processes cannot share {len(data.parts['validation'])} examples")


def describe(run: Run, config: Config, data: Dataset) -> None:
    """Write what the run is before it begins."""
    preparation = data.preparation
    facts = {
        **data.describe(),
        "preparation": {
            "levels": preparation.levels,
            "flip": preparation.flip,
            "mean": list(preparation.mean),
            "scale": list(preparation.scale),
        },
    }
    content = io.BytesIO()
    np.savez_compressed(content, **data.parts)  # type: ignore[arg-type]
    write(run.folder / "splits.npz", content.getvalue())
    write_json(run.folder / "data.json", facts)
    write_json(run.folder / "environment.json", environment())
    write(run.folder / "config.toml", to_toml(config).encode())  # last: with it, it is a run


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


def fit(
    run: Run,
    config: Config,
    model: InfoCNF,
    data: Dataset,
    callbacks: Sequence[Callback],
    checkpoint: Path | None,
) -> None:
    """Train until the last epoch."""
    world = config.trainer.devices * config.trainer.nodes
    if config.trainer.threads or world > 1:
        share = max(1, (os.cpu_count() or 1) // config.trainer.devices)
        torch.set_num_threads(config.trainer.threads or share)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    module = FlowModule(config, model, data, run.folder / "checkpoints")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        trainer = Trainer(
            accelerator=config.trainer.accelerator,
            devices=config.trainer.devices,
            num_nodes=config.trainer.nodes,
            strategy=SummedGradients() if world > 1 else "auto",
            max_epochs=config.training.epochs,
            num_sanity_val_steps=0,
            callbacks=[*callbacks, Journal(run.folder / "metrics.csv"), Keeper(run.folder)],
            logger=TensorBoardLogger(run.folder, name="", version=""),
            plugins=[SafeCheckpoints()],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            inference_mode=False,
            default_root_dir=run.folder,
        )
        trainer.fit(module, ckpt_path=checkpoint, weights_only=True)
