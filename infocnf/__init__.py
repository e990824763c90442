"""Conditional continuous normalizing flows: classify, generate and score by exact likelihood."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infocnf.models import Categorical, InfoCNF, LatentODE, Real, load

__version__ = "0.1.0"
__all__ = ["Categorical", "InfoCNF", "LatentODE", "Real", "load"]

_HOMES = dict.fromkeys(__all__, "infocnf.models")
_PACKAGES = (
    "data",
    "estimators",
    "evaluation",
    "flows",
    "matching",
    "models",
    "networks",
    "objectives",
    "ode",
    "reports",
    "runs",
    "tolerances",
    "training",
)


def __getattr__(name: str) -> object:
    """Import public names when they are first used, so that ``import infocnf`` does not wait for
    PyTorch.
    """
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _PACKAGES:
        return import_module(f"infocnf.{name}")
    raise AttributeError(f"module 'infocnf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
