"""Flow matching: training without a solver, by straight paths from samples to codes."""

from infocnf.matching.loss import Matching, matching_objective
from infocnf.matching.paths import PathSample, StraightPath
from infocnf.matching.refit import fit_marginals, refit

__all__ = [
    "Matching",
    "PathSample",
    "StraightPath",
    "fit_marginals",
    "matching_objective",
    "refit",
]
