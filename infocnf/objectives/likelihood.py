r"""The paper's objective: likelihood of the data given its labels, and labels read off the
supervised code.

.. math:: J = \mathrm{NLL}(x \mid y) + \beta\, \mathrm{Xent}(\hat y, y), \qquad
    \mathrm{NLL} = -\frac{1}{\ln 2} \left( \frac{\log p(x \mid y)}{D} - \ln L \right)

The likelihood is in bits per dimension of data with :math:`L` levels, the cross-entropy in nats,
:math:`\beta = 0.5`, as in the reference. (The paper writes the NLL without its minus sign, and
calls the cross-entropy maximised.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from infocnf.flows.bijection import FlowStats
from infocnf.models import InfoCNF
from infocnf.objectives.reinforce import measure, policy_update

__all__ = ["Objective", "bits_per_dim", "likelihood_objective", "path_penalty", "weight_in_nats"]


@dataclass(frozen=True)
class Objective:
    r"""The objective and what it is made of.

    Arguments:
        loss: :math:`J`, averaged over the batch.
        losses: :math:`J` of each sample, ``(batch,)``.
        log_prob: :math:`\log p(x \mid y)` in nats, ``(batch,)``.
        bits_per_dim: The likelihood term of each sample, ``(batch,)``.
        cross_entropy: The label term of each sample in nats, summed over factors, ``(batch,)``.
        logits: Outputs of the classifiers by factor.
        stats: What the solves took.
        marginal: As ``bits_per_dim``, averaged over labels; None in training mode, which does not
            want it.
        surrogate: A number without meaning but for its gradient, which is that of the expected cost
            of learned tolerances; None where there are no gates or they have nothing to learn.
        sums: What the tolerance policy wants to be told of, summed over samples.
    """

    loss: Tensor
    losses: Tensor
    log_prob: Tensor
    bits_per_dim: Tensor
    cross_entropy: Tensor
    logits: dict[str, Tensor]
    stats: FlowStats
    marginal: Tensor | None = None
    surrogate: Tensor | None = None
    sums: dict[str, float] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Tensor]:
        """What is added up over examples, by name."""
        found = {"bits_per_dim": self.bits_per_dim, "cross_entropy": self.cross_entropy}
        return found if self.marginal is None else {**found, "bits_per_dim_marginal": self.marginal}

    @property
    def metrics(self) -> dict[str, float]:
        """Means over samples, as :meth:`infocnf.tolerances.Policy.end_step` wants them."""
        counts = {name: self.stats.total(name).double() for name in ("forward", "backward")}
        return {
            "loss": float(self.loss.detach()),
            **{name: float(count.mean()) for name, count in counts.items()},
            **{name: value / len(self.losses) for name, value in self.sums.items()},
        }

    @property
    def total(self) -> Tensor:
        """What is differentiated: the objective summed over samples, with what gates learn."""
        total = self.losses.sum()
        return total if self.surrogate is None else total + self.surrogate


def bits_per_dim(log_prob: Tensor, dimensions: int, levels: int = 1) -> Tensor:
    """Negative log-density in bits per dimension of data with ``levels`` grey levels; 1 for data
    that is not quantised.

    >>> bits_per_dim(torch.zeros(1), dimensions=3, levels=256)
    tensor([8.])
    """
    return -(log_prob / dimensions - math.log(levels)) / math.log(2.0)


def weight_in_nats(beta: float, dimensions: int) -> float:
    """Weight of the cross-entropy were the likelihood in nats per sample.

    >>> round(weight_in_nats(0.5, 3072))
    1065
    """
    return beta * dimensions * math.log(2.0)


def likelihood_objective(
    model: InfoCNF,
    x: Tensor,
    y: Any = None,  # noqa: ANN401
    *,
    beta: float = 0.5,
    levels: int = 1,
    log_scale: float = 0.0,
    tolerance: Any = None,  # noqa: ANN401
    context: Tensor | None = None,
    kinetic: float = 0.0,
    jacobian: float = 0.0,
    generator: torch.Generator | None = None,
    seeds: Tensor | None = None,
    stepping: str | None = None,
) -> Objective:
    """The objective of a batch.

    Arguments:
        model: The model.
        x: Samples ``(batch, *shape)``.
        y: Labels; the likelihood is marginal and the cross-entropy zero for factors without one,
            and for samples whose label is missing (-1 for a class, NaN for a real value).
        beta: Weight of the cross-entropy.
        levels: Grey levels of the data.
        log_scale: Logarithm of the factor by which the data was shrunk before the model saw it.
        tolerance: Tolerance of the solves; the model's own when None, whose policy then also learns
            from the batch in training mode.
        context: Covariates ``(batch, context)`` of a model that has such.
        kinetic: Weight of the kinetic energy of the paths; see :func:`path_penalty`.
        jacobian: Weight of the squared norm of the fields' Jacobians.
        generator: Source of the probes.
        seeds: Seeds of each sample's probes and dropout ``(batch,)``: then the objective is a
            function of the samples, their seeds and the weights alone.
        stepping: ``shared`` or ``individual``; by the model's mode when None.
    """
    labels, known = model.partial_labels(y, len(x))
    if model.training:
        model.count_labels(labels, known)
    context = model.check_context(context, len(x))
    seeds = model.seeds(x, generator) if seeds is None else seeds
    code = model.encode(
        x,
        tolerance=tolerance,
        seeds=seeds,
        context=context,
        auxiliary=bool(kinetic or jacobian),
        stepping=stepping,
        effort=0.0,  # of a batch the mean matters
    )
    log_prob = model.code_log_prob(code, labels, known) - log_scale
    bits = bits_per_dim(log_prob, model.dimensions, levels)

    logits = model.code.logits(code.supervised, training=True, seeds=seeds)
    cross_entropy = torch.zeros_like(log_prob)
    for name, found in logits.items():
        if name in labels:
            mine = model.factors[name].loss(found, labels[name])
            if name in known:
                mine = torch.where(known[name], mine, 0.0)
            cross_entropy = cross_entropy + mine
    assert code.stats is not None
    losses = bits + beta * cross_entropy
    if kinetic or jacobian:
        losses = losses + path_penalty(code.stats, kinetic, jacobian)

    marginal: Tensor | None = None
    if not model.training:
        marginal = bits_per_dim(model.code_log_prob(code, {}) - log_scale, model.dimensions, levels)

    surrogate: Tensor | None = None
    sums: dict[str, float] = {}
    if model.training and tolerance is None and torch.is_grad_enabled():
        surrogate, sums = policy_update(
            model.policy,
            code.stats,
            losses,
            partial(measure, model, x, labels, code, seeds, context),
        )

    return Objective(
        loss=losses.mean(),
        losses=losses,
        log_prob=log_prob,
        bits_per_dim=bits,
        cross_entropy=cross_entropy,
        logits=logits,
        stats=code.stats,
        marginal=marginal,
        surrogate=surrogate,
        sums=sums,
    )


def path_penalty(stats: FlowStats, kinetic: float, jacobian: float) -> Tensor:
    r"""Penalty on the paths of a flow, so that a solver needs fewer steps along them (Finlay et al.
    2020): for each sample, ``(batch,)``, over the blocks :math:`k` of :math:`D_k` dimensions,

    .. math:: R = \sum_k \frac{1}{D_k} \int_0^1 \lambda_K\, |f_k|^2
        + \lambda_J \Big\| \frac{\partial f_k}{\partial z} \Big\|_F^2\, dt .

    Arguments:
        stats: What the solves recorded.
        kinetic: The weight :math:`\lambda_K`.
        jacobian: The weight :math:`\lambda_J`.
    """
    parts = [
        kinetic * energy + jacobian * norm
        for energy, norm in (solve.auxiliary for solve in stats.solves)
    ]
    return torch.stack(parts).sum(0)
