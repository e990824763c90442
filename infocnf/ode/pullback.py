"""Pulling cotangents back through a field and through one step of it, and summing what its sources
get.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from infocnf.ode.controller import State
from infocnf.ode.problem import Arrival, Problem, Step
from infocnf.ode.steps import Field, Increments, Layout, add_rows, stage_times

__all__ = ["Job", "Pull", "put_rows", "rows_of", "unhooked"]


@dataclass
class Job:
    """A solve to be differentiated, and what it told: the non-tensor half of an autograd function's
    arguments.

    Arguments:
        problem: What is solved.
        parts: Number of tensors of the state; context and parameters follow them in the function's
            arguments.
        contexts: Number of tensors of the context.
    """

    problem: Problem
    parts: int
    contexts: int
    backward: Tensor  # evaluations of the backward pass by lane, filled in by it
    arrival: Arrival | None = None

    def split(self, tensors: Sequence[Tensor]) -> tuple[State, State, State]:
        """State, context and parameters."""
        first, second = self.parts, self.parts + self.contexts
        return tuple(tensors[:first]), tuple(tensors[first:second]), tuple(tensors[second:])

    def finish(self, arrival: Arrival, y: State) -> State:
        """Take note of an arrival and return its state.

        The state is not kept: it will refer to the autograd node, which refers to this job, and
        memory would wait for the garbage collector. A solve of no length returns its own input;
        autograd wants a copy.
        """
        self.arrival = replace(arrival, state=())
        return tuple(s.clone() if any(s is part for part in y) else s for s in arrival.state)

    def count(self, rows: Tensor | None, evaluations: int | Tensor) -> None:
        """Book evaluations of the backward pass."""
        self.backward[slice(None) if rows is None else rows] += evaluations


def rows_of(state: State, rows: Tensor | None) -> State:
    """Some rows of every part; all of them for None."""
    return state if rows is None else tuple(part[rows.to(part.device)] for part in state)


def put_rows(state: State, rows: Tensor, by: State) -> State:
    """Overwrite some rows of every part, in place."""
    for part, new in zip(state, by, strict=True):
        part[rows.to(part.device)] = new
    return state


@contextmanager
def unhooked(tensors: State) -> Iterator[None]:
    """Silence hooks on gradients: they are for the whole gradient, not for each stage's share."""
    hooked = [t._backward_hooks for t in tensors if t._backward_hooks]
    kept = [dict(hooks) for hooks in hooked]
    for hooks in hooked:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, old in zip(hooked, kept, strict=True):
            hooks.update(old)


class Pull:
    """Vector-Jacobian products of a field, and the gradients of its sources (context, then
    parameters) so far.
    """

    def __init__(self, job: Job, context: State, parameters: State) -> None:
        self.job, self.context, self.parameters = job, context, parameters
        sources = (*context, *parameters)
        self.collected = [torch.zeros_like(s) if s.requires_grad else None for s in sources]

    def leaves(self, state: State, like: State) -> State:
        """Copies of tensors that autograd can stop at, where the originals ask for a gradient."""
        return tuple(
            s.detach().requires_grad_(o.requires_grad) for s, o in zip(state, like, strict=True)
        )

    def record(
        self, t: Tensor, y: State, context: State, field: Field | None = None
    ) -> tuple[State, State]:
        """The field at ``y`` with its graph: the leaves and the slopes."""
        with torch.enable_grad():
            leaves = tuple(part.detach().requires_grad_() for part in y)
            return leaves, (field or self.job.problem.field)(t, leaves, context)

    def product(
        self, slopes: State, cotangent: State, leaves: State, sources: Sequence[Tensor]
    ) -> tuple[State, list[Tensor | None]]:
        """Products with respect to the leaves (zero where unused) and to the sources."""
        live = [(s, c) for s, c in zip(slopes, cotangent, strict=True) if s.requires_grad]
        wanted = [*leaves, *(source for source in sources if source.requires_grad)]
        found: Sequence[Tensor | None] = [None] * len(wanted)
        if live and wanted:
            outputs, grad_outputs = zip(*live, strict=True)
            found = torch.autograd.grad(outputs, wanted, grad_outputs, allow_unused=True)
        given = iter(found[len(leaves) :])
        pulled = [
            torch.zeros_like(leaf) if g is None else g
            for leaf, g in zip(leaves, found[: len(leaves)], strict=True)
        ]

        return tuple(pulled), [next(given) if source.requires_grad else None for source in sources]

    def collect(self, rows: Tensor | None, gradients: Sequence[Tensor | None]) -> None:
        """Add gradients of the sources; those of the context belong to some rows only."""
        for i, (total, gradient) in enumerate(zip(self.collected, gradients, strict=True)):
            if total is None or gradient is None:
                continue
            if rows is not None and i < self.job.contexts:
                total.index_add_(0, rows.to(total.device), gradient)
            else:
                total.add_(gradient)

    def through(
        self,
        step: Step,
        before: Tensor,
        increments: Tensor,
        cotangent: State,
        layout: Layout,
        inside: Tensor | None = None,
    ) -> State:
        """Pull the cotangent of a step's result back to the state before it.

        Arguments:
            step: The step.
            before: Flat state before it, ``(N,)``.
            increments: Those of all stages but the last that counts, ``(stages - 1, N)``.
            cotangent: Of its result.
            layout: Form of the state.
            inside: Cotangents of the increments of all stages from states inside the step,
                ``(stages, N)``, where there are such.
        """
        problem, table = self.job.problem, self.job.problem.table
        times, scales = stage_times(table, step.t, step.h, layout, cotangent[0], problem.individual)
        context = self.leaves(rows_of(self.context, step.rows), self.context)
        count = table.result_stages if inside is None else table.stages
        self.job.count(step.rows, count)

        flat = layout.flatten(cotangent)
        pulled = Increments(layout, count, flat)  # the products mu, of the last stage first
        for i in reversed(range(count)):
            done = count - 1 - i
            weights = [table.a[m][i] for m in reversed(range(i + 1, count))]
            own = flat * table.b[i] if inside is None else flat * table.b[i] + inside[i]
            kappa = layout.parts(pulled.add_to(own, weights))
            stage = layout.parts(add_rows(before, increments, table.a[i]))
            leaves, outputs = self.record(times[i], stage, context, problem.field_of(i))
            scaled = tuple(part * h for part, h in zip(kappa, scales, strict=True))
            products, gradients = self.product(
                outputs, scaled, leaves, [*context, *self.parameters]
            )
            pulled.put(done, products)
            self.collect(step.rows, gradients)

        return layout.parts(pulled.add_to(flat, [1.0] * count))
