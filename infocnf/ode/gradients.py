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
    as it has stages.
``adjoint``
    Solves :math:`\dot a = -a^\top \partial f/\partial y`, :math:`\dot g_\theta = -a^\top \partial
    f/\partial \theta` backward in time beside the state. Memory does not grow with the steps. The
    gradients of the parameters ride as passengers outside the error norm (the semi-norm of Kidger,
    Chen and Lyons, 2021). Under individual stepping a gradient per sample and parameter would not
    fit, so the integral over a step is taken from its stages once it is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from infocnf.ode.controller import Array, State
from infocnf.ode.march import March
from infocnf.ode.problem import Arrival, Problem, Status, Step
from infocnf.ode.pullback import Job, Pull, put_rows, rows_of, unhooked
from infocnf.ode.steps import Layout, add_rows, stage_times

__all__ = ["GRADIENTS", "AdjointError", "run"]

GRADIENTS = ("backprop", "checkpoint", "adjoint")
SHARE = 2**16  # numbers of a state that are solved at a time where nothing is differentiated


def run(job: Job, y: State, context: State, parameters: State, gradient: str) -> State:
    """Final state, differentiable as asked; ``job.arrival`` holds the rest."""
    tensors = (*y, *context, *parameters)
    needed = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if needed and gradient != "backprop":
        function = _Checkpoint if gradient == "checkpoint" else _Adjoint
        return tuple(function.apply(job, *tensors))

    recorded = torch.is_grad_enabled() and gradient == "backprop"  # also of tensors nobody named
    with torch.set_grad_enabled(recorded):
        return job.finish(arrive(job.problem, y, context, in_shares=not recorded), ())


def arrive(problem: Problem, y: State, context: State, in_shares: bool) -> Arrival:
    """All lanes at their ends; where nothing is differentiated, samples with steps of their own are
    solved in shares of a size that caches hold. No answer depends on its neighbours.
    """
    lanes = len(y[0]) if y[0].ndim else 1
    numbers = sum(part.numel() for part in y) // max(lanes, 1)
    size = max(SHARE // max(numbers, 1), 1)
    if not (in_shares and problem.individual) or lanes <= size:
        return March(problem, y, context).run()

    arrivals = []
    for start in range(0, lanes, size):
        rows = slice(start, start + size)
        share = replace(
            problem,
            tolerance=problem.tolerance[rows],
            first=None if problem.first is None else problem.first[rows],
        )
        own, given = (tuple(part[rows] for part in group) for group in (y, context))
        arrivals.append(March(share, own, given).run())
    state = tuple(torch.cat(parts) for parts in zip(*(a.state for a in arrivals), strict=True))
    counts = (f.name for f in fields(Arrival) if f.name != "state")
    return Arrival(state, *(np.concatenate([getattr(a, n) for a in arrivals]) for n in counts))


class _Checkpoint(torch.autograd.Function):
    """States before accepted steps are kept, with the increments of their stages; each stage is
    recomputed to be pulled back.
    """

    @staticmethod
    def forward(ctx: Any, job: Job, *tensors: Tensor) -> State:  # noqa: ANN401
        y, context, _ = job.split(tensors)
        needed = job.problem.table.result_stages - 1
        trail: list[tuple[Step, Tensor, Tensor]] = []

        def remember(step: Step, before: Tensor, increments: Tensor, _: State) -> None:
            trail.append((step, before, increments[:needed].clone()))

        final = job.finish(March(job.problem, y, context, remember).run(), y)
        ctx.job, ctx.steps, ctx.layout = job, [step for step, *_ in trail], Layout(y)
        # saved the regular way, so that autograd frees them after use and refuses tensors that were
        # changed in place meanwhile
        ctx.save_for_backward(*tensors, *(kept for _, *pair in trail for kept in pair))
        return final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        job: Job = ctx.job
        saved = ctx.saved_tensors
        sources = len(saved) - 2 * len(ctx.steps)
        befores, increments = saved[sources::2], saved[sources + 1 :: 2]
        _, context, parameters = job.split(saved[:sources])
        pull = Pull(job, context, parameters)

        cotangent = answered(job, cotangents)
        with unhooked(parameters):
            for step, before, rows in reversed(
                list(zip(ctx.steps, befores, increments, strict=True))
            ):
                layout = ctx.layout if step.rows is None else ctx.layout.resized(len(step.rows))
                moved = rows_of(cotangent, step.rows)
                pulled = pull.through(step, before, rows, moved, layout)
                cotangent = pulled if step.rows is None else put_rows(cotangent, step.rows, pulled)

        return None, *cotangent, *pull.collected


class _Adjoint(torch.autograd.Function):
    """Only the final state is kept; the cotangent is solved for backward in time."""

    @staticmethod
    def forward(ctx: Any, job: Job, *tensors: Tensor) -> State:  # noqa: ANN401
        y, context, _ = job.split(tensors)
        final = job.finish(March(job.problem, y, context).run(), y)
        ctx.job = job
        ctx.save_for_backward(*tensors[job.parts :], *final)
        return final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        job: Job = ctx.job
        sources, final = ctx.saved_tensors[: -job.parts], ctx.saved_tensors[-job.parts :]
        context, parameters = sources[: job.contexts], sources[job.contexts :]
        system = AdjointSystem(job, context, parameters)
        with unhooked(parameters):
            cotangent, collected = system.solve(final, cotangents)

        return None, *cotangent, *collected


def answered(job: Job, cotangents: State) -> State:
    """A copy of the cotangents, zero for samples whose solve failed: their answer is NaN whatever
    the input.
    """
    assert job.arrival is not None
    failed = torch.from_numpy(np.flatnonzero(job.arrival.status != Status.DONE))
    if len(failed) and not job.problem.individual:
        return tuple(torch.zeros_like(c) for c in cotangents)
    return tuple(c.index_fill(0, failed.to(c.device), 0.0) for c in cotangents)


class AdjointSystem:
    r"""The backward system of a solve: states, their cotangents, and gradients of the sources as
    passengers.

    The parts are ordered ``(y, a | y', a', g)``: controlled states and cotangents first, then those
    of the forward solve's own passengers, then the gradients of the context and, under shared
    stepping, of the parameters.
    """

    def __init__(self, job: Job, context: State, parameters: State) -> None:
        self.job, self.problem, self.context, self.parameters = (
            job,
            job.problem,
            context,
            parameters,
        )
        self.pull = Pull(job, context, parameters)
        assert job.arrival is not None
        self.done = np.flatnonzero(job.arrival.status == Status.DONE)
        self.rows = torch.from_numpy(self.done) if self.problem.individual else None
        sources = self.sources(context)
        self.live = [i for i, source in enumerate(sources) if source.requires_grad]

    def sources(self, context: State) -> State:
        """What has its gradient among the passengers."""
        return context if self.problem.individual else (*context, *self.parameters)

    def pack(self, y: State, a: State, gradients: Sequence[Tensor]) -> State:
        """Parts in the order of the system."""
        count = self.problem.controlled
        return (*y[:count], *a[:count], *y[count:], *a[count:], *gradients)

    def unpack(self, state: State) -> tuple[State, State, State]:
        """States, cotangents and gradients."""
        count, parts = self.problem.controlled, self.job.parts
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
        table, layout = self.problem.table, self.layout.resized(len(step.rows))
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
        problem, rows, pull = self.problem, self.rows, self.pull
        if not len(self.done):
            return tuple(torch.zeros_like(c) for c in cotangents), pull.collected

        backward = replace(
            problem,
            field=self.dynamics,
            start=problem.end,
            end=problem.start,
            tolerance=problem.tolerance[self.done],
            controlled=2 * problem.controlled,
            first=None,
            drift=None,
        )
        context = rows_of(self.context, rows)
        gradients = [torch.zeros_like(self.sources(context)[i]) for i in self.live]
        state = self.pack(rows_of(final, rows), rows_of(cotangents, rows), gradients)
        self.layout = Layout(state)
        listener = self.integrate if problem.individual and self.parameters else None
        arrival = March(backward, state, context, listener).run()
        self.job.count(rows, torch.from_numpy(arrival.evaluations))
        check_adjoint(arrival)

        _, initial, grown = self.unpack(arrival.state)
        for place, gradient in zip(self.live, grown, strict=True):
            pull.collect(
                rows, [gradient if i == place else None for i in range(len(pull.collected))]
            )
        if rows is not None:
            initial = put_rows(tuple(torch.zeros_like(c) for c in cotangents), rows, initial)

        return initial, pull.collected


class AdjointError(RuntimeError):
    """A gradient could not be solved for."""


def check_adjoint(arrival: Arrival) -> None:
    """A gradient that could not be solved for is an error: there is no status to carry it."""
    failed: Array = arrival.status != Status.DONE
    if failed.any():
        status = Status(int(arrival.status[failed][0]))
        raise AdjointError(
            f"the adjoint solve of {int(failed.sum())} of {len(failed)} failed at time "
            f"{float(arrival.time[failed][0]):.4g}: {status.advice}, or use gradient='checkpoint'"
        )
