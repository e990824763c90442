"""Policies that choose the error tolerance of each solve."""

from infocnf.tolerances.budget import Budget
from infocnf.tolerances.gaussian import Random
from infocnf.tolerances.learned import Learned
from infocnf.tolerances.policies import Choice, Fixed, PerBlock, Place, Policy, Schedule, Survey
from infocnf.tolerances.registry import POLICIES, as_policy, policy_from_config

__all__ = [
    "POLICIES",
    "Budget",
    "Choice",
    "Fixed",
    "Learned",
    "PerBlock",
    "Place",
    "Policy",
    "Random",
    "Schedule",
    "Survey",
    "as_policy",
    "policy_from_config",
]
