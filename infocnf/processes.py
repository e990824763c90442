"""Which process of a run this is, before anything heavy is imported."""

from __future__ import annotations

import os

__all__ = ["is_leader"]


def is_leader() -> bool:
    """Whether this process speaks and writes: the only one, or the first of several.

    torchrun and SLURM number all processes; Lightning numbers those of a node that it started, and
    the user the nodes.
    """
    for name in ("RANK", "SLURM_PROCID"):
        if name in os.environ:
            return os.environ[name] == "0"
    places = (os.environ.get(name, "0") for name in ("NODE_RANK", "GROUP_RANK", "LOCAL_RANK"))
    return all(place == "0" for place in places)
