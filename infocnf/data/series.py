"""Series from files: ``.npz`` arrays, and long tables with a row for each series and time.

A series becomes rows of a time and its values, NaN where a value is missing; shorter series end in
rows of NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from infocnf.data.dataset import Raw
from infocnf.data.images import load_npz, sources_of
from infocnf.data.labels import read_labels, wanted_labels
from infocnf.data.tables import TABLES, check_labels, plain, read_frame
from infocnf.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "is_series_file",
    "read_japanese_vowels",
    "read_new_series",
    "read_series_npz",
    "read_series_table",
]


def is_series_file(path: Path) -> bool:
    """Whether an ``.npz`` file holds series: it has an array ``times``."""
    return path.suffix.lower() == ".npz" and path.is_file() and "times" in load_npz(path)


def assemble(times: np.ndarray, values: np.ndarray, place: str) -> np.ndarray:
    """Series ``(series, rows, 1 + channels)`` of times ``(series, rows)`` and values, checked:
    times ascend, every series has two rows and a value.
    """
    try:
        times, values = times.astype(np.float64), values.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{place}: times and values must be numbers") from None
    if values.ndim != 3 or times.shape != values.shape[:2]:
        raise InputError(
            f"{place}: values must be (series, rows, channels) and times (series, rows), got "
            f"{values.shape} and {times.shape}"
        )
    if np.isinf(times).any() or np.isinf(values).any():
        raise InputError(f"{place} has an infinite time or value: correct it")
    there = ~np.isnan(times)
    if (there[:, 1:] & ~there[:, :-1]).any():
        raise InputError(f"{place}: a time is missing before the end of its series: fill it in")
    short = np.flatnonzero(there.sum(1) < 2)
    if len(short):
        raise InputError(f"{place}: series {short[0]} has fewer than two rows: leave it out")
    gaps = np.diff(times, axis=1)
    wrong = np.argwhere(gaps <= 0)
    if len(wrong):
        one, row = wrong[0]
        raise InputError(
            f"{place}: times of series {one} do not ascend after row {row + 1} "
            f"({times[one, row]:g}, {times[one, row + 1]:g})"
        )
    values = np.where(there[..., None], values, np.nan)
    empty = np.flatnonzero(np.isnan(values).all((1, 2)))
    if len(empty):
        raise InputError(f"{place}: series {empty[0]} has no value: leave it out")
    return np.concatenate([times[..., None], values], -1)


def assemble_arrays(path: Path, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Series of the arrays ``x`` ``(series, rows, channels)`` and ``times`` ``(rows,)`` or
    ``(series, rows)``, NaN after the end of a series.
    """
    missing = [key for key in ("x", "times") if key not in arrays]
    if missing:
        raise InputError(f"{path} has no array {missing[0]} (it has {', '.join(arrays) or 'none'})")
    x, times = arrays["x"], arrays["times"]
    if x.ndim != 3:
        raise InputError(f"{path}: x must be (series, rows, channels), got {x.shape}")
    if times.shape == x.shape[1:2]:
        times = np.broadcast_to(times, x.shape[:2])
    return assemble(times, x, str(path))


def read_series_npz(
    path: Path, label: str | list[str] | None = "label", real: Sequence[str] = ()
) -> Raw:
    """Series of :func:`assemble_arrays` with labels ``y`` or ``y_NAME``.

    Arguments:
        path: The file.
        label: Names of the labels to learn; all that there are for ``label``, none for nothing.
        real: Those of them that are real values, not classes.
    """
    arrays = load_npz(path)
    x = assemble_arrays(path, arrays)
    there = {
        "label" if key == "y" else key.removeprefix("y_"): values
        for key, values in arrays.items()
        if key == "y" or key.startswith("y_")
    }
    names = wanted_labels(label)
    wanted = list(there) if names == ["label"] else names
    missing = [name for name in wanted if name not in there]
    if missing:
        raise InputError(
            f"{path} has no label {missing[0]!r}: it has {', '.join(there) or 'none'}; a label is "
            "an array y or y_NAME (set data.label)"
        )
    for name in wanted:
        if there[name].shape != x.shape[:1]:
            raise InputError(f"{path}: {there[name].size} labels {name!r} for {len(x)} series")
    found = {name: there[name] for name in wanted}
    labels, classes = read_labels(found, real, str(path), each=True)
    columns = ("time", *(f"x{i}" for i in range(x.shape[2] - 1)))
    return Raw(x, labels, classes, columns=columns, sources=sources_of([path]))


def read_series_table(
    path: Path,
    series: str,
    time: str,
    label: str | list[str] | None,
    real: Sequence[str] = (),
) -> Raw:
    """A long table: which series, which time, values, and labels that are the same throughout a
    series.

    Arguments:
        path: The file.
        series: Column that says which series a row belongs to.
        time: Column of times.
        label: Columns of labels.
        real: Those of them that are real values, not classes.
    """
    frame, names = read_frame(path), wanted_labels(label)
    check_labels(path, frame, names, real)
    columns, x = long_table(path, frame, series, time, names)
    groups = frame.groupby(series, sort=False)
    for name in names:
        if frame[name].isna().any():
            row = int(frame[name].isna().to_numpy().argmax()) + 1
            raise InputError(f"{path}: row {row} has no label in column {name!r}: remove the row")
        kinds = groups[name].nunique()
        if (kinds > 1).any():
            bad = kinds.idxmax()
            raise InputError(
                f"{path}: {name!r} changes within series {bad!r}: it is no label of it"
            )
    found = {name: plain(groups[name].first()) for name in names}
    labels, classes = read_labels(found, real, str(path), each=True)
    return Raw(x, labels, classes, columns=columns, sources=sources_of([path]))


def long_table(
    path: Path, frame: pd.DataFrame, series: str, time: str, label: Sequence[str]
) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of time and values, and the series in the order in which the table has them."""
    for name, key in ((series, "data.series"), (time, "data.time")):
        if name not in frame.columns:
            raise InputError(
                f"{path} has no column {name!r}: it has {', '.join(frame.columns)} (set {key})"
            )
        if frame[name].isna().any():
            row = int(frame[name].isna().to_numpy().argmax()) + 1
            raise InputError(f"{path}: row {row} has nothing in column {name!r}: remove the row")
    values = [name for name in frame.columns if name not in (series, time, *label)]
    words = [name for name in (time, *values) if frame[name].dtype.kind not in "biuf"]
    if words or not values:
        what = f"column {words[0]!r} holds words" if words else "there is no column of values"
        raise InputError(f"{path}: {what}: leave it out, or name it as data.label")
    groups = [group.sort_values(time) for _, group in frame.groupby(series, sort=False)]
    rows = max(len(group) for group in groups)
    whole = np.full((len(groups), rows, 1 + len(values)), np.nan)
    for i, group in enumerate(groups):
        whole[i, : len(group)] = group[[time, *values]].to_numpy(np.float64)
    return (time, *values), assemble(whole[..., 0], whole[..., 1:], str(path))


def read_japanese_vowels(folder: Path) -> Raw:
    """Two vowels said by nine speakers, 12 channels, 7 to 29 steps: 270 to train, 370 to test."""
    path = folder if folder.is_file() else folder / "japanese_vowels.npz"
    if not path.is_file():
        raise InputError(f"{path} is missing")
    arrays = load_npz(path)
    parts = []
    for part in ("train", "test"):
        x = arrays[f"x_{part}"].astype(np.float64)
        steps = np.arange(x.shape[1], dtype=np.float64)
        times = np.where(steps < arrays[f"length_{part}"][:, None], steps, np.nan)
        parts.append((assemble(times, x, str(path)), arrays[f"y_{part}"].astype(np.int64)))
    (train, y_train), (test, y_test) = parts
    columns = ("time", *(f"c{i + 1}" for i in range(train.shape[2] - 1)))
    speakers = {"speaker": tuple(str(i + 1) for i in range(9))}
    return Raw(
        np.concatenate([train, test]),
        {"speaker": np.concatenate([y_train, y_test])},
        speakers,
        official=len(test),
        columns=columns,
        sources=sources_of([path]),
    )


def read_new_series(
    path: Path, columns: Sequence[str], series: str | None, time: str, label: Sequence[str]
) -> tuple[list[str], np.ndarray]:
    """Names and series of a file for a trained model, with or without labels.

    Arguments:
        path: ``.npz`` or a long table.
        columns: Time and values, as the model was trained on them.
        series: Column that says which series a row belongs to.
        time: Column of times.
        label: Columns of labels, which are not looked at.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if path.suffix.lower() == ".npz":
        x = assemble_arrays(path, load_npz(path))
        if x.shape[2] != len(columns):
            raise InputError(
                f"{path} has {x.shape[2] - 1} channels, the model reads {len(columns) - 1}"
            )
        return [str(i) for i in range(len(x))], x
    if path.suffix.lower() not in TABLES:
        raise InputError(f"{path} is of no known kind: give series as .npz, .csv or .parquet")
    if series is None:
        raise InputError(f"{path}: the model was trained on .npz series: give new ones as .npz")
    frame = read_frame(path)
    there = [name for name in label if name in frame.columns]
    found, x = long_table(path, frame, series, time, there)
    missing = [name for name in columns if name not in found]
    if missing:
        raise InputError(
            f"{path} has no column {missing[0]!r}: the model reads {', '.join(columns)}"
        )
    order = [found.index(name) for name in columns]
    return [str(name) for name in frame[series].unique()], x[..., order]
