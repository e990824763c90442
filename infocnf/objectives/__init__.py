"""What training minimises."""

from infocnf.objectives.likelihood import Objective, bits_per_dim, likelihood_objective
from infocnf.objectives.matching import Matching, matching_objective
from infocnf.objectives.regularisers import path_penalty
from infocnf.objectives.variational import Variational, variational_objective

__all__ = [
    "Matching",
    "Objective",
    "Variational",
    "bits_per_dim",
    "likelihood_objective",
    "matching_objective",
    "path_penalty",
    "variational_objective",
]
