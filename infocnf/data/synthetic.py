"""Densities that are known exactly, in one and two dimensions."""

from __future__ import annotations

import math

import numpy as np

from infocnf.data.dataset import Raw

__all__ = [
    "LENGTH",
    "MEANS",
    "NOISE",
    "VARIANCE",
    "WINDOW",
    "checkerboard",
    "curve",
    "mixture",
    "mixture_log_density",
    "moons",
    "rings",
    "spirals",
]

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


LENGTH, WINDOW, NOISE = 1000, 200, 0.3
SPAN = 6.0 * math.pi
SEEDS = {"train": 0, "test": 1}
DIRECTIONS = ("clockwise", "counter-clockwise")


def curve(a: np.ndarray, b: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Curves without noise, ``(curves, 1000, 2)``; direction 1 is counter-clockwise."""
    t = np.linspace(0.0, SPAN, LENGTH)
    a, b = a[:, None], b[:, None]
    s = SPAN + 1.0 - t
    inward, outward = a + 50.0 * b / s, a + b * t
    one = np.stack([inward * np.cos(s) - 5.0, inward * np.sin(s)], -1)
    two = np.stack([outward * np.cos(t) + 5.0, outward * np.sin(t)], -1)
    return np.where(direction[:, None, None] == 1, two, one)


def draw(count: int, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Windows with noise ``(count, 200, 3)``, labels, and the truth around them: one window before,
    the window, one after, ``(count, 600, 3)``. Times count from the window's first.
    """
    rng = np.random.default_rng(seed)
    direction = rng.permutation(np.arange(count) % 2)
    a, b = rng.normal(1.0, 0.08, count), rng.normal(0.25, 0.03, count)
    start = rng.integers(WINDOW, LENGTH - 2 * WINDOW + 1, count)
    noise = rng.normal(0.0, NOISE, (count, WINDOW, 2))

    rows = start[:, None] + np.arange(-WINDOW, 2 * WINDOW)
    points = curve(a, b, direction)[np.arange(count)[:, None], rows]
    times = np.arange(-WINDOW, 2 * WINDOW) * (SPAN / (LENGTH - 1))
    truth = np.concatenate([np.broadcast_to(times[:, None], (*rows.shape, 1)), points], -1)
    seen = truth[:, WINDOW : 2 * WINDOW].copy()
    seen[..., 1:] += noise
    labels = {"a": a, "b": b, "direction": direction.astype(np.int64)}
    return seen.astype(np.float32), labels, truth.astype(np.float32)


def spirals(count: int = 5000) -> Raw:
    """As many curves to train on as to test, each half clockwise, half counter-clockwise."""
    parts = [draw(count, seed) for seed in SEEDS.values()]
    return Raw(
        np.concatenate([seen for seen, *_ in parts]),
        {name: np.concatenate([labels[name] for _, labels, _ in parts]) for name in parts[0][1]},
        {"direction": DIRECTIONS},
        official=count,
        columns=("time", "x", "y"),
        natural=True,
        truth=np.concatenate([truth for *_, truth in parts]),
    )
