r"""The latent ODE with a partitioned initial state: a model of time series.

A series of observations :math:`x_i` at times :math:`t_i` has one hidden state :math:`z(t)`, which
follows an ODE from its value at the first observation and shows through a decoder:

.. math:: z(t_0) = [z_y, z_u], \qquad \dot z = f(z), \qquad
    x_i \sim \mathcal N(g(z(t_i)), \sigma^2),

with :math:`z_y \sim \mathcal N(\mu(y), \sigma^2(y))` of the labels' prior and :math:`z_u \sim
\mathcal N(0, I)`, as in :class:`infocnf.InfoCNF`. A recurrent network that reads the series
backwards gives :math:`q(z(t_0) \mid x)`, a Gaussian. Without labels it is the latent ODE of Chen et
al. (2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from infocnf.flows.bijection import BlockSolve, Choice, FlowStats
from infocnf.models.base import Labels, PartitionedModel, Tolerance
from infocnf.models.code import PartitionedCode
from infocnf.models.factors import Factor
from infocnf.networks.encoders import SeriesEncoder
from infocnf.ode import SolverOptions, solve_at
from infocnf.tolerances import BlockShape

__all__ = ["LatentBlock", "LatentODE", "Posterior"]

LEAST_LOG_SCALE, LARGEST_LOG_SCALE = -6.0, 3.0  # of a posterior


@dataclass(frozen=True)
class Posterior:
    r""":math:`q(z(t_0) \mid x)`: mean and logarithm of the scale, ``(batch, latent)`` each, the
    supervised code first.
    """

    mean: Tensor
    log_scale: Tensor

    def draw(self, noise: Tensor) -> Tensor:
        """Initial states from standard normal noise ``(batch, latent)``."""
        return self.mean + self.log_scale.exp() * noise


class Timed(nn.Module):
    """An autonomous field over a unit of time, in which each sample lives its own span."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, t: Tensor, z: Tensor, span: Tensor, *covariates: Tensor) -> Tensor:
        """Slopes ``(batch, latent)``; ``span`` is ``(batch, 1)``."""
        return span * self.layers(torch.cat([z, *covariates], 1) if covariates else z)


class LatentBlock(nn.Module):
    """The field of hidden states and its solver.

    Arguments:
        latent: Size of the state.
        hidden: Widths of the field's hidden layers.
        solver: Method and limits of the solver.
        context: Size of the static covariates.
    """

    def __init__(
        self, latent: int, hidden: Sequence[int], solver: SolverOptions, context: int
    ) -> None:
        super().__init__()
        sizes = [latent + context, *hidden]
        layers: list[nn.Module] = []
        for i, o in pairwise(sizes):
            layers += [nn.Linear(i, o), nn.ELU()]
        self.field = Timed(nn.Sequential(*layers, nn.Linear(sizes[-1], latent)))
        self.solver = solver
        self.first_step: float | None = None  # that the next solve in training tries

    def walk(
        self,
        z: Tensor,
        times: Tensor,
        span: Tensor,
        choice: Choice,
        stepping: str,
        covariates: Sequence[Tensor] = (),
    ) -> tuple[Tensor, BlockSolve]:
        """States ``(batch, count, latent)`` at times between 0 and ``span`` ``(batch,)``, which may
        be negative; NaN where there is no time.

        Arguments:
            z: States at time 0.
            times: ``(count,)`` where all series have the same, else ``(batch, count)``.
            span: Time of the last of each.
            choice: Tolerance.
            stepping: ``shared`` or ``individual``.
            covariates: Static covariates ``(batch, context)`` of the field, where it has such.
        """
        tolerance = torch.as_tensor(choice.tolerance, dtype=torch.float64)
        safe = torch.where(span == 0, 1.0, span)
        share = times / (safe[0] if times.ndim == 1 else safe.unsqueeze(1))
        warm = self.training and stepping == "shared"
        steps = self.solver.steps and self.solver.steps * choice.refine
        states, solution = solve_at(
            self.field,
            z,
            share.clamp(0.0, 1.0),
            tolerance=tolerance,
            options=self.solver,
            first_step=self.first_step if warm else None,
            context=(span.unsqueeze(1), *covariates),
            stepping="individual" if tolerance.ndim else stepping,
            steps=steps,
        )
        solution.check("the latent ODE")
        if warm and torch.is_grad_enabled() and math.isfinite(solution.first_step):
            self.first_step = solution.first_step
        return states, BlockSolve(0, choice, solution)


class LatentODE(PartitionedModel):
    """A latent ODE whose initial state is partitioned.

    A series is a tensor ``(rows, 1 + channels)``: times, ascending, and values, NaN where missing;
    series of a batch that have fewer rows end in rows of NaN. Times are counted from the first.

    In training mode solves share their steps over the batch; in evaluation mode each series has its
    own, so that its answer does not depend on its batch.

    Arguments:
        channels: Number of values of a row.
        factors: Labels by name, each :class:`Categorical` or :class:`Real`.
        supervised: Fraction of the state that knows the labels; 0 is the baseline.
        latent: Size of the state.
        units: Size of the encoder's recurrent state.
        hidden: Widths of the hidden layers of the field.
        decoder: Width of the decoder's hidden layer.
        encoder: ``rnn``, ``gru`` or ``ode_rnn``; see :class:`SeriesEncoder`.
        noise: Standard deviation of the observations; learned, one for each channel, when None.
        method: Method of the solver.
        steps: Number of steps of a method without error estimate.
        max_steps: Attempted steps after which a series is given up.
        tolerance: Tolerance of evaluation, wherever a method is called without one.
        training_tolerance: Tolerance of training; a number or a policy.
        context: Size of static covariates, which field and encoder see.
        dropout: Rate of dropout before the classifiers.
        separation: How far apart labels are in the prior of the supervised code, which is then
            fixed. 0: they start alike and the prior is learned, the paper's way; a label that is
            hard to read is then forgotten before the encoder can tell it, and its code is used for
            something else.
    """

    def __init__(
        self,
        channels: int,
        factors: Mapping[str, Factor] | None = None,
        supervised: float = 0.6,
        *,
        latent: int = 5,
        units: int = 25,
        hidden: Sequence[int] = (20,),
        decoder: int = 20,
        encoder: str = "rnn",
        noise: float | None = None,
        method: str = "dopri5",
        steps: int | None = None,
        max_steps: int = 4096,
        tolerance: Tolerance = 1e-5,
        training_tolerance: Tolerance | None = 1e-3,
        dropout: float = 0.0,
        separation: float = 0.0,
        context: int = 0,
    ) -> None:
        super().__init__(factors, tolerance, training_tolerance, locals())
        if channels < 1 or latent < 1:
            raise ValueError(f"channels and latent must be at least 1, got {channels}, {latent}")
        if noise is not None and not noise > 0:
            raise ValueError(f"noise must be positive, or None to be learned, got {noise}")
        self.channels, self.latent, self.context = channels, latent, context
        solver = SolverOptions(method, steps=steps, max_steps=max_steps)
        self.block = LatentBlock(latent, hidden, solver, context)
        self.encoder = SeriesEncoder(channels, units, encoder)
        self.head = nn.Linear(units + context, 2 * latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, decoder), nn.ReLU(), nn.Linear(decoder, channels)
        )
        self.code = PartitionedCode([latent], self.factors, supervised, "first_scale", dropout)
        if separation:
            self.code.separate((latent,), separation)
            for head in self.code.heads.values():
                head.prior.requires_grad_(False)
        start = torch.full((channels,), math.log(noise or 1.0))
        self.log_noise = nn.Parameter(start, requires_grad=noise is None)
        self.policy.bind(self.block_shapes)
        self.tolerance.bind(self.block_shapes)

    @property
    def block_shapes(self) -> list[BlockShape]:
        return [BlockShape((self.latent,), 0)]

    @property
    def blocks(self) -> list[LatentBlock]:
        return [self.block]

    def encode(self, series: Tensor, context: Tensor | None = None) -> Posterior:
        """The initial state of series ``(batch, rows, 1 + channels)``, given static covariates
        ``(batch, context)`` where the model has such.
        """
        self.check_input(series)
        read = torch.cat([self.encoder(series), *self.covariates(context, len(series))], 1)
        mean, log_scale = self.head(read).chunk(2, dim=1)
        return Posterior(mean, log_scale.clamp(LEAST_LOG_SCALE, LARGEST_LOG_SCALE))

    def decode(
        self,
        z: Tensor,
        times: Tensor,
        *,
        tolerance: Tolerance | None = None,
        stepping: str | None = None,
        seeds: Tensor | None = None,
        context: Tensor | None = None,
    ) -> tuple[Tensor, FlowStats]:
        """Values ``(batch, count, channels)`` at times before and after the first observation, of
        initial states ``(batch, latent)``, and what it took.

        Arguments:
            z: Initial states.
            times: ``(count,)``, or ``(batch, count)`` with NaN where a series has fewer.
            tolerance: Tolerance of the solves; the model's own when None.
            stepping: ``shared`` or ``individual``; by the model's mode when None.
            seeds: Seeds of each series ``(batch,)``, where the policy draws.
            context: Static covariates ``(batch, context)``.
        """
        choice = self.policy_for(tolerance)(0, z, seeds if self.training else None)
        stepping = self.solver_changes(stepping)["stepping"]
        covariates = self.covariates(context, len(z))
        times = times.to(z)
        states, solves = None, []
        for sign in (1.0, -1.0):
            mine = times.where(sign * times >= 0 if sign > 0 else times < 0, torch.nan)
            if not mine.isfinite().any():
                continue
            last = (sign * mine).nan_to_num(nan=0.0).amax(-1) * sign
            span = last.expand(len(z)) if last.ndim == 0 else last
            found, solve = self.block.walk(z, mine, span, choice, stepping, covariates)
            # zero where there is no time: a NaN would come back as the gradient of all
            there = mine.isfinite().expand(len(z), -1).unsqueeze(2)
            states = torch.where(
                there, found, torch.zeros_like(found) if states is None else states
            )
            solves.append(solve)
        if states is None:
            raise ValueError("times must hold a number")
        there = times.isfinite().expand(len(z), -1).unsqueeze(2)
        return self.decoder(states).where(there, torch.nan), FlowStats(tuple(solves))

    def reconstruct(
        self,
        series: Tensor,
        times: Tensor,
        *,
        noise: Tensor | None = None,
        tolerance: Tolerance | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """Values ``(batch, count, channels)`` of series at other times: between, before and after
        its own; from the mean of the initial state, or a draw of it from ``noise`` ``(batch,
        latent)``. Times count from each series' first.
        """
        posterior = self.encode(series, context)
        z = posterior.mean if noise is None else posterior.draw(noise)
        start = self.code.merge(*self.split(z))
        return self.decode(start, times, tolerance=tolerance, context=context)[0]

    def split(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Supervised and unsupervised code of states in the order of a posterior."""
        z_y, z_u = z.split(self.code.sizes, dim=1)
        return z_y, z_u

    def logits(self, x: Tensor, context: Tensor | None = None) -> dict[str, Tensor]:
        """Output of each factor's classifier, from the mean of the supervised code."""
        self.check_labelled()
        return self.code.logits(self.split(self.encode(x, context).mean)[0])

    @torch.no_grad()
    def sample(
        self,
        n: int,
        times: Tensor,
        y: Labels | None = None,
        temperature: float = 1.0,
        *,
        tolerance: Tolerance | None = None,
        context: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """``n`` series without noise, ``(n, count, channels)``, at times ``(count,)``, of labels
        ``y`` or of such as occur.
        """
        seeds = self.drawn_seeds(n, generator)
        labels = self.drawn_labels(y, seeds)
        start = self.code.merge(*self.code.draw(labels, temperature, self.head.weight, seeds))
        if not n:
            return start.new_empty(0, len(times), self.channels)
        return self.decode(start, times, tolerance=tolerance, context=context)[0]

    def covariates(self, context: Tensor | None, count: int) -> tuple[Tensor, ...]:
        """Static covariates ``(count, context)``, or an error where they do not fit the model."""
        found = None if context is None else tuple(context.shape)
        if found != ((count, self.context) if self.context else None):
            wanted = f"({count}, {self.context})" if self.context else "none"
            raise ValueError(f"the context must have shape {wanted}, got {found}")
        return () if context is None else (context.to(self.device, self.dtype),)

    def check_input(self, series: Tensor) -> None:
        """Refuse what is no batch of series."""
        if series.ndim != 3 or series.shape[2] != self.channels + 1:
            raise ValueError(
                f"series must have shape (batch, rows, {self.channels + 1}), time first, "
                f"got {tuple(series.shape)}"
            )
        times = series[..., 0]
        known = times.isfinite()
        hole = (known[:, 1:] & ~known[:, :-1]).any(1)
        back = (times[:, 1:] < times[:, :-1]).any(1)
        for rows, what in ((hole, "have no time before its end"), (back, "go back in time")):
            if rows.any():
                raise ValueError(
                    f"rows of series {int(rows.nonzero()[0])} {what}: sort them by time and leave "
                    "out those without"
                )
