"""New examples for a trained model: images, a folder of them, .npz, .csv or .parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from infocnf.data.images import (
    SUFFIXES,
    channels_first,
    finite,
    image_files,
    is_seen,
    load_npz,
    read_image,
)
from infocnf.data.tables import TABLES, read_frame
from infocnf.errors import InputError
from infocnf.files import check_file

__all__ = ["read_inputs"]


def read_inputs(path: Path, facts: dict[str, Any]) -> tuple[list[str], np.ndarray]:
    """Names of the examples, and the examples as the model's data was read.

    Arguments:
        path: An image, a folder of images, ``.npz``, ``.csv`` or ``.parquet``.
        facts: What the run recorded of its data.
    """
    shape, levels = tuple(facts["shape"]), int(facts["levels"])
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if not path.is_dir():
        check_file(path)
    if path.is_dir() or path.suffix.lower() in SUFFIXES:
        if len(shape) != 3:
            raise InputError(f"{path} holds images, but the model reads rows of {shape[0]} numbers")
        return read_pictures(path, shape, levels)
    if path.suffix.lower() == ".npz":
        return read_arrays(path, shape, levels)
    if path.suffix.lower() in TABLES:
        if len(shape) != 1:
            raise InputError(f"{path} holds rows, but the model reads images of {shape}")
        return read_rows(path, facts["columns"], shape[0])
    raise InputError(f"{path} is of no known kind: give images, a folder, .npz, .csv or .parquet")


def read_pictures(path: Path, shape: tuple[int, ...], levels: int) -> tuple[list[str], np.ndarray]:
    """Images in the model's size, and in as many grey levels as it knows."""
    files = [path] if path.is_file() else image_files(path)
    if path.is_dir():  # sub-folders of classes, as in training
        inner = sorted(one for one in path.iterdir() if one.is_dir() and is_seen(one))
        files += [file for one in inner for file in image_files(one)]
    if not files:
        raise InputError(f"{path} holds no image")
    x = np.stack([read_image(file, shape[0], (shape[2], shape[1])) for file in files])
    if levels != 256:
        x = np.rint(x.astype(np.float64) * (levels - 1) / 255.0).astype(np.int32)
    return [str(file) for file in files], x


def read_arrays(path: Path, shape: tuple[int, ...], levels: int) -> tuple[list[str], np.ndarray]:
    """The array ``x``, or ``x_test``, of a file."""
    arrays = load_npz(path)
    key = next((key for key in ("x", "x_test") if key in arrays), None)
    if key is None:
        raise InputError(f"{path} has no array x (it has {', '.join(arrays) or 'none'})")
    x = channels_first(arrays[key], path)
    if x.shape[1:] != shape:
        raise InputError(f"{path}: examples have shape {x.shape[1:]}, the model reads {shape}")
    if not len(x):
        raise InputError(f"{path} has no examples")
    if levels > 1 and (np.any(x != np.floor(x)) or x.min() < 0 or x.max() >= levels):
        raise InputError(f"{path}: images must be whole grey levels 0 .. {levels - 1}")
    x = x.astype(np.int32) if levels > 1 else finite(x, str(path))
    return [str(i) for i in range(len(x))], x


def read_rows(path: Path, columns: list[str], features: int) -> tuple[list[str], np.ndarray]:
    """The columns the model was trained on, wherever they are in the table."""
    frame = read_frame(path)
    if not columns:
        columns = list(frame.columns)
    missing = [name for name in columns if name not in frame.columns]
    if missing or len(columns) != features:
        what = f"no column {missing[0]!r}" if missing else f"{len(columns)} columns"
        raise InputError(f"{path} has {what}: the model reads {', '.join(columns) or features}")
    x = finite(frame[columns].to_numpy(), str(path), columns)
    return [str(i) for i in range(len(x))], x
