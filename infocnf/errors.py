"""What can go wrong for a user, in one line that names the value and the remedy; and which process
says so.
"""

from __future__ import annotations

import os

__all__ = ["InputError", "StoppedError", "WorkError", "cut", "is_leader", "shown"]


class InputError(ValueError):
    """What was asked for cannot be done: a wrong name, value or file. Exit code 2."""


class WorkError(RuntimeError):
    """The work was begun and failed. Exit code 1."""


class StoppedError(WorkError):
    """Someone asked the work to stop, and what was done so far is saved."""


def cut(text: str, most: int = 200) -> str:
    """A text for a message, its middle left out where it is long."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]}"


def shown(value: object) -> str:
    """A value for a message, whatever it is."""
    try:
        return cut(repr(value))
    except ValueError:  # Python writes no numbers of thousands of digits
        return "a number of thousands of digits"
    except RecursionError:
        return "a value nested too deeply"


def is_leader() -> bool:
    """Whether this process speaks and writes: the only one, or the first of several.

    torchrun and SLURM number all processes; Fabric numbers those of a node that it started, and the
    user the nodes.
    """
    if "RANK" in os.environ:
        return os.environ["RANK"] == "0"
    names = ("NODE_RANK", "GROUP_RANK", "LOCAL_RANK", "SLURM_PROCID")
    return all(os.environ.get(name, "0") == "0" for name in names)
