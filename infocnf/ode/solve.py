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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from infocnf.ode.compiled import CompiledIntegrator
from infocnf.ode.context import SolveContext, Status
from infocnf.ode.controller import State
from infocnf.ode.gradients import differentiable
from infocnf.ode.integrate import integrate, integrate_in_shares
from infocnf.ode.step import Field
from infocnf.ode.tableaus import TABLEAUS, Tableau

__all__ = [
    "GRADIENTS",
    "STEPPINGS",
    "Solution",
    "SolveError",
    "SolverOptions",
    "Stats",
    "Status",
    "set_aside",
    "solve",
]

Found = TypeVar("Found")
STEPPINGS = ("shared", "individual")
GRADIENTS = ("backprop", "checkpoint", "adjoint")


@dataclass(frozen=True)
class SolverOptions:
    """How initial value problems are solved; checked when it is made.

    Arguments:
        method: Adaptive ``dopri5``, ``tsit5``, ``bosh3``, ``heun``; with given ``steps``:
            ``euler``, ``midpoint``, ``rk4``.
        stepping: ``shared``, one step size for the batch, or ``individual``, one for each sample.
        gradient: ``backprop``, ``checkpoint`` or ``adjoint``; see :mod:`infocnf.ode.gradients`.
        steps: Number of equal steps, for methods without error estimate only.
        max_steps: Attempted steps after which a sample is given up.
        keep: Bytes that ``checkpoint`` may keep of a solve so as not to recompute it.
        compile: Whether the whole solve is one compiled function where nothing is differentiated,
            under shared stepping; for systems of few equations (:mod:`infocnf.ode.compiled`).

    Attributes:
        table: Coefficients of the method.
    """

    method: str = "dopri5"
    stepping: str = "shared"
    gradient: str = "checkpoint"
    steps: int | None = None
    max_steps: int = 4096
    keep: int = 2**28
    compile: bool = False
    table: Tableau = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.stepping not in STEPPINGS:
            raise ValueError(
                f"stepping must be one of {', '.join(STEPPINGS)}, got {self.stepping!r}"
            )
        if self.gradient not in GRADIENTS:
            raise ValueError(
                f"gradient must be one of {', '.join(GRADIENTS)}, got {self.gradient!r}"
            )
        for name, least in (("max_steps", 1), ("keep", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number, {least} or more, got {value!r}")
        if self.method not in TABLEAUS:
            raise ValueError(f"method must be one of {', '.join(TABLEAUS)}, got {self.method!r}")
        object.__setattr__(self, "table", TABLEAUS[self.method])
        if self.adaptive and self.steps is not None:
            raise ValueError(
                f"{self.method} chooses its own steps: leave out steps={self.steps}, "
                "or use euler, midpoint or rk4"
            )
        if self.compile and (self.individual or not self.adaptive):
            raise ValueError(
                "compile is for adaptive methods with shared steps, "
                f"got {self.method} with {self.stepping} ones: leave it out"
            )
        if not self.adaptive and not (self.steps and self.steps >= 1 and self.steps % 1 == 0):
            raise ValueError(
                f"{self.method} needs the number of steps, a positive integer, "
                f"got steps={self.steps}"
            )

    @property
    def adaptive(self) -> bool:
        """Whether steps are chosen by an estimate of their error."""
        return self.table.adaptive

    @property
    def individual(self) -> bool:
        """Whether each sample has steps of its own."""
        return self.stepping == "individual"


@dataclass(frozen=True)
class Stats:
    """What a solve cost, in evaluations of the field and in steps.

    Integer tensors: of shape ``(batch,)`` under individual stepping, where each sample has its own
    count, and of shape ``()`` under shared stepping, where all samples have the same.
    """

    forward: Tensor  # evaluations of the forward solve
    # evaluations that the gradient pulled back, recomputed or kept; zero until it has been computed
    backward: Tensor
    accepted: Tensor
    rejected: Tensor
    products: Tensor  # with the Jacobian of the field: what a divergence took beside evaluations

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
            count = "the batch"
            if failed.ndim:
                rows = failed.nonzero()[:, 0].tolist()
                shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
                count = f"{len(rows)} of {failed.numel()} samples (rows {shown})"
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
    options: SolverOptions | None = None,
    first_step: float | Tensor | None = None,
    auxiliary: int = 0,
    context: Sequence[Tensor] = (),
    parameters: Iterable[Tensor] | None = None,
    drift: Callable[..., Tensor] | None = None,
    **changes: Any,  # noqa: ANN401
) -> Solution:
    r"""Solve an initial value problem for a batch.

    Arguments:
        field: Called as ``field(t, state, *context)``, returns slopes in the form of the state.
            ``t`` has shape ``()`` under shared stepping and ``(batch,)`` under individual stepping,
            where the batch is that of the active samples. It must be smooth and deterministic.
        state: Initial state: a tensor, or several, of any shape with the batch first.
        interval: Initial and final time; backward when the final time comes first.
        tolerance: Absolute and relative tolerance; one for all, or ``(batch,)`` under individual
            stepping.
        options: Method, stepping, gradient and limits.
        first_step: First step to try, one for all or ``(batch,)`` under individual stepping;
            estimated by Hairer's rule when None.
        auxiliary: Number of trailing tensors of the state that are integrated outside the error
            norm.
        context: Tensors the field needs, one row per sample, handed to it for the active samples.
        parameters: Tensors whose gradients are wanted; those of ``field`` when it is a module.
        drift: Where all tensors of the state but the first are integrals that the field does not
            read: called as ``drift(t, state[0], *context)``, the slopes of the first alone. Stages
            without weight in the result take it, which saves the others' slopes.
        changes: Single options by name, such as ``method="tsit5"``.
    """
    chosen = replace(options or SolverOptions(), **changes)
    y: State = (state,) if isinstance(state, Tensor) else tuple(state)
    job, sources = prepare(
        field,
        state,
        interval,
        chosen,
        tolerance=tolerance,
        first_step=first_step,
        auxiliary=auxiliary,
        context=context,
        parameters=parameters,
        drift=drift,
    )
    tensors, grad = (*y, *context, *sources), torch.is_grad_enabled()
    if chosen.gradient != "backprop" and grad and any(part.requires_grad for part in tensors):
        final = differentiable(job, tensors, chosen.gradient)
    else:
        recorded = grad and chosen.gradient == "backprop"  # also of tensors nobody named
        with torch.set_grad_enabled(recorded):
            if recorded:
                result = integrate(job, y, tuple(context))
            elif chosen.compile:
                single = isinstance(state, Tensor)
                result = CompiledIntegrator(job, y, tuple(context), field, single).run()
            else:
                result = integrate_in_shares(job, y, tuple(context))
        final = job.finish(result)

    return account(job, final[0] if isinstance(state, Tensor) else final)


def set_aside(
    attempt: Callable[[Tensor, str | None], Found],
    count: int,
    losses: Callable[[Any], Tensor] | None = None,
) -> tuple[Found | None, Tensor]:
    """What an attempt finds for those samples that can be solved, and which they are; None where
    there are none.

    Arguments:
        attempt: Called with the positions of samples and a stepping, None for the usual one.
        count: Number of samples.
        losses: A number for each sample of what was found, which must be finite.
    """
    kept, stepping = torch.arange(count), None
    while len(kept):
        try:
            found = attempt(kept, stepping)
            finite = torch.ones(1) if losses is None else losses(found).detach().isfinite().cpu()
            if finite.all():
                return found, kept
            kept = kept[finite]
        except SolveError as error:
            done = error.solution.done.cpu()
            # under shared steps one sample fails all: solve each on its own to see which
            if done.ndim:
                kept = kept[done]
            stepping = "individual"
    return None, kept


def prepare(
    field: Callable[..., Tensor | State],
    state: Tensor | Sequence[Tensor],
    interval: tuple[float, float],
    options: SolverOptions,
    *,
    tolerance: float | Tensor,
    first_step: float | Tensor | None,
    context: Sequence[Tensor],
    parameters: Iterable[Tensor] | None,
    auxiliary: int = 0,
    drift: Callable[..., Tensor] | None = None,
    mesh: NDArray[np.float64] | None = None,
) -> tuple[SolveContext, State]:
    """What :func:`solve` was asked for, checked, and the tensors whose gradients are wanted; a mesh
    of steps ``(samples, most steps)`` takes the place of those that would be chosen.
    """
    single = isinstance(state, Tensor)
    y: State = (state,) if isinstance(state, Tensor) else tuple(state)
    individual = options.individual
    check_state(y, auxiliary, individual)
    check_context(context, len(y[0]) if individual else None)
    start, end = check_interval(interval)
    samples = len(y[0]) if individual else 1
    if mesh is None and not options.adaptive:
        mesh = np.full((samples, options.steps or 1), abs(end - start) / (options.steps or 1))

    named = field_parameters(field) if parameters is None else parameters
    sources = tuple({id(tensor): tensor for tensor in named}.values())  # each once
    normal = normal_form(field, single, y)
    if options.gradient != "backprop" and torch.is_grad_enabled():
        normal = refuse_hidden_gradients(normal, sources)
    job = SolveContext(
        field=normal,
        table=options.table,
        start=start,
        end=end,
        tolerance=check_positive("tolerance", tolerance, samples, individual),
        individual=individual,
        controlled=len(y) - auxiliary,
        max_steps=options.max_steps,
        mesh=mesh,
        keep=options.keep,
        first=first_step
        if first_step is None
        else check_positive("first_step", first_step, samples, individual),
        drift=None if drift is None else normal_form(first_alone(drift), single, y),
        parts=len(y),
        contexts=len(context),
        backward=torch.zeros(samples, dtype=torch.int64),
    )
    return job, sources


def account(job: SolveContext, state: Tensor | State) -> Solution:
    """The solution as the user sees it."""
    result, individual = job.result, job.individual
    assert result is not None

    def public(values: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor if individual else tensor.reshape(())

    proposals = result.proposal[np.isfinite(result.proposal)]
    stats = Stats(
        forward=public(result.evaluations),
        # a view: the backward pass fills it in
        backward=job.backward if individual else job.backward.reshape(()),
        accepted=public(result.accepted),
        rejected=public(result.rejected),
        products=public(np.zeros_like(result.rejected)),
    )
    return Solution(
        state=state,
        time=public(result.time),
        status=public(result.status),
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

        if len(result) != len(state) or any(
            k.shape != part.shape or k.dtype != part.dtype
            for k, part in zip(result, state, strict=True)
        ):
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

    def field(t: Tensor, state: State, *context: Tensor) -> State:
        return drift(t, state[0], *context), *(torch.zeros_like(part) for part in state[1:])

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
        recording = torch.is_grad_enabled()
        with torch.enable_grad():
            if not recording:
                state = tuple(part.detach().requires_grad_() for part in state)
                context = tuple(c.detach().requires_grad_(c.requires_grad) for c in context)
            slopes = field(t, state, context)
        if depends_on_others(slopes, (*state, *context, *known)):
            raise ValueError(
                "the field depends on tensors with gradients that are neither its parameters "
                "nor its context: pass them as parameters=, or use gradient='backprop'"
            )
        return slopes if recording else tuple(slope.detach() for slope in slopes)

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


def check_state(y: State, auxiliary: int, by_row: bool) -> None:
    """Refuse what cannot be integrated."""
    if not y or not 0 <= auxiliary < len(y):
        raise ValueError(
            f"a state of {len(y)} tensors cannot have {auxiliary} auxiliary integrals: "
            "one must be controlled"
        )
    for part in y:
        if not part.is_floating_point():
            raise ValueError(f"the state must be of a floating-point type, got {part.dtype}")
    if by_row and len({part.shape[:1] for part in y}) != 1:
        raise ValueError(
            f"tensors of the state differ in batch size: {[tuple(part.shape) for part in y]}"
        )
    if by_row and not y[0].ndim:
        raise ValueError("individual stepping needs a batch dimension, got a state of shape ()")


def check_context(context: Sequence[Tensor], batch: int | None) -> None:
    """Under individual stepping each sample needs a row of every context tensor."""
    for tensor in context:
        if batch is not None and tuple(tensor.shape[:1]) != (batch,):
            raise ValueError(f"context must have {batch} rows, got shape {tuple(tensor.shape)}")


def check_interval(interval: tuple[float, float]) -> tuple[float, float]:
    """Initial and final time, finite."""
    start, end = (float(time) for time in interval)
    if not (np.isfinite(start) and np.isfinite(end)):
        raise ValueError(f"the interval must be finite, got {(start, end)}")
    return start, end


def check_positive(
    name: str, value: float | Tensor, samples: int, individual: bool
) -> NDArray[np.float64]:
    """A positive number for each sample, given as one for all or one for each sample."""
    values = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if values.dtype.kind not in "fiu":
        raise ValueError(f"{name} must be a number, got {value!r}")
    values = values.astype(np.float64)
    if values.ndim and not (individual and values.shape == (samples,)):
        needed = f"() or ({samples},)" if individual else "() under shared stepping"
        raise ValueError(f"{name} must have shape {needed}, got {values.shape}")
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(f"{name} must be positive and finite, got {values.min()}")
    return np.broadcast_to(values, (samples,))
