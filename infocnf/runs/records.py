"""What the files of a run must hold, checked when they are read: a file that was damaged or written
by hand is answered by its name and what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infocnf.errors import InputError, shown
from infocnf.files import LARGEST_TEXT, check_file

__all__ = ["Environment", "Facts", "FlowMetrics", "Record", "SeriesMetrics", "check", "read_json"]

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Matrix = list[list[Count]]


class Record(BaseModel):
    """A file or a table of it; what it holds besides is left as it is."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)


class PreparationFacts(Record):
    """How examples become what the model reads."""

    levels: Count
    flip: bool
    mean: list[float]
    scale: list[float]
    series: bool = False


class Facts(Record):
    """``data.json``: which examples."""

    name: str
    shape: list[Positive]
    levels: Count
    classes: dict[str, list[str]]
    columns: list[str]
    sha256: str
    preparation: PreparationFacts
    span: float = 1.0


class Environment(Record):
    """``environment.json``: where and how it ran."""

    begun: str
    command: list[str]
    machine: str
    python: str
    versions: dict[str, str]


class Reference(Record):
    """Likelihoods of usual examples."""

    mean: float
    quantiles: Annotated[list[float], Field(min_length=2)]


class LabelMetrics(Record):
    """Metrics of labels, read in one way."""

    error_percent: float | None = None
    calibration_error: float | None = None
    factors: dict[str, dict[str, float | None]] = {}
    confusion: dict[str, Matrix] = {}
    reliability: dict[str, list[Annotated[list[float], Field(min_length=3)]]] = {}


class FlowMetrics(LabelMetrics):
    """``evaluation.json`` of a flow."""

    examples: Positive
    bits_per_dim: float
    bits_per_dim_marginal: float | None
    numerical_error_bits_per_dim: float
    nfe_forward: float
    one_step: LabelMetrics = LabelMetrics()
    readout: str = "flow"
    numerical_error: dict[str, float] = {}
    reference_likelihood: Reference | None = None
    outliers: dict[str, dict[str, float]] = {}


class SeriesMetrics(LabelMetrics):
    """``evaluation.json`` of series."""

    examples: Positive
    truth: bool
    rmse_fit: float | None
    rmse_after: float | None
    rmse_before: float | None
    elbo: float
    nfe_forward: float


def read_json(path: Path) -> dict[str, Any]:
    """A table of a file, or an error that names it."""
    check_file(path, LARGEST_TEXT)
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): restore it, or make it again") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deeply: restore it, or make it again") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no table: restore it, or make it again")
    return found


def check(record: type[Record], found: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A table as a record wants it, with its defaults where something may be missing."""
    try:
        return record.model_validate(found).model_dump(exclude_unset=False)
    except ValidationError as error:
        first = error.errors()[0]
        key, said = ".".join(map(str, first["loc"])), first["msg"]
        why = f": {key}: {said[0].lower()}{said[1:]}, got {shown(first['input'])}"
        why = f" has no {key!r}" if first["type"] == "missing" else why
        raise InputError(f"{path}{why}: restore it, or make it again") from None
