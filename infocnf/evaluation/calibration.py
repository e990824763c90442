r"""Whether probabilities are what they say: the expected calibration error

.. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n}
    \big| \mathrm{accuracy}_b - \mathrm{confidence}_b \big|

over bins :math:`b` of the probability of the predicted class (Guo et al. 2017).
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["calibration_error", "reliability"]


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error of probabilities ``(examples, classes)``."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    classes = probabilities.shape[1]
    return float(multiclass_calibration_error(probabilities, labels, classes, n_bins=bins))


def reliability(probabilities: Tensor, labels: Tensor, bins: int = 10) -> list[list[float]]:
    """Rows of a reliability diagram: mean probability of the predicted class, share of right
    answers, and number of examples of each bin that has any.

    >>> import torch
    >>> reliability(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]), bins=2)
    [[0.75, 0.5, 2.0]]
    """
    confidence, answer = probabilities.double().max(1)
    right = (answer == labels).double()
    place = (confidence * bins).ceil().clamp(1, bins).long() - 1
    rows = []
    for b in place.unique().tolist():
        mine = place == b
        rows.append([float(confidence[mine].mean()), float(right[mine].mean()), float(mine.sum())])
    return rows
