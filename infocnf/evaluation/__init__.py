"""What a trained model is worth: likelihoods with their numerical error, errors, calibration."""

from infocnf.evaluation.driver import Driver
from infocnf.evaluation.likelihood import (
    Evaluation,
    ReferenceLikelihood,
    Tighter,
    evaluate,
    evaluate_within,
    one_step_metrics,
)
from infocnf.evaluation.predictions import Predictions, predict

__all__ = [
    "Driver",
    "Evaluation",
    "Predictions",
    "ReferenceLikelihood",
    "Tighter",
    "evaluate",
    "evaluate_within",
    "one_step_metrics",
    "predict",
]
