"""A flow without labels, with and without gates."""

from infocnf.experiments.arms import GATES, TABLE, matched
from infocnf.experiments.declaration import Arm, Experiment
from infocnf.experiments.figures import BITS, NFE, curves

PLAIN = ("model.supervised=0.0",)
SAID = {"least_bits_per_dim": "3.37"}

EXPERIMENT = Experiment(
    name="unconditional",
    title="Without labels: CNF with fixed and with learned tolerances",
    claim="The paper: the same likelihood (3.37 bits per dimension) with 15 % fewer evaluations.",
    arms=(
        Arm("CNF, fixed", "small", PLAIN, SAID),
        Arm("CNF, learned", "small", (*PLAIN, *GATES), SAID),
        matched("small", "CNF, learned", PLAIN),
    ),
    columns=tuple(column for column in TABLE if "error" not in column.key),
    draw=lambda results: {"figure": curves(results, (BITS, NFE))},
)
