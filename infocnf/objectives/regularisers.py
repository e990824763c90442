r"""Penalties on the paths of a flow, so that a solver needs fewer steps along them.

.. math:: R = \sum_k \frac{1}{D_k} \int_0^1 \lambda_K\, |f_k|^2
    + \lambda_J \Big\| \frac{\partial f_k}{\partial z} \Big\|_F^2\, dt

over the blocks :math:`k` of :math:`D_k` dimensions (Finlay et al. 2020). The integrals ride along
the solve as passengers: they take no part in the choice of steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from infocnf.flows.bijection import FlowStats

__all__ = ["path_penalty"]


def path_penalty(stats: FlowStats, kinetic: float, jacobian: float) -> Tensor:
    r""":math:`R` of each sample, ``(batch,)``, of a flow whose passengers travelled along.

    Arguments:
        stats: What the solves recorded.
        kinetic: The weight :math:`\lambda_K`.
        jacobian: The weight :math:`\lambda_J`.
    """
    parts = [
        kinetic * energy + jacobian * norm
        for energy, norm in (solve.passengers for solve in stats.solves)
    ]
    return torch.stack(parts).sum(0)
