r"""Examples, their labels, and which of them train, validate and test.

A flow wants real numbers of moderate size. Images of :math:`L` grey levels become
:math:`(k + u) / L` with uniform noise :math:`u`; rows of a table are standardised, and their
densities are brought back to the table's own units by :math:`\log p(x) = \log p(x') - \sum_i \log
s_i`. Values of series are standardised, too, and their times counted from the first. Noise is a
function of a seed per example: fresh in every epoch of training, that of the example's own content
at evaluation.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from infocnf.errors import InputError
from infocnf.flows.bijection import dequantise, quantise
from infocnf.flows.gaussianise import column_tables, pixel_tables
from infocnf.models.base import is_missing
from infocnf.models.factors import Categorical, Factor, Real
from infocnf.random import Stream, draw_uniform, sample_seeds

__all__ = ["PARTS", "Dataset", "Preparation", "Raw", "marginal_tables", "split", "spread_over"]

PARTS = ("train", "validation", "test")
SMALLEST = 1e-290  # spread of a column, and the inverse of its largest value


@dataclass(frozen=True)
class Raw:
    """What was read: examples, labels, and how many of them at the end are the official test.

    Arguments:
        x: Grey levels ``(examples, channels, height, width)``, rows ``(examples, features)``, or
            series ``(examples, rows, 1 + channels)``: times and values, NaN where there is none.
        labels: Labels by factor, ``(examples,)``: whole numbers where ``classes`` names them.
        classes: Names of the classes of each categorical label.
        levels: Grey levels; 1 for rows.
        official: Number of examples at the end that are the official test set; 0 without one.
        flip: Whether a mirrored example is as good as the example.
        columns: Names of the features of rows.
        sources: Digests of the files that were read, by name.
        natural: Whether numbers are of moderate size already and are left as they are.
        truth: Of series that were made: themselves without noise, at these and other times.
    """

    x: np.ndarray
    labels: dict[str, np.ndarray]
    classes: dict[str, tuple[str, ...]]
    levels: int = 1
    official: int = 0
    flip: bool = False
    columns: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    natural: bool = False
    truth: np.ndarray | None = None

    @property
    def is_series(self) -> bool:
        """Whether the examples are series."""
        return self.x.ndim == 3


@dataclass(frozen=True)
class Preparation:
    """How examples become what a flow reads, and back.

    Arguments:
        levels: Grey levels of images; 1 for rows.
        flip: Whether to mirror half of the images in training.
        mean: Mean of each feature of rows.
        scale: Standard deviation of each feature of rows.
        series: Whether the examples are series, whose first column is time.
    """

    levels: int = 1
    flip: bool = False
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    series: bool = False

    def __call__(self, raw: Tensor, dtype: torch.dtype, seeds: Tensor | None = None) -> Tensor:
        """Examples ``(batch, ...)`` as the flow reads them; with seeds ``(batch,)`` as training
        wants them, without as evaluation does.
        """
        if not self.is_images:  # in double precision: a large mean would round the rest away
            raw = raw.double()
            if self.series:
                raw = torch.cat([raw[..., :1] - raw[:, :1, :1], raw[..., 1:]], -1)
            return ((raw - self.vector(self.mean, raw)) / self.vector(self.scale, raw)).to(dtype)
        raw = raw.to(dtype)
        if seeds is not None and self.flip:
            coins = draw_uniform(seeds, raw[:, :1, :1, :1], Stream.FLIP) < 0.5
            raw = torch.where(coins, raw.flip(-1), raw)
        return dequantise(raw, self.levels, seeds=sample_seeds(raw) if seeds is None else seeds)

    @property
    def columns(self) -> int:
        """Number of features of rows; 0 for images."""
        return len(self.scale)

    @property
    def is_images(self) -> bool:
        """Whether the examples are images of whole grey levels."""
        return self.levels > 1

    @property
    def log_scales(self) -> Tensor:
        """The same for each channel of series."""
        return torch.tensor(self.scale[1:], dtype=torch.float64).log()

    @property
    def log_scale(self) -> float:
        """What to subtract from the flow's log-density to have that of rows in their own units."""
        return sum(math.log(scale) for scale in self.scale)

    def restore(self, x: Tensor) -> Tensor:
        """What the flow made, in the units of the examples."""
        if self.is_images:
            return quantise(x, self.levels)
        x = x.double()
        if self.series:  # values without their times
            return x * self.vector(self.scale[1:], x) + self.vector(self.mean[1:], x)
        return x * self.vector(self.scale, x) + self.vector(self.mean, x)

    def vector(self, values: tuple[float, ...], like: Tensor) -> Tensor:
        """Numbers per feature as a tensor."""
        return torch.tensor(values, dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class Dataset:
    """Examples as read, divided and ready to be prepared.

    Arguments:
        name: Name in the catalogue, or of the file.
        raw: What was read.
        parts: Indices of the examples of each part.
        standard: How they are prepared, where it was learned elsewhere.
    """

    name: str
    raw: Raw
    parts: Mapping[str, np.ndarray]
    standard: Preparation | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.raw.x.shape[1:])

    @cached_property
    def factors(self) -> dict[str, Factor]:
        """The labels as factors of a model; classes as often as they occur in training."""
        found: dict[str, Factor] = {}
        for name, values in self.raw.labels.items():
            mine = values[self.parts["train"]]
            mine = mine[~missing(mine)]
            if name in self.raw.classes:
                counts = np.bincount(mine, minlength=len(self.raw.classes[name]))
                found[name] = Categorical.as_often(counts.tolist())
            else:
                found[name] = Real(float(mine.mean()), max(float(mine.std()), 1e-12))
        return found

    @cached_property
    def preparation(self) -> Preparation:
        """How its examples become what a flow reads, learned from the training part."""
        if self.standard is not None:
            return self.standard
        if self.raw.levels > 1:
            return Preparation(self.raw.levels, self.raw.flip)
        if self.raw.is_series:
            return self.series_preparation()
        if self.raw.natural:
            width = self.raw.x.shape[1]
            return Preparation(mean=(0.0,) * width, scale=(1.0,) * width)
        mine = self.raw.x[self.parts["train"]].astype(np.float64)
        flat = np.flatnonzero(np.ptp(mine, 0) == 0)
        if len(flat):
            name = self.raw.columns[flat[0]] if self.raw.columns else f"number {flat[0]}"
            raise InputError(
                f"column {name} of {self.name} is constant and has no density: leave it out"
            )
        mean, scale = moments(mine, self.raw.columns)
        return Preparation(mean=tuple(mean.tolist()), scale=tuple(scale.tolist()))

    def series_preparation(self) -> Preparation:
        """How series become what a model reads: values standardised, and times in units in which a
        series lasts about 4.
        """
        width = self.raw.x.shape[2]
        if self.raw.natural:
            return Preparation(mean=(0.0,) * width, scale=(1.0,) * width, series=True)
        mine = self.raw.x[self.parts["train"]].astype(np.float64)
        span = float((np.nanmax(mine[..., 0], 1) - mine[:, 0, 0]).mean())
        values = mine[..., 1:].reshape(-1, width - 1)
        for i, column in enumerate(values.T):
            if np.isnan(column).all() or np.nanmax(column) == np.nanmin(column):
                name = self.raw.columns[i + 1]
                raise InputError(f"column {name} of {self.name} is constant or empty: leave it out")
        mean, scale = moments(values, self.raw.columns[1:])
        return Preparation(
            mean=(0.0, *mean.tolist()), scale=(span / 4.0, *scale.tolist()), series=True
        )

    def truth(self, part: str) -> Tensor | None:
        """The truth of one part's series, where it is known."""
        if self.raw.truth is None:
            return None
        return torch.from_numpy(self.raw.truth[self.parts[part]])

    def forgetting(self, labelled: int | None, unlabelled: bool = True) -> Dataset:
        """The same, with the labels of so many training examples (all for None), of each class as
        many as can be; the others train without label, or not at all.
        """
        train = self.parts["train"]
        labels = {name: values.copy() for name, values in self.raw.labels.items()}
        unknown = unlabelled_among(self.raw)[train]
        turn = np.zeros(len(train), dtype=np.int64)  # which of its class an example is
        for name in list(self.raw.classes)[:1]:
            for number in range(len(self.raw.classes[name])):
                mine = labels[name][train] == number
                turn[mine] = np.arange(mine.sum())
        turn[unknown] = len(train)
        order = np.argsort(turn, kind="stable")
        labelled = min(len(train) if labelled is None else labelled, int((~unknown).sum()))
        if not unlabelled:
            return replace(self, parts={**self.parts, "train": train[np.sort(order[:labelled])]})
        forgotten = train[order[labelled:]]
        for values in labels.values():
            values[forgotten] = np.nan if values.dtype.kind == "f" else -1
        return replace(self, raw=replace(self.raw, labels=labels))

    def examples(self, part: str) -> tuple[Tensor, dict[str, Tensor]]:
        """Examples as read and their labels, of one part."""
        indices = self.parts[part]
        labels = {name: torch.from_numpy(y[indices]) for name, y in self.raw.labels.items()}
        return torch.from_numpy(self.raw.x[indices]), labels

    def describe(self) -> dict[str, Any]:
        """What a run records of its data: enough to tell whether it is the same again."""
        facts = {
            "name": self.name,
            "shape": list(self.shape),
            "levels": self.raw.levels,
            "classes": {name: list(names) for name, names in self.raw.classes.items()},
            "columns": list(self.raw.columns),
            "examples": {part: len(indices) for part, indices in self.parts.items()},
        }
        content = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for values in (self.raw.x, *self.raw.labels.values(), *self.parts.values()):
            content.update(f"{values.shape} {values.dtype}".encode())
            content.update(np.ascontiguousarray(values).tobytes())
        return {**facts, "sha256": content.hexdigest(), "sources": dict(self.raw.sources)}


def split(raw: Raw, validation: float, test: float, seed: int, name: str) -> dict[str, np.ndarray]:
    """Indices of each part, in an order fixed by the seed.

    Arguments:
        raw: The examples.
        validation: Size of the validation part: a fraction of what is not for testing, or a number.
        test: Size of the test part, a fraction or a number, where there is no official one.
        seed: Seed of the division.
        name: Name for messages.
    """
    total = len(raw.x)
    rng = np.random.default_rng(seed)
    unlabelled = unlabelled_among(raw)
    official = np.arange(total - raw.official, total)
    if unlabelled[official].any():
        raise InputError(f"{name}: a test example has no label: remove it")
    order = rng.permutation(total - raw.official)
    order = np.concatenate([order[~unlabelled[order]], order[unlabelled[order]]])
    count = 0 if raw.official else size_of(test, int((~unlabelled).sum()))
    tested, rest = np.concatenate([order[:count], official]), order[count:]
    count = size_of(validation, int((~unlabelled[rest]).sum()))
    parts = {"train": rest[count:], "validation": rest[:count], "test": tested}
    empty = [part for part in PARTS if not len(parts[part])]
    if empty:
        raise InputError(
            f"{name} has {total} examples, which leaves none for {empty[0]}: "
            "change data.validation or data.test, or bring more examples"
        )
    return parts


def unlabelled_among(raw: Raw) -> np.ndarray:
    """Which examples lack a label, ``(examples,)``."""
    found = np.zeros(len(raw.x), dtype=bool)
    for values in raw.labels.values():
        found |= missing(values)
    return found


def moments(columns: np.ndarray, names: Sequence[str] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of columns ``(rows, columns)``, whatever their unit; an error
    that names one whose numbers double precision cannot tell apart. Missing values do not count.

    >>> moments(np.array([[1e200, 2.0], [3e200, 4.0]]))
    (array([2.e+200, 3.e+000]), array([1.e+200, 1.e+000]))
    """
    largest = np.nanmax(np.abs(columns), 0, initial=0.0)
    unit = np.ldexp(1.0, np.frexp(np.where(largest > 0.0, largest, 1.0))[1] - 1)  # exact
    mean, scale = np.nanmean(columns / unit, 0) * unit, np.nanstd(columns / unit, 0) * unit
    for i in np.flatnonzero((scale < SMALLEST) | (largest > 1.0 / SMALLEST)).tolist():
        name = names[i] if names else f"number {i}"
        raise InputError(
            f"column {name} has values of up to {largest[i]:.0e} and a spread of {scale[i]:.0e}, "
            "which is more than double precision can tell: give it in another unit"
        )
    return mean, scale


def missing(labels: np.ndarray) -> np.ndarray:
    """Which labels are not known."""
    return is_missing(torch.from_numpy(labels)).numpy()


def size_of(share: float, total: int) -> int:
    """A number of examples, from a fraction below 1 or a number."""
    return min(total, max(1, round(share * total)) if share < 1 else int(share))


def spread_over(
    x: Tensor, labels: Mapping[str, Tensor], limit: int | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """At most so many examples, evenly spread: the first ones of a set may be the easy ones."""
    chosen = torch.arange(len(x))
    if limit is not None and limit < len(x):
        chosen = torch.linspace(0, len(x) - 1, limit, dtype=torch.float64).long()
    return x[chosen], {name: y[chosen] for name, y in labels.items()}


LARGEST_BINS = 64  # of a column


def marginal_tables(data: Dataset) -> tuple[Tensor, Tensor]:
    """Histograms of the training examples, pixel by pixel or column by column."""
    x, _ = data.examples("train")
    preparation = data.preparation
    if preparation.is_images:
        images = torch.cat([x, x.flip(-1)]) if preparation.flip else x
        return pixel_tables(images, preparation.levels)
    rows = preparation(x, torch.float64)
    return column_tables(rows, bins=max(1, min(LARGEST_BINS, len(rows) // 16)))
