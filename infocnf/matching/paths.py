r"""Straight paths between samples and codes, for training without a solver.

A sample :math:`x` is joined to a code :math:`z` by a line, and a field learns its direction from a
point on it:

.. math:: z_t = (1 - t)\, x + t\, z, \qquad \dot z_t = z - x .

(Lipman et al. 2023; time runs from data to latent here, from latent to data there.) Which code a
sample is joined to is the *coupling*: ``independent``, as they were drawn, or ``ot``, dealt out
within the batch so that lines are short (minibatch optimal transport, Tong et al. 2024).

>>> import torch
>>> path = StraightPath(coupling="ot")
>>> x, z = torch.tensor([[0.0], [1.0]]), torch.tensor([[1.1], [0.1]])
>>> path.couple(x, z).flatten()
tensor([0.1000, 1.1000])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["COUPLINGS", "TIMES", "PathSample", "StraightPath"]

COUPLINGS = ("independent", "ot")
TIMES = {
    "uniform": lambda normal: torch.special.ndtr(normal),
    "logit_normal": torch.sigmoid,
    "data": lambda normal: torch.special.ndtr(normal).square(),
    "detail": lambda normal: torch.sigmoid(1.25 * normal - 1.5),
}
"""How times are drawn, as functions of a standard normal number: evenly, more often in the middle,
more often near the data, and there more evenly in the logarithm of the time.
"""


@dataclass(frozen=True)
class PathSample:
    """Points on paths: times ``(batch,)``, states ``(batch, ...)`` and directions there."""

    t: Tensor
    state: Tensor
    velocity: Tensor


@dataclass(frozen=True)
class StraightPath:
    """Straight lines from samples to codes.

    Arguments:
        times: Distribution of times: ``uniform``, ``logit_normal``, ``data`` or ``detail``.
        coupling: ``independent``, or ``ot``: codes are dealt out within each class so that lines
            are short. It does nothing among real-valued labels, of which no two are alike.
    """

    times: str = "logit_normal"
    coupling: str = "independent"

    def __post_init__(self) -> None:
        if self.times not in TIMES:
            raise ValueError(f"times must be one of {', '.join(TIMES)}, got {self.times!r}")
        if self.coupling not in COUPLINGS:
            raise ValueError(
                f"coupling must be one of {', '.join(COUPLINGS)}, got {self.coupling!r}"
            )

    def sample(
        self,
        x: Tensor,
        z: Tensor,
        labels: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> PathSample:
        """Points at random times on the paths from samples ``(batch, ...)`` to codes like them."""
        z = self.couple(x, z, labels)
        normal = torch.randn(len(x), dtype=x.dtype, device=x.device, generator=generator)
        t = self.time(normal)
        return PathSample(t, self.between(x, z, t), z - x)

    def time(self, normal: Tensor) -> Tensor:
        """Times from standard normal numbers."""
        return TIMES[self.times](normal)

    @staticmethod
    def between(x: Tensor, z: Tensor, t: Tensor) -> Tensor:
        """Points on the lines from ``x`` to ``z`` at times ``(batch,)``."""
        return torch.lerp(x, z, t.reshape(-1, *[1] * (x.ndim - 1)))

    def couple(self, x: Tensor, z: Tensor, labels: Mapping[str, Tensor] | None = None) -> Tensor:
        """The codes, dealt out anew among samples with the same labels where the coupling is
        ``ot``, so that the sum of squared distances is least.
        """
        if self.coupling == "independent":
            return z
        from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

        rows = torch.stack([label.double() for label in labels.values()], 1) if labels else None
        groups = torch.zeros(len(x)) if rows is None else rows.unique(dim=0, return_inverse=True)[1]
        dealt = z.clone()
        for group in groups.unique():
            mine = (groups == group).nonzero().flatten()
            here, there = (part[mine].flatten(1).double() for part in (x, z))
            _, chosen = linear_sum_assignment(torch.cdist(here, there).square().cpu().numpy())
            dealt[mine] = z[mine[torch.from_numpy(chosen).to(mine.device)]]
        return dealt
