r"""A tolerance that follows a target: so many evaluations, or so large an error. No learning, one
integrating controller:

.. math:: \log \tau \leftarrow \log \tau + g \log \frac{\mathrm{NFE}}{\mathrm{NFE}^*}
    \qquad \text{or} \qquad
    \log \tau \leftarrow \log \tau - \tfrac{g}{5} \log \frac{\epsilon}{\epsilon^*} .

Evaluations go about as :math:`\tau^{-1/5}` and errors as :math:`\tau`, so both close the same
fraction :math:`g / 5` of a gap per step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from infocnf.tolerances.feedback import MEASURED, Diary, measured
from infocnf.tolerances.policies import Choice, Policy, Survey, check_bounds, check_tolerance

__all__ = ["Budget"]

ORDER = 5.0  # of the method for which the gain is meant; others close gaps somewhat slower


class Budget(Policy):
    """One tolerance for all blocks, steered so that the forward evaluations per sample, or the
    error of log p, hold a target.

    Arguments:
        nfe: Target of the mean forward evaluations per sample and step of training.
        error: Target of the mean error of log p in bits per dimension, instead.
        start: First tolerance.
        gain: The gain :math:`g`; stable below 10.
        smallest: Lower bound of the tolerance.
        largest: Upper bound.
        reference: Tolerance of the tight solves from which errors are measured.
        every: Steps between two measurements.
        samples: Samples measured.
    """

    log_tolerance: Tensor

    def __init__(
        self,
        nfe: float | None = None,
        error: float | None = None,
        *,
        start: float = 1e-4,
        gain: float = 1.0,
        smallest: float = 1e-6,
        largest: float = 1e-2,
        reference: float = 1e-5,
        every: int = 4,
        samples: int = 16,
    ) -> None:
        super().__init__()
        if (nfe is None) == (error is None):
            raise ValueError("give one target: nfe (evaluations) or error (bits per dimension)")
        target = nfe if error is None else error
        if not (target is not None and math.isfinite(target) and target > 0):
            raise ValueError(f"the target must be positive and finite, got {target}")
        if not 0.0 < gain < 10.0:
            raise ValueError(f"gain must be between 0 and 10, got {gain}")
        self.nfe, self.error, self.gain = nfe, error, float(gain)
        self.bounds, self.start = check_bounds(smallest, largest), check_tolerance(start)
        self.survey = None if error is None else Survey(reference, every, samples)
        self.diary = None if self.survey is None else Diary(self.survey)
        self._measuring = {"reference": reference, "every": every, "samples": samples}
        first = torch.tensor(math.log(start), dtype=torch.float64)
        self.register_buffer("log_tolerance", first)

    def forward(self, block: int, features: Tensor, seeds: Tensor | None = None) -> Choice:
        smallest, largest = self.bounds
        return Choice(min(max(math.exp(self.log_tolerance), smallest), largest))

    def begin_step(self, progress: float) -> None:
        if self.diary is not None:
            self.diary.begin_step()

    @property
    def due(self) -> bool:
        return self.diary is not None and self.diary.due

    @property
    def figures(self) -> tuple[str, ...]:
        return () if self.diary is None else MEASURED

    def end_step(self, figures: Mapping[str, float]) -> None:
        change = 0.0
        if self.nfe is not None:
            change = self.gain * math.log(figures["forward"] / self.nfe)
        elif self.diary is not None and self.error is not None and self.diary.end_step(figures):
            tiny = torch.finfo(torch.float64).tiny
            found = max(figures["error"] / figures["measured"], tiny)
            change = -self.gain / ORDER * math.log(found / self.error)
        smallest, largest = (math.log(bound) for bound in self.bounds)
        self.log_tolerance += max(min(change, 1.0), -1.0)
        self.log_tolerance.clamp_(smallest, largest)

    def report(self, means: Mapping[str, float | None]) -> dict[str, float | None]:
        return {} if self.diary is None else measured(means)

    def config(self) -> dict[str, Any]:
        target = {"nfe": self.nfe} if self.error is None else {"error": self.error}
        smallest, largest = self.bounds
        return {
            "name": "budget",
            **target,
            "start": self.start,
            "gain": self.gain,
            "smallest": smallest,
            "largest": largest,
            **self._measuring,
        }
