r"""One Runge-Kutta step, on all parts of the state at once.

The parts of a state lie one after the other in a *flat* vector :math:`y` of :math:`N` numbers, and
the increments :math:`h k_1 \dots h k_s` of a step are the rows of a matrix. A stage

.. math:: y + \sum_{j<i} a_{ij}\, (h k_j)

is then one matrix-vector product, whatever the number of parts and stages: on small systems the
cost of a solver is the number of operations it launches, on large ones the number of times it reads
its slopes. Where a graph is kept the rows stay separate tensors, because autograd forbids writing
into a matrix it has read from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from infocnf.ode.controller import Array, State
from infocnf.ode.tableaus import Tableau

__all__ = ["Field", "Increments", "Layout", "Scales", "add_rows", "stage_times", "take_step"]

Field = Callable[[Tensor, State, State], State]
"""A field in normal form: time, state and context (tensors with one row per sample) to slopes."""
Scales = Sequence[Tensor]
"""Signed step for each part of the state, in a shape that broadcasts: of the batch, or of each
sample.
"""


class Layout:
    """Where the parts of a state lie in its flat vector.

    Arguments:
        state: A state of that form.
    """

    def __init__(self, state: State) -> None:
        self.shapes = [tuple(part.shape) for part in state]
        self.dtypes = [part.dtype for part in state]
        self.sizes = [part.numel() for part in state]
        self.mixed = len(set(self.dtypes)) > 1

    def resized(self, rows: int) -> Layout:
        """The layout of a state with another number of samples."""
        other = object.__new__(Layout)
        other.shapes = [(rows, *shape[1:]) for shape in self.shapes]
        other.dtypes, other.mixed = self.dtypes, self.mixed
        other.sizes = [math.prod(shape) for shape in other.shapes]
        return other

    def flatten(self, state: State) -> Tensor:
        """The flat vector of a state, in the widest type of its parts."""
        if len(state) == 1:
            return state[0].reshape(-1)
        return torch.cat([part.reshape(-1) for part in state])

    def parts(self, flat: Tensor) -> State:
        """Views of a flat vector as the parts of the state."""
        if len(self.shapes) == 1:
            return (flat.view(self.shapes[0]),)
        pieces = flat.split(self.sizes)
        views = [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
        if self.mixed:
            views = [view.to(dtype) for view, dtype in zip(views, self.dtypes, strict=True)]
        return tuple(views)

    def select(self, flat: Tensor, rows: Tensor) -> Tensor:
        """Some samples of flat vectors ``(..., N)``, flat again."""
        lead, batch = flat.shape[:-1], self.shapes[0][0]
        pieces = [piece.reshape(*lead, batch, -1) for piece in flat.split(self.sizes, -1)]
        return torch.cat([piece[..., rows, :].flatten(-2) for piece in pieces], -1)


class Increments:
    """Rows of flat vectors, one for each stage of a step, and their weighted sums.

    Arguments:
        layout: Form of the state.
        count: Number of rows.
        like: A flat vector.
        graph: Whether autograd is to see the rows.
    """

    def __init__(self, layout: Layout, count: int, like: Tensor, graph: bool = False) -> None:
        self.layout, self.graph = layout, graph
        self.rows: list[Tensor] = []
        if not graph:
            self.matrix = torch.empty(count, len(like), dtype=like.dtype, device=like.device)
            split = [row.split(layout.sizes) for row in self.matrix.unbind(0)]
            self.columns: dict[int, Tensor] = {}  # the first rows, transposed
            self.views = [
                [piece.view(shape) for piece, shape in zip(row, layout.shapes, strict=True)]
                for row in split
            ]

    def put(self, i: int, slopes: State, scales: Scales | None = None) -> None:
        """Row ``i`` from slopes, times the step."""
        if self.graph:
            assert scales is not None
            scaled = tuple(k * h for k, h in zip(slopes, scales, strict=True))
            self.rows[i:] = [self.layout.flatten(scaled)]
        elif scales is None:
            for view, slope in zip(self.views[i], slopes, strict=True):
                view.copy_(slope)
        else:
            for view, slope, h in zip(self.views[i], slopes, scales, strict=True):
                torch.mul(slope, h, out=view)

    def add_to(self, flat: Tensor, weights: Sequence[float]) -> Tensor:
        """The flat vector and the first rows, weighted."""
        if not self.graph:
            weighting = as_tensor(tuple(weights), flat.dtype, flat.device)
            return torch.addmv(flat, self.first(len(weights)), weighting)
        total = flat
        for weight, row in zip(weights, self.rows, strict=False):
            if weight != 0.0:
                total = total.add(row, alpha=weight)
        return total

    def sum(self, weights: Sequence[float]) -> Tensor:
        """The rows, weighted; no part of a graph."""
        if self.graph:
            columns = torch.stack([row.detach() for row in self.rows], 1)
        else:
            columns = self.first(len(weights))
        return torch.mv(columns, as_tensor(tuple(weights), columns.dtype, columns.device))

    def first(self, count: int) -> Tensor:
        """The first rows as columns ``(N, count)``."""
        found = self.columns.get(count)
        if found is None:
            found = self.columns[count] = self.matrix[:count].t()
        return found


def add_rows(flat: Tensor, matrix: Tensor, weights: Sequence[float]) -> Tensor:
    """A vector ``(N,)`` and the first rows of a matrix ``(rows, N)``, weighted."""
    if not weights:
        return flat
    weighting = as_tensor(tuple(weights), flat.dtype, flat.device)
    return torch.addmv(flat, matrix[: len(weights)].t(), weighting)


@lru_cache(maxsize=512)
def as_tensor(weights: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Weights of a method on a device; made once, outside of inference mode so that all may use
    them.
    """
    with torch.inference_mode(False):
        return torch.tensor(weights, dtype=dtype, device=device)


def stage_times(
    table: Tableau, t: Array, h: Array, layout: Layout, like: Tensor, individual: bool
) -> tuple[Sequence[Tensor], Scales]:
    """Times of all stages, each ``(samples,)``, or ``()`` where the step is shared; and the steps
    as :meth:`Increments.put` wants them.
    """
    if not individual:
        numbers = np.empty(table.stages + 1)
        numbers[:-1], numbers[-1] = t + table.nodes * h, h[0]
        *times, scale = torch.from_numpy(numbers).to(like).unbind(0)
        return times, [scale] * len(layout.shapes)
    start, step = torch.from_numpy(t), torch.from_numpy(h)
    stages = torch.outer(torch.from_numpy(table.nodes), step).add_(start).to(like)
    scale = step.to(like)
    return stages.unbind(0), [scale.view(-1, *[1] * (len(shape) - 1)) for shape in layout.shapes]


def take_step(
    field_of: Callable[[int], Field],
    table: Tableau,
    times: Sequence[Tensor],
    scales: Scales,
    flat: Tensor,
    first: State,
    context: State,
    work: Increments,
) -> tuple[Tensor, State]:
    """Where a step from ``flat`` with first slope ``first`` arrives, and the slope of its last
    stage; ``work`` holds the increments.
    """
    slopes, reached = first, flat
    work.put(0, first, scales)
    for i in range(1, table.stages):
        reached = work.add_to(flat, table.a[i])
        slopes = field_of(i)(times[i], work.layout.parts(reached), context)
        work.put(i, slopes, scales)
    if not table.fsal:
        reached = work.add_to(flat, table.b)

    return reached, slopes
