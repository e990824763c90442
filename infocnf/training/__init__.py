"""Training: configurations, the Lightning module, run directories."""

from infocnf.training.run import Run, begin, resume
from infocnf.training.settings import presets, read_config

__all__ = ["Run", "begin", "presets", "read_config", "resume"]
