"""Samples, arranged for the eye."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infocnf.data import Preparation
from infocnf.models import Categorical, InfoCNF, LatentODE, PartitionedModel

__all__ = [
    "Grid",
    "class_grid",
    "counterfactual_grid",
    "draw_samples",
    "draw_series",
    "main_factor",
]

AT_ONCE = 1000  # samples solved at a time
TIMES = 100  # of a series that is drawn


@dataclass(frozen=True)
class Grid:
    """Images ``(rows, columns, channels, height, width)`` in [0, 1] with titles."""

    images: Tensor
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


def main_factor(model: PartitionedModel) -> str | None:
    """The first label that has classes, by which samples are arranged."""
    names = [n for n in model.code.heads if isinstance(model.factors[n], Categorical)]
    return names[0] if names else None


def turns(model: PartitionedModel, count: int, label: int | None) -> dict[str, Tensor] | None:
    """Labels of one class, or of classes in turn; None of a model that has no classes."""
    name = main_factor(model)
    if name is None:
        return None
    factor = model.factors[name]
    assert isinstance(factor, Categorical)
    turn = torch.arange(count) % factor.classes
    return {name: turn if label is None else torch.full((count,), label)}


def draw_samples(
    model: InfoCNF,
    preparation: Preparation,
    count: int,
    label: int | None = None,
    *,
    temperature: float = 1.0,
    tolerance: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] = lambda count: None,
) -> Tensor:
    """Samples in the units of the data, ``(count, ...)``: of one class, or of classes in turn;
    within a tolerance, or in so many steps.
    """
    generator = torch.Generator(model.device).manual_seed(seed)
    labels = turns(model, count, label)
    parts = []
    for chosen in torch.arange(count).split(AT_ONCE):
        y = None if labels is None else {name: values[chosen] for name, values in labels.items()}
        x = model.sample(
            len(chosen), y, temperature, tolerance=tolerance, generator=generator, steps=steps
        )
        parts.append(preparation.restore(x))
        progress(len(chosen))
    return torch.cat(parts)


def draw_series(
    model: LatentODE,
    preparation: Preparation,
    count: int,
    label: int | None = None,
    *,
    span: float,
    temperature: float = 1.0,
    seed: int = 0,
    progress: Callable[[int], None] = lambda count: None,
) -> Tensor:
    """Series without noise over a span of time, ``(count, times, 1 + channels)``, in the units of
    the data: of one class, or of classes in turn.
    """
    times = torch.linspace(0.0, float(span), TIMES, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    found = model.sample(
        count,
        times / preparation.scale[0],
        turns(model, count, label),
        temperature,
        generator=generator,
    )
    values = preparation.restore(found)
    progress(count)
    return torch.cat([times.view(1, -1, 1).expand(count, -1, 1), values], 2)


def class_grid(samples: Tensor, classes: Sequence[str], levels: int) -> Grid:
    """Samples of classes in turn, a row for each class, or several, so that the whole is nearly a
    square.
    """
    images = samples.double() / max(levels - 1, 1)
    if 0 < len(images) < len(classes):
        return Grid(images.unsqueeze(1), tuple(classes[: len(images)]))
    if classes:
        each = -(-len(images) // len(classes))
        lines = max(1, round((each / len(classes)) ** 0.5))
        columns = -(-each // lines)
        full = padded(images, columns * lines * len(classes))
        rows = full.unflatten(0, (columns, lines, len(classes))).permute(2, 1, 0, 3, 4, 5)
        titles = tuple(name if i == 0 else "" for name in classes for i in range(lines))
        return Grid(rows.flatten(0, 1), titles)
    columns = math.ceil(len(images) ** 0.5)
    rows = padded(images, -(-len(images) // columns) * columns)
    return Grid(rows.unflatten(0, (-1, columns)))


def padded(images: Tensor, count: int) -> Tensor:
    """Images with white ones after them, so many in all."""
    return torch.cat([images, images.new_ones(count - len(images), *images.shape[1:])])


def counterfactual_grid(
    model: InfoCNF,
    preparation: Preparation,
    raw: Tensor,
    classes: Mapping[str, Sequence[str]],
    tolerance: float | None = None,
) -> Grid:
    """Examples as they are (first column) and as they would be with every label: same z_u."""
    name = main_factor(model)
    assert name is not None
    x = preparation(raw, model.dtype)
    changed = [
        model.counterfactual(x, {name: torch.full((len(x),), i)}, tolerance=tolerance)
        for i in range(len(classes[name]))
    ]
    levels = max(preparation.levels - 1, 1)
    columns = [raw, *(preparation.restore(images) for images in changed)]
    images = torch.stack([column.double() for column in columns], 1) / levels
    return Grid(images, columns=("given", *classes[name]))
