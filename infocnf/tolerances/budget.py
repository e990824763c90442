r"""A tolerance that follows a target: so many evaluations, or so large an error. No learning, one
integrating controller:

.. math:: \log \tau \leftarrow \log \tau + g \log \frac{\mathrm{NFE}}{\mathrm{NFE}^*}
    \qquad \text{or} \qquad
    \log \tau \leftarrow \log \tau - \tfrac{g}{5} \log \frac{\epsilon}{\epsilon^*} .

Evaluations go about as :math:`\tau^{-1/q}` with :math:`q` the order of the method and errors as
:math:`\tau`, so that a fraction :math:`g / q` or :math:`g / 5` of a gap is closed per step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from infocnf.tolerances.policies import (
    MEASURED,
    Choice,
    ErrorProbe,
    MetricsLog,
    Policy,
    check_bounds,
    check_start,
    log_ratio,
    measured,
)

__all__ = ["Budget"]

ORDER = 5.0
LARGEST_GAIN = 4.0  # twice the lowest order there is: beyond, heun would swing for ever
LARGEST_CHANGE = 1.0  # of the logarithm, per step


class Budget(Policy, name="budget"):
    """One tolerance for all blocks, steered so that the forward evaluations per sample, or the
    error of log p, hold a target.

    Arguments:
        nfe: Target of the mean forward evaluations per sample, over all blocks.
        error: Target of the mean error of log p in bits per dimension, instead.
        start: First tolerance.
        gain: The gain :math:`g`.
        smallest: Lower bound of the tolerance.
        largest: Upper bound.
        reference: Tolerance of the tight solves from which errors are measured.
        every: Steps between two measurements.
        samples: Samples measured.
    """

    log_tolerance: Tensor
    probe: ErrorProbe

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
        if not 0.0 < gain < LARGEST_GAIN:
            raise ValueError(f"gain must be between 0 and {LARGEST_GAIN:g}, got {gain}")
        self.nfe, self.error, self.gain = nfe, error, float(gain)
        self.bounds = check_bounds(smallest, largest)
        self.start = check_start(start, self.bounds)
        self.probe = ErrorProbe(reference, every, samples)
        self.log = None if error is None else MetricsLog(self.probe)
        first = torch.tensor(math.log(start), dtype=torch.float64)
        self.register_buffer("log_tolerance", first)

    def forward(self, block: int, features: Tensor, seeds: Tensor | None = None) -> Choice:
        return Choice(math.exp(self.log_tolerance))

    def begin_step(self, progress: float) -> None:
        if self.log is not None:
            self.log.begin_step()

    @property
    def due(self) -> bool:
        return self.log is not None and self.log.due

    @property
    def metrics(self) -> tuple[str, ...]:
        return () if self.log is None else MEASURED

    def end_step(self, metrics: Mapping[str, float]) -> None:
        change = 0.0
        if self.nfe is not None:
            change = log_ratio(metrics["forward"], self.nfe, LARGEST_CHANGE)
        elif self.log is not None and self.error is not None:
            found = self.log.end_step(metrics)
            if found is not None:
                change = -log_ratio(found, self.error, ORDER * LARGEST_CHANGE) / ORDER
        self.log_tolerance += self.gain * change
        self.log_tolerance.clamp_(*(math.log(bound) for bound in self.bounds))

    def report(self, means: Mapping[str, float | None]) -> dict[str, float | None]:
        return {} if self.log is None else measured(means)

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
            **asdict(self.probe),
        }
