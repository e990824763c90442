"""Examples through a trained model: prepared, in batches, those that cannot be solved set aside,
and what was measured collected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from infocnf.data import Preparation
from infocnf.models import PartitionedModel
from infocnf.ode import set_aside

__all__ = ["Columns", "Driver", "Progress", "quiet", "take"]

Columns = dict[str, Tensor]
"""What was measured, by name: a row for each example, ``(examples, ...)``."""
Measure = Callable[[Tensor, Tensor], Columns]
"""Columns of prepared examples ``(batch, ...)``, whose numbers are ``(batch,)``."""
Progress = Callable[[int], None]


def quiet(count: int) -> None:
    """Tell nobody."""


def take(labels: Mapping[str, Tensor], rows: Tensor, device: torch.device) -> dict[str, Tensor]:
    """Labels of some examples, where the model is."""
    return {name: y[rows].to(device) for name, y in labels.items()}


Model = TypeVar("Model", bound=PartitionedModel)


@dataclass(frozen=True)
class Driver(Generic[Model]):
    """How examples go through a model.

    Arguments:
        model: The model.
        preparation: How examples become what the model reads.
        batch_size: Examples solved at a time.
        progress: Told of the number of examples after each batch.
    """

    model: Model
    preparation: Preparation
    batch_size: int = 500
    progress: Progress = quiet

    @torch.no_grad()
    def collect(self, x: Tensor, measure: Measure, *, partial: bool = False) -> Columns:
        """Measure all examples as read.

        Arguments:
            x: Examples ``(examples, ...)``.
            measure: What is measured of a batch.
            partial: Whether rows of examples that cannot be solved are NaN (0 in whole numbers),
                instead of an error; no columns where none can be.
        """
        model = self.model.eval()
        found: list[tuple[Tensor, Columns]] = []
        for rows in torch.arange(len(x)).split(self.batch_size):
            prepared = self.preparation(x[rows].to(model.device), model.dtype)

            def attempt(
                kept: Tensor, _: str | None, prepared: Tensor = prepared, rows: Tensor = rows
            ) -> Columns:
                return measure(prepared[kept], rows[kept])

            if partial:
                columns, kept = set_aside(attempt, len(rows))
                if columns is not None:
                    found.append((rows[kept], columns))
            else:
                found.append((rows, measure(prepared, rows)))
            self.progress(len(rows))

        return spread(found, len(x))


def spread(parts: list[tuple[Tensor, Columns]], count: int) -> Columns:
    """Rows of all batches in the order of the examples."""
    whole: Columns = {}
    for name, like in parts[0][1].items() if parts else ():
        empty = math.nan if like.is_floating_point() else 0
        whole[name] = like.new_full((count, *like.shape[1:]), empty)
        for rows, columns in parts:
            whole[name][rows.to(like.device)] = columns[name]
    return whole
