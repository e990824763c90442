r"""The learning rate of a step,

.. math:: \eta(s) = \eta_0 \cdot \min\!\Big(1, \frac{s + 1}{w}\Big) \cdot r^{\#\{d \le e(s)\}} \cdot
    c(s) \cdot 2^{-b}

with warm-up over :math:`w` steps, a factor :math:`r` after each of the epochs :math:`d`, a cosine
:math:`c` from 1 to 0.01 where asked for, and a halving for each of :math:`b` roll-backs.
"""

from __future__ import annotations

import math

from infocnf.training.config import Recipe

__all__ = ["rate_factor"]


def rate_factor(config: Recipe, step: int, steps_per_epoch: int) -> float:
    """Factor of the learning rate at a step, counted from 0; halvings are not included."""
    factor = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    epoch = step // steps_per_epoch
    factor *= config.drop_factor ** sum(epoch >= drop for drop in config.drops)
    if config.schedule == "cosine":
        share = step / (config.epochs * steps_per_epoch)
        factor *= 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))
    return factor
