"""Labels as a user has them (words, whole numbers, real values, some perhaps not known) become
numbers that a model reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from infocnf.errors import InputError

__all__ = ["check_names", "one_label", "read_labels", "wanted_labels"]

RESERVED = (  # columns of predictions
    "example log_likelihood percentile typicality entropy distance nfe".split()
)


def wanted_labels(label: str | Sequence[str] | None) -> list[str]:
    """Names of the labels to learn; None for no label."""
    return [label] if isinstance(label, str) else list(label or [])


def one_label(label: str | list[str] | None, place: Path) -> list[str]:
    """The name of the label of examples that have at most one."""
    names = wanted_labels(label)
    if len(names) > 1:
        raise InputError(f"{place} has one label, data.label names {len(names)}: name one, or []")
    return names


def check_names(names: Sequence[str], real: Sequence[str], place: str) -> None:
    """Refuse real values that are no labels, and names that predictions use themselves."""
    unknown = [name for name in real if name not in names]
    if unknown:
        raise InputError(f"data.real names {unknown[0]!r}, which is not in data.label")
    taken = [name for name in names if name in RESERVED or not name.strip()]
    if taken:
        raise InputError(f"{place}: a label cannot be called {taken[0]!r}: rename it")


def read_labels(
    columns: Mapping[str, np.ndarray], real: Sequence[str], place: str, *, each: bool = False
) -> tuple[dict[str, np.ndarray], dict[str, tuple[str, ...]]]:
    """Labels by name as numbers, and the names of the classes of those that have classes.

    Arguments:
        columns: Labels ``(examples,)`` by name; NaN or an empty word where one is not known.
        real: Those of them whose whole numbers are real values, not classes.
        place: Where they were read, for messages.
        each: Whether every example must have its labels.
    """
    check_names(list(columns), real, place)
    labels, classes = {}, {}
    for name, values in columns.items():
        where = f"{place}, label {name!r}"
        labels[name], names = encode(values, name in real, where)
        unknown = labels[name] == -1 if names else np.isnan(labels[name])
        if each and unknown.any():
            raise InputError(f"{where}: example {unknown.argmax()} has none: remove it")
        if names:
            classes[name] = names
    return labels, classes


def encode(y: np.ndarray, real: bool, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """One label: classes from 0 in alphabetical order, -1 where it is not known, and their names;
    or real values, NaN where it is not known, and no name.

    Words and whole numbers are classes unless they are said to be real values; numbers with a
    decimal point are real values, except whole ones beside NaN, which no array can hold as whole
    numbers.
    """
    if y.ndim != 1:
        raise InputError(f"{where}: there must be one per example, got shape {y.shape}")
    if y.dtype.kind not in "biufUSM":
        raise InputError(f"{where}: labels must be words, numbers or dates, got {y.dtype}")
    words = y.dtype.kind in "USM"
    if words and real:
        raise InputError(f"{where} holds words, which are not real values")
    if words:
        try:
            y = np.char.decode(y, "utf-8") if y.dtype.kind == "S" else y.astype(str)
        except UnicodeDecodeError:
            raise InputError(f"{where} holds bytes that are no words: save them as words") from None
    known = y != "" if words else ~np.isnan(y)
    found = y[known]
    if not len(y):
        raise InputError(f"{where} has no examples")
    if not len(found):
        raise InputError(f"{where}: no example has one: name another, or set data.label=[]")
    if not words and not np.isfinite(found).all():
        raise InputError(f"{where} is infinite in example {np.isinf(y).argmax()}: correct it")
    if found.dtype.kind == "f" and not known.all() and not (found % 1).any() and not real:
        found = found.astype(np.int64)
    if real or found.dtype.kind == "f":
        return y.astype(np.float64), ()

    names, codes = np.unique(found, return_inverse=True)
    if len(names) < 2:
        raise InputError(f"{where}: there is one class only, {names[0]}: nothing to tell apart")
    numbers = not words and len(names) > 20
    if len(names) > max(2, len(found) // (10 if numbers else 2)):
        remedy = (
            "if they are real values, name it in data.real" if numbers else "is this the label?"
        )
        raise InputError(f"{where}: {len(names)} classes for {len(found)} examples: {remedy}")
    whole = np.full(len(y), -1, dtype=np.int64)
    whole[known] = codes
    return whole, tuple(str(name) for name in names)
