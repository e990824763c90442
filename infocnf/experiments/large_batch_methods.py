"""Large batches with and without the larger learning rate and the tuned tolerance."""

from infocnf.experiments.arms import TABLE, WHOLE, ccnf, fixed
from infocnf.experiments.declaration import Arm, Experiment, Scale
from infocnf.experiments.figures import BITS, ERROR, MARGINAL, NFE, curves

TIGHT = ("tolerance=1e-5",)


def slow(scale: Scale) -> tuple[str, ...]:
    """The learning rate of a small batch."""
    return (f"training.learning_rate={scale.rate}",)


EXPERIMENT = Experiment(
    name="large-batch-methods",
    title="Large batches: what the larger learning rate and the tuned tolerance do",
    claim="The paper: both help, in error, likelihood and evaluations.",
    arms=(
        ccnf("large", "CCNF, both"),
        Arm("CCNF, neither", "large", lambda scale: (*WHOLE, *TIGHT, *slow(scale))),
        fixed("large", "InfoCNF, both"),
        Arm("InfoCNF, larger rate only", "large", TIGHT),
        Arm("InfoCNF, tuned tolerance only", "large", slow),
        Arm("InfoCNF, neither", "large", lambda scale: (*TIGHT, *slow(scale))),
    ),
    columns=TABLE,
    draw=lambda results: {"figure": curves(results, (ERROR, BITS, MARGINAL, NFE))},
)
