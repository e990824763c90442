r"""The label in one evaluation of the field.

Along straight mixtures :math:`z_t = (1 - t)\, x + t\, z` the best field is :math:`f(z_t, t) = E[z -
x \mid z_t]`, so that :math:`E[z \mid z_t] = z_t + (1 - t)\, f(z_t, t)`. At the data end, where
nothing of the code's own noise is visible yet,

.. math:: E[z_y \mid x] = x_y + f_y(x, 0) = \sum_y p(y \mid x)\, \mu(y) ,

a convex mixture of the classes' means, and :math:`p(y \mid x)` is read off it by least squares; of
a real factor, whose mean is linear in the label, the expected label is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from infocnf.flows import Traversal
from infocnf.models.code import FactorHead
from infocnf.models.factors import Categorical
from infocnf.tolerances import Fixed

if TYPE_CHECKING:
    from infocnf.models.infocnf import InfoCNF

__all__ = ["READOUTS", "check_readout", "data_end", "one_step_logits", "slope_logits"]

READOUTS = ("flow", "one_step")
FLOOR = 1e-6  # of a probability that is read


def check_readout(readout: str) -> str:
    """A way to read labels, or an error that names those there are."""
    if readout not in READOUTS:
        raise ValueError(f"readout must be one of {', '.join(READOUTS)}, got {readout!r}")
    return readout


def data_end(model: InfoCNF, x: Tensor) -> Tensor:
    """State at the data end of the only block, ``(batch, *state)``."""
    before, _, _ = model.flow.single
    for part in before:
        x, _ = part(x, Traversal(Fixed()))  # nothing is solved
    return x


def one_step_logits(
    model: InfoCNF, state: Tensor, context: Tensor | None = None
) -> dict[str, Tensor]:
    """Logits by factor from one evaluation of the field at the data end."""
    if not model.has_one_step:
        raise ValueError(
            "only a flow of one block that labels start apart in (separation > 0) has labels to "
            "be read in one step: leave readout out, or match such a flow"
        )
    t, own = state.new_zeros(()), () if context is None else (context,)
    slopes = model.flow.single[1].matched_field(t, state, *own)
    return slope_logits(model, state, slopes, t)


def slope_logits(
    model: InfoCNF, state: Tensor, slopes: Tensor, t: Tensor, floor: float = FLOOR
) -> dict[str, Tensor]:
    """Logits by factor from the field's slopes at states on the way, at times ``()`` or
    ``(batch,)``.
    """
    z = state + (1.0 - t).reshape(-1, *[1] * (state.ndim - 1)) * slopes  # E[z | z_t]
    for part in model.flow.single[2]:  # affine: the mean of the result is the result of the mean
        z, _ = part(z, Traversal(Fixed()))
    parts = model.code.by_factor(model.code.split(z.flatten(1))[0])
    return {name: head_logits(head, code, floor) for name, (head, code) in parts.items()}


def head_logits(head: FactorHead, expected: Tensor, floor: float = FLOOR) -> Tensor:
    """Logits of a factor ``(batch, outputs)``, in the form of its classifier's, from the expected
    code ``(batch, features)``.

    Arguments:
        head: Prior and classifier of the factor.
        expected: :math:`E[z_y | x]`.
        floor: Probability below which the logarithm goes on as a straight line: a share that was
            read may be negative, and must have a gradient when it is.
    """
    if isinstance(head.factor, Categorical):
        shares = class_shares(head, expected)
        beyond = math.log(floor) + (shares - floor) / floor
        return torch.where(shares >= floor, shares.clamp(min=floor).log(), beyond)
    slope = head.patterns[0]  # the width is that of predictions through the flow
    location = (expected @ slope) / slope.square().sum()
    return torch.stack([location, head.classifier.bias[1].expand_as(location)], -1)


def class_shares(head: FactorHead, expected: Tensor) -> Tensor:
    r"""Shares :math:`p` that sum to one with the least :math:`|\sum_y p_y \mu(y) - E[z_y]|^2`,
    ``(batch, classes)``; not all positive where the code is no mixture.
    """
    means, classes = head.patterns, len(head.patterns)
    centre = means.mean(0)
    # Centred means sum to zero. Without the tolerance rounding would hide that, and shares would no
    # longer sum to one.
    inverse = torch.linalg.pinv((means - centre).double(), rtol=1e-5).to(expected)
    return 1.0 / classes + (expected - centre) @ inverse
