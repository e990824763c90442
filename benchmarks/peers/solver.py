"""Part (a): the solver alone, on small systems whose field costs next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers import jax_peer
from benchmarks.peers.contenders import rms_error
from benchmarks.peers.context import Context
from benchmarks.peers.curves import Contender, Outcome, plot, remember, sweep, table
from benchmarks.peers.measure import interleaved, median
from benchmarks.peers.peers import installed
from infocnf.ode import solve

__all__ = ["section"]

TARGET = 1e-6
TOLERANCES = (1e-5, 1e-6, 1e-7, 1e-8)
OURS = "infocnf, shared steps"


@dataclass(frozen=True)
class System:
    """A small system: its field for PyTorch and for JAX, how long it is solved, where it starts."""

    field: Callable[[Tensor, Tensor], Tensor]
    sample: Callable[[Any], Callable[[Any, Any], Any]]
    span: float
    size: int

    def start(self, batch: int) -> Tensor:
        """Initial states in double precision, not far from each other."""
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(batch, self.size, generator=generator, dtype=torch.float64)
        return 1.5 + 0.2 * noise


SPIRAL = [[-0.1, 2.0], [-2.0, -0.1]]
MATRIX = torch.tensor(SPIRAL, dtype=torch.float64)


def spiral(_: Tensor, y: Tensor) -> Tensor:
    """Chen's cubic spiral."""
    return (y**3) @ MATRIX


def lorenz(_: Tensor, y: Tensor) -> Tensor:
    """Lorenz's three equations."""
    a, b, c = y.unbind(-1)
    return torch.stack([10.0 * (b - a), a * (28.0 - c) - b, a * b - 8.0 / 3.0 * c], -1)


def jax_spiral(jnp: Any) -> Callable[[Any, Any], Any]:
    """The spiral of one sample."""
    return lambda _, y: (y**3) @ jnp.asarray(SPIRAL)


def jax_lorenz(jnp: Any) -> Callable[[Any, Any], Any]:
    """Lorenz's equations of one sample."""
    return lambda _, y: jnp.stack(
        [10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1], y[0] * y[1] - 8.0 / 3.0 * y[2]]
    )


SYSTEMS = {
    "spiral": System(spiral, jax_spiral, 5.0, 2),
    "Lorenz": System(lorenz, jax_lorenz, 1.0, 3),
}


def contenders(
    system: System, start: Tensor, say: Callable[[str], None], compiled: bool = False
) -> dict[str, Contender]:
    """All solvers that are installed; with ``compiled`` also those that are compiled."""
    calls = 0
    span = (0.0, system.span)

    class Counted(torch.nn.Module):
        """The field, counted."""

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return system.field(t, y)

    field = Counted()

    def counted(run: Callable[[float], Tensor]) -> Contender:
        def timed(tolerance: float) -> Outcome:
            nonlocal calls
            calls = 0
            with torch.no_grad():
                values = run(tolerance)
            return Outcome(values, calls)

        return timed

    def own(**how: Any) -> Contender:
        mine = system.field if "compile" in how else field

        def run(tolerance: float) -> Outcome:
            with torch.no_grad():
                found = solve(mine, start, span, tolerance=tolerance, **how)
            assert isinstance(found.state, Tensor)
            return Outcome(found.state, float(found.stats.forward.double().mean()))

        return run

    def torchdiffeq(tolerance: float) -> Tensor:
        from torchdiffeq import odeint

        times = start.new_tensor(span)
        return odeint(field, start, times, rtol=tolerance, atol=tolerance, method="dopri5")[-1]

    def torchode(tolerance: float) -> Tensor:
        import torchode as to

        term = to.ODETerm(field)
        controller = to.IntegralController(atol=tolerance, rtol=tolerance, term=term)
        ends = start.new_tensor([span]).expand(len(start), 2)
        problem = to.InitialValueProblem(y0=start, t_eval=ends)
        return to.AutoDiffAdjoint(to.Dopri5(term=term), controller).solve(problem).ys[:, -1]

    def zuko(tolerance: float) -> Tensor:
        from zuko.utils import odeint

        return odeint(field, start, *span, atol=tolerance, rtol=tolerance)

    made = {OURS: own(), "infocnf, individual steps": own(stepping="individual")}
    if compiled:
        made["infocnf, compiled"] = own(compile=True)
    for name, run in (("torchdiffeq", torchdiffeq), ("torchode", torchode), ("zuko", zuko)):
        if installed(name, say):
            made[name] = counted(run)
    if compiled and installed("diffrax", say):
        made["diffrax (jit)"] = jax_peer.system(system.sample, start, system.span)
    return made


def section(context: Context) -> str:
    """Markdown of this part."""
    batches = (1, 100) if context.quick else (1, 100, 10_000)
    parts, panels = [INTRODUCTION], {}
    for name, system in SYSTEMS.items():
        for batch in batches:
            context.say(f"{name}, batch {batch}")
            start = system.start(batch)
            truth = solve(
                system.field, start, (0.0, system.span), tolerance=1e-12, stepping="individual"
            ).check()
            exact = truth.state
            assert isinstance(exact, Tensor)
            error = rms_error(exact)
            made = contenders(system, start, context.say, compiled=not context.quick)
            curves = sweep(made, context.few(TOLERANCES), error, context.rounds(5), context.say)
            title = f"{name}, batch {batch:,}"
            parts += [f"### {title}", table(curves, OURS, TARGET, "error")]
            if batch in (1, batches[-1]):
                panels[title] = curves
    plot(context.pictures / "bench-solver.png", panels, "error (rms)")

    parts += ["![Work-precision of the solvers](../images/bench-solver.png)", overhead(context)]
    return "\n\n".join(parts)


INTRODUCTION = """\
Systems of two and three equations in double precision, where the field costs next to nothing and
a solver pays for its own operations. Error is the root mean square distance to a solve at 1e-12."""


def overhead(context: Context) -> str:
    """What a step costs besides its evaluations: the PyTorch solvers."""
    lines = [
        "### Overhead per step\n",
        "Microseconds per attempted step of six evaluations, less the evaluations themselves, at "
        "tolerance 1e-6 on the spiral; in brackets ours (shared, individual) relative to it.\n",
        "| batch | field, six times | infocnf, shared | infocnf, individual | torchdiffeq | "
        "torchode | zuko |",
        "|---|---|---|---|---|---|---|",
    ]
    system = SYSTEMS["spiral"]
    for batch in (1, 100, 10_000):
        start = system.start(batch)
        made = contenders(system, start, lambda _: None)

        def field(_: int, start: Tensor = start) -> None:
            with torch.no_grad():
                for _ in range(60):
                    system.field(start, start)

        outcomes: dict[str, Outcome] = {}
        runs = {n: partial(remember, outcomes, n, made[n], 1e-6) for n in made}
        seconds = interleaved({**runs, "field": field}, context.rounds(25))
        six = median(seconds["field"]) / 10
        net = {n: median(seconds[n]) / (outcomes[n].forward / 6) - six for n in made}
        own = [net[OURS], net["infocnf, individual steps"]]
        cells = [
            f"{net[n] * 1e6:.0f} ({own[0] / net[n]:.2f}, {own[1] / net[n]:.2f})" if n in net else ""
            for n in ("torchdiffeq", "torchode", "zuko")
        ]
        lines.append(
            f"| {batch:,} | {six * 1e6:.0f} | {own[0] * 1e6:.0f} | {own[1] * 1e6:.0f} | "
            + " | ".join(cells)
            + " |"
        )
        context.say(lines[-1])

    return "\n".join(lines)
