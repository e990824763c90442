"""The larger model: twice as many blocks."""

from infocnf.experiments.arms import GATES, TABLE, ccnf, learned
from infocnf.experiments.declaration import Arm, Experiment, Scale
from infocnf.experiments.figures import curves


def twice(scale: Scale) -> tuple[str, ...]:
    """Twice the blocks."""
    return (f"model.blocks={scale.blocks}",)


EXPERIMENT = Experiment(
    name="bigger",
    title="Twice the blocks, in large batches",
    claim="The paper: the larger model has better error and likelihood, at more evaluations.",
    arms=(
        ccnf("large"),
        learned("large"),
        Arm("2x InfoCNF, learned", "large", lambda scale: (*GATES, *twice(scale))),
        Arm("2x InfoCNF, fixed", "large", twice),
    ),
    columns=TABLE,
    draw=lambda results: {"figure": curves(results)},
)
