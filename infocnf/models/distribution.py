"""A model with its labels fixed, as a ``torch.distributions.Distribution``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

if TYPE_CHECKING:
    from infocnf.models.conditional import InfoCNF

__all__ = ["FlowDistribution"]


class FlowDistribution(Distribution):
    """Samples of given labels.

    Arguments:
        model: The model.
        y: Labels: of shape ``()`` for one distribution, ``(batch,)`` for a batch of them, a dict
            for several factors; None for the distribution over all labels.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012

    def __init__(self, model: InfoCNF, y: Any = None) -> None:  # noqa: ANN401
        self.model, self.named = model, model.named(y)
        batch = torch.broadcast_shapes(*(value.shape for value in self.named.values()))
        super().__init__(torch.Size(batch), torch.Size(model.shape), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> FlowDistribution:  # noqa: ANN401
        """The same distribution for a larger batch."""
        wider = FlowDistribution(self.model)
        wider.named = {name: value.expand(batch_shape) for name, value in self.named.items()}
        wider._batch_shape = torch.Size(batch_shape)
        return wider

    @property
    def support(self) -> constraints.Constraint:
        """Where samples lie: images in the unit interval, vectors anywhere."""
        events = len(self.event_shape)
        base = constraints.unit_interval if events == 3 else constraints.real
        return constraints.independent(base, events)

    def labels(self, shape: torch.Size) -> dict[str, Tensor]:
        """Labels for samples of the leading ``shape``, flattened."""
        return {name: value.expand(shape).reshape(-1) for name, value in self.named.items()}

    def log_prob(self, value: Tensor, tolerance: float = 1e-5) -> Tensor:
        """Log-density of samples ``(..., *batch_shape, *event_shape)``."""
        events = len(self.event_shape)
        leading = torch.broadcast_shapes(value.shape[: value.ndim - events], self.batch_shape)
        x = value.expand(*leading, *value.shape[value.ndim - events :])
        flat = x.reshape(-1, *x.shape[len(leading) :])
        return self.model.log_prob(flat, self.labels(leading) or None, tolerance).reshape(leading)

    def sample(
        self,
        sample_shape: Any = torch.Size(),  # noqa: ANN401, B008
        tolerance: float = 1e-5,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Samples ``(*sample_shape, *batch_shape, *event_shape)``."""
        leading = torch.Size([*torch.Size(sample_shape), *self.batch_shape])
        x = self.model.sample(
            leading.numel(), self.labels(leading) or None, tolerance=tolerance, generator=generator
        )
        return x.reshape(*leading, *self.event_shape)
