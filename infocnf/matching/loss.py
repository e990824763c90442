r"""Flow matching onto the partitioned, class-conditional code: training without a solver.

A sample :math:`x`, as it enters the flow's only block, is joined by a straight line to a code drawn
from the prior of its labels, and the field learns the direction of the line from a point on it:

.. math:: z_t = (1 - t)\, x + t\, z, \qquad z_y \sim \mathcal N(\mu(y), \sigma^2(y)), \quad z_u \sim
    \mathcal N(0, I), \qquad \frac{1}{D}\, E\, |f(z_t, t) - (z - x)|^2 .

Its minimiser :math:`E[z - x \mid z_t]` carries data onto codes so distributed (Lipman et al. 2023;
time runs from data to latent here, from latent to data there).

At the data end, where :math:`z_0 = x`, nothing of the code's own noise is visible, and the target
can be averaged over it:

.. math:: \frac{1}{D}\, |f(x, 0) - (\mu(y) - x)|^2 ,

whose minimiser has the mean of the patterns, weighted by :math:`p(y \mid x)`: what labels are read
from (:mod:`infocnf.models.readout`). Without noise in its target this *end error* teaches labels
far faster than times near 0 would. With it, and :math:`\beta` times the cross-entropy of labels so
read, the paper's objective has a counterpart without simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from infocnf.flows import Traversal
from infocnf.matching.paths import StraightPath
from infocnf.models import Categorical, InfoCNF
from infocnf.models.readout import data_end, one_step_logits, slope_logits
from infocnf.random import Stream, draw_normal, draw_uniform
from infocnf.tolerances import Fixed

__all__ = ["Matching", "matching_objective"]

FLOOR = 0.05  # probability below which the cross-entropy goes on as a straight line
NEAR = 0.05  # how far from the data end labels are read in training


@dataclass(frozen=True)
class Matching:
    """The loss of a batch and what it is made of, each ``(batch,)``.

    Arguments:
        losses: What is minimised.
        error: Squared error of the field per dimension.
        read: Which samples had their labels read, ``(read,)``.
        end_error: Squared error per dimension of the field at the data end, ``(read,)``.
        cross_entropy: Of labels read in one step, summed over factors, ``(read,)``.
        logits: What was read, ``(read, outputs)`` by factor.
    """

    losses: Tensor
    error: Tensor
    read: Tensor
    end_error: Tensor
    cross_entropy: Tensor
    logits: dict[str, Tensor]

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
    beta: float = 0.02,
    end: float = 1.0,
    share: float = 1.0,
    times: str = "logit_normal",
    coupling: str = "independent",
    erase: float = 0.0,
    shift: int = 0,
    precision: str = "float32",
    pseudo_label_threshold: float = 1.0,
    context: Tensor | None = None,
    generator: torch.Generator | None = None,
    seeds: Tensor | None = None,
) -> Matching:
    """The loss of a batch: one evaluation of the field for each sample, and one more for each whose
    labels are read.

    Arguments:
        model: A model whose flow is a single block.
        x: Samples ``(batch, *shape)``.
        y: Labels of every factor. One that is missing (-1 for a class, NaN for a real value) is
            drawn from what the model believes, and is not what the model is taught to read, unless
            it is above the ``pseudo_label_threshold``.
        beta: Weight of the cross-entropy.
        end: Weight of the error at the data end.
        share: Share of samples that are read in training.
        times: Distribution of times: ``uniform``, ``logit_normal``, ``data`` or ``detail``.
        coupling: Which code a sample is joined to: ``independent`` or ``ot``; see
            :class:`StraightPath`.
        erase: Share of a sample's dimensions that are noise where its labels are read in training,
            so that no few of them decide. It helps where examples are few, and makes predictions
            less certain than Bayes' rule would be.
        shift: Pixels by which images are moved at most, in both directions, where their labels are
            read in training.
        precision: ``bfloat16`` for a network that multiplies in it, which is up to twice as fast
            where the processor can; ``float32`` for what the model is in.
        pseudo_label_threshold: Probability from which a class that the model believes in counts as
            known (Lee 2013): with ``erase`` the model learns to say of a part of a sample what it
            says of the whole. 1 for never: a model that knows ten labels of a class may gain by it,
            one that knows five or two believes its own first errors and collapses.
        context: Covariates ``(batch, context)`` of a model that has such.
        generator: Source of noise and times.
        seeds: Seeds of each sample's noise and time ``(batch,)``: then the loss is a function of
            samples, seeds and weights alone (but for the coupling ``ot``, which looks at the
            batch).
    """
    path = StraightPath(times, coupling)
    labels, known = model.partial_labels(y, len(x))
    if model.training:
        model.count_labels(labels, known)
    unlabelled = [name for name in model.code.heads if name not in labels]
    if unlabelled:
        raise ValueError(f"matching needs the labels of every factor: {unlabelled[0]!r} has none")
    seeds = model.seeds(x, generator) if seeds is None else seeds
    own = model.check_context(context, len(x))
    covariates = () if own is None else (own,)

    with torch.no_grad():
        state = data_end(model, x)
        labels, taught = guess(model, state, labels, known, seeds, pseudo_label_threshold, own)
        z = place_codes(model, draw_normal(seeds, state.flatten(1), Stream.NOISE), labels, state)
        z = path.couple(state, z, labels)
        both = draw_normal(seeds, state.new_empty(()).expand(len(x), 2), Stream.TIME)
        t = path.time(both[:, 0])
        between = path.between(state, z, t)
    field = model.flow.single[1].matched_field
    mixed = torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bfloat16")

    with mixed:
        slopes = field(t, between, *covariates)
    error = (slopes - (z - state)).square().flatten(1).mean(1)
    count = len(x) if model.code.heads and (beta or end) else 0
    losses, read = error, torch.arange(count, device=x.device)
    if model.training and share < 1.0:
        read = read[draw_uniform(seeds, t, Stream.READ)[read] < share]
    for there in taught.values():
        read = read[there[read]]
    if not len(read):
        nothing = error.new_zeros(0)
        return Matching(losses, error.detach(), read, nothing, nothing, {})

    z, labels = z[read], {name: y[read] for name, y in labels.items()}
    moves = bool(shift) and model.training and x.ndim == 4
    x = data_end(model, moved(x[read], seeds[read], shift)) if moves else state[read]
    # at the data end for half of the samples, near it for the others, whose codes show through
    # (in evaluation mode at the data end for all)
    near = NEAR * (2.0 * torch.special.ndtr(both[read, 1]) - 1.0).clamp(min=0.0) * model.training
    with torch.no_grad():  # patterns that could move would move together
        mean = place_codes(model, torch.zeros_like(x).flatten(1), labels, x)
    if erase and model.training:
        gone = draw_uniform(seeds[read], x, Stream.ERASE) < erase
        x = torch.where(gone, draw_normal(seeds[read], x, Stream.ERASED), x)
    seen = path.between(x, z, near)
    with mixed:
        slopes = field(near, seen, *(part[read] for part in covariates))
    target = torch.where(near.reshape(-1, *[1] * (x.ndim - 1)) > 0, z, mean) - x
    end_error = (slopes - target).square().flatten(1).mean(1)
    logits = slope_logits(model, seen, slopes, near, FLOOR)
    cross_entropy = torch.zeros_like(end_error)
    for name, found in logits.items():
        cross_entropy = cross_entropy + model.factors[name].loss(found, labels[name])
    weight = 1.0 / share if model.training else 1.0
    losses = losses.index_add(0, read, weight * (end * end_error + beta * cross_entropy))

    return Matching(
        losses, error.detach(), read, end_error.detach(), cross_entropy.detach(), logits
    )


def moved(x: Tensor, seeds: Tensor, most: int) -> Tensor:
    """Images ``(batch, channels, height, width)`` moved by up to so many pixels up or down, and to
    the left or right, by their seeds; the outermost pixels are repeated.
    """
    by = (draw_uniform(seeds, x.new_empty(len(x), 2), Stream.MOVE) * (2 * most + 1)).floor() - most
    rows, columns = (
        (torch.arange(size, device=x.device) - by[:, i : i + 1].long()).clamp(0, size - 1)
        for i, size in enumerate(x.shape[2:])
    )
    each = torch.arange(len(x), device=x.device)[:, None, None]
    return x[each, :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1).contiguous()


def guess(
    model: InfoCNF,
    state: Tensor,
    labels: dict[str, Tensor],
    known: dict[str, Tensor],
    seeds: Tensor,
    threshold: float = 1.0,
    context: Tensor | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Labels with those that are missing drawn from p(y | x) as the field reads it now, in
    expectation a soft label; and which are known, or as good as known.
    """
    if not known:
        return labels, known
    logits = one_step_logits(model, state, context)
    found, taught = dict(labels), dict(known)
    for i, name in enumerate(model.code.heads):  # its number there, whatever this batch lacks
        if name not in known:
            continue
        there = known[name]
        factor, mine = model.factors[name], logits[name]
        normal = draw_normal(seeds, mine[:, :1], Stream.GUESS - i)[:, 0].double()
        if isinstance(factor, Categorical):
            shares = factor.distribution(mine.double())
            below = shares.cumsum(1)
            drawn = (below < torch.special.ndtr(normal).unsqueeze(1)).sum(1)
            drawn = drawn.clamp(max=factor.classes - 1)
            if threshold < 1.0:
                best = shares.max(1)
                drawn = torch.where(best.values >= threshold, best.indices, drawn)
                taught[name] = there | (best.values >= threshold)
        else:
            belief = factor.distribution(mine)
            drawn = belief.mean + belief.stddev * normal
        found[name] = torch.where(there, labels[name], drawn.to(labels[name]))
    return found, taught


def place_codes(model: InfoCNF, noise: Tensor, labels: dict[str, Tensor], state: Tensor) -> Tensor:
    """Codes of the labels from standard normal noise ``(batch, dimensions)``, as the block leaves
    them: like ``state``.
    """
    z_y, z_u = noise.split(model.code.sizes, dim=1)
    z = model.code.merge(model.code.from_standard_normal(z_y, labels), z_u).view_as(state)
    for part in reversed(model.flow.single[2]):
        z = part.inverse(z, Traversal(Fixed()))
    return z
