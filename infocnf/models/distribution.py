"""A flow with its labels and its context fixed, as ``torch.distributions`` has distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, distributions
from torch.distributions import (
    Distribution,
    Independent,
    MixtureSameFamily,
    Normal,
    Transform,
    constraints,
)

from infocnf.models.base import Labels, Tolerance
from infocnf.models.code import Code
from infocnf.models.factors import Categorical

if TYPE_CHECKING:
    from infocnf.models.infocnf import InfoCNF

__all__ = ["FlowDistribution", "FlowTransform"]


class FlowTransform(Transform):
    """From samples to codes ``(..., dimensions)``, whose distribution is the base."""

    bijective = True

    def __init__(self, model: InfoCNF, context: Tensor | None) -> None:
        super().__init__()
        self.model, self.context = model, context
        self.domain = constraints.independent(constraints.real, len(model.shape))
        self.codomain = constraints.independent(constraints.real, 1)

    def _call(self, x: Tensor) -> Tensor:
        code = self.encode(x, log_det=False)
        z = self.model.code.merge(code.supervised, code.unsupervised)
        return z.reshape(*self.leading(x, len(self.model.shape)), -1)

    def _inverse(self, z: Tensor) -> Tensor:
        leading = self.leading(z, 1)
        z_y, z_u = self.model.code.split(z.reshape(-1, z.shape[-1]))
        context = self.spread(leading)
        x = self.model.decode(Code(z_y, z_u), context=context)
        return x.reshape(*leading, *self.model.shape)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Log-determinant of the flow at samples."""
        found = self.encode(x, log_det=True).log_det
        assert found is not None
        return found.reshape(self.leading(x, len(self.model.shape)))

    def encode(self, x: Tensor, log_det: bool) -> Code:
        """Code of samples ``(..., *shape)``, flattened."""
        leading = self.leading(x, len(self.model.shape))
        return self.model.encode(
            x.reshape(-1, *self.model.shape),
            context=self.spread(leading),
            log_det=log_det,
        )

    def leading(self, x: Tensor, events: int) -> torch.Size:
        """Shape without that of one event."""
        return x.shape[: x.ndim - events]

    def spread(self, leading: torch.Size) -> Tensor | None:
        """The context of flattened samples."""
        if self.context is None:
            return None
        return self.context.expand(*leading, -1).reshape(-1, self.context.shape[-1])


class FlowDistribution(Distribution):
    """Samples of given labels and context.

    Arguments:
        model: The model.
        y: Labels: of shape ``()`` for one distribution, ``(batch,)`` for a batch of them, a dict
            for several factors; None for the distribution over all labels.
        context: Covariates ``(context,)`` or ``(batch, context)``, of a model that has such.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_rsample = True

    def __init__(
        self, model: InfoCNF, y: Labels | None = None, context: Tensor | None = None
    ) -> None:
        self.model, self.named, self.context = model, model.named(y), context
        covariates = [] if context is None else [context.shape[:-1]]
        batch = torch.broadcast_shapes(*(value.shape for value in self.named.values()), *covariates)
        super().__init__(torch.Size(batch), torch.Size(model.shape), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> FlowDistribution:  # noqa: ANN401
        """The same distribution for a larger batch."""
        wider = FlowDistribution(self.model, context=self.context)
        wider.named = {name: value.expand(batch_shape) for name, value in self.named.items()}
        wider._batch_shape = torch.Size(batch_shape)
        return wider

    @property
    def support(self) -> constraints.Constraint:
        """Where samples lie: images in the unit interval, vectors anywhere."""
        events = len(self.event_shape)
        base = constraints.unit_interval if events == 3 else constraints.real
        return constraints.independent(base, events)

    @property
    def transform(self) -> FlowTransform:
        """The flow: from samples to codes, and back by ``transform.inv``."""
        return FlowTransform(self.model, self.context)

    @property
    def base(self) -> Distribution:
        r"""The distribution of codes ``(dimensions,)``: :math:`\mathcal N(\mu(y), \sigma^2(y))` in
        their supervised part, standard normal in the other; a mixture over classes where no label
        was given.
        """
        code, like = self.model.code, self.model.like
        missing = [name for name in code.heads if name not in self.named]
        if not missing:
            mean, scale = code.prior_moments(self.labels(self.batch_shape), self.batch_shape, like)
            return Independent(Normal(mean, scale), 1)
        factor = self.model.factors[missing[0]]
        if len(code.heads) > 1 or not isinstance(factor, Categorical):
            raise ValueError(
                f"the base has a closed form for one categorical label: give {missing[0]!r}"
            )
        every = {missing[0]: torch.arange(factor.classes, device=like.device)}
        mean, scale = code.prior_moments(every, (factor.classes,), like)
        weights = factor.log_probabilities(like.dtype).to(like.device)
        return MixtureSameFamily(
            distributions.Categorical(logits=weights), Independent(Normal(mean, scale), 1)
        )

    def labels(self, shape: Sequence[int]) -> dict[str, Tensor]:
        """Labels for samples of the leading ``shape``, flattened."""
        return {name: value.expand(shape).reshape(-1) for name, value in self.named.items()}

    def log_prob(self, value: Tensor, tolerance: Tolerance | None = None) -> Tensor:
        """Log-density of samples ``(..., *batch_shape, *event_shape)``."""
        events = len(self.event_shape)
        leading = torch.broadcast_shapes(value.shape[: value.ndim - events], self.batch_shape)
        x = value.expand(*leading, *value.shape[value.ndim - events :])
        flat = x.reshape(-1, *x.shape[len(leading) :])
        context = self.transform.spread(torch.Size(leading))
        labels = self.labels(leading) or None
        return self.model.log_prob(flat, labels, tolerance, context=context).reshape(leading)

    def rsample(
        self,
        sample_shape: Any = torch.Size(),  # noqa: ANN401, B008
        tolerance: Tolerance | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Samples ``(*sample_shape, *batch_shape, *event_shape)`` with gradients of the model's
        parameters.
        """
        leading = torch.Size([*torch.Size(sample_shape), *self.batch_shape])
        labels, model = self.labels(leading) or None, self.model
        code = model.draw_code(leading.numel(), labels, generator=generator)
        x = model.decode(code, tolerance=tolerance, context=self.transform.spread(leading))
        return model.visible(x).reshape(*leading, *self.event_shape)

    @torch.no_grad()
    def sample(
        self,
        sample_shape: Any = torch.Size(),  # noqa: ANN401, B008
        tolerance: Tolerance | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Samples without gradients."""
        return self.rsample(sample_shape, tolerance, generator)
