"""Examples that cannot be solved are left out of a step, and only those."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from infocnf.objectives import Matching, Objective, Variational
from infocnf.ode import SolveError

__all__ = ["solvable"]


Found = TypeVar("Found", bound=Objective | Matching | Variational)


def solvable(
    attempt: Callable[[Tensor, str | None], Found], count: int
) -> tuple[Found | None, Tensor]:
    """The objective of those examples that can be solved and have a finite loss, and which they
    are.

    Arguments:
        attempt: Objective of the examples at some positions, with a stepping.
        count: Number of examples.
    """
    kept, stepping = torch.arange(count), None
    while len(kept):
        try:
            objective = attempt(kept, stepping)
            finite = objective.losses.detach().isfinite().cpu()
            if finite.all():
                return objective, kept
            kept = kept[finite]
        except SolveError as error:
            done = error.solution.done.cpu()
            # under shared steps one example fails all: solve each on its own to see which
            if done.ndim:
                kept = kept[done]
            stepping = "individual"
    return None, kept
