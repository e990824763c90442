"""Policies that choose the error tolerance of each solve."""

from infocnf.tolerances.policies import Choice, Fixed, PerBlock, Policy, as_policy

__all__ = ["Choice", "Fixed", "PerBlock", "Policy", "as_policy"]
