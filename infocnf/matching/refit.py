r"""The prior fitted in closed form to the codes of training data, after matching.

A flow that was matched onto a prior reaches it only nearly. The codes' own moments are then a
better prior, for nothing: mean and scale of :math:`z_y` for each label, and of each dimension of
:math:`z_u`, whose prior stays standard because the flow's last map is scaled. Each is kept only
where codes of validation data become more likely.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from infocnf.errors import WorkError
from infocnf.flows import Scale
from infocnf.flows import fit_marginals as fit_tables
from infocnf.flows.gaussianise import Gaussianise, column_tables, pixel_tables
from infocnf.models import Categorical, InfoCNF
from infocnf.models.code import Code, FactorHead, normal_log_prob
from infocnf.ode import set_aside

__all__ = ["encode_all", "fit_marginals", "refit"]

Labels = Mapping[str, Tensor]
LEAST_SCALE = 1e-3


@torch.no_grad()
def encode_all(
    model: InfoCNF, x: Tensor, *, tolerance: float, batch_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Supervised and unsupervised codes of prepared examples, and which could be solved."""
    kept, parts = [], []
    for mine in torch.arange(len(x)).split(batch_size):

        def attempt(some: Tensor, _: str | None, mine: Tensor = mine) -> Code:
            return model.encode(x[mine[some]], tolerance=tolerance, log_det=False)

        code, solved = set_aside(attempt, len(mine))
        if code is not None:
            parts.append((code.supervised, code.unsupervised))
            kept.append(mine[solved])
    if not parts:
        raise WorkError(
            "no code could be solved for, so no prior can be fitted to codes: raise "
            "model.max_steps, or set matching.refit=0"
        )
    z_y, z_u = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    return z_y, z_u, torch.cat(kept)


@torch.no_grad()
def refit(
    model: InfoCNF,
    train: tuple[Tensor, Labels],
    validation: tuple[Tensor, Labels],
    *,
    tolerance: float = 1e-3,
    batch_size: int = 500,
) -> dict[str, float]:
    """Fit the prior of a model in evaluation mode to the codes of prepared training examples;
    returns by how many nats per example each part made validation codes more likely, 0 where the
    old one was kept.
    """
    codes, labels = [], []
    for x, y in (train, validation):
        z_y, z_u, kept = encode_all(model, x, tolerance=tolerance, batch_size=batch_size)
        codes.append((z_y, z_u))
        labels.append({name: value[kept.to(value.device)] for name, value in y.items()})

    gains = {"z_u": refit_unsupervised(model, codes[0][1], codes[1][1])}
    heads = [model.code.by_factor(z_y) for z_y, _ in codes]
    for name, (head, z) in heads[0].items():
        other = heads[1][name][1]
        gains[name] = refit_head(head, (z, labels[0][name]), (other, labels[1][name]))
    return gains


def refit_unsupervised(model: InfoCNF, train: Tensor, validation: Tensor) -> float:
    """Scale each dimension of :math:`z_u` to mean 0 and deviation 1."""
    last = model.flow.single[2][-1] if model.flow.single[2] else None
    if not isinstance(last, Scale) or not train.shape[1]:
        return 0.0
    mean, scale = train.mean(0), train.std(0).clamp(min=LEAST_SCALE)
    log_scale = scale.log()
    before = normal_log_prob(validation)
    gain = float((normal_log_prob(validation, mean, log_scale) - before).mean())
    if not gain > 0.0:
        return 0.0
    zeros, ones = (train.new_full((1, model.code.sizes[0]), value) for value in (0.0, 1.0))
    shift, factor = (
        model.code.merge(whole, part.unsqueeze(0))[0].view(last.scale.shape)
        for whole, part in ((zeros, mean), (ones, scale))
    )
    last.shift += last.scale * shift
    last.scale *= factor
    return gain


def refit_head(
    head: FactorHead, train: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor]
) -> float:
    """Take the best prior of those that fit, and Bayes' rule for it where it reads labels better
    than the old classifier.
    """
    z, y = validation
    start = float(head.log_prob(z, y).mean())
    loss = float(head.factor.loss(head.logits(z), y).mean())
    best, kept = start, {name: value.clone() for name, value in head.state_dict().items()}
    for weight, bias in candidates(head, *train):
        head.prior.weight.copy_(weight)
        head.prior.bias.copy_(bias)
        found = float(head.log_prob(z, y).mean())
        if found > best:
            best, kept = found, {name: value.clone() for name, value in head.state_dict().items()}
    head.load_state_dict(kept)
    head.decide()
    if not float(head.factor.loss(head.logits(z), y).mean()) <= loss:
        head.classifier.load_state_dict(
            {name: kept[f"classifier.{name}"] for name in ("weight", "bias")}
        )
    return best - start


def candidates(head: FactorHead, z: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Weights and offsets of priors fitted to codes: the old means shifted and scaled as one, the
    labels' own means, and their own scales, too.
    """
    embedded = head.factor.embed(y, z.dtype)
    means, _ = head.embedded_moments(torch.eye(embedded.shape[1]).to(z))
    if not isinstance(head.factor, Categorical):
        design = torch.cat([embedded, torch.ones_like(embedded)], 1)
        line = torch.linalg.lstsq(design, z).solution  # (slope and offset, features)
        log_scale = log_deviation(z - design @ line)
        yield (
            torch.cat([line[:1].t(), torch.zeros_like(line[:1].t())]),
            torch.cat([line[1], log_scale]),
        )
        return

    counts = embedded.sum(0).unsqueeze(1)
    rest = z - means[y]
    shifted = means + rest.mean(0)
    own = (embedded.t() @ z + shifted) / (counts + 1.0)  # as if one code were the old mean
    pooled = log_deviation(z - own[y])
    squares = embedded.t() @ (z - own[y]).square()
    # as if as many codes as there are in a tenth of a class had the pooled deviation
    few = 0.1 * counts.mean() + 1.0
    each = 0.5 * ((squares + few * (2.0 * pooled).exp()) / (counts + few)).log()
    for mean, log_scale in (
        (shifted, log_deviation(rest - rest.mean(0)).expand_as(shifted)),
        (own, pooled.expand_as(own)),
        (own, each.clamp(min=math.log(LEAST_SCALE))),
    ):
        weight = torch.cat([mean, log_scale], 1).t()
        yield weight, torch.zeros_like(weight[:, 0])


def log_deviation(z: Tensor) -> Tensor:
    """Logarithm of the root mean square of each column."""
    return z.square().mean(0).sqrt().clamp(min=LEAST_SCALE).log()


def fit_marginals(model: InfoCNF, x: Tensor, levels: int = 1) -> None:
    """Have each pixel or column of samples become normal at the data end of a flow that was built
    with ``marginals``.

    Arguments:
        model: The model, of as many bins as ``levels``, or as columns are to have.
        x: Training samples: whole grey levels ``(count, channels, height, width)``, or rows
            ``(count, features)`` for ``levels`` 1.
        levels: Grey levels of images.
    """
    first = next(iter(model.flow.single[0]), None)
    bins = first.below.shape[1] - 1 if isinstance(first, Gaussianise) else 1
    tables = pixel_tables(x, levels) if levels > 1 else column_tables(x, bins)
    if isinstance(first, Gaussianise) and tables[1].shape[1] != bins:
        raise ValueError(f"the model has marginals={bins}, the data {tables[1].shape[1]} bins")
    fit_tables(model.flow, *tables)
