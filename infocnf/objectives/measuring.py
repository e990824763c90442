r"""The error of :math:`\log p` that a step of training makes, measured: some of its samples are
solved again, tightly and with the same probes,

.. math:: e(x) = \frac{1}{D \ln 2} \left| \log p_\tau(x \mid y) - \log p_{\tau_0}(x \mid y) \right|

in bits per dimension, with :math:`\tau` what the policy chose and :math:`\tau_0` its reference.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from infocnf.models import InfoCNF
from infocnf.models.codes import Code
from infocnf.ode import SolveError
from infocnf.tolerances import Fixed

__all__ = ["Measurement", "measure"]

log = logging.getLogger("infocnf")


@dataclass(frozen=True)
class Measurement:
    """What was measured on the first samples of a batch.

    Arguments:
        errors: Error of each in bits per dimension, ``(samples,)``.
        evaluations: Evaluations per sample at the reference tolerance, over all blocks.
    """

    errors: Tensor
    evaluations: float

    def sums(self) -> dict[str, float]:
        """Sums over samples, by the names of :data:`infocnf.tolerances.feedback.MEASURED`."""
        count = len(self.errors)
        return {
            "measured": float(count),
            "error": float(self.errors.double().sum()),
            "measuring": self.evaluations * count,
        }


@torch.no_grad()
def measure(
    model: InfoCNF, x: Tensor, labels: Mapping[str, Tensor], code: Code, seeds: Tensor
) -> Measurement | None:
    """Errors of a batch whose code was found by the model's policy; None, with a warning, where
    the tight solve fails.

    Arguments:
        model: The model.
        x: Samples ``(batch, *shape)``.
        labels: Their labels.
        code: Their code.
        seeds: The seeds of their probes.
    """
    survey = model.policy.survey
    assert survey is not None and code.stats is not None and code.log_det is not None
    few = slice(0, survey.samples)
    tolerance = torch.full((len(x[few]),), survey.reference, dtype=torch.float64)
    alike = code.stats.forward.ndim > 0  # own steps, where the batch had such
    try:
        tight = model.encode(
            x[few], tolerance=Fixed(tolerance if alike else survey.reference), seeds=seeds[few]
        )
    except SolveError as error:
        log.warning("errors of log p could not be measured: %s", error)
        return None

    assert tight.stats is not None
    mine = {name: label[few] for name, label in labels.items()}
    loose = Code(code.supervised[few], code.unsupervised[few], code.log_det[few])
    change = model.code_log_prob(loose, mine) - model.code_log_prob(tight, mine)
    if not change.isfinite().all():
        log.warning("errors of log p could not be measured: some are not finite")
        return None
    return Measurement(
        errors=change.abs() / (model.dimensions * math.log(2.0)),
        evaluations=float(tight.stats.forward.double().mean()),
    )
