r"""Solve :math:`\dot y = f(t, y)` from :math:`y(t_0)` to :math:`y(t_1)` for a batch, and account
for the cost.

>>> import torch
>>> solution = solve(lambda t, y: -y, torch.ones(2, 1), (0.0, 1.0))
>>> solution.state.flatten()
tensor([0.3679, 0.3679])
>>> solution.stats.accepted > 0
tensor(True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from infocnf.ode.checks import (
    check_choices,
    check_context,
    check_interval,
    check_positive,
    check_state,
    check_steps,
)
from infocnf.ode.controller import State
from infocnf.ode.gradients import run
from infocnf.ode.problem import Arrival, Problem, Status
from infocnf.ode.pullback import Job
from infocnf.ode.steps import Field
from infocnf.ode.tableaus import tableau

__all__ = ["Solution", "SolveError", "Stats", "Status", "solve"]


@dataclass(frozen=True)
class Stats:
    """What a solve cost, in evaluations of the field and in steps.

    Integer tensors: of shape ``(batch,)`` under individual stepping, where each sample has its own
    count, and of shape ``()`` under shared stepping, where all samples have the same.
    """

    forward: Tensor  # evaluations of the forward solve
    backward: Tensor  # evaluations of the gradient; zero until it has been computed
    accepted: Tensor
    rejected: Tensor

    @property
    def evaluations(self) -> Tensor:
        """Forward and backward evaluations together: the NFE of the paper's tables."""
        return self.forward + self.backward


class SolveError(RuntimeError):
    """Some samples could not be solved; ``solution`` tells which and how far they came."""

    def __init__(self, message: str, solution: Solution) -> None:
        super().__init__(message)
        self.solution = solution


@dataclass(frozen=True)
class Solution:
    """Where the solver arrived, and what it took.

    Arguments:
        state: Final state in the form it was given; NaN for samples that failed.
        time: Time each sample reached, ``(batch,)``, or ``()`` under shared stepping.
        status: :class:`Status` of each sample, same shape.
        stats: The account.
        first_step: First step that a similar solve should try (the median over samples).
    """

    state: Tensor | State
    time: Tensor
    status: Tensor
    stats: Stats
    first_step: float

    @property
    def done(self) -> Tensor:
        """Which samples were solved."""
        return self.status == Status.DONE

    def check(self, where: str = "the solve") -> Solution:
        """Itself, or a :class:`SolveError` that says where, when and why the first failure came."""
        failed = ~self.done
        if failed.any():
            status = Status(int(self.status[failed].flatten()[0]))
            time = float(self.time[failed].flatten()[0])
            count = (
                f"{int(failed.sum())} of {failed.numel()} samples" if failed.ndim else "the batch"
            )
            steps = int((self.stats.accepted + self.stats.rejected)[failed].flatten()[0])
            raise SolveError(
                f"{where} failed for {count}, at time {time:.4g} after {steps} steps: "
                f"{status.advice}",
                self,
            )
        return self


def solve(
    field: Callable[..., Tensor | State],
    state: Tensor | Sequence[Tensor],
    interval: tuple[float, float],
    *,
    tolerance: float | Tensor = 1e-5,
    method: str = "dopri5",
    stepping: str = "shared",
    gradient: str = "checkpoint",
    steps: int | None = None,
    first_step: float | Tensor | None = None,
    max_steps: int = 4096,
    passengers: int = 0,
    context: Sequence[Tensor] = (),
    parameters: Iterable[Tensor] | None = None,
    drift: Callable[..., Tensor] | None = None,
) -> Solution:
    r"""Solve an initial value problem for a batch.

    Arguments:
        field: Called as ``field(t, state, *context)``, returns slopes in the form of the state.
            ``t`` has shape ``()`` under shared stepping and ``(batch,)`` under individual stepping,
            where the batch is that of the samples still on their way. It must be smooth and
            deterministic.
        state: Initial state: a tensor, or several, of any shape with the batch first.
        interval: Initial and final time; backward when the final time comes first.
        tolerance: Absolute and relative tolerance; one for all, or ``(batch,)`` under individual
            stepping.
        method: Adaptive ``dopri5``, ``tsit5``, ``bosh3``, ``heun``; with given ``steps``:
            ``euler``, ``midpoint``, ``rk4``.
        stepping: ``shared``, one step size for the batch, or ``individual``, one for each sample.
        gradient: ``backprop``, ``checkpoint`` or ``adjoint``; see :mod:`infocnf.ode.gradients`.
        steps: Number of equal steps, for methods without error estimate only.
        first_step: First step to try, one for all or ``(batch,)`` under individual stepping;
            estimated by Hairer's rule when None.
        max_steps: Attempted steps after which a sample is given up.
        passengers: Number of trailing tensors of the state that ride along outside the error norm.
        context: Tensors the field needs, one row per sample, handed to it for the samples still on
            their way.
        parameters: Tensors whose gradients are wanted; those of ``field`` when it is a module.
        drift: Where all tensors of the state but the first are integrals that the field does not
            read: called as ``drift(t, state[0])``, the slopes of the first alone. Stages without
            weight in the result take it, which saves the others' slopes.
    """
    y: State = (state,) if isinstance(state, Tensor) else tuple(state)
    job, sources = make_job(
        field,
        state,
        interval,
        tolerance=tolerance,
        method=method,
        stepping=stepping,
        gradient=gradient,
        steps=steps,
        first_step=first_step,
        max_steps=max_steps,
        passengers=passengers,
        context=context,
        parameters=parameters,
        drift=drift,
    )
    final = run(job, y, tuple(context), sources, gradient)
    assert job.arrival is not None
    result = final[0] if isinstance(state, Tensor) else final

    return account(job.arrival, result, job.backward, stepping == "individual")


def make_job(
    field: Callable[..., Tensor | State],
    state: Tensor | Sequence[Tensor],
    interval: tuple[float, float],
    *,
    tolerance: float | Tensor,
    method: str,
    stepping: str,
    gradient: str,
    steps: int | None,
    first_step: float | Tensor | None,
    max_steps: int,
    passengers: int,
    context: Sequence[Tensor],
    parameters: Iterable[Tensor] | None,
    drift: Callable[..., Tensor] | None,
) -> tuple[Job, State]:
    """What :func:`solve` was asked for, checked, and the tensors whose gradients are wanted."""
    single = isinstance(state, Tensor)
    y: State = (state,) if isinstance(state, Tensor) else tuple(state)
    individual = check_choices(stepping, gradient)
    check_state(y, passengers, individual)
    check_context(context, len(y[0]) if individual else None)
    table = tableau(method)
    start, end = check_interval(interval)
    check_steps(method, table.adaptive, steps)
    lanes = len(y[0]) if individual else 1

    named = field_parameters(field) if parameters is None else parameters
    sources = tuple({id(tensor): tensor for tensor in named}.values())  # each once
    normal = normal_form(field, single, y)
    if gradient != "backprop" and torch.is_grad_enabled():
        normal = refuse_hidden_gradients(normal, sources)
    problem = Problem(
        field=normal,
        table=table,
        start=start,
        end=end,
        tolerance=check_positive("tolerance", tolerance, lanes, individual),
        individual=individual,
        controlled=len(y) - passengers,
        max_steps=max_steps,
        steps=steps or 0,
        first=first_step
        if first_step is None
        else check_positive("first_step", first_step, lanes, individual),
        drift=None if drift is None else normal_form(first_alone(drift), single, y),
    )
    job = Job(problem, len(y), len(context), torch.zeros(lanes, dtype=torch.int64))
    return job, sources


def account(
    arrival: Arrival, state: Tensor | State, backward: Tensor, individual: bool
) -> Solution:
    """The solution as the user sees it."""

    def public(values: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor if individual else tensor.reshape(())

    proposals = arrival.proposal[np.isfinite(arrival.proposal)]
    stats = Stats(
        forward=public(arrival.evaluations),
        backward=backward
        if individual
        else backward.reshape(()),  # a view: the backward pass fills it in
        accepted=public(arrival.accepted),
        rejected=public(arrival.rejected),
    )
    return Solution(
        state=state,
        time=public(arrival.time),
        status=public(arrival.status),
        stats=stats,
        first_step=float(np.median(proposals)) if len(proposals) else float("nan"),
    )


def normal_form(field: Callable[..., Tensor | State], single: bool, y: State) -> Field:
    """The field as ``(t, state, context) -> slopes`` on tuples, its slopes checked for shape."""
    device = y[0].device.type
    precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None

    first = True

    def normal(t: Tensor, state: State, context: State) -> State:
        nonlocal first
        before = versions(state) if first else []
        if precision is None:
            slopes = field(t, state[0] if single else state, *context)
        else:
            with torch.autocast(device, precision):  # in gradients, too
                slopes = field(t, state[0] if single else state, *context)
        result = (slopes,) if isinstance(slopes, Tensor) else tuple(slopes)

        found = [(k.shape, k.dtype) for k in result]
        if found != [(part.shape, part.dtype) for part in state]:
            raise ValueError(
                f"the field returned {describe(result)} for a state of {describe(state)}"
            )
        if first and before != versions(state):
            raise ValueError("the field changes its input in place: use operations that do not")
        first = False
        return result

    return normal


def first_alone(drift: Callable[..., Tensor]) -> Callable[..., State]:
    """A field that gives the slopes of the first tensor, and zeros for the integrals."""

    def field(t: Tensor, state: State, *_: Tensor) -> State:
        return drift(t, state[0]), *(torch.zeros_like(part) for part in state[1:])

    return field


def versions(state: State) -> list[int]:
    """How often each part has been written to; not known of tensors of inference mode."""
    return [-1 if part.is_inference() else part._version for part in state]


def describe(parts: State) -> str:
    """Shapes and types in words."""
    return ", ".join(f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in parts)


def refuse_hidden_gradients(field: Field, known: State) -> Field:
    """A field that must not depend on tensors with gradients that nobody named.

    A field may close over weights or keep the output of another network; recomputed inside an
    autograd function, these would silently get no gradient. The first evaluation is looked at.
    """
    checked = False

    def watched(t: Tensor, state: State, context: State) -> State:
        nonlocal checked
        if checked:
            return field(t, state, context)
        checked = True
        with torch.enable_grad():
            leaves = tuple(part.detach().requires_grad_() for part in state)
            local = tuple(c.detach().requires_grad_(c.requires_grad) for c in context)
            slopes = field(t, leaves, local)
        if depends_on_others(slopes, (*leaves, *local, *known)):
            raise ValueError(
                "the field depends on tensors with gradients that are neither its parameters "
                "nor its context: pass them as parameters=, or use gradient='backprop'"
            )
        return tuple(slope.detach() for slope in slopes)

    return watched


def depends_on_others(slopes: State, known: State) -> bool:
    """Whether the graph of the slopes reaches a leaf without passing through a known tensor."""
    names = {id(tensor) for tensor in known}
    seen = {(tensor.grad_fn, tensor.output_nr) for tensor in known}
    stack = [(slope.grad_fn, slope.output_nr) for slope in slopes]
    while stack:
        edge = stack.pop()
        node = edge[0]
        if node is None or edge in seen:
            continue
        seen.add(edge)
        if hasattr(node, "variable") and id(node.variable) not in names:
            return True
        stack.extend(node.next_functions)

    return False


def field_parameters(field: object) -> State:
    """Parameters of a module, of a module's method, or of a partial application of either."""
    if isinstance(field, partial):
        return field_parameters(field.func)
    owner = getattr(field, "__self__", field)
    return tuple(owner.parameters()) if isinstance(owner, nn.Module) else ()
