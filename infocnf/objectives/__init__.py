"""What training minimises."""

from infocnf.objectives.likelihood import Objective, bits_per_dim, likelihood_objective

__all__ = ["Objective", "bits_per_dim", "likelihood_objective"]
