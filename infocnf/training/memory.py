"""Training without a run directory: from arrays to a model, by the same steps."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from copy import deepcopy

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from infocnf.data import Dataset
from infocnf.data.dataset import Raw
from infocnf.errors import WorkError
from infocnf.models import InfoCNF
from infocnf.models.pretrained import default_dtype
from infocnf.training.build import build_model
from infocnf.training.config import Config
from infocnf.training.module import FlowModule
from infocnf.training.stages import epochs_of

__all__ = ["fit_in_memory", "rows_in_memory"]

LEAST_VALIDATED = 20  # rows below which there are none to spare


class Best(Callback):
    """The model that the validation liked best."""

    def __init__(self) -> None:
        self.model: InfoCNF | None = None
        self.loss = float("inf")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep it where it is the best so far."""
        assert isinstance(pl_module, FlowModule)
        loss = pl_module.validation.mean("loss")
        if loss is not None and pl_module.validates and loss < self.loss:
            assert isinstance(pl_module.evaluated, InfoCNF)
            self.loss, self.model = loss, deepcopy(pl_module.evaluated)
            self.model.read = pl_module.read


def rows_in_memory(
    x: np.ndarray,
    labels: Mapping[str, np.ndarray],
    classes: Mapping[str, tuple[str, ...]],
    *,
    validation: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """Rows of moderate size with labels, some of them to validate; few rows do both."""
    order = np.random.default_rng(seed).permutation(len(x))
    count = round(validation * len(x)) if len(x) >= LEAST_VALIDATED else 0
    parts = {
        "train": order[count:],
        "validation": order[:count] if count else order,
        "test": order[:0],
    }
    columns = tuple(f"column {i}" for i in range(x.shape[1]))
    raw = Raw(x, dict(labels), dict(classes), columns=columns, natural=True)
    return Dataset("rows", raw, parts)


def again(model: InfoCNF) -> InfoCNF:
    """A model with the weights of another, ready to be trained."""
    with default_dtype(model.dtype):
        fresh = InfoCNF.from_config(model.config())
    fresh.load_state_dict(model.state_dict())
    return fresh


def fit_in_memory(config: Config, data: Dataset, model: InfoCNF | None = None) -> InfoCNF:
    """A model trained on examples in memory, from the weights of another one where it is given;
    random numbers of the caller are left as they are.
    """
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    best = Best()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        started = build_model(config, data) if model is None else again(model)
        assert isinstance(started, InfoCNF)
        trainer = Trainer(
            accelerator=config.trainer.accelerator,
            max_epochs=epochs_of(config),
            check_val_every_n_epoch=epochs_of(config),
            reload_dataloaders_every_n_epochs=1,
            num_sanity_val_steps=0,
            callbacks=[best],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            inference_mode=False,
        )
        trainer.fit(FlowModule(config, started, data))
    if best.model is None:
        raise WorkError(
            "no validation example could be solved: train with fewer steps or more rows"
        )
    return best.model.eval()
