"""Begin a training in a run directory, continue one, or train in memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from infocnf.data import Dataset, Preparation, Raw
from infocnf.errors import InputError, WorkError, is_leader
from infocnf.files import write
from infocnf.models import InfoCNF
from infocnf.models.pretrained import default_dtype
from infocnf.runs import Run, checkpoints
from infocnf.runs.build import build_data, build_model, settle
from infocnf.runs.config import Config
from infocnf.runs.directory import check_data_paths, claim, describe, hold, remove_drafts
from infocnf.runs.parsing import apply_settings, differences, parse_config, to_toml
from infocnf.training.distributed import launch, part
from infocnf.training.loop import Observer, Training
from infocnf.training.stages import epochs_of

__all__ = ["begin", "fit_in_memory", "resume", "rows_in_memory"]

LARGE = 64 * 64  # pixels of an image
CHANGEABLE = ("trainer.", "evaluation.")  # and the epochs of the last stage
LEAST_VALIDATED = 20  # rows below which all of them train and validate


def begin(
    config: Config, folder: Path, *, overwrite: bool = False, observer: Observer | None = None
) -> Run:
    """Train from the beginning, into a directory that is new or may be overwritten."""
    check_data_paths(config, folder)
    data = build_data(config)
    config = settle(config, data)
    check_parts(config, data)
    model = build_model(config, data)
    fabric = launch(config.trainer)
    with hold(folder) if is_leader() else nullcontext():
        if is_leader():
            claim(folder, overwrite)
            describe(folder, config, data)
        fabric.barrier()
        Training(config, model, data, fabric, folder=folder, observer=observer).run()
        part(fabric)
    return Run(folder)


def resume(folder: Path, settings: Sequence[str] = (), *, observer: Observer | None = None) -> Run:
    """Continue a run from its last checkpoint, to the weights it would have had uninterrupted."""
    run = Run.open(folder, writing=True, trusted=True)
    with hold(folder) if is_leader() else nullcontext():  # before it is read: others may write it
        config, path = run.config, checkpoints.latest(folder / "checkpoints")
        state = checkpoints.read(path)
        if settings:
            config = changed(config, settings, str(folder), done=len(state["rows"]))
        data = run.data()
        check_parts(config, data)
        model = build_model(config, data)
        fabric = launch(config.trainer)
        if is_leader():
            checkpoints.put_aside(folder / "checkpoints")
            remove_drafts(folder)
            write(folder / "config.toml", to_toml(config).encode())
        fabric.barrier()
        training = Training(config, model, data, fabric, folder=folder, observer=observer)
        training.load_state_dict(state)
        training.run(checkpoint=path)
        part(fabric)
    return Run(folder)  # whose configuration may have changed


def changed(config: Config, settings: Sequence[str], source: str, done: int) -> Config:
    """The configuration with what may change in a run that has so many epochs behind it."""
    wanted = parse_config(apply_settings(config.model_dump(), settings), source)
    last = "matching" if config.training.stages[-1] == "matching" else "training"
    may = (f"{last}.epochs", *CHANGEABLE)
    other = [key for key in differences(config, wanted) if not key.startswith(may)]
    if other:
        raise InputError(
            f"{other[0]} cannot change in a run that has begun: start a new one with --out"
        )
    if epochs_of(wanted) != epochs_of(config) and epochs_of(wanted) <= done:
        epochs = getattr(wanted, last).epochs
        raise InputError(f"{last}.epochs={epochs}: it has done {done}, want more")
    return wanted


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


def rows_in_memory(
    x: np.ndarray,
    labels: Mapping[str, np.ndarray],
    classes: Mapping[str, tuple[str, ...]],
    preparation: Preparation,
    *,
    validation: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """Rows with labels, of which some validate, or all where they are few."""
    order = np.random.default_rng(seed).permutation(len(x))
    count = round(validation * len(x)) if len(x) >= LEAST_VALIDATED else 0
    parts = {
        "train": order[count:],
        "validation": order[:count] if count else order,
        "test": order[:0],
    }
    columns = tuple(f"column {i}" for i in range(x.shape[1]))
    raw = Raw(x, dict(labels), dict(classes), columns=columns)
    return Dataset("rows", raw, parts, preparation)


def fit_in_memory(config: Config, data: Dataset, model: InfoCNF | None = None) -> InfoCNF:
    """A model trained on examples in memory, from the weights of another one where it is given;
    random numbers of the caller are left as they are.
    """
    with torch.random.fork_rng(devices=[]):
        if model is None:
            started = build_model(config, data)
        else:
            with default_dtype(model.dtype):
                started = InfoCNF.from_config(model.config())
            started.load_state_dict(model.state_dict())
        training = Training(config, started, data, launch(config.trainer), validate_last=True)
        training.run()
    if training.validation.mean("loss") is None:
        raise WorkError(
            "no validation example could be solved: train with fewer steps or more rows"
        )
    found = training.evaluated
    assert isinstance(found, InfoCNF)
    found.readout = training.readout
    return found.eval()
