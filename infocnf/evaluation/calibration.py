r"""Whether probabilities are what they say: the expected calibration error

.. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n}
    \big| \mathrm{accuracy}_b - \mathrm{confidence}_b \big|

over bins :math:`b` of the probability of the predicted class (Guo et al. 2017).
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["calibration_error"]


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error of probabilities ``(examples, classes)``."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    classes = probabilities.shape[1]
    return float(multiclass_calibration_error(probabilities, labels, classes, n_bins=bins))
