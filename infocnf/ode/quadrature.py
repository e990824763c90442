r"""Integrals along a solved path, with their error.

Along a path that has been solved, a function of time and state is a function of one variable,

.. math:: \int_{t_0}^{t_1} g(t, y(t))\, dt \approx \sum_i w_i\, g(t_i, y(t_i)) ,

and needs far fewer evaluations than the path has stages. The rules are Patterson's extensions of
Gauss's: 1, 3, 7, 15 and 31 nodes, each of which keeps all nodes of the one before and is exact for
polynomials of degree 1, 5, 11, 23 and 47.

How little the integral changes by the last extension may be chance, so that their error is judged
by how fast the coefficients of the integrand in Legendre's polynomials fall, too: a rule of
:math:`n` nodes errs in those from degree :math:`3n/2` on, and with :math:`A` the largest of the
middle third and :math:`B` that of the last third of the :math:`n` that it knows, a geometric fall
by :math:`r = \min(1, B / A)` leaves there some :math:`B r^2`. With :math:`d` the last change,

.. math:: \mathrm{error} \approx \max\big(\tfrac12 B\, r^2,\; d\, r\big)

relative to the length of the interval. Of 7 nodes, the fewest that are judged, it is :math:`\max(2
B, d)\, r`, and less where the fall is steep, by :math:`\min(1, 10\, r)^2`.

Every sample extends its own rule until that is small enough, or below the standard error of an
integrand that is itself an estimate; an interval that 31 nodes do not resolve is cut in two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infocnf.ode.dense import Path

__all__ = ["NODES", "Integral", "Integrand", "integrate_along", "rule"]

Integrand = Callable[[NDArray[np.int64], NDArray[np.float64], Tensor], Tensor]
"""Values ``(count, columns)`` of samples ``(count,)`` at times ``(count,)`` and states ``(count,
...)``.
"""

# T. N. L. Patterson, Mathematics of Computation 22 (1968), 847-856: what each extension adds
ADDED = (
    (0.0,),
    (0.77459666924148338,),
    (0.43424374934680256, 0.96049126870802028),
    (0.22338668642896688, 0.6211029467372264, 0.888459232872257, 0.99383196321275502),
    (
        0.11248894313318663,
        0.33113539325797683,
        0.53131974364437562,
        0.70249620649152708,
        0.83672593816886874,
        0.92965485742974006,
        0.98153114955374011,
        0.9990981249676676,
    ),
)
CUTS = 8  # of an interval, after which its error is stated as it is
NOISE = 16.0  # units of rounding of the integrand's size below which no rule is extended


def nodes_of() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Nodes on [-1, 1] that each rule adds; and the matrix of each rule, ``(nodes, nodes)``, which
    turns values at its nodes, in the order in which they were added, into coefficients of Legendre
    polynomials. Its first row is half of the weights.
    """
    added = [np.array(sorted({sign * x for x in half for sign in (-1, 1)})) for half in ADDED]
    coefficients = []
    for level in range(len(added)):
        nodes = np.concatenate(added[: level + 1])
        polynomials = np.polynomial.legendre.legvander(nodes, len(nodes) - 1)
        coefficients.append(np.linalg.inv(polynomials))
    return added, coefficients


_ADDED, _COEFFICIENTS = nodes_of()
_WEIGHTS = [2.0 * matrix[0] for matrix in _COEFFICIENTS]
NODES = tuple(len(weights) for weights in _WEIGHTS)
"""Numbers of nodes of the rules."""
FIRST = NODES.index(7)  # three nodes are too few to be judged
SOUND = 15  # nodes from which a fall of coefficients is believed


def rule(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [-1, 1] of one of the rules.

    >>> nodes, weights = rule(7)
    >>> bool(np.isclose(weights @ nodes**10, 2 / 11))
    True
    """
    level = NODES.index(count)
    return np.concatenate(_ADDED[: level + 1]), _WEIGHTS[level]


@dataclass(frozen=True)
class Integral:
    """Where a function was looked at, and what its integrals are.

    Arguments:
        rows: Sample of each node, ``(nodes,)``.
        times: Time of each node.
        weights: Weight of each node.
        values: The function there, ``(nodes, columns)``, in double precision.
        error: Estimated error of the first column's integral, ``(samples,)``.
        discarded: Nodes of each sample that were looked at and have no weight: those of intervals
            that were cut, ``(samples,)``.
    """

    rows: NDArray[np.int64]
    times: NDArray[np.float64]
    weights: NDArray[np.float64]
    values: Tensor
    error: Tensor
    discarded: Tensor | int = 0

    @property
    def counts(self) -> Tensor:
        """Nodes of each sample, ``(samples,)``."""
        return torch.from_numpy(np.bincount(self.rows, minlength=len(self.error)))

    def sums(self, power: int = 1) -> Tensor:
        r""":math:`\sum_i (w_i g_i)^p` of each sample and column, ``(samples, columns)``: the
        integrals for :math:`p = 1`.
        """
        weighted = torch.from_numpy(self.weights).to(self.values).unsqueeze(1) * self.values
        total = self.values.new_zeros(len(self.error), self.values.shape[1])
        rows = torch.from_numpy(self.rows).to(total.device)
        return total.index_add_(0, rows, weighted**power)


@dataclass
class Panels:
    """Intervals that are being integrated, ``(panels,)`` each, and the values at their nodes so
    far, ``(panels, nodes, columns)``.
    """

    rows: NDArray[np.int64]
    middle: NDArray[np.float64]
    half: NDArray[np.float64]
    values: Tensor | None = None

    def times(self, nodes: np.ndarray) -> np.ndarray:
        """Nodes on [-1, 1] as times, ``(panels, nodes)``."""
        return np.asarray(self.middle[:, None] + self.half[:, None] * nodes)

    def some(self, chosen: np.ndarray) -> Panels:
        """Some of them."""
        values = None if self.values is None else self.values[torch.from_numpy(chosen)]
        return Panels(self.rows[chosen], self.middle[chosen], self.half[chosen], values)

    def halves(self, breaks: Sequence[float]) -> Panels:
        """Each in two, at a break inside of it or in the middle, to be looked at afresh."""
        low, high, cut = self.middle - self.half, self.middle + self.half, self.middle
        for time in breaks:
            cut = np.where((low - time) * (high - time) < 0.0, time, cut)
        ends = np.stack([low, cut, high], 1)
        return Panels(
            np.repeat(self.rows, 2),
            ((ends[:, 1:] + ends[:, :-1]) / 2.0).reshape(-1),
            (np.diff(ends, axis=1) / 2.0).reshape(-1),
        )

    def deviation(self, level: int, column: int) -> np.ndarray:
        """Standard error of the integral, from that of the integrand in a column, ``(panels,)``."""
        assert self.values is not None
        own = self.values[..., column].cpu().numpy() * _WEIGHTS[level]
        return np.abs(self.half) * np.sqrt((own**2).sum(1))

    def judge(self, level: int) -> tuple[np.ndarray, np.ndarray]:
        """Error of the first column's integral by the rule of a level, and the integral of its
        absolute value, ``(panels,)`` each.
        """
        assert self.values is not None
        first, length = self.values[..., 0].cpu().numpy(), 2.0 * np.abs(self.half)
        size = length * (np.abs(first) @ _WEIGHTS[level]) / 2.0
        known = np.abs(first @ _COEFFICIENTS[level].T)
        third = NODES[level] // 3
        middle, last = known[:, third : 2 * third].max(1), known[:, 2 * third :].max(1)
        fall = np.divide(last, middle, out=np.ones_like(last), where=middle > 0.0)
        fall = np.minimum(fall, 1.0)
        less = first[:, : NODES[level - 1]] @ _WEIGHTS[level - 1]
        change = np.abs(first @ _WEIGHTS[level] - less)
        if NODES[level] >= SOUND:
            return length * np.maximum(0.5 * last * fall**2, change * fall), size
        steep = np.minimum(10.0 * fall, 1.0) ** 2
        return length * fall * steep * np.maximum(2.0 * last, change), size


def integrate_along(
    path: Path,
    integrand: Integrand,
    target: NDArray[np.float64],
    *,
    breaks: Sequence[float] = (),
    share: int = 2**30,
    deviation: int | None = None,
) -> Integral:
    """Integrals along a path, of all columns at the nodes that the first one needs.

    Arguments:
        path: The path.
        integrand: What is integrated.
        target: Error at which a sample is done, ``(samples,)``.
        breaks: Times at which the integrand has a kink, where intervals are cut first.
        share: Nodes that are looked at in one call.
        deviation: Column with the standard error of the integrand, where it is an estimate: a
            quadrature need not be better than that.
    """
    samples, half = path.shape[0], np.full(path.shape[0], path.span / 2.0)
    waiting = Panels(np.arange(samples), path.start + half, half)
    noise = NOISE * torch.finfo(path.initial.dtype).eps

    def look(panels: Panels, nodes: np.ndarray) -> None:
        who, when = np.repeat(panels.rows, len(nodes)), panels.times(nodes).reshape(-1)
        found = []
        for first in range(0, len(who), share):
            some = slice(first, first + share)
            states = path.states(who[some], when[some])
            found.append(integrand(who[some], when[some], states).double())
        seen = torch.cat(found).unflatten(0, (len(panels.rows), len(nodes)))
        known = panels.values
        panels.values = seen if known is None else torch.cat([known, seen], 1)

    done: list[tuple[Panels, int]] = []
    error, discarded = np.zeros(samples), np.zeros(samples, np.int64)
    for cut in range(CUTS + 1):
        for level in range(FIRST, len(NODES)):
            if not len(waiting.rows):
                break
            added = np.concatenate(_ADDED[: FIRST + 1]) if level == FIRST else _ADDED[level]
            look(waiting, added)
            estimate, size = waiting.judge(level)
            allowed = (target * 2.0 / abs(path.span or 1.0))[waiting.rows] * abs(waiting.half)
            last = cut == CUTS and level == len(NODES) - 1
            enough = estimate <= np.maximum(allowed, noise * size)
            if deviation is not None:
                enough |= estimate <= waiting.deviation(level, deviation)
            enough |= ~np.isfinite(estimate) | last
            np.add.at(error, waiting.rows[enough], estimate[enough])
            done.append((waiting.some(enough), level))
            waiting = waiting.some(~enough)
        if cut < CUTS:
            np.add.at(discarded, waiting.rows, NODES[-1])
        waiting = waiting.halves(breaks)
    return gathered(done, error, discarded)


def gathered(done: list[tuple[Panels, int]], error: np.ndarray, discarded: np.ndarray) -> Integral:
    """All nodes of all panels."""
    rows, times, weights, values = [], [], [], []
    for panels, level in done:
        assert panels.values is not None
        nodes, own = rule(NODES[level])
        rows.append(np.repeat(panels.rows, len(nodes)))
        times.append(panels.times(nodes).reshape(-1))
        weights.append((panels.half[:, None] * own).reshape(-1))
        values.append(panels.values.flatten(0, 1))
    return Integral(
        np.concatenate(rows),
        np.concatenate(times),
        np.concatenate(weights),
        torch.cat(values),
        torch.from_numpy(error),
        torch.from_numpy(discarded),
    )
