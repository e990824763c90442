"""Which process of a run this is, before anything heavy is imported."""

from __future__ import annotations

import os

__all__ = ["is_leader"]


def is_leader() -> bool:
    """Whether this process speaks and writes: the only one, or the first of several.

    torchrun and SLURM number all processes; Lightning numbers those of a node that it started, and
    the user the nodes.
    """
    if "RANK" in os.environ:
        return os.environ["RANK"] == "0"
    names = ("NODE_RANK", "GROUP_RANK", "LOCAL_RANK", "SLURM_PROCID")
    return all(os.environ.get(name, "0") == "0" for name in names)
