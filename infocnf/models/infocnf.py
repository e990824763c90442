"""InfoCNF, and with it CCNF and the unconditional CNF: one flow, one partitioned code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from infocnf.flows import ContinuousBlock, Traversal, build_flow
from infocnf.flows.architectures import block_count, check_architecture
from infocnf.flows.bijection import BlockSolve, FlowStats
from infocnf.models import readout as one_step
from infocnf.models.base import Labels, PartitionedModel, Tolerance
from infocnf.models.certificate import Certificate, Error
from infocnf.models.code import Code, PartitionedCode
from infocnf.models.distribution import FlowDistribution
from infocnf.models.factors import Factor
from infocnf.models.readout import check_readout
from infocnf.networks.sharpened import Sharpened
from infocnf.ode import TABLEAUS, SolverOptions, set_aside
from infocnf.random import sample_seeds
from infocnf.tolerances import BlockShape, Fixed

__all__ = ["InfoCNF"]


class InfoCNF(PartitionedModel):
    r"""A continuous flow whose code is partitioned into a part that knows the labels and one that
    does not.

    .. math:: \log p(x \mid y) = \log p(z_y \mid y) + \log \mathcal N(z_u; 0, I)
        + \sum_k \int_0^1 \mathrm{tr} \frac{\partial f_k}{\partial z}\, dt

    (the sign of the trace is that of dynamics from data to latent). ``supervised=0`` is the
    unconditional CNF, ``supervised=1`` the paper's baseline CCNF, ``supervised=0.5`` its InfoCNF.

    In training mode solves share their steps over the batch, start with the step of the block's
    last solve, and draw probes at random. In evaluation mode each sample has its own steps from a
    fresh start, its own nodes for the trace and its own fixed probes, so that its answer does not
    depend on what was computed before, and on its batch by rounding only.

    Arguments:
        shape: Shape of one sample: ``(features,)``, or ``(channels, height, width)`` with pixels in
            [0, 1].
        factors: Labels by name, each :class:`Categorical` or :class:`Real`.
        supervised: Fraction of the code that knows the labels.
        supervised_at: Where it sits: ``first_scale``, ``last_scale``, ``every_scale`` or indices.
        architecture: ``multiscale`` for images, ``flat`` for vectors, ``auto`` by the shape; and
            those that can be trained by matching: ``unet`` for images, ``residual`` for vectors.
        place: Another name of ``supervised_at``.
        field: A field of one's own, called as ``field(t, z)``: a module for a flow of one block, or
            what makes one of the shape of a block's state, such as its class.
        context: Size of the covariates ``c`` that the fields see beside the state, ``field(t, z,
            c)``; 0 for none.
        trace: ``exact``, ``hutchinson``, or ``auto``: in training exact where that takes up to 16
            products with the Jacobian (16 dimensions, or any number with one or two dense hidden
            layers), in evaluation where its cost fits a budget.
        scales: Scales of a multiscale flow; as many as the size allows when None.
        blocks: Continuous blocks: of a flat flow, or before and after each squeeze of a multiscale
            one. Residual blocks on each side of a resolution of a U-Net, or of each width.
        hidden: Widths (channels) of each field's hidden layers; of the resolutions of a U-Net.
        activation: ``softplus`` or ``tanh``, of flat and multiscale flows.
        time: How fields see the time: ``concat``; ``concat_squash`` in flat flows; ``log_snr`` in
            those that can be matched: the logarithm of the ratio of signal and noise.
        alpha: Margin of the logit at the data end of image flows.
        probes: Hutchinson's probes in training: ``rademacher`` or ``gaussian``.
        probe_count: Number of probes; see :class:`ContinuousBlock`.
        method: Method of the solver.
        training_method: Another adaptive method for training, where a low order at a loose
            tolerance is often the cheapest.
        steps: Number of steps of a method without error estimate.
        max_steps: Attempted steps per block after which a sample is given up.
        gradient: ``checkpoint``, ``backprop`` or ``adjoint``.
        tolerance: Tolerance of evaluation, wherever a method is called without one: a number, a
            sequence with one per block, or a policy.
        training_tolerance: Tolerance of training, where it is another one.
        dropout: Rate of dropout before the classifiers.
        marginals: Bins of the histograms by which each pixel or column becomes normal at the data
            end of a U-Net or residual flow, once they are fitted; 0: none.
        whiten: Whether 2x2 patches are whitened after that, once it is fitted, in a U-Net's flow.
        separation: How far apart labels start in the supervised code; 0: all alike.
        readout: How labels are read where a method is not told: ``flow`` or ``one_step``.
        compile: Whether to compile fields and divergences; see :class:`ContinuousBlock`.
    """

    MACHINE: ClassVar[tuple[str, ...]] = ("compile", "place")

    def __init__(
        self,
        shape: Sequence[int],
        factors: Mapping[str, Factor] | None = None,
        supervised: float = 0.5,
        supervised_at: str | Sequence[int] = "first_scale",
        architecture: str = "auto",
        *,
        place: str | Sequence[int] | None = None,
        field: nn.Module | Callable[[tuple[int, ...]], nn.Module] | None = None,
        context: int = 0,
        trace: str = "auto",
        scales: int | None = None,
        blocks: int = 2,
        hidden: Sequence[int] = (64, 64, 64),
        activation: str = "softplus",
        time: str = "concat",
        alpha: float = 1e-6,
        probes: str = "rademacher",
        probe_count: int = 1,
        method: str = "dopri5",
        training_method: str | None = None,
        steps: int | None = None,
        max_steps: int = 4096,
        gradient: str = "checkpoint",
        tolerance: Tolerance = 1e-5,
        training_tolerance: Tolerance | None = None,
        dropout: float = 0.5,
        marginals: int = 0,
        whiten: bool = False,
        separation: float = 0.0,
        readout: str = "flow",
        compile: bool = False,
    ) -> None:
        if place is not None:
            supervised_at = place
        super().__init__(factors, tolerance, training_tolerance, locals())
        self.shape, self.context = check_shape(shape), context
        if blocks < 1:
            raise ValueError(f"blocks must be at least 1, got {blocks}")
        solver = SolverOptions(method, gradient=gradient, steps=steps, max_steps=max_steps)
        self.gradient = gradient
        self.training_solver: dict[str, Any] = {}
        if training_method is not None:
            known = TABLEAUS.get(training_method)
            if known is not None and not known.adaptive:
                raise ValueError(f"training_method must be adaptive, got {training_method!r}")
            self.training_solver = {"method": training_method, "steps": None}
        self.check_solver(solver)

        given = isinstance(field, nn.Module)
        architecture = check_architecture(architecture, self.shape, single=given)
        single = block_count(self.shape, architecture, scales, blocks) == 1
        labelled = bool(self.factors) and (not isinstance(supervised_at, str) or supervised > 0)
        make_block = partial(
            ContinuousBlock,
            trace=trace,
            probes=probes,
            probe_count=probe_count,
            solver=solver,
            compile=compile,
            sharpened=bool(separation) and single and labelled,
        )
        self.flow = build_flow(
            self.shape,
            architecture,
            make_block,
            blocks=blocks,
            hidden=tuple(hidden),
            activation=activation,
            time=time,
            scales=scales,
            alpha=alpha,
            marginals=marginals,
            whiten=whiten,
            context=context,
            field=field,
        )
        self.code = PartitionedCode(
            self.flow.sizes, self.factors, supervised, supervised_at, dropout
        )
        self.separation, self.readout = separation, check_readout(readout)
        if separation:
            self.code.separate(self.flow.code_shape, separation)
            for block in self.blocks:
                if isinstance(block.field, Sharpened):
                    block.field.aim_at(self.code.pattern_codes())
        self.policy.bind(self.block_shapes)
        self.tolerance.bind(self.block_shapes)

    def check_solver(self, solver: SolverOptions) -> None:
        """Refuse a solver whose tolerance nobody asks for."""
        used = replace(solver, **self.training_solver)
        if not used.adaptive and not isinstance(self.policy, Fixed):
            raise ValueError(
                f"{used.method} has no tolerance: leave the policy fixed, or use dopri5"
            )

    @property
    def block_shapes(self) -> list[BlockShape]:
        return [BlockShape(*block) for block in self.flow.block_shapes]

    @property
    def blocks(self) -> list[ContinuousBlock]:
        return self.flow.blocks  # type: ignore[return-value]

    @property
    def dimensions(self) -> int:
        """Number of dimensions of one sample."""
        return math.prod(self.shape)

    def forward(self, y: Labels | None = None, context: Tensor | None = None) -> FlowDistribution:
        """The distribution of samples with labels ``y``, or of all samples, given their context, in
        the manner of torch.distributions.
        """
        return FlowDistribution(self, y, context)

    def encode(
        self,
        x: Tensor,
        *,
        tolerance: Tolerance | None = None,
        context: Tensor | None = None,
        log_det: bool = True,
        generator: torch.Generator | None = None,
        seeds: Tensor | None = None,
        auxiliary: bool = False,
        stepping: str | None = None,
        effort: float = 1.0,
        again: Sequence[BlockSolve] = (),
        halves: bool = True,
    ) -> Code:
        """Code of samples ``(batch, *shape)``.

        Arguments:
            x: Samples.
            tolerance: Tolerance of the solves; the model's own when None.
            context: Covariates ``(batch, context)`` of a model that has such.
            log_det: Whether to integrate the log-determinant: without, at about half the cost.
            generator: Source of the probes.
            seeds: Seeds of each sample's probes ``(batch,)``, instead of a generator.
            auxiliary: Whether to integrate kinetic energy and Jacobian norm on the way.
            stepping: ``shared`` or ``individual``; by the model's mode when None.
            effort: How much more than usual to spend on traces in evaluation; 0 for the least.
            again: The solves of these samples so far, to be repeated with few probes: what tells
                their error, see :mod:`infocnf.models.certificate`.
            halves: Whether with each step in two halves, or from inputs that differ by rounding.
        """
        self.check_input(x)
        if log_det and seeds is None:
            seeds = self.seeds(x, generator)
        traversal = self.traversal(
            tolerance,
            stepping=stepping,
            context=self.check_context(context, len(x)),
            seeds=seeds if log_det else None,
            auxiliary=auxiliary,
            effort=effort,
            again=again,
            halves=halves,
        )
        z, total = self.flow(x, traversal)
        z_y, z_u = self.code.split(z)

        return Code(z_y, z_u, total if log_det else None, FlowStats(tuple(traversal.solves)))

    def decode(
        self,
        code: Code,
        *,
        tolerance: Tolerance | None = None,
        context: Tensor | None = None,
        steps: int | None = None,
    ) -> Tensor:
        """Samples ``(batch, *shape)`` of codes: within a tolerance, or in so many equal steps of
        the midpoint rule per block, two evaluations each.
        """
        z = self.code.merge(code.supervised, code.unsupervised)
        way = self.traversal(tolerance, context=self.check_context(context, len(z)))
        if steps is not None:
            way = replace(way, options={**way.options, "method": "midpoint", "steps": steps})
        return self.flow.inverse(z, way)

    def log_prob(
        self,
        x: Tensor,
        y: Labels | None = None,
        tolerance: Tolerance | None = None,
        *,
        context: Tensor | None = None,
        generator: torch.Generator | None = None,
        error: bool = False,
        failures: str = "raise",
    ) -> Any:  # noqa: ANN401
        r"""Log-density in nats, ``(batch,)``: :math:`\log p(x \mid y)`, or :math:`\log \sum_y
        p(y)\, p(x \mid y)` for ``y=None``; given the context, where there is one.

        With several factors ``y`` is a dict; the density is averaged over the labels of those it
        leaves out. With ``error=True`` also a bound on its :class:`Error`, in evaluation mode, in
        which ``failures="nan"`` gives NaN for samples that cannot be solved; else one of them
        raises an error.
        """
        self.check_input(x)
        labels = self.labels(y, len(x))
        seeds = self.seeds(x, generator)
        each = isinstance(tolerance, Tensor) and tolerance.ndim > 0

        def solved(rows: Any, _: str | None = None) -> list[Tensor]:  # noqa: ANN401
            mine = {name: label[rows] for name, label in labels.items()}
            own = None if context is None else context[rows]
            at: Any = cast("Tensor", tolerance)[rows] if each else tolerance
            code = self.encode(x[rows], tolerance=at, context=own, seeds=seeds[rows])
            log_prob = self.code_log_prob(code, mine)
            if not error or not len(log_prob):
                return [log_prob] * (5 if error else 1)
            bound = Certificate(self, x[rows], code, context=own, seeds=seeds[rows]).error(mine)
            return [log_prob, bound.solver, bound.quadrature, bound.trace, bound.rounding]

        if failures == "nan" and not self.training:
            found, kept = set_aside(solved, len(x))
            lost = x.new_full((len(x),), torch.nan)
            parts = [lost] * (5 if error else 1)
            if found is not None:
                parts = [lost.index_copy(0, kept.to(x.device), part) for part in found]
        elif failures == "raise":
            parts = solved(slice(None))
        else:
            raise ValueError(f"failures must be raise, or nan in evaluation mode, got {failures!r}")
        return (parts[0], Error(*parts[1:])) if error else parts[0]

    def code_log_prob(
        self, code: Code, labels: Mapping[str, Tensor], known: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Log-density of the samples whose code this is, ``(batch,)``; ``known`` as in
        :meth:`partial_labels`.
        """
        if code.log_det is None:
            raise ValueError("the code has no log_det: encode with log_det=True")
        self.check_frequencies(labels)
        return self.code.log_prob(code.supervised, code.unsupervised, labels, known) + code.log_det

    def logits(
        self,
        x: Tensor,
        tolerance: Tolerance | None = None,
        *,
        readout: str | None = None,
        context: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Output ``(batch, outputs)`` of each factor's classifier.

        Read off the code (``readout="flow"``); or, from a model trained by matching, off a single
        evaluation of the field (``"one_step"``); as the model prefers when None.
        """
        self.check_labelled()
        if check_readout(readout or self.readout) == "one_step":
            self.check_input(x)
            own = self.check_context(context, len(x))
            return one_step.one_step_logits(self, one_step.data_end(self, x), own)
        code = self.encode(x, tolerance=tolerance, context=context, log_det=False)
        return self.code.logits(code.supervised)

    @property
    def has_one_step(self) -> bool:
        """Whether it was made to be matched, so that one evaluation of its field has a label."""
        return bool(self.code.heads) and self.separation > 0 and len(self.flow.blocks) == 1

    def sharpen(self, sharpness: float) -> None:
        """Have the flow decide for a label more firmly; see :class:`Sharpened`."""
        field = self.blocks[0].field
        if not isinstance(field, Sharpened):
            raise ValueError("only a flow of one block whose labels start apart can be sharpened")
        if not sharpness >= 1.0:
            raise ValueError(f"sharpness must be at least 1, got {sharpness}")
        field.sharpness = float(sharpness)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        y: Labels | None = None,
        temperature: float = 1.0,
        *,
        tolerance: Tolerance | None = None,
        context: Tensor | None = None,
        generator: torch.Generator | None = None,
        steps: int | None = None,
    ) -> Tensor:
        """``n`` samples ``(n, *shape)`` of label ``y``: one for all, one each, or drawn as they
        occur for None.

        A temperature below one narrows the prior: more typical samples, less variety. A generator
        that is seeded alike gives the same first samples, whatever their number. ``steps`` as of
        :meth:`decode`.
        """
        code = self.draw_code(n, y, temperature, generator)
        return self.visible(self.decode(code, tolerance=tolerance, context=context, steps=steps))

    def draw_code(
        self,
        n: int,
        y: Labels | None = None,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Code:
        """Codes of ``n`` samples of the prior."""
        if not temperature >= 0:
            raise ValueError(f"temperature must not be negative, got {temperature}")
        seeds = self.drawn_seeds(n, generator)
        labels = self.drawn_labels(y, seeds)
        return Code(*self.code.draw(labels, temperature, self.like, seeds))

    @torch.no_grad()
    def counterfactual(
        self,
        x: Tensor,
        y: Labels,
        *,
        given: Labels | None = None,
        tolerance: Tolerance | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        r"""The samples as they would be with labels ``y``: same :math:`z_u`, :math:`z_y` carried
        from the old label to the new.

        :math:`z_y` is carried by :math:`\mu(y') + \sigma(y') \odot (z_y - \mu(y)) / \sigma(y)`, so
        that what distinguishes a sample within its class is kept and its own label gives the sample
        itself.

        Arguments:
            x: Samples ``(batch, *shape)``.
            y: New labels; factors that are left out keep theirs.
            given: Present labels; predicted where None.
            tolerance: Tolerance of the solves.
            context: Covariates of the samples.
        """
        code = self.encode(x, tolerance=tolerance, context=context, log_det=False)
        old = self.labels(given, len(x))
        for name, logits in self.code.logits(code.supervised).items():
            old.setdefault(name, self.factors[name].predict(logits))
        new = {**old, **self.labels(y, len(x))}
        standard = self.code.to_standard_normal(code.supervised, old)
        carried = Code(self.code.from_standard_normal(standard, new), code.unsupervised)

        return self.visible(self.decode(carried, tolerance=tolerance, context=context))

    def visible(self, x: Tensor) -> Tensor:
        """Samples as shown: the density of an image reaches ``alpha`` beyond black and white."""
        return x.clamp(0.0, 1.0) if len(self.shape) == 3 else x

    def seeds(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Seeds of each sample's probes: at random in training or from a generator, else from the
        sample itself.
        """
        if not self.training and generator is None:
            return sample_seeds(x)
        return torch.randint(-(2**63), 2**63 - 1, (len(x),), generator=generator, device=x.device)

    def traversal(
        self,
        tolerance: Tolerance | None = None,
        *,
        stepping: str | None = None,
        context: Tensor | None = None,
        seeds: Tensor | None = None,
        auxiliary: bool = False,
        effort: float = 1.0,
        again: Sequence[BlockSolve] = (),
        halves: bool = True,
    ) -> Traversal:
        """How a batch travels, in training and in evaluation."""
        return Traversal(
            policy=self.policy_for(tolerance),
            options=self.solver_changes(stepping),
            seeds=seeds,
            context=context,
            draw=self.training,
            warm=self.training and stepping != "individual",
            auxiliary=auxiliary,
            quadrature=not self.training and not auxiliary,
            effort=effort,
            again=again,
            halves=halves,
        )

    def solver_changes(self, stepping: str | None) -> dict[str, Any]:
        changes = {**super().solver_changes(stepping), "gradient": self.gradient}
        return {**changes, **self.training_solver} if self.training else changes

    def check_input(self, x: Tensor) -> None:
        """Refuse samples of another shape or type."""
        if not isinstance(x, Tensor):
            raise ValueError(
                f"samples are of type {type(x).__name__}, not a tensor: "
                f"use torch.as_tensor(x, dtype={self.dtype})"
            )
        if tuple(x.shape[1:]) != self.shape:
            wanted = ", ".join(map(str, self.shape))
            raise ValueError(f"samples must have shape (batch, {wanted}), got {tuple(x.shape)}")
        if x.dtype != self.dtype:
            raise ValueError(
                f"samples are {x.dtype} but the model is {self.dtype}: convert one of them"
            )

    def check_context(self, context: Tensor | None, count: int) -> Tensor | None:
        """Covariates ``(count, context)``, or an error where they do not fit the model."""
        if not self.context and context is None:
            return None
        wanted = f"({count}, {self.context})" if self.context else "none"
        if context is None or not self.context or context.shape[-1:] != (self.context,):
            found = "none" if context is None else tuple(context.shape)
            raise ValueError(f"the context must have shape {wanted}, got {found}")
        if context.ndim > 2 or (context.ndim == 2 and len(context) != count):
            raise ValueError(f"the context must have shape {wanted}, got {tuple(context.shape)}")
        return context.expand(count, self.context).to(self.device, self.dtype)

    def config(self) -> dict[str, Any]:
        return {**super().config(), "readout": self.readout, "gradient": self.gradient}


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Whole numbers of a shape."""
    if not isinstance(shape, Sequence) or any(int(size) != size for size in shape):
        raise ValueError(f"shape must be a tuple of whole numbers such as (2,), got {shape!r}")
    return tuple(int(size) for size in shape)
