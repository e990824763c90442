"""Labels as users give them: one for all or one each, by name where there are several factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from infocnf.models.factors import Categorical, Factor, Real

__all__ = ["Labelled", "Labels", "check_factors", "is_missing", "name_labels"]

Label = Tensor | float | Sequence[float]
Labels = Label | Mapping[str, Label]


def name_labels(
    factors: Mapping[str, Factor], y: Labels | None, device: torch.device
) -> dict[str, Tensor]:
    """Labels of any shape by factor name, checked; none of them for None."""
    if y is None:
        return {}
    if not isinstance(y, Mapping):
        if len(factors) != 1:
            names = ", ".join(factors)
            remedy = f"y must be a dict with keys {names}" if names else "leave out y"
            raise ValueError(f"the model has {len(factors)} factors: {remedy}")
        y = dict.fromkeys(factors, y)

    labels = {}
    for name, value in y.items():
        if name not in factors:
            known = ", ".join(factors) or "none"
            raise ValueError(
                f"y names a factor {name!r} that the model does not have; it has: {known}"
            )
        labels[name] = factors[name].check(as_numbers(name, value).to(device))

    return labels


class Labelled:
    """What models with factors do with labels."""

    factors: dict[str, Factor]

    if TYPE_CHECKING:

        @property
        def device(self) -> torch.device: ...

    def labels(self, y: Labels | None, count: int) -> dict[str, Tensor]:
        """Labels by factor name, each ``(count,)``, checked."""
        labels = self.named(y)
        for name, label in labels.items():
            if label.ndim > 1 or (label.ndim == 1 and len(label) != count):
                raise ValueError(
                    f"labels must have shape () or ({count},), got {tuple(label.shape)}"
                )
            labels[name] = label.expand(count)

        return labels

    def partial_labels(
        self, y: Labels | None, count: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The same where some labels may be missing, -1 for a class or NaN for an amount; and of
        factors that have such, which labels are known, ``(count,)``. Missing ones are filled in
        with anything.
        """
        if not isinstance(y, Mapping):
            if y is None or len(self.factors) != 1:
                return self.labels(y, count), {}
            y = dict.fromkeys(self.factors, y)
        filled, known = {}, {}
        for name, value in y.items():
            label = as_numbers(name, value).to(self.device)
            there = ~is_missing(label)
            filled[name] = label
            if not bool(there.all()):
                known[name] = there.expand(count)
                filled[name] = torch.where(there, label, torch.zeros_like(label))
        return self.labels(filled, count), known

    def named(self, y: Labels | None) -> dict[str, Tensor]:
        """Labels of any shape by factor name, checked."""
        return name_labels(self.factors, y, self.device)

    def single(self, values: dict[str, Any]) -> Any:  # noqa: ANN401
        """The only value where there is one factor, else all by name."""
        return next(iter(values.values())) if len(values) == 1 else values


def is_missing(labels: Tensor) -> Tensor:
    """Which labels are not known: those that are NaN, or -1 where they are whole numbers."""
    return labels.isnan() if labels.is_floating_point() else labels == -1


def as_numbers(name: str, value: Label) -> Tensor:
    """Labels as a tensor; of Python's numbers in double precision, lest they lose digits."""
    if isinstance(value, Tensor):
        return value
    try:
        return torch.from_numpy(np.array(value, dtype=np.float64))
    except (TypeError, ValueError):
        raise ValueError(f"labels of {name!r} must be numbers, got {value!r}") from None


def check_factors(factors: Mapping[str, Factor]) -> dict[str, Factor]:
    """Factors by name, or an error for what is not one."""
    for name, factor in factors.items():
        if not isinstance(factor, Categorical | Real):
            raise ValueError(f"factor {name!r} must be Categorical or Real, got {factor!r}")
    return dict(factors)
