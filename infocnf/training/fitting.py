"""Begin a training in a run directory, or continue one."""

from __future__ import annotations

import io
import logging
import os
import platform
import sys
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy

from infocnf.data import Dataset
from infocnf.errors import InputError
from infocnf.files import write, write_json
from infocnf.processes import is_leader
from infocnf.training.build import build_data, build_model, settle
from infocnf.training.callbacks import Journal, Keeper, rows_of
from infocnf.training.checkpoints import SafeCheckpoints, latest, set_aside
from infocnf.training.config import Config
from infocnf.training.directory import claim, remove_drafts
from infocnf.training.module import FlowModule
from infocnf.training.run import Run
from infocnf.training.settings import apply_settings, differences, parse_config, to_toml
from infocnf.training.stages import epochs_of

__all__ = ["begin", "resume"]

PACKAGES = ("infocnf", "torch", "lightning", "numpy", "pydantic", "scikit-learn", "torchmetrics")
LARGE = 64 * 64  # pixels of an image
CHANGEABLE = ("trainer.", "evaluation.")  # and the epochs of the last stage


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


def begin(
    config: Config, folder: Path, *, overwrite: bool = False, callbacks: Sequence[Callback] = ()
) -> Run:
    """Train from the beginning, into a directory that is new or may be overwritten."""
    check_places(config, folder)
    run, data = Run(folder), build_data(config)
    config = settle(config, data)
    check_parts(config, data)
    model = build_model(config, data)
    trainer = make_trainer(run, config, callbacks)
    if is_leader():
        claim(folder, overwrite)
        describe(run, config, data)
    fit(trainer, FlowModule(config, model, data), checkpoint=None)
    return run


def resume(
    folder: Path, settings: Sequence[str] = (), *, callbacks: Sequence[Callback] = ()
) -> Run:
    """Continue a run from its last checkpoint, to the weights it would have had uninterrupted."""
    run = Run.open(folder, writing=True)
    config, checkpoint = run.config, latest(folder / "checkpoints")
    if settings:
        wanted = parse_config(apply_settings(config.model_dump(), settings), str(folder))
        last = "matching" if config.training.stages[-1] == "matching" else "training"
        may = (f"{last}.epochs", *CHANGEABLE)
        changed = [key for key in differences(config, wanted) if not key.startswith(may)]
        if changed:
            raise InputError(
                f"{changed[0]} cannot change in a run that has begun: start a new one with --out"
            )
        done = len(rows_of(checkpoint))
        if epochs_of(wanted) != epochs_of(config) and epochs_of(wanted) <= done:
            epochs = getattr(wanted, last).epochs
            raise InputError(f"{last}.epochs={epochs}: it has done {done}, want more")
        config = wanted
    data = run.data()
    check_parts(config, data)
    model = build_model(config, data)
    trainer = make_trainer(run, config, callbacks)
    if is_leader():
        set_aside(folder / "checkpoints")
        remove_drafts(folder)
        write(folder / "config.toml", to_toml(config).encode())
    fit(trainer, FlowModule(config, model, data), checkpoint)
    return run


def check_places(config: Config, folder: Path) -> None:
    """Refuse a run directory that would be taken for data, or that holds the data."""
    for place in filter(None, (config.data.path, config.data.directory)):
        there, here = Path(place).resolve(), folder.resolve()
        among = place == config.data.path and here.is_relative_to(there)  # would be a class
        if among or there.is_relative_to(here):
            what = "is inside" if among else "holds"
            raise InputError(f"{folder} {what} the data {place}: choose another --out")


def check_parts(config: Config, data: Dataset) -> None:
    """Refuse columns without a density, and more processes than there are examples to share; warn
    of images that are too large for most machines.
    """
    preparation = data.preparation  # refuses itself
    *_, height, width = (1, *data.raw.x.shape[1:])
    if preparation.is_images and height * width > LARGE:
        logging.getLogger(__name__).warning(
            "images of %dx%d pixels are slow even on a graphics card: "
            "data.size=32 makes those of a folder smaller",
            width,
            height,
        )
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
            "series": preparation.series,
        },
    }
    if preparation.series:
        times, _ = data.examples("train")
        ends = times[..., 0].double().nan_to_num(nan=-torch.inf).amax(1)
        facts["span"] = float((ends - times[:, 0, 0]).median())
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


def make_trainer(run: Run, config: Config, callbacks: Sequence[Callback]) -> Trainer:
    """Lightning's trainer for a run; nothing is written yet."""
    world = config.trainer.devices * config.trainer.nodes
    if config.trainer.threads or world > 1:
        share = max(1, (os.cpu_count() or 1) // config.trainer.devices)
        torch.set_num_threads(config.trainer.threads or share)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        return Trainer(
            accelerator=config.trainer.accelerator,
            devices=config.trainer.devices,
            num_nodes=config.trainer.nodes,
            strategy=SummedGradients() if world > 1 else "auto",
            max_epochs=epochs_of(config),
            reload_dataloaders_every_n_epochs=1,  # stages differ in their steps
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
    except (MisconfigurationException, ValueError, RuntimeError) as error:
        raise InputError(
            f"trainer.accelerator={config.trainer.accelerator}, devices={config.trainer.devices}: "
            f"{error}"
        ) from None


def fit(trainer: Trainer, module: FlowModule, checkpoint: Path | None) -> None:
    """Train until the last epoch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        trainer.fit(module, ckpt_path=checkpoint, weights_only=True)
