"""Results of the paper that are tables and curves of runs, each a declaration."""

from __future__ import annotations

from matplotlib.figure import Figure

from infocnf.experiments.analysis import BITS, ERROR, MARGINAL_BITS, NFE, Results, curves, spent
from infocnf.experiments.arms import (
    CCNF,
    FIXED,
    GATES,
    LEARNED,
    TABLE,
    WHOLE,
    ccnf,
    fixed,
    hand_tuned,
    learned,
    matched,
    random,
)
from infocnf.experiments.declaration import Arm, Column, Experiment, Scale
from infocnf.reports.figures import plot_grid
from infocnf.reports.samples import class_grid, draw_samples
from infocnf.reports.series import plot_trajectories

__all__ = [
    "BIGGER",
    "LARGE_BATCH",
    "LARGE_BATCH_METHODS",
    "MARGINAL",
    "MNIST",
    "PARTITION",
    "SMALL_BATCH",
    "SMALL_VS_LARGE",
    "SPIRALS",
    "UNCONDITIONAL",
]

SMALL_BATCH = Experiment(
    name="small-batch",
    title="Small batches: CCNF, InfoCNF with fixed, learned and hand-tuned tolerances",
    claim="The paper: partitioning the code lowers the error by a third, and learned tolerances "
    "save 21 % of the evaluations at the same error and likelihood.",
    arms=tuple(make("small") for make in (ccnf, fixed, learned, hand_tuned, matched, random)),
    columns=TABLE,
    draw=lambda results: {"figure": curves(results)},
)
LARGE_BATCH = Experiment(
    name="large-batch",
    title="Large batches: CCNF, InfoCNF with fixed and learned tolerances",
    claim="The paper: with large batches learned tolerances lower the error by 4 points and the "
    "likelihood by 0.04 bits per dimension, at as many evaluations.",
    arms=tuple(make("large") for make in (ccnf, fixed, learned, matched, random)),
    columns=TABLE,
    draw=lambda results: {"figure": curves(results)},
)
TIGHT = ("tolerance=1e-5",)


def slow(scale: Scale) -> tuple[str, ...]:
    """The learning rate of a small batch."""
    return (f"training.learning_rate={scale.rate}",)


LARGE_BATCH_METHODS = Experiment(
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
    draw=lambda results: {"figure": curves(results, (ERROR, BITS, MARGINAL_BITS, NFE))},
)
SMALL_VS_LARGE = Experiment(
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
NAMES = (CCNF, FIXED, LEARNED)
MAKERS = tuple(zip((ccnf, fixed, learned), NAMES, strict=True))
MARGINAL = Experiment(
    name="marginal",
    title="Marginal likelihood in small and large batches",
    claim="The paper: the marginal likelihood follows the conditional one.",
    arms=tuple(
        make(base, f"{name}, {base} batches")
        for base in ("small", "large")
        for make, name in MAKERS
    ),
    columns=(
        Column("evaluated_bits_per_dim_marginal", "marginal bits/dim, ours", ".3f"),
        Column("least_bits_per_dim_marginal", "marginal bits/dim, least", ".3f"),
        Column("evaluated_bits_per_dim", "conditional bits/dim, ours", ".3f"),
        Column("least_bits_per_dim", "conditional bits/dim, least", ".3f"),
    ),
    draw=lambda results: {
        "figure": curves(
            results,
            (MARGINAL_BITS, BITS),
            {
                f"{base} batches": [f"{name}, {base} batches" for name in NAMES]
                for base in ("small", "large")
            },
        )
    },
)
PARTITION = Experiment(
    name="partition",
    title="Where the supervised code sits",
    claim="The reference's logs (the paper does not ask): half of every scale reads labels as "
    "badly as CCNF, 31 to 35 % wrong, the first scale alone 21 %; the place matters most.",
    arms=(
        fixed("small", "first scale (the paper's)"),
        Arm("last scale", "small", ("model.supervised_at=last_scale",)),
        Arm("half of every scale", "small", ("model.supervised_at=every_scale",)),
        ccnf("small", "everything (CCNF)"),
    ),
    columns=TABLE,
    draw=lambda results: {"figure": curves(results)},
)
PLAIN = ("model.supervised=0.0",)
SAID = {"least_bits_per_dim": "3.37"}
UNCONDITIONAL = Experiment(
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


def twice(scale: Scale) -> tuple[str, ...]:
    """Twice the blocks."""
    return (f"model.blocks={scale.blocks}",)


BIGGER = Experiment(
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


def draw_mnist(results: Results) -> dict[str, Figure]:
    """Curves, and samples of every class from the first seed of the learned arm."""
    run = results.runs[LEARNED][0].run
    classes = run.facts["classes"]["label"]
    samples = draw_samples(run.model(), run.preparation, 8 * len(classes), tolerance=1e-4)
    grid = class_grid(samples, classes, run.preparation.levels)
    return {"figure": curves(results), "samples": plot_grid(grid)}


MNIST = Experiment(
    name="mnist",
    title="MNIST: CCNF, InfoCNF with fixed and learned tolerances",
    claim="The paper: all three read MNIST alike (0.60 to 0.64 % error, 1.016 to 1.030 bits per "
    "dimension), learned tolerances with 30 % fewer evaluations.",
    arms=tuple(make("mnist") for make in (ccnf, fixed, learned)),
    columns=TABLE,
    draw=draw_mnist,
)
BASELINE, PARTITIONED = "latent ODE", "with a partitioned state"


def draw_spirals(results: Results) -> dict[str, Figure]:
    """Trajectories of the first seed of each arm, on the same curves."""
    found = {}
    for name, arm in (("figure", PARTITIONED), ("baseline", BASELINE)):
        run = results.runs[arm][0].run
        found[name] = plot_trajectories(run.latent_ode(), run.data(), run.preparation)
    return found


SPIRALS = Experiment(
    name="spirals",
    title="Spirals: the latent ODE with and without a partitioned state",
    claim="The paper, in pictures: with the partition it fits better and extrapolates better.",
    arms=(
        Arm(BASELINE, "spirals", ("series.supervised=0.0",)),
        Arm(PARTITIONED, "spirals"),
    ),
    columns=(
        Column("rmse_fit", "rmse within the window", ".3f"),
        Column("rmse_after", "after it", ".3f"),
        Column("rmse_before", "before it", ".3f"),
        Column("a_rmse", "rmse of a", ".4f"),
        Column("b_rmse", "rmse of b", ".4f"),
        Column("direction_error_percent", "wrong directions, %", ".2f"),
    ),
    draw=draw_spirals,
    caption="Errors are against the truth without noise, on draws of the hidden state of the test "
    "curves. There is one protocol here: the model that the validation split chose.",
)
