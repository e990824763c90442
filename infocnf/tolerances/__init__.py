"""Policies that choose the error tolerance of each solve."""

from infocnf.tolerances.budget import Budget
from infocnf.tolerances.learned import Learned, Random
from infocnf.tolerances.policies import (
    POLICIES,
    BlockShape,
    Choice,
    ErrorProbe,
    Fixed,
    PerBlock,
    Policy,
    Schedule,
    as_policy,
    policy_class,
    policy_from_config,
)

__all__ = [
    "POLICIES",
    "BlockShape",
    "Budget",
    "Choice",
    "ErrorProbe",
    "Fixed",
    "Learned",
    "PerBlock",
    "Policy",
    "Random",
    "Schedule",
    "as_policy",
    "policy_class",
    "policy_from_config",
]
