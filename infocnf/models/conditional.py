"""InfoCNF, and with it CCNF and the unconditional CNF: one flow, one partitioned code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from infocnf.flows import ContinuousBlock, Traversal
from infocnf.flows.bijection import FlowStats
from infocnf.models import pretrained
from infocnf.models.architectures import build_flow, check_samples, check_shape, check_solver
from infocnf.models.codes import Code, PartitionedCode
from infocnf.models.distribution import FlowDistribution
from infocnf.models.factors import Factor, factor_from_config, factor_to_config
from infocnf.models.labels import Labelled, Labels, check_factors
from infocnf.models.reading import approach, check_labelled, check_read, read_once
from infocnf.models.sharpening import separate
from infocnf.ode.streams import sample_seeds
from infocnf.tolerances import Place, Policy, as_policy, policy_from_config

__all__ = ["InfoCNF"]

Tolerance = float | Tensor | Sequence[float] | Policy


class InfoCNF(Labelled, pretrained.Pretrained, nn.Module):
    r"""A continuous flow whose code is partitioned into a part that knows the labels and one that
    does not.

    .. math:: \log p(x \mid y) = \log p(z_y \mid y) + \log \mathcal N(z_u; 0, I)
        + \sum_k \int_0^1 \mathrm{tr} \frac{\partial f_k}{\partial z}\, dt

    (the sign of the trace is that of dynamics from data to latent). ``supervised=0`` is the
    unconditional CNF, ``supervised=1`` the paper's baseline CCNF, ``supervised=0.5`` its InfoCNF.

    In training mode solves share their steps over the batch, start with the step of the block's
    last solve, and draw probes at random. In evaluation mode each sample has its own steps from a
    fresh start and its own fixed probes, so that its answer depends neither on its batch nor on
    what was computed before.

    Arguments:
        shape: Shape of one sample: ``(features,)``, or ``(channels, height, width)`` with pixels in
            [0, 1].
        factors: Labels by name, each :class:`Categorical` or :class:`Real`.
        supervised: Fraction of the code that knows the labels.
        place: Where it sits: ``first_scale``, ``last_scale``, ``every_scale`` or indices.
        architecture: ``multiscale`` for images, ``flat`` for vectors, ``auto`` by the shape; and
            those that can be trained by matching: ``unet`` for images, ``residual`` for vectors.
        trace: ``exact``, ``hutchinson``, or ``auto``: exact for blocks of up to 16 dimensions.
        scales: Scales of a multiscale flow; as many as the size allows when None.
        blocks: Continuous blocks: of a flat flow, or before and after each squeeze of a multiscale
            one. Residual blocks on each side of a level of a U-Net, or of each width.
        hidden: Widths (channels) of each field's hidden layers; of the levels of a U-Net.
        activation: ``softplus`` or ``tanh``, of flat and multiscale flows.
        time: ``concat`` or ``concat_squash``, for flat flows.
        alpha: Margin of the logit at the data end of image flows.
        probes: Hutchinson's probes: ``rademacher`` or ``gaussian``.
        probe_count: Number of probes.
        method: Method of the solver.
        training_method: Another adaptive method for training, where a low order at a loose
            tolerance is often the cheapest.
        steps: Number of steps of a method without error estimate.
        max_steps: Attempted steps per block after which a sample is given up.
        gradient: ``checkpoint``, ``backprop`` or ``adjoint``.
        tolerance: The model's own policy: a number, a sequence with one per block, or a policy.
            Used in training and where a method is called with ``tolerance=None``.
        dropout: Rate of dropout before the classifiers.
        marginals: Bins of the histograms by which each pixel or column becomes normal at the data
            end of a U-Net or residual flow, once they are fitted; 0: none.
        separation: How far apart labels start in the supervised code; 0: all alike.
        read: How labels are read where a method is not told: ``flow`` or ``one_step``.
        compile: Whether to compile fields and divergences; see :class:`ContinuousBlock`.
    """

    def __init__(
        self,
        shape: Sequence[int],
        factors: Mapping[str, Factor] | None = None,
        supervised: float = 0.5,
        place: str | Sequence[int] = "first_scale",
        architecture: str = "auto",
        *,
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
        dropout: float = 0.5,
        marginals: int = 0,
        separation: float = 0.0,
        read: str = "flow",
        compile: bool = False,
    ) -> None:
        super().__init__()
        given = {
            name: value for name, value in locals().items() if name not in ("self", "__class__")
        }
        self.shape = check_shape(shape)
        self.factors = check_factors(factors or {})
        if blocks < 1:
            raise ValueError(f"blocks must be at least 1, got {blocks}")
        self.policy = as_policy(tolerance)
        check_solver(method, training_method, gradient, self.policy)
        self.gradient, self.training_method = gradient, training_method
        self._arguments = given

        make_block = partial(
            ContinuousBlock,
            trace=trace,
            probes=probes,
            probe_count=probe_count,
            method=method,
            steps=steps,
            max_steps=max_steps,
            compile=compile,
        )
        common = {"blocks": blocks, "hidden": tuple(hidden)}
        ends = {"alpha": alpha, "marginals": marginals}
        own: dict[str, dict[str, Any]] = {
            "flat": {"activation": activation, "time": time},
            "multiscale": {"activation": activation, "scales": scales, "alpha": alpha},
            "unet": ends,
            "residual": ends,
        }
        self.flow = build_flow(self.shape, architecture, make_block, common, own)
        self.code = PartitionedCode(self.flow.sizes, self.factors, supervised, place, dropout)
        self.separation, self.read = separation, check_read(read)
        if separation:
            separate(self.flow, self.code, separation)
        self.policy.bind(self.places)

    @property
    def places(self) -> list[Place]:
        """Where the continuous blocks are."""
        return [Place(*place) for place in self.flow.places]

    @property
    def blocks(self) -> list[ContinuousBlock]:
        """The continuous blocks."""
        return self.flow.blocks

    @property
    def dimensions(self) -> int:
        """Number of dimensions of one sample."""
        return math.prod(self.shape)

    def forward(self, y: Labels | None = None) -> FlowDistribution:
        """The distribution of samples with labels ``y``, or of all samples, in the manner of
        torch.distributions.
        """
        return FlowDistribution(self, y)

    def encode(
        self,
        x: Tensor,
        *,
        tolerance: Tolerance | None = 1e-5,
        log_det: bool = True,
        generator: torch.Generator | None = None,
        seeds: Tensor | None = None,
        passengers: bool = False,
        stepping: str | None = None,
    ) -> Code:
        """Code of samples ``(batch, *shape)``.

        Arguments:
            x: Samples.
            tolerance: Tolerance of the solves; that of the model's policy when None.
            log_det: Whether to integrate the log-determinant: without, at about half the cost.
            generator: Source of the probes.
            seeds: Seeds of each sample's probes ``(batch,)``, instead of a generator.
            passengers: Whether to integrate kinetic energy and Jacobian norm on the way.
            stepping: ``shared`` or ``individual``; by the model's mode when None.
        """
        self.check_input(x)
        if log_det and seeds is None:
            seeds = self.seeds(x, generator)
        traversal = self.traversal(tolerance, seeds if log_det else None, passengers, stepping)
        z, total = self.flow(x, traversal)
        z_y, z_u = self.code.split(z)

        return Code(z_y, z_u, total if log_det else None, FlowStats(tuple(traversal.solves)))

    def decode(self, code: Code, *, tolerance: Tolerance | None = 1e-5) -> Tensor:
        """Samples ``(batch, *shape)`` of codes."""
        z = self.code.merge(code.supervised, code.unsupervised)
        return self.flow.inverse(z, self.traversal(tolerance))

    def log_prob(
        self,
        x: Tensor,
        y: Labels | None = None,
        tolerance: Tolerance | None = 1e-5,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        r"""Log-density in nats, ``(batch,)``: :math:`\log p(x \mid y)`, or :math:`\log \sum_y
        p(y)\, p(x \mid y)` for ``y=None``.

        With several factors ``y`` is a dict; the density is averaged over the labels of those it
        leaves out.
        """
        labels = self.labels(y, len(x))
        code = self.encode(x, tolerance=tolerance, generator=generator)
        return self.code_log_prob(code, labels)

    def code_log_prob(
        self, code: Code, labels: Mapping[str, Tensor], known: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Log-density of the samples whose code this is, ``(batch,)``; ``known`` as in
        :meth:`partial_labels`.
        """
        if code.log_det is None:
            raise ValueError("the code has no log_det: encode with log_det=True")
        return self.code.log_prob(code.supervised, code.unsupervised, labels, known) + code.log_det

    def predict_proba(
        self, x: Tensor, tolerance: Tolerance | None = 1e-5, *, read: str | None = None
    ) -> Tensor | Normal | dict[str, Tensor | Normal]:
        """Probabilities ``(batch, classes)`` of a categorical factor, a Normal for a real one, a
        dict of them for several.

        Read off the code by the classifier (``read="flow"``); or, from a model trained by matching,
        off a single evaluation of the field (``"one_step"``); as the model prefers when None.
        """
        answers = self.answers(x, tolerance, read)
        return self.single(
            {name: self.factors[name].distribution(answer) for name, answer in answers.items()}
        )

    def predict(
        self, x: Tensor, tolerance: Tolerance | None = 1e-5, *, read: str | None = None
    ) -> Tensor | dict[str, Tensor]:
        """The most probable class or the expected number, ``(batch,)``; a dict for several."""
        answers = self.answers(x, tolerance, read)
        return self.single(
            {name: self.factors[name].read(answer) for name, answer in answers.items()}
        )

    def answers(
        self, x: Tensor, tolerance: Tolerance | None, read: str | None = None
    ) -> dict[str, Tensor]:
        """Output of each factor's classifier, or the same read in one step."""
        check_labelled(self)
        if check_read(read or self.read) == "one_step":
            self.check_input(x)
            return read_once(self, approach(self, x))
        return self.code.answers(self.encode(x, tolerance=tolerance, log_det=False).supervised)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        y: Labels | None = None,
        temperature: float = 1.0,
        *,
        tolerance: Tolerance | None = 1e-5,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """``n`` samples ``(n, *shape)`` of label ``y``: one for all, one each, or drawn as they
        occur for None.

        A temperature below one narrows the prior: more typical samples, less variety.
        """
        if not temperature >= 0:
            raise ValueError(f"temperature must not be negative, got {temperature}")
        labels = self.labels(y, n)
        for name, factor in self.factors.items():
            if name not in labels:
                labels[name] = factor.draw(n, self.device, generator)
        like = next(self.flow.parameters())
        z_y, z_u = self.code.draw(labels, n, temperature, like, generator)

        return self.visible(self.decode(Code(z_y, z_u), tolerance=tolerance))

    @torch.no_grad()
    def counterfactual(
        self,
        x: Tensor,
        y: Labels,
        *,
        given: Labels | None = None,
        tolerance: Tolerance | None = 1e-5,
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
        """
        code = self.encode(x, tolerance=tolerance, log_det=False)
        old = self.labels(given, len(x))
        for name, answer in self.code.answers(code.supervised).items():
            old.setdefault(name, self.factors[name].read(answer))
        new = {**old, **self.labels(y, len(x))}
        carried = self.code.shape(self.code.standardise(code.supervised, old), new)

        return self.visible(self.decode(Code(carried, code.unsupervised), tolerance=tolerance))

    def visible(self, x: Tensor) -> Tensor:
        """Samples as shown: the density of an image reaches ``alpha`` beyond black and white."""
        return x.clamp(0.0, 1.0) if len(self.shape) == 3 else x

    @property
    def dtype(self) -> torch.dtype:
        """Type of its weights."""
        return next(self.flow.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.flow.parameters()).device

    def seeds(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Seeds of each sample's probes: at random in training or from a generator, else from the
        sample itself.
        """
        if not self.training and generator is None:
            return sample_seeds(x)
        return torch.randint(-(2**63), 2**63 - 1, (len(x),), generator=generator, device=x.device)

    def traversal(
        self,
        tolerance: Tolerance | None,
        seeds: Tensor | None = None,
        passengers: bool = False,
        stepping: str | None = None,
    ) -> Traversal:
        """How a batch travels, in training and in evaluation."""
        policy = self.policy if tolerance is None else as_policy(tolerance)
        policy.bind(self.places)
        return Traversal(
            policy=policy,
            stepping=stepping or ("shared" if self.training else "individual"),
            gradient=self.gradient,
            method=self.training_method if self.training else None,
            seeds=seeds,
            draw=self.training,
            warm=self.training and stepping != "individual",
            passengers=passengers,
        )

    def check_input(self, x: Tensor) -> None:
        """Refuse samples of another shape or type."""
        check_samples(x, self.shape, next(self.flow.parameters()).dtype)

    def config(self) -> dict[str, Any]:
        """Arguments that make this model again, as plain values."""
        arguments = dict(self._arguments)
        del arguments["compile"]  # a matter of the machine, not of the model
        arguments["factors"] = {
            name: factor_to_config(factor) for name, factor in self.factors.items()
        }
        arguments["tolerance"] = self.policy.config()
        arguments["gradient"], arguments["read"] = self.gradient, self.read

        return pretrained.plain(arguments)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> InfoCNF:
        """The model that :meth:`config` described, with fresh weights."""
        arguments = dict(config)
        arguments["factors"] = {
            name: factor_from_config(f) for name, f in arguments.get("factors", {}).items()
        }
        arguments["tolerance"] = policy_from_config(arguments.get("tolerance", {"name": "fixed"}))
        return cls(**arguments)
