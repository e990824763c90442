r"""Tolerances that are learned: a gate for each block looks at the block's input :math:`z` and
gives mean and spread of a Gaussian in :math:`\log_{10} \tau`,

.. math:: \mu = \tfrac{u + l}{2} + \tfrac{u - l}{2}\, \mathrm{clip}(g_1(z), -1, 1), \qquad
    \sigma = \sigma_0\, 2^{\,\mathrm{clip}(g_2(z), -1, 1)},

with :math:`l, u` the logarithms of the bounds. A gradient passes the clip where it leads back
inside: a sigmoid would let gates drift where they feel nothing any more. How gates learn is in
:mod:`infocnf.objectives.reinforce`; what they remember between steps is here.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from infocnf.networks.gates import Gate
from infocnf.random import Stream, combine_seeds, draw_uniform
from infocnf.tolerances.policies import (
    MEASURED,
    BlockShape,
    Choice,
    ErrorProbe,
    MetricsLog,
    Policy,
    check_bounds,
    check_start,
    log_ratio,
    measured,
)

__all__ = ["GaussianPolicy", "Learned", "Random"]

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
        uniform = draw_uniform(seeds, seeds.double(), stream=Stream.TOLERANCE - block)
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


class Random(GaussianPolicy, name="random"):
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


EVERY = {"loss": 32, "error": 4}  # steps between measurements by reward: one wants NFE only
HEAD_GAIN = 0.1  # of the initial read-out: untrained gates choose almost alike
FIRST_MULTIPLIER = 0.1  # evaluations count 1 at the reference tolerance, and go as tau**(-1/5)
MULTIPLIERS = (0.05, 100.0)  # of the integral
LARGEST_GAP = 2.0


class Fence(torch.autograd.Function):
    """Clip to [-1, 1]; beyond, only gradients pass along which descent leads back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x)
        return x.clamp(-1.0, 1.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ANN401
        (x,) = ctx.saved_tensors
        outward = ((x > 1.0) & (gradient < 0.0)) | ((x < -1.0) & (gradient > 0.0))
        return gradient.masked_fill(outward, 0.0)


class Learned(GaussianPolicy, name="learned"):
    r"""A gate for each block.

    Gate :math:`i` pays for its own solver and those after it: with the paper's reward (``loss``)

    .. math:: c_i = L + \frac{\alpha}{N} \sum_{j \ge i}
        \frac{\mathrm{NFE}_j}{\overline{\mathrm{NFE}}},

    :math:`\overline{\mathrm{NFE}}` being the mean over blocks at the reference tolerance. The loss
    hardly feels the tolerance, so that this may drive gates to their upper bound. The constrained
    reward (``error``) asks for the cheapest tolerances whose error of log p stays below
    :math:`\epsilon`: :math:`L` is replaced by :math:`\lambda\, \phi(e / \epsilon)` with the
    measured error :math:`e` and a multiplier :math:`\lambda` that is large and grows while the mean
    error is above :math:`\epsilon`, and is small and shrinks while it is below.

    Arguments:
        per: ``batch`` (the paper's): one draw from the features averaged over the batch;
            ``sample``: each sample its own draw, steps and reward.
        reward: ``loss`` or ``error``.
        alpha: Weight of evaluations, relative to those at the reference tolerance.
        epsilon: Largest mean error in bits per dimension, for the reward ``error``.
        start: Tolerance of the untrained policy.
        spread: Standard deviation of its log10.
        smallest: Lower bound of tolerances.
        largest: Upper bound.
        width: Features of a gate.
        baseline: Whether a baseline is subtracted: a moving average per block for ``batch``, the
            mean over the other samples for ``sample``.
        decay: Decay of the moving averages.
        dual_rate: How fast the multiplier follows the error.
        reference: Tolerance of the tight solves.
        every: Steps between two measurements; 32 for the reward ``loss``, 4 for ``error``.
        samples: Samples measured.
    """

    probe: ErrorProbe
    costs: Tensor
    cost_weight: Tensor
    log_multiplier: Tensor
    gap: Tensor

    def __init__(
        self,
        per: str = "batch",
        reward: str = "loss",
        *,
        alpha: float = 1.0,
        epsilon: float = 1e-3,
        start: float = 1e-4,
        spread: float = 0.3,
        smallest: float = 1e-6,
        largest: float = 1e-2,
        width: int = 16,
        baseline: bool = True,
        decay: float = 0.9,
        dual_rate: float = 0.02,
        reference: float = 1e-5,
        every: int | None = None,
        samples: int = 16,
    ) -> None:
        super().__init__(start, spread, per, smallest, largest)
        if reward not in EVERY:
            raise ValueError(f"reward must be one of {', '.join(EVERY)}, got {reward!r}")
        for name, value in {"alpha": alpha, "epsilon": epsilon, "spread": spread}.items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive and finite, got {value}")
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}")
        if not 0.0 <= decay < 1.0 or not 0.0 <= dual_rate <= 1.0:
            raise ValueError(
                f"decay must be in [0, 1) and dual_rate in [0, 1], got {decay} and {dual_rate}"
            )
        self.reward, self.alpha, self.epsilon = reward, float(alpha), float(epsilon)
        self.width, self.baseline, self.decay, self.dual_rate = width, baseline, decay, dual_rate
        self.probe = ErrorProbe(reference, EVERY[reward] if every is None else every, samples)
        self.log = MetricsLog(self.probe, decay)
        self.gates = nn.ModuleList()
        self.blocks: tuple[BlockShape, ...] = ()
        self.register_buffer("costs", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("cost_weight", torch.zeros((), dtype=torch.float64))
        first = torch.tensor(math.log(FIRST_MULTIPLIER), dtype=torch.float64)
        self.register_buffer("log_multiplier", first)
        self.register_buffer("gap", torch.zeros((), dtype=torch.float64))

    def bind(self, blocks: Sequence[BlockShape]) -> None:
        """Make a gate for each block; their weights are drawn here."""
        if self.blocks:
            if tuple(blocks) != self.blocks:
                raise ValueError(
                    "these gates were made for another flow: give each model a policy of its own"
                )
            return
        self.blocks = tuple(blocks)
        centre, reach = self.middle_and_reach
        for block in blocks:
            gate = Gate(block.shape, self.width)
            with torch.no_grad():
                gate.head.weight.mul_(HEAD_GAIN)
                gate.head.bias.copy_(torch.tensor([(math.log10(self.start) - centre) / reach, 0.0]))
            self.gates.append(gate)
        self.costs = torch.zeros(len(blocks), dtype=torch.float64)

    def distribution(self, block: int, features: Tensor) -> tuple[Tensor, Tensor]:
        if not self.gates:
            raise ValueError("this policy has no gates yet: give it to a model as its tolerance")
        first, second = self.gates[block](features.detach(), over_batch=self.per == "batch")
        if not (first.isfinite().all() and second.isfinite().all()):
            bad = int((~features.isfinite().flatten(1).all(1)).sum())
            reason = (
                f"{bad} of {len(features)} inputs of the block are not finite; check the data for "
                "NaN and infinity"
                if bad
                else "its weights are not finite; lower training.policy_learning_rate"
            )
            raise ValueError(f"the gate of block {block} gives no tolerance: {reason}")
        centre, reach = self.middle_and_reach
        return centre + reach * Fence.apply(first), self.spread * 2.0 ** Fence.apply(second)

    @property
    def middle_and_reach(self) -> tuple[float, float]:
        """Centre of the bounds in log10, and half their distance."""
        lowest, highest = (math.log10(bound) for bound in self.bounds)
        return (highest + lowest) / 2.0, (highest - lowest) / 2.0

    # -------------------------------------------------------------------------- between steps

    @property
    def multiplier(self) -> float:
        r"""The multiplier of the constraint, proportional and integrating: :math:`\ln \lambda = g +
        r \sum g` over measurements, with :math:`g` a moving average of :math:`\ln(e / \epsilon)`.
        The integral alone would swing, because gates follow slowly.
        """
        return math.exp(self.log_multiplier + self.gap)

    def begin_step(self, progress: float) -> None:
        self.log.begin_step()

    @property
    def due(self) -> bool:
        return self.log.due

    @property
    def metrics(self) -> tuple[str, ...]:
        costs = (f"cost_{block}" for block in range(len(self.gates)))
        return (*MEASURED, "taught", *costs)

    def end_step(self, metrics: Mapping[str, float]) -> None:
        taught = metrics.get("taught", 0.0)
        if taught:
            found = [metrics[f"cost_{block}"] / taught for block in range(len(self.gates))]
            costs = torch.tensor(found, dtype=torch.float64).to(self.costs.device)
            self.costs += (1.0 - self.decay) * (costs - self.costs)
            self.cost_weight += (1.0 - self.decay) * (1.0 - float(self.cost_weight))
        error = self.log.end_step(metrics)
        if error is not None and self.reward == "error":
            gap = log_ratio(error, self.epsilon, LARGEST_GAP)
            self.gap += (1.0 - self.decay) * (gap - float(self.gap))
            self.log_multiplier += self.dual_rate * self.gap
            self.log_multiplier.clamp_(*(math.log(limit) for limit in MULTIPLIERS))

    def mean_costs(self) -> Tensor:
        """Moving average of the cost of each gate, ``(blocks,)``; zero before the first."""
        return self.costs / self.cost_weight.clamp(min=1e-12)

    def gradients(self) -> dict[str, float]:
        """Norm of the present gradient of each gate; none where gates rest."""
        if all(parameter.grad is None for parameter in self.parameters()):
            return {}
        return {
            f"gate_gradient_{block}": float(
                torch.nn.utils.get_total_norm(
                    [p.grad for p in gate.parameters() if p.grad is not None]
                )
            )
            for block, gate in enumerate(self.gates)
        }

    def report(self, means: Mapping[str, float | None]) -> dict[str, float | None]:
        """Rewards and gradients of the gates, measured errors and the multiplier."""
        metrics = measured(means)
        taught, learning = means.get("taught") or 0.0, means.get("learning") or 0.0
        for block in range(len(self.gates)):
            cost = means.get(f"cost_{block}")
            metrics[f"reward_{block}"] = -cost / taught if cost is not None and taught else None
            norm = means.get(f"gate_gradient_{block}")
            metrics[f"gate_gradient_{block}"] = norm / learning if norm and learning else norm
        if self.reward == "error":
            metrics["multiplier"] = self.multiplier
        return metrics

    def config(self) -> dict[str, Any]:
        own = ("reward", "alpha", "epsilon", "width", "baseline", "decay", "dual_rate")
        return {
            "name": "learned",
            **self.common(),
            **{name: getattr(self, name) for name in own},
            **asdict(self.probe),
        }
