r"""How gates learn: REINFORCE with the cost to go.

A gate cannot be differentiated through the solver, whose number of steps is whole. With
:math:`\pi_i` the density of what gate :math:`i` drew, the expected cost has the gradient

.. math:: \nabla\, \mathbb E[c] = \mathbb E \Big[ \sum_i \nabla \log \pi_i \cdot (c_i - b_i) \Big],
    \qquad c_i = T + \frac{\alpha}{N} \sum_{j \ge i} \frac{\mathrm{NFE}_j}{\overline{\mathrm{NFE}}},

where evaluations before block :math:`i` are left out because gate :math:`i` cannot change them, and
:math:`b_i` may be anything that does not depend on what gate :math:`i` drew. :math:`T` is the
paper's loss, or :math:`\lambda\, \phi(e / \epsilon)` with a measured error :math:`e` and

.. math:: \phi(r) = \begin{cases} r & r \le 1 \\ 1 + \ln r & r > 1, \end{cases}

which lets the few samples with errors many times :math:`\epsilon` count, but not alone.

Costs are numbers: no gradient of theirs reaches the flow, and none of the gates' input.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infocnf.flows.bijection import FlowStats
from infocnf.models import InfoCNF
from infocnf.models.code import Code
from infocnf.ode import SolveError
from infocnf.tolerances import Fixed, Learned, Policy

__all__ = [
    "Measurement",
    "PolicyUpdate",
    "costs_to_go",
    "gate_update",
    "measure",
    "others_mean",
    "penalty",
    "policy_update",
    "surrogate",
]


@dataclass(frozen=True)
class PolicyUpdate:
    """What the gates learn from a batch.

    Arguments:
        surrogate: A number whose gradient is that of the expected cost, summed over samples.
        sums: Costs by gate, summed over the samples they are of.
    """

    surrogate: Tensor
    sums: dict[str, float]


def costs_to_go(task: Tensor, evaluations: Sequence[Tensor], weight: float) -> Tensor:
    r"""The costs :math:`c_i`, ``(blocks, ...)``.

    Arguments:
        task: The part :math:`T` that every gate answers for.
        evaluations: Those of each block, like ``task``.
        weight: Cost of one evaluation.

    >>> costs_to_go(torch.tensor(1.0), [torch.tensor(10.0), torch.tensor(20.0)], 0.1)
    tensor([4., 3.])
    """
    each = torch.stack([count.to(task) for count in evaluations])
    return task + weight * each.flip(0).cumsum(0).flip(0)


def others_mean(costs: Tensor) -> Tensor:
    """Mean over the other samples, for each of ``(blocks, batch)``: a baseline that does not depend
    on the sample's own draw.

    >>> others_mean(torch.tensor([[1.0, 2.0, 6.0]]))
    tensor([[4.0000, 3.5000, 1.5000]])
    """
    return (costs.sum(1, keepdim=True) - costs) / (costs.shape[1] - 1)


def penalty(ratio: Tensor) -> Tensor:
    r"""The function :math:`\phi`."""
    return torch.where(ratio <= 1.0, ratio, 1.0 + ratio.clamp(min=1.0).log())


def surrogate(log_probs: Sequence[Tensor], costs: Tensor, baselines: Tensor) -> Tensor:
    """A number whose gradient is REINFORCE's estimate, summed over samples where there are such.

    Arguments:
        log_probs: Log-probability of what each gate drew, ``()`` or ``(batch,)``.
        costs: Costs to go ``(blocks, ...)``.
        baselines: What is subtracted from them.
    """
    return (torch.stack(list(log_probs)) * (costs - baselines).detach()).sum()


def gate_update(
    policy: Learned, stats: FlowStats, losses: Tensor, measurement: Measurement | None
) -> PolicyUpdate | None:
    """What a batch teaches the gates; None where their costs are not known: with the reward
    ``error`` between two measurements.

    Arguments:
        policy: The policy, whose draws are in ``stats``.
        stats: What the solves took.
        losses: The objective of each sample ``(batch,)``.
        measurement: Errors of the first samples, if this step has measured them.
    """
    log_probs = [solve.choice.log_prob for solve in stats.solves]
    drawn = [log_prob for log_prob in log_probs if log_prob is not None]
    exact = policy.log.evaluations
    if measurement is not None and not exact > 0:  # none before this one
        exact = measurement.evaluations
    if len(drawn) < len(log_probs) or not exact > 0:
        return None

    task = losses.detach()
    if policy.reward == "error":
        if measurement is None:
            return None
        task = policy.multiplier * penalty(measurement.errors / policy.epsilon)
    few = len(task)
    evaluations = [
        solve.solution.stats.forward.to(task).expand(len(losses))[:few] for solve in stats.solves
    ]
    costs = costs_to_go(task, evaluations, policy.alpha / exact)

    baselines = policy.mean_costs().to(costs).unsqueeze(1).expand_as(costs)
    if policy.per == "sample":
        drawn = [log_prob[:few] for log_prob in drawn]
        baselines = others_mean(costs) if few > 1 else baselines
    else:  # one draw has one cost, and counts for every sample
        costs, baselines = costs.mean(1, keepdim=True), baselines[:, :1]
        drawn = [log_prob.expand(1) for log_prob in drawn]
    if not policy.baseline:
        baselines = torch.zeros_like(costs)
    scale = len(losses) / costs.shape[1]

    return PolicyUpdate(
        surrogate=scale * surrogate(drawn, costs, baselines),
        sums={
            "taught": float(few),
            **{f"cost_{i}": float(cost) for i, cost in enumerate(costs.mean(1) * few)},
        },
    )


def policy_update(
    policy: Policy,
    stats: FlowStats,
    losses: Tensor,
    measure: Callable[[], Measurement | None],
) -> tuple[Tensor | None, dict[str, float]]:
    """What a step of training tells a tolerance policy: the surrogate whose gradient its gates
    follow, where it has some, and metrics summed over samples.

    Arguments:
        policy: The policy.
        stats: What the solves took.
        losses: The objective of each sample ``(batch,)``.
        measure: Measures errors of log p, where the policy is due for it.
    """
    measurement = measure() if policy.due else None
    sums = measurement.sums() if measurement is not None else {}
    update = (
        gate_update(policy, stats, losses, measurement) if isinstance(policy, Learned) else None
    )
    if update is None:
        return None, sums
    return update.surrogate, {**sums, **update.sums}


log = logging.getLogger("infocnf")


@dataclass(frozen=True)
class Measurement:
    """What was measured on the first samples of a batch.

    Arguments:
        errors: Error of each in bits per dimension, ``(samples,)``.
        evaluations: Evaluations per sample at the reference tolerance, over all blocks.
    """

    errors: Tensor
    evaluations: float

    def sums(self) -> dict[str, float]:
        """Sums over samples, by the names of :data:`infocnf.tolerances.feedback.MEASURED`."""
        count = len(self.errors)
        return {
            "measured": float(count),
            "error": float(self.errors.double().sum()),
            "measuring": self.evaluations * count,
        }


@torch.no_grad()
def measure(
    model: InfoCNF,
    x: Tensor,
    labels: Mapping[str, Tensor],
    code: Code,
    seeds: Tensor,
    context: Tensor | None = None,
) -> Measurement | None:
    """Errors of a batch whose code was found by the model's policy; None, with a warning, where
    the tight solve fails.

    Arguments:
        model: The model.
        x: Samples ``(batch, *shape)``.
        labels: Their labels.
        code: Their code.
        seeds: The seeds of their probes.
        context: Their covariates.
    """
    probe = model.policy.probe
    assert probe is not None and code.stats is not None and code.log_det is not None
    few = slice(0, probe.samples)
    tolerance = torch.full((len(x[few]),), probe.reference, dtype=torch.float64)
    alike = code.stats.forward.ndim > 0  # own steps, where the batch had such
    try:
        tight = model.encode(
            x[few],
            tolerance=Fixed(tolerance if alike else probe.reference),
            seeds=seeds[few],
            context=None if context is None else context[few],
        )
    except SolveError as error:
        log.warning("errors of log p could not be measured: %s", error)
        return None

    assert tight.stats is not None
    mine = {name: label[few] for name, label in labels.items()}
    loose = Code(code.supervised[few], code.unsupervised[few], code.log_det[few])
    change = model.code_log_prob(loose, mine) - model.code_log_prob(tight, mine)
    if not change.isfinite().all():
        log.warning("errors of log p could not be measured: some are not finite")
        return None
    return Measurement(
        errors=change.abs() / (model.dimensions * math.log(2.0)),
        evaluations=float(tight.stats.forward.double().mean()),
    )
