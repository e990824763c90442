"""Training: one loop, its stages, and what keeps it alive."""

from infocnf.training.fit import begin, fit_in_memory, resume
from infocnf.training.loop import Observer, Training

__all__ = ["Observer", "Training", "begin", "fit_in_memory", "resume"]
