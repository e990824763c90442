"""Arms that several results share, so that their runs are trained once."""

from __future__ import annotations

from infocnf.experiments.declaration import Arm, Column

__all__ = [
    "CCNF",
    "FIXED",
    "LEARNED",
    "RANDOM",
    "TABLE",
    "ccnf",
    "fixed",
    "hand_tuned",
    "learned",
    "learned_per_sample",
    "matched",
    "random",
]

CCNF, FIXED, LEARNED = "CCNF", "InfoCNF, fixed", "InfoCNF, learned"
RANDOM = "control: random tolerances"
MATCHED = "control: fixed at the learned mean"
WHOLE = ("model.supervised=1.0",)
GATES = ("tolerance.name=learned", "tolerance.samples=8")
HAND = ("tolerance.name=per_block", "tolerance.first=1e-5", "tolerance.others=1e-4")
TABLE = (
    Column("evaluated_error_percent", "error %, ours"),
    Column("least_error_percent", "error %, least"),
    Column("evaluated_bits_per_dim", "bits/dim, ours", ".3f"),
    Column("least_bits_per_dim", "bits/dim, least", ".3f"),
    Column("nfe_forward", "NFE forward", ".1f"),
    Column("nfe", "NFE forward + backward", ".1f"),
    Column("nfe_growth", "NFE, last epoch / first", ".2f"),
    Column("tolerance", "tolerance", ".1e"),
)


def numbers(error: str, bits: str, nfe: str) -> dict[str, str]:
    """What the paper printed, by metric; nothing where it printed none."""
    names = ("least_error_percent", "least_bits_per_dim", "nfe")
    return {name: text for name, text in zip(names, (error, bits, nfe), strict=True) if text}


PAPER: dict[tuple[str, str], dict[str, str]] = {
    ("small", CCNF): numbers("33.09 ± 0.97", "3.511 ± 0.005", "924 ± 23"),
    ("small", FIXED): numbers("21.50 ± 0.29", "3.533 ± 0.005", "985 ± 10"),
    ("small", LEARNED): numbers("20.99 ± 0.67", "3.568 ± 0.003", "776 ± 57"),
    ("large", CCNF): numbers("38.14 ± 1.14", "3.710 ± 0.006", "661 ± 5"),
    ("large", FIXED): numbers("31.64 ± 3.63", "3.674 ± 0.022", "582 ± 10"),
    ("large", LEARNED): numbers("27.88 ± 0.73", "3.638 ± 0.006", "590 ± 11"),
    ("mnist", CCNF): numbers("0.64 ± 0.02", "1.016 ± 0.003", "611 ± 7"),
    ("mnist", FIXED): numbers("0.60 ± 0.01", "1.030 ± 0.004", "589 ± 7"),
    ("mnist", LEARNED): numbers("0.61 ± 0.02", "1.018 ± 0.003", "416 ± 5"),
}
"""The paper's tables, by base and arm: minima over epochs on the test set."""


def ccnf(base: str, name: str = CCNF) -> Arm:
    """The paper's baseline: the whole code knows the label."""
    return Arm(name, base, WHOLE, PAPER[base, CCNF])


def fixed(base: str, name: str = FIXED) -> Arm:
    """Half of the code knows the label; the tolerance of the base."""
    return Arm(name, base, (), PAPER[base, FIXED])


def learned(base: str, name: str = LEARNED) -> Arm:
    """The same with gates that choose tolerances for each batch, by the paper's reward."""
    return Arm(name, base, GATES, PAPER[base, LEARNED])


def learned_per_sample(base: str, name: str = "InfoCNF, learned per sample") -> Arm:
    """The same with gates that choose for each sample."""
    return Arm(name, base, (*GATES, "tolerance.per=sample"))


def hand_tuned(base: str) -> Arm:
    """The paper's tolerances by hand: tight for the first block of a scale, looser for others."""
    said = numbers("25.08 ± 4.48", "", "")
    return Arm("InfoCNF, tuned by hand", base, HAND, said, {"least_error_percent": "21.5, 2 runs"})


def random(base: str) -> Arm:
    """Tolerances drawn as by gates that learn nothing."""
    return Arm(RANDOM, base, ("tolerance.name=random",))


def matched(base: str, arm: str = LEARNED, settings: tuple[str, ...] = ()) -> Arm:
    """A fixed tolerance, the mean of what another arm learned."""
    return Arm(MATCHED, base, settings, matches=arm)
