"""The same as small-batch, with batches of 16 % of the data."""

from infocnf.experiments.arms import TABLE, ccnf, fixed, learned, matched, random
from infocnf.experiments.declaration import Experiment
from infocnf.experiments.figures import curves

EXPERIMENT = Experiment(
    name="large-batch",
    title="Large batches: CCNF, InfoCNF with fixed and learned tolerances",
    claim="The paper: with large batches learned tolerances lower the error by 4 points and the "
    "likelihood by 0.04 bits per dimension, at as many evaluations.",
    arms=tuple(make("large") for make in (ccnf, fixed, learned, matched, random)),
    columns=TABLE,
    draw=lambda results: {"figure": curves(results)},
)
