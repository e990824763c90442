"""Rows from .csv and .parquet files, with a label column or several."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from infocnf.data.dataset import Raw
from infocnf.data.images import classes_of, finite, sources_of
from infocnf.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["read_frame", "read_table"]


def read_frame(path: Path) -> pd.DataFrame:
    """The table of a file."""
    import pandas as pd

    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except Exception as error:  # each format has errors of its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} cannot be read as a table ({reason})") from None
    if frame.empty:
        raise InputError(f"{path} has no rows")
    return frame


def read_table(path: Path, label: str | list[str] | None) -> Raw:
    """Features and labels of a table: whole numbers and words are classes, other numbers real."""
    frame = read_frame(path)
    names = [label] if isinstance(label, str) else list(label or [])
    for name in names:
        if name not in frame.columns:
            near = get_close_matches(name, map(str, frame.columns), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(frame.columns)}"
            raise InputError(f"{path} has no column {name!r}: {hint} (set data.label)")
    labels, classes = {}, {}
    for name in names:
        if frame[name].isna().any():
            row = int(frame[name].isna().to_numpy().argmax()) + 1
            raise InputError(f"{path}: row {row} has no label in column {name!r}: remove the row")
        labels[name], found = classes_of(plain(frame[name]), f"{path}, column {name!r}")
        if found:
            classes[name] = found["label"]

    features = frame.drop(columns=names)
    words = [name for name in features if features[name].dtype.kind not in "biuf"]
    if words:
        raise InputError(
            f"{path}: column {words[0]!r} holds words: leave it out, encode it as numbers, "
            "or name it as data.label"
        )
    if not len(features.columns):
        raise InputError(f"{path} has no column besides its labels")
    x = finite(features.to_numpy(np.float64), str(path))
    columns = tuple(map(str, features.columns))
    return Raw(x, labels, classes, columns=columns, sources=sources_of([path]))


def plain(column: pd.Series) -> np.ndarray:
    """A column as numbers or as words."""
    return column.to_numpy() if column.dtype.kind in "iuf" else column.astype(str).to_numpy(str)
