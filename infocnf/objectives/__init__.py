"""What training by simulation minimises."""

from infocnf.objectives.likelihood import (
    Objective,
    bits_per_dim,
    likelihood_objective,
    path_penalty,
)
from infocnf.objectives.variational import Variational, variational_objective

__all__ = [
    "Objective",
    "Variational",
    "bits_per_dim",
    "likelihood_objective",
    "path_penalty",
    "variational_objective",
]
