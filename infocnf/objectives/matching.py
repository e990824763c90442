r"""Flow matching onto the partitioned, class-conditional code: training without a solver.

A sample :math:`x`, as it enters the flow's only block, is joined by a straight line to a code drawn
from the prior of its labels, and the field learns the direction of the line from a point on it:

.. math:: z_t = (1 - t)\, x + t\, z, \qquad z_y \sim \mathcal N(\mu(y), \sigma^2(y)), \quad z_u \sim
    \mathcal N(0, I), \qquad \frac{1}{D}\, E\, |f(z_t, t) - (z - x)|^2 .

Its minimiser :math:`E[z - x \mid z_t]` carries data onto codes so distributed (Lipman et al. 2023;
time runs from data to latent here, from latent to data there). With labels read off the data end
(:mod:`infocnf.models.reading`) the paper's objective has a counterpart without simulation: this
loss, and :math:`\beta` times the cross-entropy of labels read in one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from infocnf.flows import Traversal
from infocnf.models import InfoCNF
from infocnf.models.reading import approach, read_once
from infocnf.ode.streams import ERASE, NOISE, TIME, draw_normal, draw_uniform
from infocnf.tolerances import Fixed

__all__ = ["TIMES", "Matching", "matching_objective", "pair"]

FLOOR = 0.05  # probability below which the cross-entropy goes on as a straight line
NEAR = 0.05  # how far from the data end labels are read in training

TIMES = {
    "uniform": lambda normal: torch.special.ndtr(normal),
    "logit_normal": torch.sigmoid,
    "data": lambda normal: torch.special.ndtr(normal).square(),
}
"""How times are drawn, as functions of a standard normal number: evenly, more often in the middle,
more often near the data.
"""


@dataclass(frozen=True)
class Matching:
    """The loss of a batch and what it is made of, each ``(batch,)``.

    Arguments:
        losses: What is minimised.
        error: Squared error of the field per dimension.
        cross_entropy: Of labels read in one step, summed over factors.
        answers: What was read, by factor.
    """

    losses: Tensor
    error: Tensor
    cross_entropy: Tensor
    answers: dict[str, Tensor]

    @property
    def loss(self) -> Tensor:
        """Mean over the batch."""
        return self.losses.mean()

    @property
    def total(self) -> Tensor:
        """What is differentiated: the sum over samples."""
        return self.losses.sum()


def matching_objective(
    model: InfoCNF,
    x: Tensor,
    y: Any = None,  # noqa: ANN401
    *,
    beta: float = 0.1,
    times: str = "logit_normal",
    transport: bool = False,
    erase: float = 0.0,
    generator: torch.Generator | None = None,
    seeds: Tensor | None = None,
) -> Matching:
    """The loss of a batch: one evaluation of the field, and one more for the labels.

    Arguments:
        model: A model whose flow is a single block.
        x: Samples ``(batch, *shape)``.
        y: Labels of every factor.
        beta: Weight of the cross-entropy.
        times: Distribution of times: ``uniform``, ``logit_normal`` or ``data``.
        transport: Whether codes are dealt out within each class so that lines are short.
        erase: Share of a sample's dimensions that are noise where its labels are read in training,
            lest few of them decide. It helps where examples are few, and makes answers less certain
            than Bayes' rule would be.
        generator: Source of noise and times.
        seeds: Seeds of each sample's noise and time ``(batch,)``: then the loss is a function of
            samples, seeds and weights alone (but for ``transport``, which looks at the batch).
    """
    if times not in TIMES:
        raise ValueError(f"times must be one of {', '.join(TIMES)}, got {times!r}")
    labels = model.labels(y, len(x))
    unlabelled = [name for name in model.code.heads if name not in labels]
    if unlabelled:
        raise ValueError(f"matching needs the labels of every factor: {unlabelled[0]!r} has none")
    seeds = model.seeds(x, generator) if seeds is None else seeds

    with torch.no_grad():
        state = approach(model, x)
        z = draw_codes(model, state, labels, seeds)
        if transport:
            z = pair(state, z, labels)
        both = draw_normal(seeds, state.new_empty(()).expand(len(x), 2), TIME)
        t = TIMES[times](both[:, 0])
        between = mixture(state, z, t)
    field = model.flow.single[1].dynamics.field

    cross_entropy, answers = state.new_zeros(len(x)), {}
    error = (field(t, between) - (z - state)).square().flatten(1).mean(1)
    if model.code.heads and beta:
        # at the data end for half of the samples, near it for the others
        near = NEAR * (2.0 * torch.special.ndtr(both[:, 1]) - 1.0).clamp(min=0.0)
        seen = state
        if erase and model.training:
            gone = draw_uniform(seeds, state, ERASE) < erase
            seen = torch.where(gone, draw_normal(seeds, state, ERASE - 1), state)
        answers = read_once(model, mixture(seen, z, near), near, FLOOR)
        for name, answer in answers.items():
            cross_entropy = cross_entropy + model.factors[name].loss(answer, labels[name])

    return Matching(error + beta * cross_entropy, error.detach(), cross_entropy.detach(), answers)


def mixture(x: Tensor, z: Tensor, t: Tensor) -> Tensor:
    """Points on the lines from ``x`` to ``z`` at times ``(batch,)``."""
    return torch.lerp(x, z, t.reshape(-1, *[1] * (x.ndim - 1)))


def draw_codes(model: InfoCNF, state: Tensor, labels: dict[str, Tensor], seeds: Tensor) -> Tensor:
    """Codes of the labels, as the block leaves them: ``(batch, *state)``."""
    noise = draw_normal(seeds, state.flatten(1), NOISE)
    z_y, z_u = noise.split(model.code.sizes, dim=1)
    z = model.code.merge(model.code.shape(z_y, labels), z_u).view_as(state)
    for part in reversed(model.flow.single[2]):
        z = part.inverse(z, Traversal(Fixed()))
    return z


def pair(x: Tensor, z: Tensor, labels: dict[str, Tensor]) -> Tensor:
    """The codes dealt out anew among samples with the same labels, so that the sum of squared
    distances is least (minibatch optimal transport, Tong et al. 2024).
    """
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    rows = torch.stack([label.double() for label in labels.values()], 1) if labels else None
    groups = torch.zeros(len(x)) if rows is None else rows.unique(dim=0, return_inverse=True)[1]
    dealt = z.clone()
    for group in groups.unique():
        mine = (groups == group).nonzero().flatten()
        distance = torch.cdist(x[mine].flatten(1).double(), z[mine].flatten(1).double()).square()
        _, chosen = linear_sum_assignment(distance.cpu().numpy())
        dealt[mine] = z[mine[torch.from_numpy(chosen).to(mine.device)]]
    return dealt
