"""The model of a configuration for its data."""

from __future__ import annotations

from pathlib import Path

import torch

from infocnf.data import Dataset, load_data
from infocnf.errors import InputError
from infocnf.models import InfoCNF
from infocnf.models.pretrained import default_dtype
from infocnf.ode.streams import combine_seeds
from infocnf.tolerances import policy_from_config
from infocnf.training.config import Config
from infocnf.training.order import Order

__all__ = ["build_data", "build_model", "settle"]


def build_data(config: Config) -> Dataset:
    """The examples of a run."""
    if config.data.name == "own" and config.data.path is None:
        raise InputError("the preset 'own' needs your data: give --data PATH")
    given = config.data.model_dump()
    flip = given.pop("flip")
    data = load_data(given.pop("name"), **given)
    return data if flip is None else data.mirrored(flip)


def settle(config: Config, data: Dataset) -> Config:
    """The configuration with as many epochs as give the steps it wants at least, and with paths
    that hold from anywhere.
    """
    training, places = config.training, config.data.model_dump(include={"path", "directory"})
    order = Order(len(data.parts["train"]), training.batch_size, training.seed)
    epochs = max(training.epochs, -(-training.min_steps // order.steps))
    absolute = {k: str(Path(place).expanduser().absolute()) for k, place in places.items() if place}
    return config.model_copy(
        update={
            "training": training.model_copy(update={"epochs": epochs}),
            "data": config.data.model_copy(update=absolute),
        }
    )


def build_model(config: Config, data: Dataset) -> InfoCNF:
    """A fresh model for the shape and the labels of the data."""
    arguments = config.model.model_dump()
    with default_dtype(getattr(torch, config.training.precision)):
        torch.manual_seed(int(combine_seeds(config.training.seed)) % 2**63)
        try:
            return InfoCNF(
                data.shape,
                data.factors if data.raw.labels else {},
                tolerance=policy_from_config(config.tolerance),
                **arguments,
            )
        except (ValueError, TypeError) as error:
            raise InputError(f"this model cannot be built for {data.name}: {error}") from None
