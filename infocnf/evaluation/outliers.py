r"""How strange examples are.

Five scores, each larger for a stranger example:

- *log-likelihood*: :math:`-\log p(x)`. It fails where strange examples are simple: a blank image
  has a larger density than any of the data.
- *typicality*: :math:`|\log p(x) - E \log p|`, the expectation over examples that are usual
  (Nalisnick et al. 2019). A blank image is too likely to be one of them.
- *entropy* of :math:`p(y \mid x)`: strange is what has no clear label. It fails for what looks like
  a clear label of the wrong world.
- *distance* of the supervised code from that of any label.
- *ratio*: :math:`\log p_0(x) - \log p(x)` with :math:`p_0` the density of independent pixels or
  columns, which knows what is simple but not what belongs together (after Ren et al. 2019).

How well a score tells strange examples from usual ones is the area under its ROC curve: 0.5 is
guessing, less is worse than guessing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from infocnf.data import Dataset, Preparation
from infocnf.data.histograms import marginal_tables
from infocnf.evaluation.density import Scores, label_entropy
from infocnf.evaluation.familiar import Familiar
from infocnf.evaluation.predictions import score_all
from infocnf.flows import Traversal
from infocnf.flows.marginals import Gaussianise
from infocnf.models import InfoCNF
from infocnf.tolerances import Fixed

__all__ = ["SCORES", "auroc", "outlier_table", "strange_examples"]

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


def strange_examples(x: Tensor, levels: int, seed: int = 0) -> dict[str, Tensor]:
    """Examples that are none of the data, made of such as are: images ``(count, channels, height,
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


def auroc(usual: Tensor, strange: Tensor) -> float:
    """Probability that a strange example has the larger score, ties counting half; examples that
    cannot be scored at all are as strange as can be.
    """
    from sklearn.metrics import roc_auc_score

    scores = torch.cat([usual, strange]).double().nan_to_num(nan=math.inf)
    ranks = torch.searchsorted(scores.sort().values, scores)  # of infinities, too
    truth = torch.cat([torch.zeros(len(usual)), torch.ones(len(strange))])
    return float(roc_auc_score(truth.numpy(), ranks.numpy()))


def outlier_table(
    model: InfoCNF,
    preparation: Preparation,
    data: Dataset,
    *,
    tolerance: float = 1e-3,
    count: int = 500,
    batch_size: int = 500,
    progress: Callable[[int], None] = lambda count: None,
) -> dict[str, dict[str, float]]:
    """Areas under ROC curves by kind of strange example and score, over test examples; what is
    usual is learned from the validation part.
    """
    background = independent(data)
    usual, _ = data.examples("test")
    known, _ = data.examples("validation")

    def scores_of(x: Tensor, familiar: Familiar | None) -> tuple[dict[str, Tensor], Tensor]:
        parts, simple = [], []
        for begin in range(0, len(x), batch_size):
            prepared = preparation(x[begin : begin + batch_size].to(model.device), model.dtype)
            parts.append(score_all(model, prepared, Fixed(tolerance), 0.0))
            simple.append(background(prepared))
            progress(len(prepared))
        log_prob = torch.cat([part.marginal for part in parts]).cpu()
        if familiar is None:
            return {}, log_prob
        found = {
            "log-likelihood": -log_prob,
            "typicality": familiar.typicality(log_prob),
            **label_scores(model, parts),
            "ratio": torch.cat(simple) - log_prob,
        }
        return {name: found[name] for name in SCORES if name in found}, log_prob

    familiar = Familiar.of(scores_of(known[:count], None)[1])
    here = scores_of(usual[:count], familiar)[0]
    table = {}
    for kind, x in strange_examples(usual[:count], preparation.levels).items():
        there = scores_of(x, familiar)[0]
        table[kind] = {name: auroc(here[name], there[name]) for name in here}
    return table


def label_scores(model: InfoCNF, parts: list[Scores]) -> Mapping[str, Tensor]:
    """Entropy and distance, of a model that knows labels."""
    if not model.code.heads:
        return {}
    answers = {name: torch.cat([part.answers[name] for part in parts]) for name in model.code.heads}
    entropy = label_entropy(model, answers)
    distance = torch.cat([part.distance for part in parts])
    return {"distance": distance.cpu(), **({} if entropy is None else {"entropy": entropy.cpu()})}
