"""Labels as users give them: one for all or one each, by name where there are several factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from infocnf.models.factors import Categorical, Factor, Real

__all__ = ["Labelled", "Labels", "check_factors", "name_labels"]

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

    def named(self, y: Labels | None) -> dict[str, Tensor]:
        """Labels of any shape by factor name, checked."""
        return name_labels(self.factors, y, self.device)

    def single(self, values: dict[str, Any]) -> Any:  # noqa: ANN401
        """The only value where there is one factor, else all by name."""
        return next(iter(values.values())) if len(values) == 1 else values


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
