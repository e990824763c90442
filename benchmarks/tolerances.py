"""Does learning tolerances pay? ``python -m benchmarks.tolerances`` trains the same flow on the 8x8
digits under every policy, and writes ``docs/results/tolerances.md``.

Arms differ in the table ``tolerance`` of their configuration and in nothing else: same weights to
begin with, same order of examples, same noise. Runs that are there already are kept, so the command
can be interrupted and given again.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.measure import interleaved, machine, median, publish, tell
from infocnf.experiments.analysis import read_rows
from infocnf.experiments.declaration import Recipe
from infocnf.experiments.runner import ExperimentRunner
from infocnf.models import InfoCNF
from infocnf.objectives import likelihood_objective
from infocnf.random import combine_seeds
from infocnf.runs import Run

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "docs" / "results" / "tolerances.md"
PICTURE = ROOT / "docs" / "images" / "tolerances.png"

EXAMPLES = 128  # on which errors and times at the end of training are measured
EPSILON = 1e-4  # bits per dimension that constrained arms may be wrong by
COMMON = (
    "model.training_method=dopri5",
    "model.hidden=[16,16,16]",
    "objective.beta=0.5",
    "training.epochs=14",
    "training.batch_size=32",
    "training.learning_rate=1e-2",
    "training.policy_learning_rate=1e-2",
    "training.schedule=constant",
    "training.weight_decay=0",
    "training.validate_every=14",
    "trainer.threads=1",
)
LEARNED = ("name=learned", "samples=8")


def constrained(per: str) -> tuple[str, ...]:
    """Settings of a policy that is learned under a bound of the error."""
    return (*LEARNED, f"per={per}", "reward=error", f"epsilon={EPSILON}")


FIRST: dict[str, tuple[str, ...]] = {
    "fixed 1e-5": ("name=fixed", "tolerance=1e-5"),
    "learned per batch, paper's reward": (*LEARNED, "per=batch", "reward=loss"),
    "learned per batch, error-constrained": constrained("batch"),
    "learned per sample, paper's reward": (*LEARNED, "per=sample", "reward=loss"),
    "learned per sample, error-constrained": constrained("sample"),
    "random": ("name=random",),
    "per block: first of a scale 1e-5, others 1e-4": (
        "name=per_block",
        "first=1e-5",
        "others=1e-4",
    ),
    "schedule 1e-2 to 1e-5": ("name=schedule", "start=1e-2", "end=1e-5"),
    "budget of error": ("name=budget", f"error={EPSILON}", "samples=8"),
}
"""Settings of the table ``tolerance`` that do not depend on other arms."""


@dataclass(frozen=True)
class Arm:
    """A policy and its runs, one for each seed."""

    name: str
    settings: tuple[str, ...]
    folders: tuple[Path, ...]

    def epochs(self, name: str) -> list[list[float]]:
        """A column of ``metrics.csv`` for each seed; zero where it is empty."""
        return [[row.get(name, 0.0) for row in read_rows(folder)] for folder in self.folders]

    def means(self, name: str) -> list[float]:
        """A column's mean over the epochs, for each seed; zero where there is no such column."""
        return [statistics.fmean(values) for values in self.epochs(name)]

    def evaluated(self, name: str) -> list[float]:
        """A metric of the test set for each seed."""
        return [Run(folder).read_json("evaluation.json")[name] for folder in self.folders]

    @property
    def blocks(self) -> int:
        """Number of blocks of the flow."""
        return sum(
            name.startswith("nfe_") and name[4:].isdigit() for name in read_rows(self.folders[0])[0]
        )

    def typical_tolerance(self) -> float:
        """Geometric mean of the tolerances over blocks, epochs and seeds."""
        columns = [self.means_of_log(block) for block in range(self.blocks)]
        return float(f"{10 ** statistics.fmean(columns):.3g}")

    def means_of_log(self, block: int) -> float:
        """Mean log10 tolerance of a block over epochs and seeds; an epoch's mean tolerance is above
        its geometric one by what the spread of a log-normal says.
        """
        columns = (f"tolerance_{block}", f"tolerance_spread_{block}")
        pairs = zip(
            *([v for seed in self.epochs(name) for v in seed] for name in columns), strict=True
        )
        return statistics.fmean(math.log10(t) - 0.5 * math.log(10.0) * s**2 for t, s in pairs)


# ----------------------------------------------------------------------------------- training


def train(
    runner: ExperimentRunner, arms: Mapping[str, tuple[str, ...]], seeds: Sequence[int]
) -> list[Arm]:
    """Runs of arms, made where they are missing: seed by seed, so that arms take turns."""

    def recipe(settings: Sequence[str], seed: int) -> Recipe:
        own = (f"tolerance.{setting}" for setting in settings)
        return Recipe("digits-likelihood", (*COMMON, *own, f"training.seed={seed}"))

    runner.make(recipe(settings, seed) for seed in seeds for settings in arms.values())
    return [
        Arm(name, settings, tuple(runner.folder_of(recipe(settings, seed)) for seed in seeds))
        for name, settings in arms.items()
    ]


def matched(arms: Sequence[Arm]) -> dict[str, tuple[str, ...]]:
    """Fixed tolerances at the mean of what was learned per batch."""
    found: dict[str, tuple[str, ...]] = {}
    for arm in arms:
        if arm.name.startswith("learned per batch"):
            tolerance = arm.typical_tolerance()
            reward = arm.name.partition(", ")[2]
            name = f"fixed {tolerance:.1e}: mean of the one learned per batch, {reward}"
            found[name] = ("name=fixed", f"tolerance={tolerance}")
    return found


# ----------------------------------------------------------------------- cost and error at the end


@dataclass
class Ending:
    """A trained model with a batch to train it further on."""

    model: InfoCNF
    x: Tensor
    y: Mapping[str, Tensor]
    seeds: Tensor

    @classmethod
    def of(cls, folder: Path) -> Ending:
        """The model that a run kept, as at the end of its training."""
        opened = Run.open(folder)
        model = opened.model().train()
        x, labels = opened.data().examples("train")
        seeds = combine_seeds(1, torch.arange(EXAMPLES))
        prepared = opened.preparation(x[:EXAMPLES], torch.float32, seeds)
        return cls(model, prepared, {k: y[:EXAMPLES] for k, y in labels.items()}, seeds)

    def step(self, start: int, number: int) -> Any:
        """One step of training, but that weights stay as they are."""
        part = slice(start, start + 32)
        seeds = combine_seeds(self.seeds[part], number)
        self.model.zero_grad()
        self.model.policy.begin_step(0.999)
        objective = likelihood_objective(
            self.model, self.x[part], {k: y[part] for k, y in self.y.items()}, seeds=seeds
        )
        objective.total.backward()
        return objective, seeds

    def eight_steps(self, turn: int) -> None:
        """As many as hold two measurements."""
        for number in range(8):
            self.step(32 * number % EXAMPLES, 8 * turn + number)

    def error(self) -> float:
        """Mean error of log p in bits per dimension at the tolerances of training."""
        found = []
        for number in range(6):
            start = 32 * number % EXAMPLES
            objective, seeds = self.step(start, number)
            with torch.no_grad():
                part = slice(start, start + 32)
                code = self.model.encode(
                    self.x[part], tolerance=1e-7, seeds=seeds, stepping="individual"
                )
                labels = {k: y[part] for k, y in self.y.items()}
                tight = self.model.code_log_prob(code, labels)
            if number > 1:  # the first ones warm the solver up
                found.append(float((objective.log_prob.detach() - tight).abs().mean()))
        return statistics.fmean(found) / (self.model.dimensions * math.log(2.0))


def endings(arms: Sequence[Arm], rounds: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Median seconds of a step at the end of training, measured in turns; and errors by seed."""
    torch.set_num_threads(1)
    contenders: dict[str, Callable[[int], object]] = {
        arm.name: Ending.of(arm.folders[0]).eight_steps for arm in arms
    }
    seconds = {name: median(values) for name, values in interleaved(contenders, rounds).items()}
    errors = {arm.name: [Ending.of(folder).error() for folder in arm.folders] for arm in arms}
    return seconds, errors


# --------------------------------------------------------------------- what could be gained at best


def limits(folder: Path, epsilons: Sequence[float]) -> list[tuple[float, float, float, float]]:
    """Evaluations at a mean error of at most each epsilon, found by enumeration on a trained model:
    the best single tolerance, the best one for each block, the best single one under own steps, and
    the best one for each sample, chosen by one who knows each sample's error beforehand.
    """
    ending = Ending.of(folder)
    few = slice(0, 64)
    model, x, seeds = ending.model, ending.x[few], ending.seeds[few]
    labels = {k: y[few] for k, y in ending.y.items()}
    for number in range(3):  # warm the solver up
        ending.step(32 * number % EXAMPLES, number)

    @torch.no_grad()
    def solve(tolerance: Any) -> tuple[Tensor, Tensor]:
        code = model.encode(x, tolerance=tolerance, seeds=seeds)
        assert code.stats is not None
        return code.stats.forward.double(), model.code_log_prob(code, labels).double()

    def own_steps(tolerance: float) -> Tensor:
        return torch.full((len(x),), tolerance, dtype=torch.float64)

    exact = solve(own_steps(1e-7))[1]
    scale = model.dimensions * math.log(2.0)

    def weigh(tolerance: Any) -> tuple[Tensor, Tensor]:
        evaluations, log_prob = solve(tolerance)
        return evaluations, (log_prob - exact).abs() / scale

    fine = [10.0 ** (-5.0 + i / 8) for i in range(25)]
    coarse = [10.0 ** (-4.5 + i / 2) for i in range(5)]
    one = [(float(n), float(e.mean())) for n, e in (weigh(t) for t in fine)]
    triples = product(coarse, repeat=len(model.flow.blocks))
    each = [(float(n), float(e.mean())) for n, e in (weigh(list(t)) for t in triples)]
    each += one
    counts, errors = (
        torch.stack(parts) for parts in zip(*(weigh(own_steps(t)) for t in fine), strict=True)
    )  # (tolerances, samples)
    own = list(zip(counts.mean(1).tolist(), errors.mean(1).tolist(), strict=True))
    chosen = []
    for price in torch.logspace(2, 8, 200).double():
        best = (counts + price * errors).argmin(0, keepdim=True)
        pair = (float(values.gather(0, best).mean()) for values in (counts, errors))
        chosen.append(tuple(pair))

    def cheapest(pairs: Sequence[Sequence[float]], epsilon: float) -> float:
        return min((nfe for nfe, error in pairs if error <= epsilon), default=math.nan)

    return [
        tuple(cheapest(pairs, epsilon) for pairs in (one, each, own, chosen))  # type: ignore[misc]
        for epsilon in epsilons
    ]


LIMITS = """## What could be gained at best

By enumeration, on the models of fixed 1e-5 at the end of training, 64 examples: the fewest forward
evaluations at which the mean error of log p is at most epsilon. *Per sample* knows the error of
every sample beforehand, luck included, and chooses among 25 tolerances; no gate could.

| epsilon, bits/dim | one tolerance | one for each block | one, own steps | one for each sample |
|---|---|---|---|---|
"""


def limits_table(arm: Arm) -> str:
    """The best that any policy could do, mean and deviation over seeds."""
    epsilons = (3e-5, 1e-4, 3e-4)
    found = [limits(folder, epsilons) for folder in arm.folders]
    lines = []
    for epsilon, rows_ in zip(epsilons, zip(*found, strict=True), strict=True):
        cells = [spread(column, ".1f") for column in zip(*rows_, strict=True)]
        lines.append(f"| {epsilon:g} | {' | '.join(cells)} |")
    return LIMITS + "\n".join(lines)


# ------------------------------------------------------------------------------------- report


def spread(values: Sequence[float], form: str) -> str:
    """Mean and standard deviation over seeds."""
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):{form}} ± {deviation:{form}}"


HEADINGS = (
    "policy in training",
    "test error %",
    "bits/dim at 1e-5",
    "NFE forward",
    "NFE backward",
    "NFE measuring",
    "rejected steps",
    "time",
    "error of log p, 1e-6 bits/dim",
    "last tolerances",
)


def table(
    arms: Sequence[Arm], seconds: Mapping[str, float], errors: Mapping[str, Sequence[float]]
) -> str:
    """One line for each arm."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
    for arm in arms:
        last = [
            statistics.fmean(seed[-1] for seed in arm.epochs(f"tolerance_{block}"))
            for block in range(arm.blocks)
        ]
        cells = [
            arm.name,
            spread(arm.evaluated("error_percent"), ".2f"),
            spread(arm.evaluated("bits_per_dim"), ".4f"),
            spread(arm.means("nfe_forward"), ".1f"),
            spread(arm.means("nfe_backward"), ".1f"),
            spread(arm.means("nfe_measuring"), ".1f"),
            spread(arm.means("steps_rejected"), ".2f"),
            f"{seconds[arm.name] / seconds['fixed 1e-5']:.2f}",
            spread([1e6 * error for error in errors[arm.name]], ".0f"),
            ", ".join(f"{value:.1e}" for value in last),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(arms: Sequence[Arm], path: Path) -> None:
    """Evaluations over the epochs, and how the learned tolerances moved."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    learned = [arm for arm in arms if arm.name.startswith("learned")]
    figure = plt.figure(figsize=(13.0, 6.4), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.0, 1.15))
    cost = left.subplots()
    for style, arm in enumerate(arms):
        columns = list(zip(*arm.epochs("nfe_forward"), strict=True))
        cost.plot(
            range(1, len(columns) + 1),
            [statistics.fmean(column) for column in columns],
            label=arm.name,
            linestyle="-" if style < 10 else "--",
            color=f"C{style % 10}",
        )
    cost.set(xlabel="epoch", ylabel="forward evaluations per iteration", title="cost")
    left.legend(loc="outside lower center", ncol=1, frameon=False, fontsize=7)
    for axis, arm in zip(right.subplots(2, 2, sharex=True, sharey=True).flat, learned, strict=True):
        for block in range(arm.blocks):
            columns = list(zip(*arm.epochs(f"tolerance_{block}"), strict=True))
            epochs = range(1, len(columns) + 1)
            means = [statistics.fmean(column) for column in columns]
            (line,) = axis.plot(epochs, means, label=f"block {block}")
            low, high = ([side(column) for column in columns] for side in (min, max))
            axis.fill_between(epochs, low, high, color=line.get_color(), alpha=0.2)
        axis.set(yscale="log", ylim=(8e-7, 1.3e-2), title=arm.name)
        axis.title.set_fontsize(9)
    right.axes[0].legend(frameon=False)
    right.supxlabel("epoch", fontsize=9)
    right.supylabel("tolerance (band: seeds)", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


HEAD = """# Tolerances: fixed, scheduled, random, budgeted, learned

Made by `python -m benchmarks.tolerances`: InfoCNF on the 8x8 digits, the paper's objective
(beta = 0.5), dopri5 in training, no regularisation, {steps} steps of {batch} examples at a
constant learning rate, {seeds} seeds. Everything but the policy is the same in all rows: first
weights, order of examples, noise. Test error and bits/dim are those of the 500 test images at
tolerance 1e-5, last epoch; NFE, measuring and rejected steps are means per iteration over the whole
training (NFE: field evaluations over all 3 blocks; one block needs at least 7); ± is the standard
deviation over seeds. *Measuring* is what the tight solves of some policies cost, per example.
*Time* is that of the passes forward and backward of a training iteration, measuring included, with
the model that was kept, relative to fixed 1e-5: all arms in turns, ratio of medians, seed 0, one
thread. *Error of log p* is the mean over 128 training examples of the distance to a solve at 1e-7,
at the tolerances of training of the model that was kept.
"""


def main() -> None:
    """Train what is missing, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "tolerances")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the timing")
    given = parser.parse_args()

    runner = ExperimentRunner(given.out, jobs=given.workers, told=tell)
    make = partial(train, runner, seeds=range(given.seeds))
    arms = make(arms=FIRST)
    arms = [*arms, *make(arms=matched(arms))]
    order = [
        "fixed 1e-5",
        "fixed",
        "random",
        "per block",
        "schedule",
        "budget",
        "learned",
    ]
    arms.sort(key=lambda arm: next(i for i, key in enumerate(order) if arm.name.startswith(key)))
    config = Run.open(arms[0].folders[0]).config.training
    steps = int(read_rows(arms[0].folders[0])[-1]["step"])
    seconds, errors = endings(arms, given.rounds)
    draw(arms, PICTURE)
    head = HEAD.format(steps=steps, batch=config.batch_size, seeds=given.seeds)
    settings = "\n".join(f"    {arm.name}: {' '.join(arm.settings)}" for arm in arms)
    publish(
        RESULT,
        [
            head,
            machine(),
            table(arms, seconds, errors),
            limits_table(arms[0]),
            f"![cost over the epochs and learned tolerances](../images/{PICTURE.name})",
            f"Settings of all runs: `{' '.join(COMMON)}`; of the table `tolerance`:\n\n{settings}",
        ],
    )


if __name__ == "__main__":
    main()
