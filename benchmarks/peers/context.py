"""What every part of the suite is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Context"]


@dataclass(frozen=True)
class Context:
    """Where to keep things, how to tell, and how thorough to be.

    Arguments:
        work: Folder of trained flows and runs.
        pictures: Folder of the plots.
        say: Tells a person how far it is.
        quick: Whether to do as little as shows that all parts work.
    """

    work: Path
    pictures: Path
    say: Callable[[str], None]
    quick: bool = False

    def rounds(self, count: int) -> int:
        """Timed rounds."""
        return 1 if self.quick else count

    def few(self, values: Sequence[float]) -> Sequence[float]:
        """Values to sweep over: the first and the last but one where quick."""
        return [values[0], values[-2]] if self.quick else values
