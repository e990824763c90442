"""What can go wrong for a user, in one line that names the value and the remedy."""

from __future__ import annotations

__all__ = ["InputError", "StoppedError", "WorkError"]


class InputError(ValueError):
    """What was asked for cannot be done: a wrong name, value or file. Exit code 2."""


class WorkError(RuntimeError):
    """The work was begun and failed. Exit code 1."""


class StoppedError(WorkError):
    """Someone asked the work to stop, and what was done so far is saved."""
