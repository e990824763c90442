r"""Whether probabilities are what they say: the expected calibration error

.. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n}
    \big| \mathrm{accuracy}_b - \mathrm{confidence}_b \big|

over bins :math:`b` of the probability of the predicted class (Guo et al. 2017).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from infocnf.models import Categorical, PartitionedModel

__all__ = ["calibration_error", "reliability"]


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error of probabilities ``(examples, classes)``."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    classes = probabilities.shape[1]
    return float(multiclass_calibration_error(probabilities, labels, classes, n_bins=bins))


def reliability(probabilities: Tensor, labels: Tensor, bins: int = 10) -> list[list[float]]:
    """Rows of a reliability diagram: mean probability of the predicted class, share of right
    predictions, and number of examples of each bin that has any.

    >>> import torch
    >>> reliability(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]), bins=2)
    [[0.75, 0.5, 2.0]]
    """
    confidence, predicted = probabilities.double().max(1)
    right = (predicted == labels).double()
    place = (confidence * bins).ceil().clamp(1, bins).long() - 1
    rows = []
    for b in place.unique().tolist():
        mine = place == b
        rows.append([float(confidence[mine].mean()), float(right[mine].mean()), float(mine.sum())])
    return rows


def judge(
    model: PartitionedModel, logits: Mapping[str, Tensor], labels: Mapping[str, Tensor]
) -> tuple[dict[str, dict[str, float]], dict[str, list[list[int]]]]:
    """How good the logits are, factor by factor, and which classes are taken for which."""
    from torchmetrics.functional.classification import (
        multiclass_accuracy,
        multiclass_confusion_matrix,
    )

    metrics: dict[str, dict[str, float]] = {}
    confusion: dict[str, list[list[int]]] = {}
    for name, found in logits.items():
        factor, truth = model.factors[name], labels[name].to(found.device)
        if isinstance(factor, Categorical):
            classes, probabilities = factor.classes, factor.distribution(found)
            right = multiclass_accuracy(probabilities, truth, classes, average="micro")
            metrics[name] = {
                "error_percent": 100.0 * (1.0 - float(right)),
                "calibration_error": calibration_error(probabilities, truth),
            }
            confusion[name] = multiclass_confusion_matrix(found, truth, classes).tolist()
        else:
            difference = (factor.predict(found) - truth).double()
            metrics[name] = {"rmse": float(difference.square().mean().sqrt())}
    return metrics, confusion


def reliabilities(
    model: PartitionedModel, logits: Mapping[str, Tensor], labels: Mapping[str, Tensor]
) -> dict[str, list[list[float]]]:
    """Whether probabilities are what they say, by categorical factor."""
    return {
        name: reliability(factor.distribution(found), labels[name].to(found.device))
        for name, found in logits.items()
        if isinstance(factor := model.factors[name], Categorical)
    }


def label_entropy(model: PartitionedModel, logits: Mapping[str, Tensor]) -> Tensor | None:
    """Entropy of the classes' probabilities in nats, ``(examples,)``, summed over categorical
    factors; None without one.
    """
    total: Tensor | None = None
    for name, found in logits.items():
        factor = model.factors[name]
        if isinstance(factor, Categorical):
            mine = torch.special.entr(factor.distribution(found.double())).sum(1)
            total = mine if total is None else total + mine
    return total


def mean_of(metrics: Mapping[str, Mapping[str, float]], name: str) -> float | None:
    """A metric averaged over the factors that have it."""
    found = [values[name] for values in metrics.values() if name in values]
    return sum(found) / len(found) if found else None
