r"""How a solve is differentiated.

``backprop``
    Autograd records the loop. Memory grows with the evaluations; gradients of gradients work.
``checkpoint``
    The forward solve keeps the state before each accepted step and nothing else. The backward pass
    recomputes one step at a time and pulls the cotangent :math:`\lambda` of its result back through
    its stages,

    .. math:: \kappa_i = h\,\Big(b_i \lambda + \sum_{m>i} a_{mi}\, \mu_m\Big), \qquad
        \mu_i = \Big(\frac{\partial f}{\partial y}\Big)_{\!i}^{\!\top} \kappa_i, \qquad
        \lambda \leftarrow \lambda + \sum_i \mu_i, \qquad
        g_\theta \leftarrow g_\theta
        + \sum_i \Big(\frac{\partial f}{\partial \theta}\Big)_{\!i}^{\!\top} \kappa_i .

    This is the gradient of the discrete solution, the same as ``backprop`` gives, because step
    sizes are constants in both. The increments :math:`h k_i` of a step are kept with the state
    before it, so that any stage can be rebuilt by a sum and autograd records the field at one stage
    at a time: the peak is the graph of one evaluation, and a step costs as many evaluations again
    as it has stages. Under shared stepping the graphs of the first stages are kept as they are
    made, as long as they fit ``keep`` bytes (:class:`Tape`): their stages are not recomputed.
``adjoint``
    Solves :math:`\dot a = -a^\top \partial f/\partial y`, :math:`\dot g_\theta = -a^\top \partial
    f/\partial \theta` backward in time beside the state. Memory does not grow with the steps. The
    gradients of the parameters are auxiliary integrals outside the error norm (the semi-norm of
    Kidger, Chen and Lyons, 2021). Under individual stepping a gradient per sample and parameter
    would not fit, so the integral over a step is taken from its stages once it is accepted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from infocnf.ode.context import Result, SolveContext, Status, Step
from infocnf.ode.controller import Array, State
from infocnf.ode.integrate import integrate
from infocnf.ode.step import Field, Increments, Layout, add_rows, stage_times

__all__ = ["AdjointError", "Pull", "differentiable", "put_rows", "rows_of", "unhooked"]


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

    def __init__(self, job: SolveContext, context: State, parameters: State) -> None:
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
            return leaves, (field or self.job.field)(t, leaves, context)

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
        graphs: Sequence[Graph | None] = (),
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
            graphs: Those of the stages that were kept, None for others.
        """
        job, table = self.job, self.job.table
        times, scales = stage_times(table, step.t, step.h, layout, cotangent[0], job.individual)
        context = self.leaves(rows_of(self.context, step.rows), self.context)
        count = table.result_stages if inside is None else table.stages
        kept = [*graphs, *[None] * (count - len(graphs))]
        self.job.count(step.rows, count)  # kept or not: what it counts does not depend on memory

        flat = layout.flatten(cotangent)
        pulled = Increments(layout, count, flat)  # the products mu, of the last stage first
        for i in reversed(range(count)):
            done = count - 1 - i
            weights = [table.a[m][i] for m in reversed(range(i + 1, count))]
            own = flat * table.b[i] if inside is None else flat * table.b[i] + inside[i]
            kappa = layout.parts(pulled.add_to(own, weights))
            graph = kept[i]
            if graph is None:
                stage = layout.parts(add_rows(before, increments, table.a[i]))
                graph = Graph(context, *self.record(times[i], stage, context, job.field_of(i)))
            scaled = tuple(part * h for part, h in zip(kappa, scales, strict=True))
            products, gradients = self.product(
                graph.slopes, scaled, graph.leaves, [*graph.context, *self.parameters]
            )
            pulled.put(done, products)
            self.collect(step.rows, gradients)

        return layout.parts(pulled.add_to(flat, [1.0] * count))


@dataclass(frozen=True)
class Graph:
    """An evaluation of the field that autograd has recorded."""

    context: State
    leaves: State
    slopes: State


class Tape:
    """Graphs of the stages of accepted steps, under shared stepping, as long as they fit.

    Arguments:
        pull: Records evaluations.
        bytes: What they may take; how much one takes is seen at the first evaluation.
    """

    def __init__(self, pull: Pull, bytes: int) -> None:
        self.pull, self.left, self.size = pull, bytes, 0
        self.table = pull.job.table
        self.recent: deque[Graph | None] = deque(maxlen=self.table.stages)
        self.weighed = False
        self.known = {tensor.untyped_storage().data_ptr() for tensor in pull.parameters}
        # of the slopes that the next attempt begins with, where it does not evaluate them itself
        self.first: Graph | None = None

    def recorded(self, field: Field) -> Field:
        """A field whose evaluations are recorded."""

        def recorded(t: Tensor, y: State, context: State) -> State:
            # an attempt under way, and the slopes it begins with, are not booked yet
            if self.left < (self.table.stages + 1) * self.size:
                self.recent.append(None)
                return field(t, y, context)
            context = self.pull.leaves(context, context)
            if not self.weighed:
                self.weighed = True
                with torch.autograd.graph.saved_tensors_hooks(self.weigh, lambda packed: packed):
                    self.first = graph = Graph(context, *self.pull.record(t, y, context, field))
            else:
                graph = Graph(context, *self.pull.record(t, y, context, field))
            self.recent.append(graph)
            return tuple(slope.detach() for slope in graph.slopes)

        return recorded

    def weigh(self, tensor: Tensor) -> Tensor:
        """Count what autograd keeps of an evaluation: each once, and no weights."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.known.add(storage.data_ptr())
            self.size += storage.nbytes()
        return tensor.detach()  # the tensor itself may own the graph

    def accept(self) -> list[Graph | None]:
        """The graphs of the step that was just taken, stage by stage."""
        recent, table = list(self.recent), self.table
        own = self.first is None and not table.fsal  # it has evaluated them itself
        first = recent[-table.stages] if own else self.first
        graphs = [first, *recent[len(recent) - table.stages + 1 :]][: table.result_stages]
        self.first = recent[-1] if table.fsal else None
        self.left -= self.size * sum(graph is not None for graph in graphs)
        return graphs


def differentiable(context: SolveContext, tensors: Sequence[Tensor], gradient: str) -> State:
    """Final state, differentiable by ``checkpoint`` or ``adjoint``; ``context.result`` has the
    rest.
    """
    function = _Checkpoint if gradient == "checkpoint" else _Adjoint
    return tuple(function.apply(context, *tensors))


class _Checkpoint(torch.autograd.Function):
    """States before accepted steps are kept, with the increments of their stages; each stage whose
    graph was not kept is recomputed to be pulled back.
    """

    @staticmethod
    def forward(ctx: Any, job: SolveContext, *tensors: Tensor) -> State:  # noqa: ANN401
        y, context, parameters = job.split(tensors)
        needed = job.table.result_stages - 1
        trail: list[tuple[Step, Tensor, Tensor]] = []
        graphs: list[list[Graph | None]] = []
        tape, solved = None, job
        if job.keep and not job.individual:
            tape = Tape(Pull(job, context, parameters), job.keep)
            drift = None if job.drift is None else tape.recorded(job.drift)
            solved = replace(job, field=tape.recorded(job.field), drift=drift)

        def remember(step: Step, before: Tensor, increments: Tensor, _: State) -> None:
            trail.append((step, before, increments[:needed].clone()))
            graphs.append([] if tape is None else tape.accept())

        final = job.finish(integrate(solved, y, context, remember), y)
        ctx.job, ctx.steps, ctx.layout = job, [step for step, *_ in trail], Layout(y)
        ctx.graphs = graphs
        # saved the regular way, so that autograd frees them after use and refuses tensors that were
        # changed in place meanwhile
        ctx.save_for_backward(*tensors, *(kept for _, *pair in trail for kept in pair))
        return final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        job: SolveContext = ctx.job
        saved = ctx.saved_tensors
        sources = len(saved) - 2 * len(ctx.steps)
        befores, increments = saved[sources::2], saved[sources + 1 :: 2]
        _, context, parameters = job.split(saved[:sources])
        pull = Pull(job, context, parameters)

        cotangent = answered(job, cotangents)
        graphs: list[list[Graph | None]] = ctx.graphs
        ctx.graphs = [[] for _ in graphs]  # each can be used once: a second call recomputes all
        with unhooked(parameters):
            for step, before, rows in reversed(
                list(zip(ctx.steps, befores, increments, strict=True))
            ):
                layout = ctx.layout if step.rows is None else ctx.layout.resized(len(step.rows))
                moved = rows_of(cotangent, step.rows)
                pulled = pull.through(step, before, rows, moved, layout, graphs=graphs.pop())
                cotangent = pulled if step.rows is None else put_rows(cotangent, step.rows, pulled)

        return None, *cotangent, *pull.collected


class _Adjoint(torch.autograd.Function):
    """Only the final state is kept; the cotangent is solved for backward in time."""

    @staticmethod
    def forward(ctx: Any, job: SolveContext, *tensors: Tensor) -> State:  # noqa: ANN401
        y, context, _ = job.split(tensors)
        final = job.finish(integrate(job, y, context), y)
        ctx.job = job
        ctx.save_for_backward(*tensors[job.parts :], *final)
        return final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        job: SolveContext = ctx.job
        sources, final = ctx.saved_tensors[: -job.parts], ctx.saved_tensors[-job.parts :]
        context, parameters = sources[: job.contexts], sources[job.contexts :]
        system = AdjointSystem(job, context, parameters)
        with unhooked(parameters):
            cotangent, collected = system.solve(final, cotangents)

        return None, *cotangent, *collected


def answered(job: SolveContext, cotangents: State) -> State:
    """A copy of the cotangents, zero for samples whose solve failed: their answer is NaN whatever
    the input.
    """
    assert job.result is not None
    failed = torch.from_numpy(np.flatnonzero(job.result.status != Status.DONE))
    if len(failed) and not job.individual:
        return tuple(torch.zeros_like(c) for c in cotangents)
    return tuple(c.index_fill(0, failed.to(c.device), 0.0) for c in cotangents)


class AdjointSystem:
    r"""The backward system of a solve: states, their cotangents, and gradients of the sources as
    auxiliary integrals.

    The parts are ordered ``(y, a | y', a', g)``: controlled states and cotangents first, then those
    of the forward solve's own auxiliary integrals, then the gradients of the context and, under
    shared stepping, of the parameters.
    """

    def __init__(self, job: SolveContext, context: State, parameters: State) -> None:
        self.job, self.context, self.parameters = job, context, parameters
        self.pull = Pull(job, context, parameters)
        assert job.result is not None
        self.done = np.flatnonzero(job.result.status == Status.DONE)
        self.rows = torch.from_numpy(self.done) if self.job.individual else None
        sources = self.sources(context)
        self.live = [i for i, source in enumerate(sources) if source.requires_grad]

    def sources(self, context: State) -> State:
        """What has its gradient among the auxiliary integrals."""
        return context if self.job.individual else (*context, *self.parameters)

    def pack(self, y: State, a: State, gradients: Sequence[Tensor]) -> State:
        """Parts in the order of the system."""
        count = self.job.controlled
        return (*y[:count], *a[:count], *y[count:], *a[count:], *gradients)

    def unpack(self, state: State) -> tuple[State, State, State]:
        """States, cotangents and gradients."""
        count, parts = self.job.controlled, self.job.parts
        y = (*state[:count], *state[2 * count : parts + count])
        a = (*state[count : 2 * count], *state[parts + count : 2 * parts])
        return y, a, state[2 * parts :]

    def dynamics(self, t: Tensor, state: State, context: State) -> State:
        """Slopes of the backward system."""
        y, a, _ = self.unpack(state)
        context = self.pull.leaves(context, self.context)
        leaves, slopes = self.pull.record(t, y, context)
        sources = self.sources(context)
        pulled, found = self.pull.product(slopes, a, leaves, sources)
        gradients = [
            torch.zeros_like(sources[i]) if (g := found[i]) is None else -g for i in self.live
        ]

        return self.pack(tuple(s.detach() for s in slopes), tuple(-p for p in pulled), gradients)

    def integrate(self, step: Step, before: Tensor, increments: Tensor, context: State) -> None:
        """Quadrature of the parameters' gradient over an accepted step, from the stages of the
        step.
        """
        assert self.rows is not None and step.rows is not None
        table, layout = self.job.table, self.layout.resized(len(step.rows))
        like = layout.parts(before)[0]
        times, steps = stage_times(table, step.t, step.h, layout, like, True)
        _, scales, _ = self.unpack(tuple(steps))
        for i, weight in enumerate(table.b):
            if weight == 0.0:
                continue
            y, a, _ = self.unpack(layout.parts(add_rows(before, increments, table.a[i])))
            weighted = tuple(part * h * -weight for part, h in zip(a, scales, strict=True))
            _, outputs = self.pull.record(times[i], y, context)
            _, found = self.pull.product(outputs, weighted, (), self.parameters)
            self.pull.collect(None, [None] * self.job.contexts + found)
            self.job.count(self.rows[step.rows], 1)

    def solve(self, final: State, cotangents: State) -> tuple[State, list[Tensor | None]]:
        """Cotangent of the initial state, and gradients of context and parameters."""
        job, rows, pull = self.job, self.rows, self.pull
        if not len(self.done):
            return tuple(torch.zeros_like(c) for c in cotangents), pull.collected

        backward = replace(
            job,
            field=self.dynamics,
            start=job.end,
            end=job.start,
            tolerance=job.tolerance[self.done],
            mesh=None if job.mesh is None else job.mesh[self.done],
            controlled=2 * job.controlled,
            first=None,
            drift=None,
        )
        context = rows_of(self.context, rows)
        gradients = [torch.zeros_like(self.sources(context)[i]) for i in self.live]
        state = self.pack(rows_of(final, rows), rows_of(cotangents, rows), gradients)
        self.layout = Layout(state)
        listener = self.integrate if job.individual and self.parameters else None
        result = integrate(backward, state, context, listener)
        self.job.count(rows, torch.from_numpy(result.evaluations))
        check_adjoint(result)

        _, initial, grown = self.unpack(result.state)
        for place, gradient in zip(self.live, grown, strict=True):
            pull.collect(
                rows, [gradient if i == place else None for i in range(len(pull.collected))]
            )
        if rows is not None:
            initial = put_rows(tuple(torch.zeros_like(c) for c in cotangents), rows, initial)

        return initial, pull.collected


class AdjointError(RuntimeError):
    """A gradient could not be solved for."""


def check_adjoint(result: Result) -> None:
    """A gradient that could not be solved for is an error: there is no status to carry it."""
    failed: Array = result.status != Status.DONE
    if failed.any():
        status = Status(int(result.status[failed][0]))
        raise AdjointError(
            f"the adjoint solve of {int(failed.sum())} of {len(failed)} failed at time "
            f"{float(result.time[failed][0]):.4g}: {status.advice}, or use gradient='checkpoint'"
        )
