"""Error and likelihood against the evaluations that were spent."""

from infocnf.experiments.arms import TABLE, ccnf, fixed, learned
from infocnf.experiments.declaration import Experiment
from infocnf.experiments.figures import spent

EXPERIMENT = Experiment(
    name="small-vs-large",
    title="Small and large batches by the evaluations they spend",
    claim="The paper: InfoCNF with large batches reaches CCNF's error sooner, by evaluations.",
    arms=(
        ccnf("small", "CCNF, small batches"),
        fixed("small", "InfoCNF, small batches"),
        learned("small", "InfoCNF learned, small batches"),
        ccnf("large", "CCNF, large batches"),
        fixed("large", "InfoCNF, large batches"),
        learned("large", "InfoCNF learned, large batches"),
    ),
    columns=TABLE,
    draw=lambda results: {"figure": spent(results)},
    caption="Evaluations are those of iterations, whatever their batch: the paper's count.",
)
