"""The model of a configuration for its data."""

from __future__ import annotations

import logging
import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from infocnf.data import Dataset, load_data, spread_over
from infocnf.data.dataset import marginal_tables
from infocnf.errors import InputError, shown
from infocnf.flows.architectures import fit_marginals, fit_whitening, squeezed
from infocnf.models import InfoCNF, LatentODE, PartitionedModel
from infocnf.models.pretrained import default_dtype
from infocnf.random import combine_seeds
from infocnf.runs.config import Config, ModelConfig, Recipe
from infocnf.tolerances import policy_from_config

__all__ = ["build_data", "build_model", "settle"]

COPIES = 6  # of weights: gradient, two moments, average, what a roll-back would go back to
MANY_BLOCKS = 50
MANY = 20_000  # images that are worth a wide field
APART = 11.0  # standard deviations between the patterns of two labels
WHITENED = 5000  # training examples by which patches are whitened
DEAR_TRACE = 64  # products of an exact trace
log = logging.getLogger("infocnf")


def build_data(config: Config) -> Dataset:
    """The examples of a run."""
    if config.data.name == "own" and config.data.path is None:
        raise InputError("this preset is for your own data: give --data PATH")
    data = load_data(**config.data.model_dump())
    if config.data.path is not None:
        check_classes(data)
    return data


def check_classes(data: Dataset) -> None:
    """Refuse classes of a user's own that training would never meet."""
    for name, classes in data.raw.classes.items():
        known = data.raw.labels[name]
        for number, label in enumerate(classes):
            if not (known[data.parts["train"]] == number).any():
                raise InputError(
                    f"{name} {label!r} has {int((known == number).sum())} examples, none of them "
                    "to train on: bring more, leave it out, or change data.test, data.validation"
                )


def settle(config: Config, data: Dataset) -> Config:
    """The configuration with as many epochs as give the steps it wants at least, in a precision
    that is fast here, with a model of the data's size, and with paths that hold from anywhere.
    """
    paths = config.data.model_dump(include={"path", "directory"})
    absolute = {k: str(Path(path).expanduser().absolute()) for k, path in paths.items() if path}

    def settled(recipe: Recipe) -> Recipe:
        steps = -(-len(data.parts["train"]) // recipe.batch_size)
        epochs = max(recipe.epochs, -(-recipe.min_steps // steps))
        return recipe.model_copy(update={"epochs": epochs})

    return config.model_copy(
        update={
            "matching": settled(config.matching).model_copy(
                update={"precision": fast_precision(config.matching.precision)}
            ),
            "training": settled(config.training),
            "model": sized(config.model, data),
            "data": config.data.model_copy(update=absolute),
        }
    )


def sized(model: ModelConfig, data: Dataset) -> ModelConfig:
    r"""The model with what it leaves to the size of the data: widths, and how far labels are apart.

    Two patterns of :math:`\pm m` differ in about half of the :math:`D_y` dimensions that know the
    label, and so lie :math:`\sqrt{2 D_y}\, m` apart. That is what tells them from noise, whatever
    the size of an image.
    """
    found: dict[str, Any] = {}
    if not (model.hidden or data.raw.is_series):
        found["hidden"] = widths_for(data.shape, len(data.parts["train"]))
    if model.separation == "auto":
        own = max(1, round(model.supervised * math.prod(data.shape)))
        found["separation"] = round(APART / math.sqrt(2.0 * own), 3)
    return model.model_copy(update=found)


def fast_precision(precision: str) -> str:
    """A precision that was left open: bfloat16 where this machine multiplies in it."""
    if precision != "auto":
        return precision
    if torch.cuda.is_available():
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return "bfloat16" if able.get("avx512_bf16") or able.get("amx_bf16") else "float32"


def build_model(config: Config, data: Dataset) -> PartitionedModel:
    """A fresh model for the shape and the labels of the data."""
    check_kind(config, data)
    if data.raw.is_series:
        return build_latent_ode(config, data)
    arguments = sized(config.model, data).model_dump()
    check_memory(config.model.blocks, arguments["hidden"], data.shape)
    tables = marginal_tables(data) if arguments["marginals"] else None
    arguments["marginals"] = tables[1].shape[1] if tables else 0
    with default_dtype(getattr(torch, config.training.precision)):
        torch.manual_seed(int(combine_seeds(config.training.seed)) % 2**63)
        try:
            model = InfoCNF(
                data.shape,
                data.factors if data.raw.labels else {},
                tolerance=config.evaluation.tolerance,
                training_tolerance=policy_from_config(config.tolerance),
                **arguments,
            )
            if "matching" in config.training.stages:
                check_matching(model, arguments["separation"])
        except (ValueError, TypeError) as error:
            raise InputError(f"this model cannot be built for {data.name}: {error}") from None
    if tables:
        fit_marginals(model.flow, *tables)
    if config.model.whiten:
        some, _ = spread_over(*data.examples("train"), WHITENED)
        fit_whitening(model.flow, data.preparation(some, model.dtype))
    warn_of_cost(model)
    return model


def check_memory(blocks: int, hidden: list[int], shape: tuple[int, ...]) -> None:
    """Refuse a model that this machine cannot hold, before it is built: by about how many numbers
    its layers have, and the copies of them that training makes.
    """
    kernel = 9 if len(shape) == 3 else 1
    widths = [shape[0], *hidden, shape[0]]
    numbers = blocks * kernel * sum(a * b for a, b in pairwise(widths))
    needed = float(COPIES * 4 * numbers)
    there = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if needed > there:
        raise InputError(
            f"model.blocks={blocks} of model.hidden={shown(hidden)} are at least {numbers:.1e} "
            f"weights, and training them takes {needed / 2**30:,.0f} GB of memory, of which this "
            f"machine has {there / 2**30:.0f}: lower either"
        )


def warn_of_cost(model: InfoCNF) -> None:
    """Say what makes each step of training slow."""
    blocks = model.blocks
    if len(blocks) > MANY_BLOCKS:
        log.warning("%d continuous blocks: every step solves as many equations", len(blocks))
    dear = max((block.exact_products for block in blocks if block.exact), default=0)
    if dear > DEAR_TRACE:
        log.warning(
            "exact traces take %d products with the Jacobian at every evaluation: a step may take "
            "as many times the time of trace=hutchinson",
            dear,
        )


def widths_for(shape: tuple[int, ...], examples: int) -> list[int]:
    """Widths of a field that nobody chose: for images those of a U-Net, twice as wide for many of
    them, whose resolutions end when they have four pixels a side.

    >>> [widths_for((3, side, side), 1000) for side in (8, 14, 32)]
    [[32], [32, 64], [32, 64, 128]]
    >>> widths_for((3, 32, 32), 50_000), widths_for((2,), 1000)
    ([64, 128, 256], [64, 64, 64])
    """
    if len(shape) != 3:
        return [64, 64, 64]
    side = min(squeezed(shape)[1:])
    resolutions = 1 + max(0, math.ceil(math.log2(side / 4)))
    return [(64 if examples >= MANY else 32) * 2**i for i in range(min(resolutions, 3))]


def check_kind(config: Config, data: Dataset) -> None:
    """Refuse a recipe for series on other data, and other recipes on series."""
    if data.raw.is_series and config.training.stages != ["variational"]:
        raise InputError(
            f"{data.name} holds series, which need the preset 'series' (or 'spirals'), or "
            'training.stages=["variational"]'
        )
    if not data.raw.is_series and config.training.stages == ["variational"]:
        raise InputError(
            f"{data.name} holds no series: set data.series to the column that tells them apart, "
            "or take the preset 'own'"
        )


def build_latent_ode(config: Config, data: Dataset) -> LatentODE:
    """A fresh model of series."""
    own = config.series.model_dump(exclude={"shortest", "kl", "kl_supervised", "beta", "draws"})
    with default_dtype(getattr(torch, config.training.precision)):
        torch.manual_seed(int(combine_seeds(config.training.seed)) % 2**63)
        try:
            return LatentODE(
                data.shape[1] - 1,
                data.factors if own["supervised"] else {},
                tolerance=config.evaluation.tolerance,
                training_tolerance=policy_from_config(config.tolerance),
                **own,
            )
        except (ValueError, TypeError) as error:
            raise InputError(f"this model cannot be built for {data.name}: {error}") from None


def check_matching(model: InfoCNF, separation: float) -> None:
    """Refuse a model that matching cannot train."""
    _ = model.flow.single  # says so itself
    if model.code.heads and not separation:
        raise ValueError("matching tells labels apart by model.separation, which is 0: set it to 1")
