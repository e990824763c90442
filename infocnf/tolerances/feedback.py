"""What policies that watch their own steps share: when the error of log p is measured, and what was
found.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from infocnf.tolerances.policies import Survey

__all__ = ["MEASURED", "Diary", "measured"]

MEASURED = ("measured", "error", "reference")
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
        "nfe_measuring": means.get("reference"),
    }


class Diary(nn.Module):
    """Counts the steps and keeps moving averages of what was measured.

    Arguments:
        survey: How errors are measured.
        decay: Decay of the moving averages per measurement.
    """

    steps: Tensor
    weight: Tensor
    totals: Tensor

    def __init__(self, survey: Survey, decay: float = 0.9) -> None:
        super().__init__()
        self.survey, self.decay = survey, decay
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64))
        self.register_buffer("totals", torch.zeros(2, dtype=torch.float64))

    def begin_step(self) -> None:
        """Count a step."""
        self.steps += 1

    @property
    def due(self) -> bool:
        """Whether this step is one of measurement: the first, and every so many after it."""
        return (max(int(self.steps), 1) - 1) % self.survey.every == 0

    def end_step(self, figures: Mapping[str, float]) -> bool:
        """Enter what a step measured, if it did."""
        share = figures.get("measured", 0.0)
        if not share:
            return False
        found = torch.tensor([figures[name] / share for name in MEASURED[1:]]).to(self.totals)
        self.totals.lerp_(found, 1.0 - self.decay)
        self.weight.lerp_(torch.ones_like(self.weight), 1.0 - self.decay)
        return True

    @property
    def error(self) -> float:
        """Mean error of log p in bits per dimension; NaN before the first measurement."""
        return float(self.totals[0] / self.weight)

    @property
    def reference(self) -> float:
        """Mean evaluations per sample at the reference tolerance; NaN before the first."""
        return float(self.totals[1] / self.weight)
