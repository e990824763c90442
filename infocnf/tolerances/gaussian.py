r"""Random tolerances: Gaussian in :math:`\log_{10} \tau`, within bounds.

.. math:: a \sim \mathcal N(\mu, \sigma^2), \qquad
    \tau = 10^{\,\mathrm{clip}(a,\; \log_{10} \tau_{\min},\; \log_{10} \tau_{\max})}

The log-probability is that of the action :math:`a` as it was drawn: clipping it belongs to what the
solver does with it, so that REINFORCE stays unbiased at the bounds.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from infocnf.ode.streams import TOLERANCE, combine_seeds, draw_uniform
from infocnf.tolerances.policies import Choice, Policy, check_bounds, check_start

__all__ = ["GaussianPolicy", "Random"]

PER = ("batch", "sample")


class GaussianPolicy(Policy):
    """What random policies share: the draw.

    Arguments:
        start: Tolerance at the centre of the (untrained) policy.
        spread: Standard deviation of its log10.
        per: ``batch``, one draw for all samples, or ``sample``, one for each, who then also has
            steps of its own.
        smallest: Lower bound of tolerances.
        largest: Upper bound.
    """

    def __init__(
        self, start: float, spread: float, per: str, smallest: float, largest: float
    ) -> None:
        super().__init__()
        self.bounds = check_bounds(smallest, largest)
        self.start = check_start(start, self.bounds)
        if not (math.isfinite(spread) and spread >= 0.0):
            raise ValueError(f"spread must not be negative, got {spread}")
        if per not in PER:
            raise ValueError(f"per must be one of {', '.join(PER)}, got {per!r}")
        self.spread, self.per = float(spread), per

    @abstractmethod
    def distribution(self, block: int, features: Tensor) -> tuple[Tensor, Tensor]:
        r"""Mean :math:`\mu` and standard deviation :math:`\sigma` of log10 tolerance: ``()``, or
        ``(batch,)`` where each sample has its own.
        """

    def forward(self, block: int, features: Tensor, seeds: Tensor | None = None) -> Choice:
        mean, spread = self.distribution(block, features)
        if not self.training or seeds is None:
            return Choice(self.tolerance(mean))

        noise = self.noise(block, seeds).to(mean)
        action = (mean + spread * noise).detach()
        log_prob = None
        if mean.requires_grad:  # of the draw, as a function of mean and spread
            log_prob = -0.5 * ((action - mean) / spread).square() - spread.log()
        return Choice(self.tolerance(action), log_prob)

    def noise(self, block: int, seeds: Tensor) -> Tensor:
        """Standard normal numbers, ``(batch,)`` or ``()``: functions of the samples' seeds, in
        whatever order they come.
        """
        if self.per == "batch":
            seeds = combine_seeds(seeds.sum().cpu()).reshape(1)
        uniform = draw_uniform(seeds, seeds.double(), stream=TOLERANCE - block)
        normal = torch.special.ndtri(uniform)
        return normal if self.per == "sample" else normal[0]

    def tolerance(self, action: Tensor) -> float | Tensor:
        """Tolerance of an action, within the bounds: a number, or one per sample."""
        smallest, largest = self.bounds
        tolerance = (10.0 ** action.detach().double()).clamp(smallest, largest)
        return tolerance if tolerance.ndim else float(tolerance)

    def common(self) -> dict[str, Any]:
        """Arguments of every random policy."""
        smallest, largest = self.bounds
        return {
            "start": self.start,
            "spread": self.spread,
            "per": self.per,
            "smallest": smallest,
            "largest": largest,
        }


class Random(GaussianPolicy):
    """The distribution of a :class:`Learned` policy before it has learnt anything: the control.

    Without spread and per sample it is a fixed tolerance under individual steps.

    Arguments:
        start: Median of the tolerances.
        spread: Standard deviation of their log10.
        per: ``batch`` or ``sample``.
        smallest: Lower bound of tolerances.
        largest: Upper bound.
    """

    def __init__(
        self,
        start: float = 1e-4,
        spread: float = 0.3,
        per: str = "batch",
        smallest: float = 1e-6,
        largest: float = 1e-2,
    ) -> None:
        super().__init__(start, spread, per, smallest, largest)

    def distribution(self, block: int, features: Tensor) -> tuple[Tensor, Tensor]:
        shape = features.shape[:1] if self.per == "sample" else ()
        mean = features.new_full(shape, math.log10(self.start))
        return mean, torch.full_like(mean, self.spread)

    def config(self) -> dict[str, Any]:
        return {"name": "random", **self.common()}
