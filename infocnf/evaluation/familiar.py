"""What log-likelihoods are usual, so that those of new examples mean something."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Familiar"]

QUANTILES = 101


@dataclass(frozen=True)
class Familiar:
    """What log-likelihoods are usual.

    Arguments:
        mean: Their mean, in nats.
        quantiles: From the least to the largest, evenly spaced in rank.
    """

    mean: float
    quantiles: tuple[float, ...]

    @classmethod
    def of(cls, log_prob: Tensor) -> Familiar:
        """That of examples of the data."""
        values = log_prob.double()
        values = values[values.isfinite()]
        ranks = torch.linspace(0.0, 1.0, QUANTILES, dtype=torch.float64)
        return cls(float(values.mean()), tuple(torch.quantile(values, ranks).tolist()))

    @classmethod
    def told(cls, evaluation: Mapping[str, Any] | None) -> Familiar | None:
        """That of an ``evaluation.json``, if there is one."""
        found = (evaluation or {}).get("familiar")
        return cls(found["mean"], tuple(found["quantiles"])) if found else None

    def typicality(self, log_prob: Tensor) -> Tensor:
        """Distance from the mean, in nats."""
        return (log_prob - self.mean).abs()

    def percentile(self, log_prob: Tensor) -> Tensor:
        """Percent of usual examples that are less likely, in whole percents; NaN where there is no
        likelihood.
        """
        table = torch.tensor(self.quantiles, dtype=torch.float64)
        below = torch.searchsorted(table, log_prob.double().nan_to_num(nan=-math.inf), right=True)
        whole = (below.double() - 1.0).clamp(min=0.0) * (100.0 / (len(table) - 1))
        return whole.where(log_prob.isfinite(), math.nan)
