"""Policies by name, and what stands for one: a number, a sequence, a table of a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from infocnf.tolerances.budget import Budget
from infocnf.tolerances.gaussian import Random
from infocnf.tolerances.learned import Learned
from infocnf.tolerances.policies import Fixed, PerBlock, Policy, Schedule

__all__ = ["POLICIES", "as_policy", "policy_from_config"]

POLICIES: dict[str, type[Policy]] = {
    "fixed": Fixed,
    "per_block": PerBlock,
    "schedule": Schedule,
    "random": Random,
    "budget": Budget,
    "learned": Learned,
}


def as_policy(tolerance: float | Tensor | Sequence[float] | Policy) -> Policy:
    """A policy of a number (fixed), a tensor (per sample), a sequence (per block) or a policy
    (itself).
    """
    if isinstance(tolerance, Policy):
        return tolerance
    if isinstance(tolerance, str | bytes | None):
        raise ValueError(f"tolerance must be a number, numbers or a policy, got {tolerance!r}")
    if isinstance(tolerance, Sequence):
        return PerBlock(tolerance)
    if isinstance(tolerance, Tensor) and not tolerance.ndim:
        tolerance = float(tolerance)
    return Fixed(tolerance)


def policy_from_config(config: Mapping[str, Any]) -> Policy:
    """The policy that :meth:`Policy.config` described."""
    arguments = dict(config)
    name = arguments.pop("name", None)
    if name not in POLICIES:
        raise ValueError(f"tolerance policy must be one of {', '.join(POLICIES)}, got {name!r}")
    return POLICIES[name](**arguments)
