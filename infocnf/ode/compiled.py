"""The shared loop of the solver as one compiled function: field, stages, error and step sizes.

On systems of a few equations a solver pays for the operations it launches, not for their
arithmetic. Compiled, a step of six evaluations launches none: the loop over steps, too, is code of
the compiler's (``torch.while_loop``). It is the loop of
:class:`~infocnf.ode.integrate.SharedIntegrator` line by line, on tensors of shape ``()``.

A function is compiled at its first use and for each shape of its state, which takes seconds and a
C++ compiler; it is kept as long as its field lives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from infocnf.ode.context import SolveContext, Status
from infocnf.ode.controller import TENSORS, Controller, State
from infocnf.ode.integrate import SharedIntegrator
from infocnf.ode.tableaus import Tableau

__all__ = ["CompiledIntegrator"]

DONE, STEP_TOO_SMALL, TOO_MANY_STEPS, NOT_FINITE = (int(status) for status in Status)
GOING = -1  # the status of a solve under way
Loop = Callable[..., tuple[Tensor, ...]]
_LOOPS: WeakKeyDictionary[Any, dict[Any, Loop]] = WeakKeyDictionary()


class CompiledIntegrator(SharedIntegrator):
    """The batch as one, by a compiled loop, where nothing is differentiated.

    Arguments:
        problem: The solve, by an adaptive method.
        y: Initial state.
        context: Tensors the field needs.
        field: The field as the user calls it, to which the compiled loop belongs.
        single: Whether it takes a tensor, or a tuple of them.
    """

    def __init__(
        self,
        problem: SolveContext,
        y: State,
        context: State,
        field: Any,  # noqa: ANN401
        single: bool,
    ) -> None:
        super().__init__(problem, y, context)
        self.own, self.single = field, single

    def attempt(self) -> Status:
        """All steps."""
        problem, table = self.problem, self.problem.table
        assert self.k is not None
        loop = loop_of(self.own, table, self.single, problem.controlled, problem.span > 0.0)
        numbers = [problem.end, self.tolerance, self.smallest, float(problem.max_steps)]
        limits = torch.tensor(numbers, dtype=torch.float64)
        time = torch.tensor([self.t, self.h, 1.0, math.nan], dtype=torch.float64)
        counts = torch.tensor([0, 0, 0, GOING])
        state = tuple(part.clone() for part in (*self.y, *self.k))  # no views of one another
        try:
            time, counts, *parts = loop(self.own, limits, time, counts, state, self.context)
        except RuntimeError as error:
            from torch._dynamo.exc import TorchDynamoException  # imported by then, and slow before

            if not isinstance(error, TorchDynamoException):
                raise
            raise ValueError(
                "the field cannot be compiled (does it make tensors of constants, or ask for "
                f"values of tensors?): mend it or leave out compile=True; {type(error).__name__}"
            ) from error
        self.t, _, _, self.proposal = time.tolist()
        self.accepted, self.rejected, _, status = counts.tolist()
        attempts = self.accepted + self.rejected
        # a method without reuse evaluates its first slopes anew
        self.evaluations += attempts * (table.stages - table.fsal)
        self.y = tuple(parts[: len(self.y)])
        return Status(status)


def loop_of(field: Any, *kind: Any) -> Loop:  # noqa: ANN401
    """The loop of a field, compiled once; those of a method belong to its object."""
    owner, name = getattr(field, "__self__", field), getattr(field, "__name__", "")
    loops = _LOOPS.setdefault(owner, {})
    key = (name, *(part.name if isinstance(part, Tableau) else part for part in kind))
    if key not in loops:
        loops[key] = compile_loop(*kind)
    return loops[key]


def compile_loop(table: Tableau, single: bool, controlled: int, forward: bool) -> Loop:
    """The loop of a kind of problem: of a field, limits (end, tolerance, smallest step, attempts),
    times (now, next step, previous ratio, proposal), counts (accepted, rejected, stumbled, status),
    state and slopes, and context; it returns times, counts, state and slopes at the end.
    """
    control, sign = Controller(table.order, numbers=TENSORS), 1.0 if forward else -1.0

    def loop(
        field: Callable[..., Any],
        limits: Tensor,
        time: Tensor,
        counts: Tensor,
        parts: State,
        context: State,
    ) -> tuple[Tensor, ...]:
        size = len(parts) // 2

        def slopes_at(t: Tensor, y: State) -> State:
            now = t.to(y[0].dtype)
            return (field(now, y[0], *context),) if single else tuple(field(now, y, *context))

        def going(time: Tensor, counts: Tensor, *parts: Tensor) -> Tensor:
            return counts[3] == GOING

        def attempt(time: Tensor, counts: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
            end, tolerance, smallest, most = limits.unbind(0)
            t, h, previous, proposal = time.unbind(0)
            accepted, rejected, stumbled, _ = counts.unbind(0)
            y, k = parts[:size], parts[size:]
            remaining = (end - t).abs()
            step = control.fit(h, remaining)
            last = step == remaining
            first = k if table.fsal else slopes_at(t, y)
            after, slopes, errors = take_step(slopes_at, table, t, sign * step, y, first)
            ratio = norm(errors[:controlled], y, after) / tolerance
            sound = torch.stack([part.isfinite().all() for part in after]).all()
            ratio = torch.where(sound, ratio, math.nan)

            accept = ratio <= 1.0
            elementary = control.elementary(ratio)
            growth = control.factor(ratio, previous)
            growth = torch.where(stumbled == 1, growth.clamp(max=1.0), growth)
            following = step * torch.where(accept, growth, elementary)
            counted = [accepted + accept, rejected + ~accept, (~accept).long()]
            spent = counted[0] + counted[1] >= most
            stuck = torch.where(ratio.isfinite(), STEP_TOO_SMALL, NOT_FINITE)
            status = torch.where(spent, TOO_MANY_STEPS, GOING)
            status = torch.where(following < smallest, stuck, status)
            counted.append(torch.where(accept & last, DONE, status))
            now = [
                torch.where(accept, torch.where(last, end, t + sign * step), t),
                following,
                torch.where(accept, ratio.clamp(min=1e-4), previous),
                torch.where(accept & proposal.isnan(), step * elementary, proposal),
            ]
            moved = [
                torch.where(accept, new, old)
                for new, old in zip((*after, *slopes), (*y, *k), strict=True)
            ]
            return torch.stack(now), torch.stack(counted), *moved

        return torch.while_loop(going, attempt, (time, counts, *parts))

    # a code of its own: the compiler limits how often one is compiled
    loop.__code__ = loop.__code__.replace()
    return torch.compile(loop, dynamic=False, options={"cpp_wrapper": True})


def take_step(
    field: Callable[[Tensor, State], State],
    table: Tableau,
    t: Tensor,
    h: Tensor,
    y: State,
    first: State,
) -> tuple[State, State, State]:
    """Where a step arrives, its last slopes and its error, in plain operations: a compiler fuses
    them.
    """
    slopes, after = [first], y

    def weighted(weights: tuple[float, ...], base: State) -> State:
        sums = list(base)
        for weight, slope in zip(weights, slopes, strict=False):
            if weight != 0.0:
                sums = [s + (h * weight).to(s.dtype) * k for s, k in zip(sums, slope, strict=True)]
        return tuple(sums)

    for i in range(1, table.stages):
        after = weighted(table.a[i], y)
        slopes.append(field(t + table.c[i] * h, after))
    if not table.fsal:
        after = weighted(table.b, y)
    return after, slopes[-1], weighted(table.e, tuple(torch.zeros_like(part) for part in y))


def norm(errors: State, before: State, after: State) -> Tensor:
    """The largest root mean square of the parts' relative errors, ``()`` in double precision."""
    means = []
    for error, old, new in zip(errors, before, after, strict=False):
        scaled = error / (1.0 + torch.maximum(old.abs(), new.abs()))
        means.append(scaled.square().sum().double() / max(scaled.numel(), 1))
    return torch.stack(means).amax().sqrt()
