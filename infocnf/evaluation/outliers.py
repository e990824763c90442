r"""Outlier scores: how far examples are from the data.

Five scores, each larger farther out:

- *log-likelihood*: :math:`-\log p(x)`. It fails where outliers are simple: a blank image
  has a larger density than any of the data.
- *typicality*: :math:`|\log p(x) - E \log p|`, the expectation over examples that are usual
  (Nalisnick et al. 2019). A blank image is too likely to be one of them.
- *entropy* of :math:`p(y \mid x)`: an outlier has no clear label. It fails for what looks like
  a clear label of the wrong world.
- *distance* of the supervised code from that of any label.
- *ratio*: :math:`\log p_0(x) - \log p(x)` with :math:`p_0` the density of independent pixels or
  columns, which knows what is simple but not what belongs together (after Ren et al. 2019).

How well a score tells outliers from usual examples is the area under its ROC curve: 0.5 is
guessing, less is worse than guessing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from infocnf.data import Dataset
from infocnf.data.dataset import marginal_tables
from infocnf.evaluation.calibration import label_entropy
from infocnf.evaluation.driver import Driver
from infocnf.evaluation.likelihood import ReferenceLikelihood, logits_of, score_all
from infocnf.flows import Traversal
from infocnf.flows.gaussianise import Gaussianise
from infocnf.models import InfoCNF
from infocnf.tolerances import Fixed

__all__ = ["SCORES", "auroc", "make_outliers", "outlier_table"]

SCORES = ("log-likelihood", "typicality", "entropy", "distance", "ratio")


def independent(data: Dataset) -> Callable[[Tensor], Tensor]:
    """Log-density of prepared examples under independent pixels or columns of the training part."""
    knots, shares = marginal_tables(data)
    table = Gaussianise(data.shape, shares.shape[1])
    table.fit(knots, shares)

    def log_prob(x: Tensor) -> Tensor:
        z, log_det = table(x.double().cpu(), Traversal(Fixed()))
        normal = -0.5 * (z.square() + math.log(2.0 * math.pi)).flatten(1).sum(1)
        return normal + log_det

    return log_prob


def make_outliers(x: Tensor, levels: int, seed: int = 0) -> dict[str, Tensor]:
    """Outliers made of examples: images ``(count, channels, height,
    width)`` of whole grey levels, or rows ``(count, features)`` for ``levels`` 1.
    """
    draw = torch.Generator().manual_seed(seed)
    order = torch.rand(x.shape, generator=draw)
    if levels == 1:
        low, high = x.amin(0), x.amax(0)
        return {
            "columns of different rows": x.gather(0, order.argsort(0)),
            "anywhere within the range": low + (high - low) * order.to(x),
            "far outside": x + 3.0 * (high - low),
        }
    flat = order.flatten(1).argsort(1)
    even = (torch.rand(len(x), generator=draw) * levels).long()
    other = torch.randperm(len(x), generator=draw)
    halves = x.clone()
    halves[..., x.shape[-1] // 2 :] = x[other][..., x.shape[-1] // 2 :]
    return {
        "noise": (order * levels).floor().to(x.dtype),
        "one grey": even.to(x.dtype).view(-1, 1, 1, 1).expand_as(x).contiguous(),
        "negative": levels - 1 - x,
        "upside down": x.flip(-2),
        "shuffled pixels": x.flatten(1).gather(1, flat).view_as(x),
        "halves of two": halves,
    }


def auroc(usual: Tensor, outliers: Tensor) -> float:
    """Probability that an outlier has the larger score, ties counting half; examples that cannot be
    scored at all are as far out as can be.
    """
    from sklearn.metrics import roc_auc_score

    scores = torch.cat([usual, outliers]).double().nan_to_num(nan=math.inf)
    ranks = torch.searchsorted(scores.sort().values, scores)  # of infinities, too
    truth = torch.cat([torch.zeros(len(usual)), torch.ones(len(outliers))])
    return float(roc_auc_score(truth.numpy(), ranks.numpy()))


def outlier_table(
    driver: Driver[InfoCNF], data: Dataset, *, tolerance: float = 1e-3, count: int = 500
) -> dict[str, dict[str, float]]:
    """Areas under ROC curves by kind of outlier and score, over test examples; what is usual is
    learned from the validation part.
    """
    model, preparation, background = driver.model, driver.preparation, independent(data)
    usual, known = (data.examples(part)[0][:count] for part in ("test", "validation"))
    # scores are compared between many examples: the least effort for their traces is enough
    scored = partial(score_all, driver, tolerance=tolerance, log_scale=0.0, effort=0.0)
    reference = ReferenceLikelihood.of(scored(known)["marginal"].cpu())

    def scores_of(x: Tensor) -> dict[str, Tensor]:
        found = {name: v.cpu() for name, v in scored(x).items()}
        simple = background(preparation(x, model.dtype))
        scores = {
            "log-likelihood": -found["marginal"],
            "typicality": reference.typicality(found["marginal"]),
            "ratio": simple - found["marginal"],
        }
        if model.code.heads:
            scores["distance"] = found["distance"]
        entropy = label_entropy(model, logits_of(found))
        if entropy is not None:
            scores["entropy"] = entropy
        return {name: scores[name] for name in SCORES if name in scores}

    here, table = scores_of(usual), {}
    for kind, x in make_outliers(usual, preparation.levels).items():
        there = scores_of(x)
        table[kind] = {name: auroc(here[name], there[name]) for name in here}
    return table
