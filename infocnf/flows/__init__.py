"""Invertible maps with log-determinants: continuous blocks, reshaping, pixels, and flows made of
them.
"""

from infocnf.flows.architectures import (
    build_flow,
    fit_marginals,
    flat_flow,
    multiscale_flow,
    single_flow,
)
from infocnf.flows.bijection import (
    Bijection,
    Chain,
    Flatten,
    Logit,
    Scale,
    ScaledFlow,
    Squeeze,
    Traversal,
    dequantise,
    quantise,
)
from infocnf.flows.continuous import ContinuousBlock
from infocnf.flows.gaussianise import Gaussianise

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
    "build_flow",
    "dequantise",
    "fit_marginals",
    "flat_flow",
    "multiscale_flow",
    "quantise",
    "single_flow",
]
