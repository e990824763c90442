"""Invertible maps with log-determinants: continuous blocks, reshaping, pixels, and flows made of
them.
"""

from infocnf.flows.bijection import Bijection, Chain, Traversal
from infocnf.flows.continuous import ContinuousBlock
from infocnf.flows.marginals import Gaussianise
from infocnf.flows.multiscale import ScaledFlow, flat_flow, multiscale_flow
from infocnf.flows.pixels import Logit, Scale, dequantise, quantise
from infocnf.flows.reshaping import Flatten, Squeeze
from infocnf.flows.single import single_flow

__all__ = [
    "Bijection",
    "Chain",
    "ContinuousBlock",
    "Flatten",
    "Gaussianise",
    "Logit",
    "Scale",
    "ScaledFlow",
    "Squeeze",
    "Traversal",
    "dequantise",
    "flat_flow",
    "multiscale_flow",
    "quantise",
    "single_flow",
]
