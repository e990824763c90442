"""The same flows of vectors in JAX, solved by diffrax and compiled as a whole: the strongest peer
on small systems, where PyTorch pays for every operation it launches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.curves import Contender, Outcome
from infocnf.flows import ContinuousBlock
from infocnf.ode.divergence import draw_probes
from infocnf.random import combine_seeds

__all__ = ["density", "iteration", "system"]

STAGES = 6  # evaluations of a step of dopri5, the last of them reused


def load() -> tuple[Any, Any, Any]:
    """JAX, its NumPy and diffrax, in the precision of the data."""
    import diffrax
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax, jax.numpy, diffrax


def integrate(field: Any, state: Any, span: float, args: Any, tolerance: Any) -> Any:
    """Final state and number of steps."""
    jax, jnp, diffrax = load()
    dtype = jax.tree_util.tree_leaves(state)[0].dtype
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Dopri5(),
        t0=jnp.asarray(0.0, dtype),  # a bare number would be double, and make all else so
        t1=jnp.asarray(span, dtype),
        dt0=None,
        y0=state,
        args=args,
        stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
        saveat=diffrax.SaveAt(t1=True),
        max_steps=4096,
    )
    return solution.ys, solution.stats["num_steps"]


def system(
    make: Callable[[Any], Callable[[Any, Any], Any]], start: Tensor, span: float
) -> Contender:
    """A small system, each sample with its own steps; ``make`` builds the field of a sample from
    JAX's NumPy.
    """
    jax, jnp, _ = load()
    field = make(jnp)
    y0 = jnp.asarray(start.numpy())

    @jax.jit
    def solve(y0: Any, tolerance: Any) -> Any:
        def one(y: Any) -> Any:
            end, steps = integrate(lambda t, y, _: field(t, y), y, span, None, tolerance)
            return end[0], steps

        return jax.vmap(one)(y0)

    def run(tolerance: float) -> Outcome:
        ends, steps = jax.block_until_ready(solve(y0, y0.dtype.type(tolerance)))
        # all samples are evaluated until the last is done
        return Outcome(torch.tensor(np.asarray(ends)), STAGES * float(steps.max()) + 2)

    return run


class Translated:
    """A flow of vectors of this package as a function of its weights in JAX."""

    def __init__(self, flow: nn.Module, x: Tensor) -> None:
        self.jax, self.jnp, _ = load()
        seeds = combine_seeds(0, torch.arange(len(x)))
        known = {id(parameter): name for name, parameter in flow.named_parameters()}
        self.weights: list[list[tuple[Any, Any]]] = []  # of each block, layer by layer
        self.probes: list[Any] = []
        self.names: list[str] = []
        for block in (m for m in flow.modules() if isinstance(m, ContinuousBlock)):
            probes = None if block.exact else draw_probes(seeds, x, 1, block.probes, block.index)
            self.probes.append(None if probes is None else self.array(probes[:, 0]))
            field: Any = block.dynamics.field
            layers = [layer.map for layer in field.layers]
            self.names += [known[id(p)] for m in layers for p in (m.weight, m.bias)]
            self.weights.append([(self.array(m.weight), self.array(m.bias)) for m in layers])

    def array(self, tensor: Tensor) -> Any:
        """A tensor as JAX's."""
        return self.jnp.asarray(tensor.detach().numpy())

    def field(self, t: Any, z: Any, layers: Any) -> Any:
        """Layers with time as one more feature, softplus between them."""
        for place, (weight, bias) in enumerate(layers):
            z = z @ weight[:, :-1].T + t * weight[:, -1] + bias
            z = self.jax.nn.softplus(z) if place < len(layers) - 1 else z
        return z

    def augmented(self, t: Any, state: Any, args: Any) -> Any:
        """Slopes of ``(z, log_det)``, with a probe or exactly."""
        jax, jnp = self.jax, self.jnp
        layers, probe = args

        def field(z: Any) -> Any:
            return self.field(t, z, layers)

        if probe is not None:
            slopes, pushed = jax.jvp(field, (state[0],), (probe,))
            return slopes, (pushed * probe).sum(1)
        units = jnp.eye(state[0].shape[1], dtype=state[0].dtype)
        slopes, push = jax.linearize(field, state[0])
        columns = jax.vmap(lambda unit: push(jnp.broadcast_to(unit, state[0].shape)))(units)
        return slopes, jnp.einsum("kbk->b", columns)

    def __call__(self, weights: Any, x: Any, tolerance: Any) -> Any:
        """Codes ``(batch, features)``, log-determinants, and steps of all blocks."""
        log_det, total = self.jnp.zeros(len(x), x.dtype), 0
        for layers, probe in zip(weights, self.probes, strict=True):
            state = (x, self.jnp.zeros(len(x), x.dtype))
            ends, count = integrate(self.augmented, state, 1.0, (layers, probe), tolerance)
            x, log_det, total = ends[0][0], log_det + ends[1][0], total + count

        return x, log_det, total


def density(flow: nn.Module, x: Tensor) -> Contender:
    """Log-likelihoods, steps shared over the batch."""
    made = Translated(flow, x)
    data = made.array(x)

    @made.jax.jit
    def log_prob(weights: Any, tolerance: Any) -> Any:
        z, log_det, steps = made(weights, data, tolerance)
        return -0.5 * (z * z).sum(1) + log_det, steps

    def run(tolerance: float) -> Outcome:
        found, steps = made.jax.block_until_ready(
            log_prob(made.weights, data.dtype.type(tolerance))
        )
        evaluations = STAGES * float(steps) + 2 * len(made.weights)
        return Outcome(torch.tensor(np.asarray(found)), evaluations)

    return run


def iteration(flow: nn.Module, x: Tensor) -> Contender:
    """Gradient of all weights, through diffrax's recursive checkpointing, its default; in the order
    of the flow's own parameters.
    """
    made = Translated(flow, x)
    data, dimensions = made.array(x), x[0].numel()

    def loss(weights: Any, tolerance: Any) -> Any:
        z, log_det, steps = made(weights, data, tolerance)
        energy = 0.5 * (z * z).sum(1) + 0.5 * dimensions * np.log(2 * np.pi)
        return (energy - log_det).mean() / dimensions, steps

    differentiate = made.jax.jit(made.jax.grad(loss, has_aux=True))
    order = [name for name, _ in flow.named_parameters()]

    def run(tolerance: float) -> Outcome:
        found, steps = made.jax.block_until_ready(
            differentiate(made.weights, data.dtype.type(tolerance))
        )
        leaves = [np.asarray(leaf).ravel() for block in found for pair in block for leaf in pair]
        by_name = dict(zip(made.names, leaves, strict=True))
        vector = np.concatenate([by_name[name] for name in order])
        return Outcome(torch.tensor(vector), STAGES * float(steps) + 2 * len(made.weights))

    return run
