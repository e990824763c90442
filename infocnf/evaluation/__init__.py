"""What a trained model is worth: likelihoods with their numerical error, errors, calibration."""

from infocnf.evaluation.certificate import Tighter
from infocnf.evaluation.density import Evaluation, evaluate
from infocnf.evaluation.predictions import Predictions, predict

__all__ = ["Evaluation", "Predictions", "Tighter", "evaluate", "predict"]
