"""Find a saved model."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from infocnf.models import pretrained
from infocnf.models.conditional import InfoCNF
from infocnf.models.latent_ode import LatentODE

__all__ = ["BUNDLED", "bundled", "load"]

BUNDLED = Path(str(files("infocnf"))) / "bundled"
"""Runs that come with the package."""


def load(path: str | Path) -> InfoCNF | LatentODE:
    """The model of a folder with ``config.json`` and ``model.safetensors``, of a run directory that
    holds it in ``model/``, or of the package, by its name: ``digits``.
    """
    folder = bundled(path) or Path(path)
    inner = folder / "model"
    own = (folder / pretrained.CONFIG).exists() or not inner.is_dir()
    place = folder if own else inner
    kind = LatentODE if pretrained.kind_of(place) == LatentODE.__name__ else InfoCNF
    return kind.from_pretrained(place)


def bundled(name: str | Path) -> Path | None:
    """The folder of a run that comes with the package; None for other names, and where the user has
    something of that name.
    """
    plain = Path(name).name == str(name) and not Path(name).exists()
    found = BUNDLED / str(name)
    return found if plain and (found / "config.toml").is_file() else None
