"""Training: configurations, the Lightning module, run directories."""

from typing import TYPE_CHECKING

from infocnf.training.run import Run
from infocnf.training.settings import presets, read_config

if TYPE_CHECKING:
    from infocnf.training.fitting import begin, resume

__all__ = ["Run", "begin", "presets", "read_config", "resume"]


def __getattr__(name: str) -> object:
    """What trains is imported when it is used: a trained model needs no Lightning."""
    if name in ("begin", "resume"):
        from infocnf.training import fitting

        return getattr(fitting, name)
    raise AttributeError(f"module 'infocnf.training' has no attribute {name!r}")
