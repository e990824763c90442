"""What a trained model is worth: likelihoods with their numerical error, errors, calibration."""

from infocnf.evaluation.budget import evaluate_within
from infocnf.evaluation.certificate import Tighter
from infocnf.evaluation.density import Evaluation, evaluate, read_in_one_step
from infocnf.evaluation.predictions import Predictions, predict

__all__ = [
    "Evaluation",
    "Predictions",
    "Tighter",
    "evaluate",
    "evaluate_within",
    "predict",
    "read_in_one_step",
]
