"""Densities that are known exactly, in one and two dimensions."""

from __future__ import annotations

import math

import numpy as np

from infocnf.data.dataset import Raw

__all__ = ["MEANS", "VARIANCE", "checkerboard", "mixture", "mixture_log_density", "moons", "rings"]

MEANS, VARIANCE = (-2.8, -0.9, 2.0), 0.4  # the paper's mixture, equal weights
COUNT, TEST = 12_000, 2_000


def mixture(seed: int = 0) -> Raw:
    """Numbers from the paper's mixture of three Gaussians, labelled by component."""
    rng = np.random.default_rng(seed)
    component = rng.integers(3, size=COUNT)
    x = np.array(MEANS)[component] + math.sqrt(VARIANCE) * rng.standard_normal(COUNT)
    return rows(x[:, None], component, ("left", "middle", "right"))


def mixture_log_density(x: np.ndarray) -> np.ndarray:
    """Logarithm of the mixture's density at ``x``."""
    squares = (x[..., None] - np.array(MEANS)) ** 2 / VARIANCE
    each = np.exp(-0.5 * squares) / math.sqrt(2.0 * math.pi * VARIANCE)
    return np.log(each.mean(-1))


def moons(seed: int = 0) -> Raw:
    """Two interleaved half circles with noise."""
    rng = np.random.default_rng(seed)
    side = rng.integers(2, size=COUNT)
    angle = math.pi * rng.random(COUNT)
    upper = np.stack([np.cos(angle), np.sin(angle)], 1)
    lower = np.stack([1.0 - np.cos(angle), 0.5 - np.sin(angle)], 1)
    x = np.where(side[:, None] == 0, upper, lower) + 0.1 * rng.standard_normal((COUNT, 2))
    return rows(x, side, ("upper", "lower"))


def rings(seed: int = 0) -> Raw:
    """Two concentric rings with noise."""
    rng = np.random.default_rng(seed)
    ring = rng.integers(2, size=COUNT)
    angle = 2.0 * math.pi * rng.random(COUNT)
    radius = 1.0 + 2.0 * ring + 0.1 * rng.standard_normal(COUNT)
    x = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    return rows(x, ring, ("inner", "outer"))


def checkerboard(seed: int = 0) -> Raw:
    """The dark squares of a 4x4 board, labelled by the half they are in."""
    rng = np.random.default_rng(seed)
    column, row = rng.integers(4, size=COUNT), 2 * rng.integers(2, size=COUNT)
    row = row + column % 2
    x = np.stack([column, row], 1) + rng.random((COUNT, 2)) - 2.0
    return rows(x, (column >= 2).astype(int), ("left", "right"))


def rows(x: np.ndarray, label: np.ndarray, names: tuple[str, ...]) -> Raw:
    """Rows with an official test set at the end."""
    columns = ("x", "y")[: x.shape[1]]
    labels = {"label": label.astype(np.int64)}
    return Raw(x, labels, {"label": names}, official=TEST, columns=columns)
