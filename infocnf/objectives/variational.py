r"""The objective of a latent ODE: reconstruction, what the code tells, and labels read off it.

.. math:: -\log p(x \mid z) + \kappa_u\, \mathrm{KL}\big(q(z_u \mid x) \,\|\, \mathcal N(0, I)\big)
    + \kappa_y\, \mathrm{KL}\big(q(z_y \mid x) \,\|\, \mathcal N(\mu(y), \sigma^2(y))\big)
    + \beta\, \mathrm{Xent}(\hat y, y)

in nats for each observed value, with :math:`z \sim q`. With all weights 1 and without the last term
it bounds :math:`-\log p(x \mid y)`. Where a label is not known, the second divergence is averaged
over the labels that the classifier believes in, :math:`q(y \mid x)`, and :math:`\mathrm{KL}(q(y
\mid x) \,\|\, p(y))` is added.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from infocnf.flows.bijection import FlowStats
from infocnf.models.code import FactorHead
from infocnf.models.factors import Categorical
from infocnf.models.latent_ode import LatentODE, Posterior
from infocnf.networks.encoders import lengths_of
from infocnf.objectives.reinforce import Measurement, policy_update
from infocnf.ode import SolveError
from infocnf.random import Stream, draw_normal, draw_uniform

__all__ = ["Variational", "gaussian_kl", "supervised_kl", "variational_objective"]

log = logging.getLogger("infocnf")
NODES = 32  # of the quadrature over a real label that is not known


@dataclass(frozen=True)
class Variational:
    """The objective of a batch and what it is made of, each ``(batch,)``.

    Arguments:
        losses: What is minimised.
        elbo: Lower bound of log p(x | y) in nats, in expectation over draws: the objective with
            weights 1, without labels.
        mse: Mean squared difference between observations and reconstruction.
        kl: Both divergences, in nats.
        cross_entropy: Of the labels, summed over factors.
        logits: Outputs of the classifiers by factor.
        stats: What the solves took.
        surrogate: What gates of learned tolerances learn from; see :class:`Objective`.
        sums: What the tolerance policy wants to be told of, summed over series.
    """

    losses: Tensor
    elbo: Tensor
    mse: Tensor
    kl: Tensor
    cross_entropy: Tensor
    logits: dict[str, Tensor]
    stats: FlowStats
    surrogate: Tensor | None = None
    sums: dict[str, float] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Tensor]:
        """What is added up over examples, by name."""
        names = ("elbo", "mse", "kl", "cross_entropy")
        return {name: getattr(self, name) for name in names}

    @property
    def loss(self) -> Tensor:
        """Mean over the batch."""
        return self.losses.mean()

    @property
    def total(self) -> Tensor:
        """What is differentiated: the sum over series, with what gates learn."""
        total = self.losses.sum()
        return total if self.surrogate is None else total + self.surrogate


def gaussian_kl(
    mean: Tensor,
    log_scale: Tensor,
    other_mean: Tensor | float = 0.0,
    other_log_scale: Tensor | float = 0.0,
) -> Tensor:
    r""":math:`\mathrm{KL}(\mathcal N(m, s^2) \,\|\, \mathcal N(\mu, \sigma^2))` summed over the
    last dimension.

    >>> gaussian_kl(torch.ones(1, 2), torch.zeros(1, 2))
    tensor([1.])
    """
    log_ratio = torch.as_tensor(other_log_scale, dtype=mean.dtype, device=mean.device) - log_scale
    distance = (mean - other_mean) * (-log_scale).exp()
    return (log_ratio + 0.5 * (-2.0 * log_ratio).exp() * (1.0 + distance.square()) - 0.5).sum(-1)


def supervised_kl(
    head: FactorHead, mean: Tensor, log_scale: Tensor, logits: Tensor, y: Tensor | None
) -> Tensor:
    """Divergence of a factor's code ``(batch, features)`` from its prior given the label, or, for
    None, from the joint prior of code and label with the label that the classifier believes in.
    """
    if y is not None:
        return gaussian_kl(mean, log_scale, *head.moments(y))

    factor = head.factor
    mean, log_scale = mean.unsqueeze(1), log_scale.unsqueeze(1)
    if isinstance(factor, Categorical):
        log_q = logits.log_softmax(-1)
        labels = torch.eye(factor.classes, dtype=mean.dtype, device=mean.device)
        each = gaussian_kl(mean, log_scale, *head.embedded_moments(labels))
        log_p = factor.log_probabilities(mean.dtype).to(mean.device)
        return (log_q.exp() * (each + log_q - log_p)).sum(-1)
    location, log_width = logits.unbind(-1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    node, weight = (torch.as_tensor(v).to(mean) for v in (nodes, weights / weights.sum()))
    labels = location.unsqueeze(1) + log_width.exp().unsqueeze(1) * node
    each = gaussian_kl(mean, log_scale, *head.embedded_moments(labels.unsqueeze(-1)))
    own = gaussian_kl(location.unsqueeze(-1), log_width.unsqueeze(-1))
    return (each * weight).sum(-1) + own


def variational_objective(
    model: LatentODE,
    series: Tensor,
    y: Any = None,  # noqa: ANN401
    *,
    shortest: float = 1.0,
    kl: float = 1.0,
    kl_supervised: float = 1.0,
    beta: float = 1.0,
    log_scale: float | Tensor = 0.0,
    tolerance: Any = None,  # noqa: ANN401
    seeds: Tensor | None = None,
    stepping: str | None = None,
    context: Tensor | None = None,
) -> Variational:
    """The objective of series ``(batch, rows, 1 + channels)``.

    Arguments:
        model: The model.
        series: Times and values; see :class:`LatentODE`.
        y: Labels, of none, some or all factors; -1 for a class and NaN for a real value that is
            missing.
        shortest: Least share of a series from which the state is encoded in training, at the
            beginning of an excerpt that is drawn for each batch; the whole series is reconstructed
            from it. Below 1 the field learns to be followed beyond what was seen, in both
            directions.
        kl: Weight of the divergence of the unsupervised code.
        kl_supervised: Weight of that of the supervised code.
        beta: Weight of the cross-entropy of labels.
        log_scale: Logarithms of the factors by which values of each channel were shrunk.
        tolerance: Tolerance of the solves; the model's own when None.
        seeds: Seeds of each series' draw ``(batch,)``. Where None the mean of the state is taken,
            which is no draw: what follows is then no bound.
        stepping: ``shared`` or ``individual``; by the model's mode when None.
        context: Static covariates ``(batch, context)`` of a model that has such.
    """
    labels, known = model.partial_labels(y, len(series))
    if model.training:
        model.count_labels(labels, known)
    seen = series
    if model.training and shortest < 1.0 and seeds is not None:
        seen = excerpt(series, shortest, seeds)
    posterior = model.encode(seen, context)
    z = (
        posterior.mean
        if seeds is None
        else posterior.draw(draw_normal(seeds, posterior.mean, Stream.NOISE))
    )
    times = series[..., 0] - seen[:, :1, 0]
    there = series[..., 1:].isfinite()
    common = bool((times == times[:1]).all())  # no NaN, either
    found, stats = model.decode(
        model.code.merge(*model.split(z)),
        times[0] if common else times,
        tolerance=tolerance,
        stepping=stepping,
        seeds=seeds,
        context=context,
    )

    count = there.sum((1, 2)).clamp(min=1)
    rest, nll = reconstruction(model, series, found, log_scale)
    kl_u, kl_y, logits = divergences(model, posterior, z, labels, known)
    cross_entropy = torch.zeros_like(nll)
    for name, label in labels.items():
        mine = model.factors[name].loss(logits[name], label)
        cross_entropy = cross_entropy + (mine.where(known[name], 0.0) if name in known else mine)
    losses = (nll + kl * kl_u + kl_supervised * kl_y + beta * cross_entropy) / count

    surrogate: Tensor | None = None
    sums: dict[str, float] = {}
    if model.training and tolerance is None and torch.is_grad_enabled():
        at = times[0] if common else times
        surrogate, sums = policy_update(
            model.policy,
            stats,
            losses,
            partial(measure_error, model, series, z, at, found, context),
        )

    return Variational(
        losses=losses,
        elbo=-(nll + kl_u + kl_y).detach(),
        mse=(rest.square().sum((1, 2)) / count).detach(),
        kl=(kl_u + kl_y).detach(),
        cross_entropy=cross_entropy.detach(),
        logits=logits,
        stats=stats,
        surrogate=surrogate,
        sums=sums,
    )


def excerpt(series: Tensor, shortest: float, seeds: Tensor) -> Tensor:
    """A part of each series that has at least a share of its rows, and two; the same part of all in
    a batch, by its first seed, so that common times stay common.

    >>> rows = torch.arange(8.0).view(1, 8, 1).expand(2, 8, 2)
    >>> excerpt(rows, 0.25, torch.tensor([3, 4]))[:, :, 0]
    tensor([[5., 6., 7.],
            [5., 6., 7.]])
    """
    lengths = lengths_of(series)
    share, place = draw_uniform(seeds[:1], series.new_empty(1, 2), Stream.EXCERPT)[0]
    kept = (lengths * (shortest + (1.0 - shortest) * share)).round().long().clamp(min=2)
    kept = kept.minimum(lengths)
    first = (place * (lengths - kept + 1)).long()
    rows = torch.arange(int(kept.max()), device=series.device)
    chosen = (first.unsqueeze(1) + rows).clamp(max=series.shape[1] - 1)
    part = series.gather(1, chosen.unsqueeze(2).expand(-1, -1, series.shape[2]))
    return part.where((rows < kept.unsqueeze(1)).unsqueeze(2), torch.nan)


def reconstruction(
    model: LatentODE, series: Tensor, found: Tensor, log_scale: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Differences ``(batch, rows, channels)`` between observations and values, zero where there is
    no observation, and their negative log-density in nats ``(batch,)``.
    """
    there = series[..., 1:].isfinite()
    rest = torch.where(there, series[..., 1:] - found, 0.0)
    log_noise = model.log_noise
    constant = (there * (log_noise + (0.5 * math.log(2.0 * math.pi) + log_scale))).sum((1, 2))
    return rest, 0.5 * (rest * (-log_noise).exp()).square().sum((1, 2)) + constant


@torch.no_grad()
def measure_error(
    model: LatentODE,
    series: Tensor,
    z: Tensor,
    times: Tensor,
    values: Tensor,
    context: Tensor | None = None,
) -> Measurement | None:
    """Errors of log p(x | z) for each observed value, in bits, of the first series of a batch,
    whose values the policy's tolerance gave: a tighter solve of the same states tells. None, with a
    warning, where it fails.
    """
    probe = model.policy.probe
    assert probe is not None
    few = slice(0, probe.samples)
    mine = times if times.ndim == 1 else times[few]
    start = model.code.merge(*model.split(z[few]))
    try:
        own = None if context is None else context[few]
        found, stats = model.decode(start, mine, tolerance=probe.reference, context=own)
    except SolveError as error:
        log.warning("errors of log p could not be measured: %s", error)
        return None
    count = series[few, :, 1:].isfinite().sum((1, 2)).clamp(min=1)
    exact, loose = (reconstruction(model, series[few], v, 0.0)[1] for v in (found, values[few]))
    return Measurement(
        errors=(exact - loose).abs() / (count * math.log(2.0)),
        evaluations=float(stats.forward.double().mean()),
    )


def divergences(
    model: LatentODE,
    posterior: Posterior,
    z: Tensor,
    labels: Mapping[str, Tensor],
    known: Mapping[str, Tensor],
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Divergences of the unsupervised and the supervised code, and the classifiers' logits to the
    codes that were drawn; ``known`` says of some labels which ones are.
    """
    (mean_y, mean_u), (scale_y, scale_u) = map(model.split, (posterior.mean, posterior.log_scale))
    logits = model.code.logits(model.split(z)[0], training=True)
    total = torch.zeros_like(mean_u.sum(1))
    scales = model.code.by_factor(scale_y)
    for name, (head, mean) in model.code.by_factor(mean_y).items():
        own = (head, mean, scales[name][1], logits[name])
        mine = supervised_kl(*own, labels.get(name))
        if name in known:
            mine = torch.where(known[name], mine, supervised_kl(*own, None))
        total = total + mine
    return gaussian_kl(mean_u, scale_u), total, logits
