"""Find a saved model."""

from __future__ import annotations

from pathlib import Path

from infocnf.models import pretrained
from infocnf.models.conditional import InfoCNF
from infocnf.models.latent_ode import LatentODE

__all__ = ["load"]


def load(path: str | Path) -> InfoCNF | LatentODE:
    """The model of a folder with ``config.json`` and ``model.safetensors``, or of a run directory
    that holds it in ``model/``.
    """
    folder = Path(path)
    inner = folder / "model"
    own = (folder / pretrained.CONFIG).exists() or not inner.is_dir()
    place = folder if own else inner
    kind = LatentODE if pretrained.kind_of(place) == LatentODE.__name__ else InfoCNF
    return kind.from_pretrained(place)
