"""What policies that watch their own steps share: when the error of log p is measured, and what was
found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from infocnf.tolerances.policies import Survey

__all__ = ["MEASURED", "Diary", "log_ratio", "measured"]

MEASURED = ("measured", "error", "measuring")
"""Figures of a measurement: samples measured, the sum of their errors in bits per dimension, and of
the evaluations it took. Averaged over a batch these are shares of it; their ratios are means over
the samples measured.
"""


def measured(means: Mapping[str, float | None]) -> dict[str, float | None]:
    """The error of log p in bits per dimension, and the evaluations per example that measuring it
    took, of averages over an epoch.
    """
    share, error = means.get("measured") or 0.0, means.get("error")
    return {
        "log_prob_error": error / share if share and error is not None else None,
        "nfe_measuring": means.get("measuring"),
    }


def log_ratio(value: float, target: float, largest: float) -> float:
    """Logarithm of a value relative to its target, within bounds."""
    ratio = math.log(max(value, 1e-300) / target)
    return max(min(ratio, largest), -largest)


class Diary(nn.Module):
    """Counts the steps, and keeps a moving average of the evaluations that exact solves take.

    Arguments:
        survey: How errors are measured.
        decay: Decay of the moving average per measurement.
    """

    steps: Tensor
    weight: Tensor
    total: Tensor

    def __init__(self, survey: Survey, decay: float = 0.9) -> None:
        super().__init__()
        self.survey, self.decay = survey, decay
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64))
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))

    def begin_step(self) -> None:
        """Count a step."""
        self.steps += 1

    @property
    def due(self) -> bool:
        """Whether this step is one of measurement: the first, every so many after it, and as long
        as nothing could be measured.
        """
        return not self.weight or (int(self.steps) - 1) % self.survey.every == 0

    def end_step(self, figures: Mapping[str, float]) -> float | None:
        """Enter what a step measured, if it did; returns the error of log p."""
        share = figures.get("measured", 0.0)
        if not share:
            return None
        self.total += (1.0 - self.decay) * (figures["measuring"] / share - float(self.total))
        self.weight += (1.0 - self.decay) * (1.0 - float(self.weight))
        return figures["error"] / share

    @property
    def evaluations(self) -> float:
        """Mean evaluations per sample at the reference tolerance; NaN before the first
        measurement.
        """
        return float(self.total / self.weight)
