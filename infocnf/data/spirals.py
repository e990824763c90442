r"""Spirals that turn one way or the other: the paper's time series, with their truth.

.. math:: \text{clockwise: } R = a + 50\, b / s,\; s = 6 \pi + 1 - t,\; (R \cos s - 5,\; R \sin s);
    \qquad \text{counter-clockwise: } R = a + b\, t,\; (R \cos t + 5,\; R \sin t)

for 1,000 times :math:`t` in :math:`[0, 6 \pi]`, with :math:`a \sim \mathcal N(1, 0.08^2)` and
:math:`b \sim \mathcal N(0.25, 0.03^2)`. What is observed of a curve is a window of 200 times with
noise of deviation 0.3; as many times or more lie before and after it.
"""

from __future__ import annotations

import math

import numpy as np

from infocnf.data.dataset import Raw

__all__ = ["LENGTH", "NOISE", "WINDOW", "curve", "spirals"]

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
