"""How large things are: on a laptop, as in the paper, in a test.

A small batch is 1.8 % of the training examples and a large one 16 %, as 900 and 8,000 are of
CIFAR-10's 50,000.
"""

from __future__ import annotations

from infocnf.errors import InputError
from infocnf.experiments.declaration import Base, Scale

__all__ = ["SCALES", "scale_of"]

DIGITS = (
    "tolerance=1e-5",
    "objective.beta=0.5",
    "training.schedule=constant",
    "training.weight_decay=0",
    "training.ema=0",
    "training.watch_test=500",
)
MNIST = ("data.limit=2000", "data.validation=200", "data.shrink=2", "model.scales=2")
LAPTOP = Scale(
    name="laptop",
    seeds=(0, 1, 2),
    bases={
        "small": Base(
            "digits-likelihood",
            (
                *DIGITS,
                "training.batch_size=20",
                "training.epochs=12",
                "training.validate_every=2",
                "training.learning_rate=4e-3",
            ),
        ),
        "large": Base(
            "digits-likelihood",
            (
                *DIGITS,
                "training.batch_size=184",
                "training.epochs=36",
                "training.validate_every=4",
                "training.learning_rate=2e-2",
                "training.warmup=20",
                "tolerance=1e-4",
            ),
        ),
        "mnist": Base(
            "paper-mnist",
            (
                *MNIST,
                "model.blocks=1",
                "model.hidden=[24,24,24]",
                "training.epochs=5",
                "training.batch_size=50",
                "training.micro_batch=none",
                "training.learning_rate=4e-3",
                "training.warmup=30",
                "training.watch_test=300",
                "evaluation.limit=500",
            ),
        ),
        "density": Base("density-1d", ("training.epochs=30",)),
        "spirals": Base("spirals", ()),
    },
    blocks=2,
    rate=4e-3,
    batches=(1, 4, 20, 100, 500),
    points=6_001,
)
PAPER = Scale(
    name="paper",
    seeds=(1, 2, 3),
    bases={
        "small": Base("paper-cifar10-small-batch", ("training.watch_test=10000",)),
        "large": Base("paper-cifar10-large-batch", ("training.watch_test=10000",)),
        "mnist": Base("paper-mnist", ("training.watch_test=10000",)),
        "density": Base(
            "density-1d",
            (
                "model.hidden=[64,64,64]",
                "model.time=concat_squash",
                "training.epochs=110",
                "training.batch_size=100",
                "training.learning_rate=1e-3",
                "training.schedule=constant",
                "training.weight_decay=1e-5",
            ),
        ),
        "spirals": Base(
            "spirals",
            (
                "series.encoder=rnn",
                "series.shortest=1",
                "training.epochs=20000",
                "training.batch_size=5000",
                "training.learning_rate=1e-3",
                "training.schedule=constant",
                "training.validate_every=100",
                "training.ema=0",
            ),
        ),
    },
    blocks=4,
    rate=1e-3,
    batches=(1, 500, 900, 1000, 2000, 4000, 6000, 8000),
    points=500_001,
)
FEW = (
    "data.limit=40",
    "data.validation=20",
    "model.hidden=[4]",
    "training.epochs=2",
    "training.validate_every=1",
    "training.watch_test=20",
    "evaluation.tolerance=1e-2",
)
TINY = Scale(
    name="tiny",
    seeds=(0, 1, 2),
    bases={
        "small": Base("digits-likelihood", (*FEW, "training.batch_size=10", "tolerance=1e-2")),
        "large": Base("digits-likelihood", (*FEW, "training.batch_size=20", "tolerance=1e-1")),
        "mnist": Base("digits-likelihood", (*FEW, "training.batch_size=10", "tolerance=1e-2")),
        "density": Base(
            "density-1d",
            ("data.limit=200", "model.hidden=[8]", "training.epochs=1", "training.batch_size=50"),
        ),
        "spirals": Base(
            "spirals",
            (
                "data.limit=20",
                "data.validation=10",
                "training.epochs=1",
                "training.batch_size=10",
                "series.draws=2",
            ),
        ),
    },
    blocks=2,
    rate=1e-3,
    batches=(1, 7, 20),
    points=401,
)
SCALES = {scale.name: scale for scale in (LAPTOP, PAPER, TINY)}


def scale_of(name: str) -> Scale:
    """A scale by its name."""
    if name not in SCALES:
        raise InputError(f"--scale must be one of {', '.join(SCALES)}, got {name!r}")
    return SCALES[name]
