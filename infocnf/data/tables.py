"""Rows from .csv and .parquet files, with a label column or several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from infocnf.data.dataset import Raw
from infocnf.data.images import finite, sources_of
from infocnf.data.labels import check_names, read_labels, wanted_labels
from infocnf.errors import InputError
from infocnf.files import check_file

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TABLES", "check_labels", "plain", "read_frame", "read_table"]

TABLES = (".csv", ".tsv", ".parquet")


def read_frame(path: Path) -> pd.DataFrame:
    """The table of a file."""
    import pandas as pd

    check_file(path)
    try:
        if path.suffix.lower() == ".parquet":
            frame = pd.read_parquet(path)
        else:
            frame = pd.read_csv(path, skipinitialspace=True, **punctuation(path))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except Exception as error:  # each format has errors of its own
        reason = str(error).splitlines()[0] if str(error) else "no reason given"
        raise InputError(f"{path} cannot be read as a table ({reason})") from None
    if frame.empty:
        raise InputError(f"{path} has no rows")
    if not isinstance(frame.index, pd.RangeIndex):
        raise InputError(
            f"{path}: rows have more values than there are column names: if commas are decimal, "
            "separate the columns by semicolons"
        )
    frame.columns = [str(name).strip() for name in frame.columns]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise InputError(f"{path} has two columns {twice[0]!r}: rename one")
    return frame


def punctuation(path: Path) -> dict[str, str]:
    """What separates values and what decimals, from the first lines of a file.

    A comma between digits is decimal only where commas do not separate, and where it cannot be one
    between thousands.
    """
    with path.open(errors="replace") as stream:
        lines = [re.sub(r'"[^"]*"', "", line) for line in stream if line.strip()][:20]
    separator = max(",;\t", key=(lines or [""])[0].count)
    decimals = re.findall(r"\d,(\d+)", "\n".join(lines[1:])) if separator != "," else []
    comma = any(len(digits) != 3 for digits in decimals)
    return {"sep": separator, "decimal": "," if comma else "."}


def read_table(path: Path, label: str | list[str] | None, real: Sequence[str] = ()) -> Raw:
    """Features and labels of a table: words and whole numbers are classes, unless they are said to
    be real values; numbers with a decimal point are real values.
    """
    frame = read_frame(path)
    names = wanted_labels(label)
    check_labels(path, frame, names, real)
    labels, classes = read_labels({name: plain(frame[name]) for name in names}, real, str(path))

    features = frame.drop(columns=names)
    words = [name for name in features if features[name].dtype.kind not in "biuf"]
    if words:
        raise InputError(
            f"{path}: column {words[0]!r} holds words: leave it out, encode it as numbers, "
            "or name it as data.label"
        )
    if not len(features.columns):
        raise InputError(f"{path} has no column besides its labels")
    columns = tuple(features.columns)
    x = finite(features.to_numpy(np.float64), str(path), columns)
    return Raw(x, labels, classes, columns=columns, sources=sources_of([path]))


def check_labels(path: Path, frame: pd.DataFrame, names: list[str], real: Sequence[str]) -> None:
    """Refuse labels that are not there or have no use, and columns without a name."""
    unnamed = [name for name in frame.columns if not name or name.startswith("Unnamed:")]
    if unnamed:
        raise InputError(
            f"{path} has a column without a name (row numbers?): remove it, or give it a name"
        )
    for name in names:
        if name not in frame.columns:
            near = get_close_matches(name, map(str, frame.columns), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(frame.columns)}"
            raise InputError(f"{path} has no column {name!r}: {hint} (set data.label)")
    check_names(names, real, str(path))


def plain(column: pd.Series) -> np.ndarray:
    """A column as numbers or as words; NaN or an empty word where a cell is blank."""
    known = column.notna().to_numpy()
    if column.dtype.kind in "iuf" and not known.all():
        return column.astype(float).to_numpy()
    if column.dtype.kind in "biuf" and known.all():
        return column.to_numpy(dtype=np.dtype(f"{column.dtype.kind}{column.dtype.itemsize}"))
    words = np.full(len(column), "", dtype=object)
    try:
        words[known] = column[known].astype(str).to_numpy()
    except UnicodeDecodeError:
        raise InputError(
            f"column {column.name!r} holds bytes that are no words: save them as words"
        ) from None
    return words.astype(str)
