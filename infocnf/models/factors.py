r"""Kinds of labels :math:`y`: what the prior :math:`q_\phi` reads and what the classifier
:math:`q_\theta` answers.

A factor knows nothing of codes. It turns labels into the input of a linear layer, scores and reads
the output of another, and says how labels are distributed when nobody names one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.nn import functional as F  # noqa: N812

__all__ = ["Categorical", "Factor", "Real", "factor_from_config"]

LogDensity = Callable[[Tensor], Tensor]
"""Log-density of one code per sample ``(batch, ...)`` under labels ``(batch, ...)``, by
broadcasting.
"""


@dataclass(frozen=True)
class Categorical:
    """A label that is one of several classes, scored by cross-entropy.

    Arguments:
        classes: Number of classes.
        probabilities: How often each occurs; equally often when None.
    """

    classes: int
    probabilities: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.classes < 1:
            raise ValueError(f"classes must be at least 1, got {self.classes}")
        if self.probabilities is not None:
            p = tuple(float(value) for value in self.probabilities)
            if len(p) != self.classes or min(p) < 0 or not math.isclose(sum(p), 1.0, abs_tol=1e-6):
                raise ValueError(
                    f"probabilities must be {self.classes} numbers that sum to 1, got {p}"
                )
            object.__setattr__(self, "probabilities", p)

    @property
    def inputs(self) -> int:
        """Size of a label as the prior reads it."""
        return self.classes

    @property
    def outputs(self) -> int:
        """Size of the classifier's answer."""
        return self.classes

    def check(self, y: Tensor) -> Tensor:
        """Labels as ``long``, or an error that names the one that cannot be."""
        broken = y.flatten()[y.flatten() % 1 != 0]
        if len(broken):
            raise ValueError(f"class labels must be whole numbers, got {broken[0].item()}")
        y = y.long()
        outside = (y < 0) | (y >= self.classes)
        if outside.any():
            raise ValueError(
                f"labels must lie in 0 .. {self.classes - 1}, got {y[outside].flatten()[0].item()}"
            )
        return y

    def embed(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """One-hot vectors ``(..., classes)``."""
        return F.one_hot(y, self.classes).to(dtype)

    def loss(self, answer: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy in nats, ``(batch,)``."""
        return F.cross_entropy(answer, y, reduction="none")

    def read(self, answer: Tensor) -> Tensor:
        """The most probable class, ``(batch,)``."""
        return answer.argmax(-1)

    def distribution(self, answer: Tensor) -> Tensor:
        """Probabilities ``(batch, classes)``."""
        return answer.softmax(-1)

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Labels as they occur."""
        weights = torch.exp(self.log_probabilities(torch.float64))
        return torch.multinomial(weights, count, replacement=True, generator=generator)

    def log_probabilities(self, dtype: torch.dtype) -> Tensor:
        """Logarithms of how often each class occurs."""
        even = [1.0 / self.classes] * self.classes
        return torch.tensor(self.probabilities or even, dtype=torch.float64).log().to(dtype)

    def marginalise(self, log_density: LogDensity, like: Tensor) -> Tensor:
        r""":math:`\log \sum_y p(y)\, p(\cdot \mid y)`, ``(batch,)``."""
        labels = torch.arange(self.classes, device=like.device).expand(len(like), -1)
        weights = self.log_probabilities(like.dtype).to(like.device)
        return torch.logsumexp(log_density(labels) + weights, dim=-1)


@dataclass(frozen=True)
class Real:
    r"""A label that is a real number, regressed with a Gaussian of learned width.

    Labels are :math:`\mathcal N(\mathrm{mean}, \mathrm{scale}^2)` when nobody names one; the
    networks see them standardised.

    Arguments:
        mean: Mean of the labels.
        scale: Their standard deviation.
    """

    mean: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(
                f"a real factor needs a finite mean and a positive scale, "
                f"got {self.mean} and {self.scale}"
            )

    inputs = 1
    outputs = 2

    def check(self, y: Tensor) -> Tensor:
        """Labels as real numbers, or an error where one is not finite."""
        if not torch.isfinite(y).all():
            raise ValueError("labels of a real factor must be finite, got NaN or infinity")
        return y if y.is_floating_point() else y.to(torch.get_default_dtype())

    def embed(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Standardised labels ``(..., 1)``."""
        return ((y.to(dtype) - self.mean) / self.scale).unsqueeze(-1)

    def loss(self, answer: Tensor, y: Tensor) -> Tensor:
        """Negative log-density of the label in nats, ``(batch,)``."""
        return -self.distribution(answer).log_prob(y.to(answer.dtype))

    def read(self, answer: Tensor) -> Tensor:
        """The expected label, ``(batch,)``."""
        return self.distribution(answer).mean

    def distribution(self, answer: Tensor) -> Normal:
        """The Gaussian of each answer (location, logarithm of the width)."""
        location, log_width = answer.unbind(-1)
        return Normal(
            self.mean + self.scale * location, self.scale * log_width.exp(), validate_args=False
        )

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Labels as they occur."""
        noise = torch.randn(count, dtype=torch.float64, generator=generator)
        return (self.mean + self.scale * noise).to(torch.get_default_dtype())

    def marginalise(self, log_density: LogDensity, like: Tensor) -> Tensor:
        r""":math:`\log \int p(y)\, p(\cdot \mid y)\, dy`, ``(batch,)``, by adaptive Gauss-Hermite
        quadrature.

        The nodes are centred at the mode of the integrand and as wide as its curvature there says,
        so that a sharp integrand (a code of many dimensions) is met as well as a broad one; for a
        Gaussian integrand the rule is exact.
        """

        def integrand(u: Tensor) -> Tensor:  # u: standardised labels (batch, nodes)
            return (
                log_density(self.mean + self.scale * u)
                - 0.5 * u.square()
                - 0.5 * math.log(2.0 * math.pi)
            )

        mode, width = _mode(integrand, like)
        nodes, weights = np.polynomial.hermite_e.hermegauss(21)
        node = torch.as_tensor(nodes, dtype=like.dtype, device=like.device)
        log_weight = torch.as_tensor(np.log(weights), dtype=like.dtype, device=like.device)
        values = integrand(mode + width * node) + 0.5 * node.square() + log_weight

        return torch.logsumexp(values, dim=-1) + width.squeeze(-1).log()


def _mode(integrand: LogDensity, like: Tensor) -> tuple[Tensor, Tensor]:
    """Place and width of the integrand's peak, each ``(batch, 1)``: a grid, then Newton steps that
    never go downhill.
    """
    with torch.enable_grad():
        grid = torch.linspace(-8.0, 8.0, 33, dtype=like.dtype, device=like.device).expand(
            len(like), -1
        )
        with torch.no_grad():
            u = grid.gather(1, integrand(grid).argmax(1, keepdim=True))
        for _ in range(20):
            u = u.detach().requires_grad_()
            value = integrand(u)
            (slope,) = torch.autograd.grad(value.sum(), u, create_graph=True)
            (bend,) = torch.autograd.grad(slope.sum(), u)
            curvature = (-bend).clamp(min=1e-3)
            with torch.no_grad():
                stepped = u + slope / curvature
                u = torch.where(integrand(stepped) >= value, stepped, u)

    return u.detach(), curvature.detach().rsqrt()


Factor = Categorical | Real
KINDS: dict[str, type[Categorical] | type[Real]] = {"categorical": Categorical, "real": Real}


def factor_to_config(factor: Factor) -> dict[str, Any]:
    """Kind and arguments."""
    kind = next(name for name, cls in KINDS.items() if type(factor) is cls)
    return {"kind": kind, **asdict(factor)}


def factor_from_config(config: dict[str, Any]) -> Factor:
    """The factor that :func:`factor_to_config` described."""
    arguments = dict(config)
    kind = arguments.pop("kind", None)
    if kind not in KINDS:
        raise ValueError(f"a factor must be one of {', '.join(KINDS)}, got {kind!r}")
    return KINDS[kind](**arguments)
