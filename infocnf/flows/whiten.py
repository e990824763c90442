r"""Whitening of patches: the channels at each place become uncorrelated, with variance one.

.. math:: z_{\cdot p} = W x_{\cdot p}, \qquad W C W^\top = I, \qquad
    \log \Big| \det \frac{\partial z}{\partial x} \Big| = P \log |\det W| ,

with :math:`C` the second moments of the :math:`c` channels over all images and the :math:`P` places
of each. After a squeeze the channels are the pixels and colours of a 2x2 patch. In a natural image
these are so alike that the least of their differences has a fortieth of their own size (CIFAR-10),
and a little noise hides it: a flow would have to learn all it knows of it at times near 0.
Whitened, every difference is as large as what it is a difference of, and a flow that starts at the
identity has the likelihood of Gaussian patches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from infocnf.flows.bijection import Bijection, Traversal

__all__ = ["Whiten"]

LEAST = 1e-6  # variance that counts, as a share of the largest


class Whiten(Bijection):
    """A matrix for the channels of every place, the identity until it is fitted.

    Arguments:
        channels: Number of channels.
    """

    matrix: Tensor
    inverted: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(channels))
        self.register_buffer("inverted", torch.eye(channels))

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Take the second moments of images ``(count, channels, height, width)`` over."""
        rows = x.double().movedim(1, -1).flatten(0, -2)
        variances, directions = torch.linalg.eigh(rows.t() @ rows / len(rows))
        scale = variances.clamp(min=LEAST * float(variances[-1])).sqrt().flip(0)
        directions = directions.flip(1)  # the largest first
        self.matrix.copy_((directions / scale).t())
        self.inverted.copy_(directions * scale)

    def forward(self, x: Tensor, traversal: Traversal) -> tuple[Tensor, Tensor]:
        log_det = torch.linalg.slogdet(self.matrix.double())[1] * x[0, 0].numel()
        return mix(self.matrix, x), log_det.to(x).expand(len(x))

    def inverse(self, z: Tensor, traversal: Traversal) -> Tensor:
        return mix(self.inverted, z)


def mix(matrix: Tensor, x: Tensor) -> Tensor:
    """Channels ``(..., channels, height, width)`` times a matrix."""
    return torch.einsum("ij,...jhw->...ihw", matrix.to(x), x)
