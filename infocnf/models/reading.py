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
from infocnf.models.codes import FactorHead
from infocnf.models.factors import Categorical
from infocnf.models.sharpening import matched_field
from infocnf.tolerances import Fixed

if TYPE_CHECKING:
    from infocnf.models.conditional import InfoCNF

__all__ = [
    "READS",
    "approach",
    "check_labelled",
    "check_read",
    "expected_code",
    "read_head",
    "read_once",
    "read_slopes",
    "reads_in_one_step",
]

READS = ("flow", "one_step")
FLOOR = 1e-6  # of a probability that is read


def check_read(read: str) -> str:
    """A way to read labels, or an error that names those there are."""
    if read not in READS:
        raise ValueError(f"read must be one of {', '.join(READS)}, got {read!r}")
    return read


def check_labelled(model: InfoCNF) -> None:
    """Refuse a model that knows no labels."""
    if not model.code.heads:
        raise ValueError(
            "this model has no supervised code to read a label from: "
            "give it factors and supervised > 0"
        )


def reads_in_one_step(model: InfoCNF) -> bool:
    """Whether a model was made to be matched, so that one evaluation of its field has a label."""
    return bool(model.code.heads) and model.separation > 0 and len(model.flow.blocks) == 1


def approach(model: InfoCNF, x: Tensor) -> Tensor:
    """State at the data end of the only block, ``(batch, *state)``."""
    before, _, _ = model.flow.single
    for part in before:
        x, _ = part(x, Traversal(Fixed()))  # nothing is solved
    return x


def expected_code(model: InfoCNF, state: Tensor, slopes: Tensor, t: Tensor) -> Tensor:
    """:math:`E[z_y | z_t]` of states on the way, ``(batch, supervised)``, from the field's slopes
    there, at times ``()`` or ``(batch,)``.
    """
    z = state + (1.0 - t).reshape(-1, *[1] * (state.ndim - 1)) * slopes
    for part in model.flow.single[2]:  # affine: the mean of the result is the result of the mean
        z, _ = part(z, Traversal(Fixed()))
    return model.code.split(z.flatten(1))[0]


def read_once(model: InfoCNF, state: Tensor) -> dict[str, Tensor]:
    """Answers by factor from one evaluation of the field at the data end."""
    if not reads_in_one_step(model):
        raise ValueError(
            "only a flow of one block that labels start apart in (separation > 0) has labels to "
            "be read in one step: leave read out, or match such a flow"
        )
    t = state.new_zeros(())
    return read_slopes(model, state, matched_field(model.flow)(t, state), t)


def read_slopes(
    model: InfoCNF, state: Tensor, slopes: Tensor, t: Tensor, floor: float = FLOOR
) -> dict[str, Tensor]:
    """Answers by factor from the field's slopes at states on the way."""
    parts = model.code.by_factor(expected_code(model, state, slopes, t))
    return {name: read_head(head, code, floor) for name, (head, code) in parts.items()}


def read_head(head: FactorHead, expected: Tensor, floor: float = FLOOR) -> Tensor:
    """The answer of a factor ``(batch, outputs)``, in the form of its classifier's, from the
    expected code ``(batch, features)``.

    Arguments:
        head: Prior and classifier of the factor.
        expected: :math:`E[z_y | x]`.
        floor: Probability below which the logarithm goes on as a straight line: a share that was
            read may be negative, and must have a gradient when it is.
    """
    factor = head.factor
    if isinstance(factor, Categorical):
        shares = class_shares(head, expected)
        beyond = math.log(floor) + (shares - floor) / floor
        return torch.where(shares >= floor, shares.clamp(min=floor).log(), beyond)
    slope = head.patterns[0]  # the width is that of the answers through the flow
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
