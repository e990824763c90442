r"""The latent code: which part knows the labels, its prior, and the labels read off it.

.. math:: z = [z_{y_1}, \dots, z_{y_L}, z_u], \qquad
    \log p(z \mid y) = \sum_i \log \mathcal N\big(z_{y_i};\, \mu_i(y_i), \sigma_i^2(y_i)\big)
    + \log \mathcal N(z_u; 0, I),

with :math:`\mu_i, \log \sigma_i = q_{\phi_i}(y_i)` and a classifier :math:`q_{\theta_i}(z_{y_i})`
per factor, all single linear layers that start at zero: all labels start as :math:`\mathcal N(0,
I)`. No supervised code at all is an unconditional CNF, a code that is all supervised is CCNF. With
a *separation* :math:`m > 0` labels start apart, at fixed patterns of :math:`\pm m`, and the
classifier as Bayes' rule for them: what a flow that is trained by matching needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from infocnf.flows.bijection import FlowStats
from infocnf.models.factors import Categorical, Factor
from infocnf.random import Stream, draw_normal, draw_uniform

__all__ = [
    "POSITIONS",
    "Code",
    "FactorHead",
    "PartitionedCode",
    "cells_of",
    "normal_log_prob",
    "partition",
    "sign_codes",
]

POSITIONS = ("first_scale", "last_scale", "every_scale")
Labels = Mapping[str, Tensor]


@dataclass(frozen=True)
class Code:
    r"""A batch seen from the latent end.

    Arguments:
        supervised: :math:`z_y`, ``(batch, supervised)``.
        unsupervised: :math:`z_u`, ``(batch, features - supervised)``.
        log_det: :math:`\log |\det \partial z / \partial x|`, ``(batch,)``; None where it was not
            asked for.
        stats: What the solves took, block by block.
    """

    supervised: Tensor
    unsupervised: Tensor
    log_det: Tensor | None = None
    stats: FlowStats | None = None


def normal_log_prob(
    z: Tensor, mean: Tensor | float = 0.0, log_scale: Tensor | float = 0.0
) -> Tensor:
    r"""Log-density of :math:`\mathcal N(\mu, \sigma^2)` summed over the last dimension.

    >>> normal_log_prob(torch.zeros(1, 2))
    tensor([-1.8379])
    """
    log_scale = torch.as_tensor(log_scale, dtype=z.dtype, device=z.device)
    standard = (z - mean) * (-log_scale).exp()
    return (-0.5 * standard.square() - log_scale - 0.5 * math.log(2.0 * math.pi)).sum(-1)


def partition(
    sizes: Sequence[int], supervised: float, supervised_at: str | Sequence[int]
) -> list[int]:
    """Indices of the supervised code within the whole code.

    Arguments:
        sizes: What each scale contributes to the code, in order.
        supervised: Fraction of the code that is supervised; ignored for explicit indices.
        supervised_at: ``first_scale``: the start of the code, which is what the first scale
            factored out when half is supervised; ``last_scale``: its end; ``every_scale``: the same
            fraction of each scale; or the indices themselves.

    >>> partition([4, 2, 2], 0.5, "first_scale"), partition([4, 2, 2], 0.5, "every_scale")
    ([0, 1, 2, 3], [0, 1, 4, 6])
    """
    total = sum(sizes)
    if not isinstance(supervised_at, str):
        indices = [int(index) for index in supervised_at]
        wrong = [index for index in indices if not 0 <= index < total]
        if wrong or len(set(indices)) < len(indices):
            what = f"{wrong[0]} is outside" if wrong else "an index occurs twice"
            raise ValueError(
                f"supervised_at must hold different indices in 0 .. {total - 1}: {what}"
            )
        return indices
    if supervised_at not in POSITIONS:
        raise ValueError(
            f"supervised_at must be one of {', '.join(POSITIONS)}, or indices, "
            f"got {supervised_at!r}"
        )
    if not 0.0 <= supervised <= 1.0:
        raise ValueError(f"supervised must be a fraction between 0 and 1, got {supervised}")

    count = half_up(supervised * total)
    if supervised_at == "first_scale":
        return list(range(count))
    if supervised_at == "last_scale":
        return list(range(total - count, total))
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [
        start + i
        for start, size in zip(starts, sizes, strict=True)
        for i in range(half_up(supervised * size))
    ]


def half_up(number: float) -> int:
    """The nearest whole number, the larger of two."""
    return math.floor(number + 0.5)


class FactorHead(nn.Module):
    r"""Prior :math:`q_\phi` and classifier :math:`q_\theta` of one factor.

    Arguments:
        factor: The kind of label.
        features: Size of its code :math:`z_{y_i}`.
        dropout: Rate of dropout before the classifier.

    Attributes:
        patterns: Means onto which a flow is matched, of each class or of one unit of a real value,
            ``(inputs, features)``. The prior starts there and may leave; the field that was matched
            goes on to point there.
    """

    signs: Tensor

    def __init__(self, factor: Factor, features: int, dropout: float) -> None:
        super().__init__()
        self.factor = factor
        self.prior = nn.Linear(factor.inputs, 2 * features)
        self.classifier = nn.Linear(features, factor.outputs)
        self.dropout = nn.Dropout(dropout)  # only its rate, where masks come from seeds
        self.register_buffer("signs", torch.zeros(factor.inputs, features), persistent=False)
        self.distance = 0.0
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    @property
    def patterns(self) -> Tensor:
        """See above: signs, and how far from zero."""
        return self.distance * self.signs

    @torch.no_grad()
    def separate(self, cells: Tensor, distance: float) -> None:
        r"""Start with :math:`\mu(y) = \pm m` in each cell, :math:`\sigma = 1`, and Bayes' rule.

        Arguments:
            cells: Cell of each dimension ``(features,)``.
            distance: The number :math:`m`.
        """
        signs = sign_codes(self.prior.in_features, int(cells.max()) + 1)
        self.signs.copy_(signs[:, cells])
        self.distance = distance
        self.prior.weight[: len(cells)] = self.patterns.t()
        self.decide()

    @torch.no_grad()
    def decide(self) -> None:
        """Make the classifier Bayes' rule for the prior, were its scales those of all labels."""
        features = self.classifier.in_features
        mean, log_scale = self.prior.weight.double().split(features)
        log_scale = (log_scale + self.prior.bias[features:, None].double()).mean(1, keepdim=True)
        shift = self.prior.bias[:features, None].double()
        weight = mean * (-2.0 * log_scale).exp()  # (features, inputs)
        if isinstance(self.factor, Categorical):
            level = -0.5 * (weight * (mean + 2.0 * shift)).sum(0)
            level = level + self.factor.log_probabilities(torch.float64).clamp(min=-1e3)
            self.classifier.weight.copy_(weight.t())
            self.classifier.bias.copy_(level)
        else:  # a label of unit variance, seen through a line in the code
            precision = 1.0 + (weight * mean).sum()
            self.classifier.weight.zero_()
            self.classifier.weight[0] = weight[:, 0] / precision
            self.classifier.bias[0] = -(weight * shift).sum() / precision
            self.classifier.bias[1] = -0.5 * precision.log()

    def moments(self, y: Tensor) -> tuple[Tensor, Tensor]:
        r""":math:`\mu(y)` and :math:`\log \sigma(y)`, each ``(..., features)``."""
        return self.embedded_moments(self.factor.embed(y, self.prior.weight.dtype))

    def embedded_moments(self, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """The same for labels that are embedded already."""
        mean, log_scale = self.prior(embedded).chunk(2, dim=-1)
        return mean, log_scale

    def log_prob(self, z: Tensor, y: Tensor | None) -> Tensor:
        """Log-density of codes ``(batch, features)`` given labels ``(batch,)``, or averaged over
        labels for None.
        """
        if y is not None:
            return normal_log_prob(z, *self.moments(y))
        # some codes at a time: each meets all labels, or all nodes of a real one
        each = z.shape[1] * (self.factor.inputs if self.factor.inputs > 1 else NODES)
        parts = z.split(max(AT_ONCE // each, 1)) if len(z) else (z,)
        return torch.cat([self.marginal_log_prob(part) for part in parts])

    def marginal_log_prob(self, z: Tensor) -> Tensor:
        """The same averaged over labels."""
        return self.factor.marginalise(
            lambda embedded: normal_log_prob(z.unsqueeze(1), *self.embedded_moments(embedded)), z
        )

    def logits(
        self,
        z: Tensor,
        training: bool = False,
        seeds: Tensor | None = None,
        stream: int = Stream.DROPOUT,
    ) -> Tensor:
        """The classifier's output ``(batch, outputs)``; with dropout where it is being trained, its
        masks from a seed of each sample ``(batch,)`` where given.
        """
        if not (training and self.training and self.dropout.p > 0):
            return self.classifier(z)
        if seeds is None:
            return self.classifier(self.dropout(z))
        kept = draw_uniform(seeds, z, stream) >= self.dropout.p
        return self.classifier(z * kept / max(1.0 - self.dropout.p, 1e-12))


class PartitionedCode(nn.Module):
    """Splits codes, scores them, draws them and reads labels off them.

    Arguments:
        sizes: What each scale contributes to the code.
        factors: Factors by name.
        supervised: Fraction of the code that is supervised, divided evenly between the factors.
        supervised_at: Where it sits; see :func:`partition`.
        dropout: Rate of dropout before each classifier.
    """

    order: Tensor
    inverse_order: Tensor

    def __init__(
        self,
        sizes: Sequence[int],
        factors: Mapping[str, Factor],
        supervised: float,
        supervised_at: str | Sequence[int],
        dropout: float,
    ) -> None:
        super().__init__()
        chosen = partition(sizes, supervised, supervised_at) if factors else []
        wanted = not isinstance(supervised_at, str) or supervised > 0
        if wanted and len(chosen) < len(factors):
            raise ValueError(
                f"{len(factors)} factors cannot share a supervised code of {len(chosen)} dimensions"
            )
        taken = set(chosen)
        order = torch.tensor([*chosen, *(i for i in range(sum(sizes)) if i not in taken)])
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("inverse_order", order.argsort(), persistent=False)
        self.sizes = (len(chosen), sum(sizes) - len(chosen))

        each, rest = divmod(len(chosen), max(len(factors), 1))
        self.shares = [each + (i < rest) for i in range(len(factors))] if chosen else []
        self.names = tuple(factors) if chosen else ()
        # a list, not a dict of modules: that would refuse names such as "type" or "values"
        self.factor_heads = nn.ModuleList(
            FactorHead(factors[name], share, dropout)
            for name, share in zip(self.names, self.shares, strict=True)
        )

    @property
    def heads(self) -> dict[str, FactorHead]:
        """Prior and classifier of each factor by name."""
        return dict(zip(self.names, cast("list[FactorHead]", list(self.factor_heads)), strict=True))

    def separate(self, shape: Sequence[int], distance: float) -> None:
        """Start with labels apart; see :meth:`FactorHead.separate`.

        Arguments:
            shape: Shape of the code of one sample before it was flattened.
            distance: How far from zero.
        """
        indices = self.order[: self.sizes[0]].split(self.shares) if self.shares else ()
        for head, mine in zip(self.heads.values(), indices, strict=True):
            head.separate(cells_of(shape, mine), distance)

    def pattern_codes(self) -> list[Tensor]:
        """Patterns of each categorical factor as whole codes, ``(classes, features)``, zero in all
        that is not the factor's own.
        """
        found, begin = [], 0
        for head, share in zip(self.heads.values(), self.shares, strict=True):
            if isinstance(head.factor, Categorical):
                whole = head.patterns.new_zeros(len(head.patterns), self.sizes[0])
                whole[:, begin : begin + share] = head.patterns
                found.append(self.merge(whole, whole.new_zeros(len(whole), self.sizes[1])))
            begin += share
        return found

    def split(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Supervised and unsupervised code of a whole code ``(batch, features)``."""
        z_y, z_u = z[:, self.order].split(self.sizes, dim=1)
        return z_y, z_u

    def merge(self, z_y: Tensor, z_u: Tensor) -> Tensor:
        """Undo :meth:`split`."""
        return torch.cat([z_y, z_u], dim=1)[:, self.inverse_order]

    def by_factor(self, z_y: Tensor) -> dict[str, tuple[FactorHead, Tensor]]:
        """Head and code of each factor."""
        codes = z_y.split(self.shares, dim=1) if self.shares else ()
        return {
            name: (head, code) for (name, head), code in zip(self.heads.items(), codes, strict=True)
        }

    def log_prob(
        self, z_y: Tensor, z_u: Tensor, labels: Labels, known: Labels | None = None
    ) -> Tensor:
        """Log-density of codes given the labels; averaged over the labels of factors that are not
        named, and over those that are not known, where some of a factor's are.
        """
        total = normal_log_prob(z_u)
        for name, (head, code) in self.by_factor(z_y).items():
            mine = head.log_prob(code, labels.get(name))
            if known and name in known:
                mine = torch.where(known[name], mine, head.log_prob(code, None))
            total = total + mine

        return total

    def distance(self, z_y: Tensor) -> Tensor:
        """How far codes are from those of any label, ``(batch,)``: root of the mean square, in
        standard deviations, from the nearest class, or from the real value that is predicted.
        """
        found = z_y.new_zeros(len(z_y))
        for head, code in self.by_factor(z_y).values():
            if isinstance(head.factor, Categorical):
                labels = torch.eye(head.factor.classes, dtype=code.dtype, device=code.device)
            else:
                labels = head.logits(code)[:, None, :1]
            mean, log_scale = head.embedded_moments(labels)
            squares = ((code.unsqueeze(1) - mean) * (-log_scale).exp()).square().sum(-1)
            found = found + squares.amin(1)
        return (found / max(self.sizes[0], 1)).sqrt()

    def logits(
        self, z_y: Tensor, training: bool = False, seeds: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Output of each factor's classifier; with dropout where it is being trained."""
        parts = enumerate(self.by_factor(z_y).items())
        return {
            name: head.logits(code, training, seeds, Stream.DROPOUT - i)
            for i, (name, (head, code)) in parts
        }

    def draw(
        self, labels: Labels, temperature: float, like: Tensor, seeds: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Supervised and unsupervised codes of samples with the given labels and seeds."""
        noise = draw_normal(seeds, like.new_empty(len(seeds), sum(self.sizes)), Stream.NOISE)
        z_y, z_u = (temperature * noise).split(self.sizes, dim=1)
        return self.from_standard_normal(z_y, labels), z_u

    def prior_moments(
        self, labels: Labels, shape: Sequence[int], like: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean and scale of whole codes ``(*shape, features)`` of labels, flattened."""
        count = math.prod(shape)
        zero = like.new_zeros(count, sum(self.sizes))
        z_y, z_u = zero.split(self.sizes, dim=1)
        mean = self.from_standard_normal(z_y, labels)
        scale = self.from_standard_normal(z_y + 1.0, labels) - mean
        found = (self.merge(mean, z_u), self.merge(scale, z_u + 1.0))
        return found[0].reshape(*shape, -1), found[1].reshape(*shape, -1)

    def from_standard_normal(self, noise: Tensor, labels: Labels) -> Tensor:
        r"""Standard supervised codes given the mean and scale of labels: :math:`\mu(y) +
        \sigma(y)\, \epsilon`.
        """
        parts = []
        for name, (head, code) in self.by_factor(noise).items():
            mean, log_scale = head.moments(labels[name])
            parts.append(mean + log_scale.exp() * code)
        return torch.cat(parts, dim=1) if parts else noise

    def to_standard_normal(self, z_y: Tensor, labels: Labels) -> Tensor:
        """Undo :meth:`from_standard_normal`."""
        parts = []
        for name, (head, code) in self.by_factor(z_y).items():
            mean, log_scale = head.moments(labels[name])
            parts.append((code - mean) * (-log_scale).exp())
        return torch.cat(parts, dim=1) if parts else z_y


ATTEMPTS = 2000
AT_ONCE = 2**24  # numbers of codes and labels that are compared in one call
NODES = 1000  # of a real label, about
GRID = 4


def cells_of(shape: Sequence[int], indices: Tensor) -> Tensor:
    """The cell of each of some dimensions of a state, numbered from 0.

    Arguments:
        shape: Shape of the state of one sample.
        indices: Dimensions of the flattened state.

    >>> cells_of((2, 8, 8), torch.arange(64)).reshape(8, 8)[::2, ::2].tolist()
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    """
    if len(shape) != 3:
        return torch.arange(len(indices))
    _, height, width = shape
    channel, row, column = indices // (height * width), indices // width % height, indices % width
    tall, wide = (max(1, side // GRID) for side in (height, width))
    cell = (channel * height + row // tall) * width + column // wide
    return cell.unique(return_inverse=True)[1]


def sign_codes(classes: int, cells: int, seed: int = 0) -> Tensor:
    """A sign for each class and cell, ``(classes, cells)``: of many random tables the one whose
    closest classes differ in most cells. Means that are mixed can be told apart only where no mean
    is a mixture of others.
    """
    if cells < classes - 1:
        raise ValueError(
            f"{classes} classes cannot be told apart in a supervised code of {cells} "
            f"{'dimension' if cells == 1 else 'dimensions or cells'}: raise "
            "supervised, or train by maximum likelihood, with separation 0"
        )
    generator = torch.Generator().manual_seed(seed)
    count = max(1, min(ATTEMPTS, 10**7 // (classes * classes * cells)))
    tables = torch.randint(0, 2, (count, classes, cells), generator=generator).double() * 2.0 - 1.0
    agreement = tables @ tables.transpose(1, 2) - 2.0 * cells * torch.eye(classes).double()
    # the closest pair first, then how alike all pairs are
    score = agreement.amax((1, 2)) * 1e3 + agreement.square().mean((1, 2))
    centred = tables - tables.mean(1, keepdim=True)
    score = score + 1e9 * (torch.linalg.matrix_rank(centred) < classes - 1)
    return tables[score.argmin()].float()
