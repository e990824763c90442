r"""Kinds of labels :math:`y`: what the prior :math:`q_\phi` reads and what the classifier
:math:`q_\theta` gives.

A factor knows nothing of codes. It turns labels into the input of a linear layer, scores and reads
the output of another, and says how labels are distributed when nobody names one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.nn import functional as F  # noqa: N812

__all__ = ["Categorical", "Factor", "Real", "factor_from_config"]

LogDensity = Callable[[Tensor], Tensor]
"""Log-density of one code per sample under embedded labels ``(batch or 1, labels, inputs)``, as
``(batch, labels)``."""


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
        object.__setattr__(self, "classes", int(self.classes))
        if self.classes < 1:
            raise ValueError(f"classes must be at least 1, got {self.classes}")
        if self.probabilities is not None:
            p = tuple(float(value) for value in self.probabilities)
            if len(p) != self.classes or min(p) < 0 or not math.isclose(sum(p), 1.0, abs_tol=1e-6):
                raise ValueError(
                    f"probabilities must be {self.classes} numbers that sum to 1, got {p}"
                )
            object.__setattr__(self, "probabilities", p)

    @classmethod
    def as_often(cls, counts: Sequence[float]) -> Categorical:
        """Classes as frequent as these counts, each with one more.

        >>> Categorical.as_often([7, 0, 0]).probabilities
        (0.8, 0.1, 0.1)
        """
        total = sum(counts) + len(counts)
        return cls(len(counts), tuple((count + 1.0) / total for count in counts))

    @property
    def inputs(self) -> int:
        """Size of a label as the prior reads it."""
        return self.classes

    @property
    def outputs(self) -> int:
        """Size of the classifier's output."""
        return self.classes

    def check(self, y: Tensor) -> Tensor:
        """Labels as ``long``, or an error that names the one that cannot be."""
        values = y.double().flatten()
        broken = values[values % 1 != 0]
        if len(broken):
            raise ValueError(f"class labels must be whole numbers, got {broken[0].item()}")
        outside = values[(values < 0) | (values >= self.classes)]
        if len(outside):
            raise ValueError(
                f"labels must lie in 0 .. {self.classes - 1}, got {outside[0].item():g}"
            )
        return y.long()

    def embed(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """One-hot vectors ``(..., classes)``."""
        return F.one_hot(y, self.classes).to(dtype)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy in nats, ``(batch,)``."""
        return F.cross_entropy(logits, y, reduction="none")

    def predict(self, logits: Tensor) -> Tensor:
        """The most probable class, ``(batch,)``."""
        return logits.argmax(-1)

    def distribution(self, logits: Tensor) -> Tensor:
        """Probabilities ``(batch, classes)``."""
        return logits.softmax(-1)

    def draw(self, noise: Tensor) -> Tensor:
        """Labels as they occur, of standard normal numbers ``(count,)``."""
        levels = self.log_probabilities(torch.float64).exp().cumsum(0)[:-1].to(noise.device)
        return torch.bucketize(torch.special.ndtr(noise.double()), levels, right=True)

    def log_probabilities(self, dtype: torch.dtype) -> Tensor:
        """Logarithms of how often each class occurs."""
        even = [1.0 / self.classes] * self.classes
        return torch.tensor(self.probabilities or even, dtype=torch.float64).log().to(dtype)

    def marginalise(self, log_density: LogDensity, like: Tensor) -> Tensor:
        r""":math:`\log \sum_y p(y)\, p(\cdot \mid y)`, ``(batch,)``."""
        labels = torch.eye(self.classes, dtype=like.dtype, device=like.device).unsqueeze(0)
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
        object.__setattr__(self, "mean", float(self.mean))
        object.__setattr__(self, "scale", float(self.scale))
        if not (math.isfinite(self.mean) and math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(
                f"a real factor needs a finite mean and a positive scale, "
                f"got {self.mean} and {self.scale}"
            )

    inputs = 1
    outputs = 2

    def check(self, y: Tensor) -> Tensor:
        """Labels in double precision, or an error where one is not finite."""
        if not torch.isfinite(y).all():
            raise ValueError("labels of a real factor must be finite, got NaN or infinity")
        return y.double()

    def embed(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Standardised labels ``(..., 1)``."""
        return ((y - self.mean) / self.scale).to(dtype).unsqueeze(-1)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Negative log-density of the label in nats, ``(batch,)``."""
        location, log_width = logits.unbind(-1)
        standard = (self.embed(y, logits.dtype).squeeze(-1) - location) * (-log_width).exp()
        return 0.5 * standard.square() + log_width + math.log(self.scale * math.sqrt(2 * math.pi))

    def predict(self, logits: Tensor) -> Tensor:
        """The expected label, ``(batch,)``."""
        return self.distribution(logits).mean

    def distribution(self, logits: Tensor) -> Normal:
        """The Gaussian of logits: location, and logarithm of the width."""
        location, log_width = logits.double().unbind(-1)  # a large mean would round the rest away
        return Normal(
            self.mean + self.scale * location, self.scale * log_width.exp(), validate_args=False
        )

    def draw(self, noise: Tensor) -> Tensor:
        """Labels as they occur, of standard normal numbers ``(count,)``."""
        return self.mean + self.scale * noise

    def marginalise(self, log_density: LogDensity, like: Tensor) -> Tensor:
        r""":math:`\log \int p(y)\, p(\cdot \mid y)\, dy`, ``(batch,)``.

        Over standardised labels :math:`u`, by Gauss-Legendre quadrature on panels that are dense
        where the integrand is large: it may be sharp (a code of many dimensions), skewed or have
        several peaks (the scale depends on the label), or lie far out (an unlikely code).
        """

        def integrand(u: Tensor) -> Tensor:  # (batch, nodes)
            return log_density(u.unsqueeze(-1)) - 0.5 * u.square() - 0.5 * math.log(2.0 * math.pi)

        edges = torch.linspace(-7.0, 7.0, 65, dtype=like.dtype, device=like.device).sinh()
        edges = edges.expand(len(like), -1)
        with torch.no_grad():
            for _ in range(5):
                edges = _refine(edges, _tops(integrand, edges), new=64)
            edges = _trim(edges, _tops(integrand, edges))

        nodes, weights = np.polynomial.legendre.leggauss(3)
        left, width = edges[:, :-1, None], edges.diff(dim=1).unsqueeze(-1)
        node = 0.5 + 0.5 * torch.as_tensor(nodes, dtype=like.dtype, device=like.device)
        log_weight = torch.as_tensor(np.log(weights / 2), dtype=like.dtype, device=like.device)
        values = integrand((left + width * node).flatten(1)).reshape(*width.shape[:2], -1)

        return torch.logsumexp((values + log_weight + width.log()).flatten(1), dim=-1)


def _tops(integrand: LogDensity, edges: Tensor) -> Tensor:
    """How high the logarithm of the integrand may be in each panel between edges ``(batch, n)``.

    The larger end; or, where the slopes at the ends point inward, where the tangents meet: above
    the peak that hides between them, however sharp.
    """
    step = math.sqrt(torch.finfo(edges.dtype).eps) * (1.0 + edges.abs())
    values, ahead = integrand(torch.cat([edges, edges + step], dim=1)).chunk(2, dim=1)
    slopes = (ahead - values) / step
    (left, right), (up, down) = ((x[:, :-1], x[:, 1:]) for x in (values, slopes))
    width = edges.diff(dim=1)
    meeting = left + up * (right - left - down * width) / (up - down)
    ends = torch.maximum(left, right)
    inward = (up > 0) & (down < 0) & meeting.isfinite()

    return torch.where(inward, torch.maximum(ends, meeting), ends)


def _refine(edges: Tensor, tops: Tensor, new: int) -> Tensor:
    """Edges ``(batch, n)`` and ``new`` more where panels may hold mass, in order.

    Masses are tempered, so that a lower second peak is not forgotten.
    """
    width = edges.diff(dim=1)
    share = torch.softmax((tops + width.log()) / 3.0, dim=1)
    cumulative = share.cumsum(1)
    quantile = (torch.arange(new, dtype=edges.dtype, device=edges.device) + 0.5) / new
    wanted = quantile * cumulative[:, -1:]
    panel = torch.searchsorted(cumulative, wanted).clamp(max=share.shape[1] - 1)
    inside = 1.0 - (cumulative.gather(1, panel) - wanted) / share.gather(1, panel)
    added = edges.gather(1, panel) + inside.clamp(0.0, 1.0) * width.gather(1, panel)

    return torch.cat([edges, added], dim=1).sort(dim=1).values


def _trim(edges: Tensor, tops: Tensor) -> Tensor:
    """Edges drawn in to where panels may hold mass: far out the integrand overflows, and the
    gradient of what does not count would be NaN.
    """
    counts = tops > tops.amax(1, keepdim=True) - 60.0
    low = torch.where(counts, edges[:, :-1], torch.inf).amin(1, keepdim=True)
    high = torch.where(counts, edges[:, 1:], -torch.inf).amax(1, keepdim=True)
    return edges.clamp(low, high)


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
