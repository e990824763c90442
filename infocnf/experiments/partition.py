"""Where the supervised code sits."""

from infocnf.experiments.arms import TABLE, ccnf, fixed
from infocnf.experiments.declaration import Arm, Experiment
from infocnf.experiments.figures import curves

EXPERIMENT = Experiment(
    name="partition",
    title="Where the supervised code sits",
    claim="The reference's logs (the paper does not ask): half of every scale reads labels as "
    "badly as CCNF, 31 to 35 % wrong, the first scale alone 21 %; the place matters most.",
    arms=(
        fixed("small", "first scale (the paper's)"),
        Arm("last scale", "small", ("model.place=last_scale",)),
        Arm("half of every scale", "small", ("model.place=every_scale",)),
        ccnf("small", "everything (CCNF)"),
    ),
    columns=TABLE,
    draw=lambda results: {"figure": curves(results)},
)
