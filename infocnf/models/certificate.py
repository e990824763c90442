r"""How far a log-likelihood may be from the truth, sample by sample.

.. math:: \log p(x) = \log p(z) + \sum_k \int_0^1 \mathrm{tr} \frac{\partial f_k}{\partial z}\, dt

errs by four things, each of which is estimated on its own:

*solver*
    The path is solved again with every step in two halves. A method of order :math:`q` errs
    :math:`2^q` times less then, so that the change is the error itself.
*quadrature*
    What the rules left (:mod:`infocnf.ode.quadrature`).
*trace*
    Twice the standard error of the estimated trace; zero where it is exact.
*rounding*
    The path is solved again from states that were moved by a unit of rounding, and sums are rounded
    in proportion to what they add up.

Both further solves take the nodes of the first and a few probes, the same for all, in place of the
trace: what is compared does not depend on their noise, and costs little beside the likelihood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from infocnf.models.code import Code

if TYPE_CHECKING:
    from infocnf.models.infocnf import InfoCNF

__all__ = ["Certificate", "Error"]

SAFETY = 4.0  # times the change that halved steps make
SPREAD = 0.25  # of the length of that change in the code, where its effect is small by chance
MOVED = 1.0  # times the change that a moved state makes


@dataclass(frozen=True)
class Error:
    """Bounds on the error of log-likelihoods in nats, ``(batch,)`` each."""

    solver: Tensor
    quadrature: Tensor
    trace: Tensor
    rounding: Tensor

    @property
    def total(self) -> Tensor:
        """All of them together: errors of unrelated causes add up in squares."""
        parts = torch.stack([self.solver, self.quadrature, self.trace, self.rounding])
        return parts.square().sum(0).sqrt()

    def parts(self) -> dict[str, Tensor]:
        """By name, the total first."""
        names = ("total", "solver", "quadrature", "trace", "rounding")
        return {name: getattr(self, name) for name in names}


class Certificate:
    """The further solves of some samples, which tell the errors of their likelihoods.

    Arguments:
        model: The model, in evaluation mode.
        x: The samples.
        code: Their code, as :meth:`InfoCNF.encode` gave it.
        context: Covariates.
        seeds: Seeds that the code was found with.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: InfoCNF,
        x: Tensor,
        code: Code,
        *,
        context: Tensor | None = None,
        seeds: Tensor | None = None,
    ) -> None:
        if code.stats is None or any(solve.log_det is None for solve in code.stats.solves):
            raise ValueError(
                "errors are known in evaluation mode only: call eval() first, and use "
                "torch.no_grad() with gradient='backprop'"
            )
        self.model, solves = model, code.stats.solves
        self.log_dets = [solve.log_det for solve in solves if solve.log_det is not None]
        # halved steps err 2**order times less
        self.gain = 2.0 ** min(block.solver.table.order for block in model.blocks)
        again = {"context": context, "seeds": seeds, "again": solves}
        self.finer = model.encode(x, **again)  # type: ignore[arg-type]
        self.moved = model.encode(x, halves=False, **again)  # type: ignore[arg-type]
        assert code.log_det is not None
        values, fixed = (sum(getattr(d, n) for d in self.log_dets) for n in ("value", "fixed"))
        self.plain = code.log_det.detach() - values
        self.code = replace(code, log_det=self.plain + fixed)

    @torch.no_grad()
    def error(
        self, labels: Mapping[str, Tensor], known: Mapping[str, Tensor] | None = None
    ) -> Error:
        """Bounds of the likelihoods given labels."""
        model, code = self.model, self.code
        own, finer, moved = (
            model.code_log_prob(some, labels, known) for some in (code, self.finer, self.moved)
        )
        shift = model.code.merge(
            self.finer.supervised - code.supervised, self.finer.unsupervised - code.unsupervised
        ).norm(dim=1)
        solver = SAFETY * (own - finer).abs() + SPREAD * shift
        size = self.plain.abs() + own.abs() + float(model.dimensions)
        size = size + torch.stack([d.size for d in self.log_dets]).sum(0)
        eps = torch.finfo(own.dtype).eps
        return Error(
            solver=solver * (self.gain / (self.gain - 1.0)),
            quadrature=torch.stack([d.quadrature for d in self.log_dets]).sum(0),
            trace=2.0 * torch.stack([d.variance for d in self.log_dets]).sum(0).sqrt(),
            rounding=MOVED * (own - moved).abs() + 0.5 * eps * size,
        )
