"""A run directory: everything about one training.

config.toml        what was asked for, in full
environment.json   versions, machine, command
data.json          which examples, splits.npz says how they were divided
metrics.csv        one row per epoch; events.* for TensorBoard
checkpoints/       last.ckpt, previous.ckpt, best.ckpt
model/             config.json, model.safetensors
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infocnf.data import Dataset, Preparation
from infocnf.errors import InputError
from infocnf.files import digest_of
from infocnf.models import InfoCNF, LatentODE, load
from infocnf.models.loading import bundled
from infocnf.training.build import build_data
from infocnf.training.config import Config
from infocnf.training.settings import parse_config, read_tables

__all__ = ["Run"]

LARGE = 256  # dimensions whose exact trace a person waits for
FACTS = ("shape", "levels", "classes", "columns", "sha256", "preparation")


@dataclass(frozen=True)
class Run:
    """A run directory.

    Arguments:
        folder: Where it is.
    """

    folder: Path

    @classmethod
    def open(cls, folder: str | Path, *, writing: bool = False) -> Run:
        """A directory that holds a run, or the name of one that comes with the package and is not
        written to; else an error that says what is missing.
        """
        own = bundled(folder)
        if own is not None:
            if writing:
                raise InputError(
                    f"{folder} comes with the package and stays as it is: predict with it and "
                    f"sample from it, or train one of your own with 'infocnf train {folder}'"
                )
            return cls(own)
        run = cls(Path(folder))
        if not run.folder.is_dir():
            raise InputError(f"{folder} does not exist: train first, or name a run directory")
        if not (run.folder / "config.toml").is_file():
            raise InputError(
                f"{folder} is not a run directory (it has no config.toml): name one that "
                "'infocnf train' wrote"
            )
        return run

    @property
    def config(self) -> Config:
        """What was asked for."""
        source = str(self.folder / "config.toml")
        return parse_config(read_tables(source), source)

    def model(self, exact_trace: bool = False) -> InfoCNF:
        """The flow it kept, in evaluation mode; on request with exact traces, which cost as many
        times more as a block has dimensions.
        """
        model = self.any_model()
        if not isinstance(model, InfoCNF):
            raise InputError(f"{self.folder} holds a model of series: this is for images and rows")
        if exact_trace and model.dimensions > LARGE:
            logging.getLogger(__name__).warning(
                "exact traces of %d dimensions: expect %d times the usual time",
                model.dimensions,
                model.dimensions,
            )
        for block in model.flow.blocks:
            block.exact = block.exact or exact_trace
        return model

    @property
    def is_series(self) -> bool:
        """Whether it is a run of series."""
        return self.config.training.stages == ["variational"]

    def latent_ode(self) -> LatentODE:
        """The model of series it kept, in evaluation mode."""
        model = self.any_model()
        if not isinstance(model, LatentODE):
            raise InputError(f"{self.folder} holds no model of series")
        return model

    def any_model(self) -> InfoCNF | LatentODE:
        """The model it kept."""
        if not (self.folder / "model" / "config.json").is_file():
            raise InputError(
                f"{self.folder} has no model yet: let it train to its first validation, "
                f"or continue it with 'infocnf train --resume --out {self.folder}'"
            )
        try:
            return load(self.folder / "model").eval()
        except ValueError as error:
            raise InputError(str(error)) from None

    @property
    def model_digest(self) -> str:
        """Digest of the weights it kept."""
        return digest_of(self.folder / "model" / "model.safetensors")

    @property
    def facts(self) -> dict[str, Any]:
        """What was recorded of its data."""
        facts = self.read_json("data.json")
        missing = [name for name in FACTS if name not in facts]
        if missing:
            raise InputError(
                f"{self.folder / 'data.json'} has no {missing[0]!r}: restore it, or train again"
            )
        return facts

    def read_json(self, name: str) -> dict[str, Any]:
        """A file of the run, or an error that names it."""
        path = self.folder / name
        try:
            found = json.loads(path.read_text())
            if not isinstance(found, dict):
                raise ValueError("it holds no table")
            return found
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path} cannot be read ({error}): restore it, or make it again"
            ) from None

    @property
    def preparation(self) -> Preparation:
        """How examples become what the model reads."""
        saved = self.facts["preparation"]
        return Preparation(
            saved["levels"],
            saved["flip"],
            tuple(saved["mean"]),
            tuple(saved["scale"]),
            saved.get("series", False),
        )

    def data(self) -> Dataset:
        """Its examples, the same as in training."""
        try:
            data = build_data(self.config)
        except InputError as error:
            raise InputError(
                f"{error} (the data of {self.folder}; data.path and data.directory in its "
                "config.toml say where it was)"
            ) from None
        if data.describe()["sha256"] != self.facts["sha256"]:
            raise InputError(
                f"{data.name} is not what {self.folder} was trained on: its content, classes or "
                "division has changed; restore it, or train again"
            )
        return data

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """``evaluation.json``, if the model it kept was evaluated."""
        name = "evaluation.json"
        if not (self.folder / name).is_file():
            return None
        found = self.read_json(name)
        return found if found.get("model_sha256") == self.model_digest else None
