"""The likelihood without knowing the label, over the epochs."""

from infocnf.experiments.arms import CCNF, FIXED, LEARNED, ccnf, fixed, learned
from infocnf.experiments.declaration import Column, Experiment
from infocnf.experiments.figures import BITS, MARGINAL, curves

NAMES = (CCNF, FIXED, LEARNED)
MAKERS = tuple(zip((ccnf, fixed, learned), NAMES, strict=True))

EXPERIMENT = Experiment(
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
            (MARGINAL, BITS),
            {
                f"{base} batches": [f"{name}, {base} batches" for name in NAMES]
                for base in ("small", "large")
            },
        )
    },
)
