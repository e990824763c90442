"""Latent ODEs: ``python -m benchmarks.series`` measures an epoch of the paper's full-batch training
against the public formulation on torchdiffeq, trains the spirals with and without a partition and
the Japanese vowels, and writes ``docs/results/series.md``.

Runs that are in ``--out`` already are not trained again.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torchdiffeq import odeint

from benchmarks.peers.measure import interleaved, machine, median, publish
from infocnf import LatentODE
from infocnf.data import load_data
from infocnf.experiments import EXPERIMENTS
from infocnf.experiments.analysis import summary
from infocnf.experiments.declaration import Recipe
from infocnf.experiments.paper import BASELINE, PARTITIONED
from infocnf.experiments.runner import ExperimentRunner, gather, recipes_of
from infocnf.experiments.scales import LAPTOP
from infocnf.objectives import variational_objective
from infocnf.random import combine_seeds
from infocnf.runs import Run

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "docs" / "results" / "series.md"

HEAD = """# Latent ODEs of series

Made by `python -m benchmarks.series`.
"""

SPEED = """## An epoch of full-batch training

5,000 spirals of 200 points, the paper's sizes, one step of Adam on all of them. The public
formulation is the latent ODE example that torchdiffeq has: a recurrent cell in a loop of Python,
`odeint` with its default tolerances (1e-7, 1e-9), gradients through the solver. It has the same
number of units and the same objective; *same tolerance* is the same with `rtol = atol = 1e-3`, at
which our presets train. Seconds are medians of {rounds} interleaved rounds, on {threads} threads.
"""

QUALITY = """## Spirals

The presets `spirals` and `spirals-baseline`: the same budget and latent size 5, seeds 0 to {last};
mean and standard deviation over seeds. Root mean square errors are against the truth without noise,
on 5,000 test curves and {draws} draws of the hidden state each: within the window of 200 points,
over as many points after it, and before it. The errors of `a` and `b` are beside those of guessing
their means.
"""


class Public(nn.Module):
    """The public example's way to compute the same model, unconditional."""

    def __init__(self, latent: int = 5, units: int = 25, hidden: int = 20) -> None:
        super().__init__()
        self.units, self.latent = units, latent
        self.cell = nn.Linear(2 + units, units)
        self.head = nn.Linear(units, 2 * latent)
        self.field = nn.Sequential(nn.Linear(latent, hidden), nn.ELU(), nn.Linear(hidden, latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def loss(self, x: Tensor, times: Tensor, **tolerances: float) -> Tensor:
        h = x.new_zeros(len(x), self.units)
        for t in reversed(range(x.shape[1])):
            h = torch.tanh(self.cell(torch.cat([x[:, t], h], 1)))
        mean, log_variance = self.head(h).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        path = odeint(lambda t, z: self.field(z), z, times, **tolerances).permute(1, 0, 2)
        rest = (x - self.decoder(path)) / 0.3
        nll = (0.5 * rest.square() + math.log(0.3 * math.sqrt(2.0 * math.pi))).sum((1, 2))
        kl = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1.0).sum(1)
        return (nll + kl).mean()


def speed(rounds: int, threads: int) -> str:
    """Seconds of an epoch, ours and theirs."""
    torch.set_num_threads(threads)
    x = load_data("spirals", validation=1).raw.x[:5000]
    series = torch.from_numpy(x)
    times = series[0, :, 0].contiguous()
    torch.manual_seed(0)
    public, ours = Public(), LatentODE(2, supervised=0.0)
    steps = {
        name: torch.optim.Adam(model.parameters(), lr=1e-3)
        for name, model in (("public", public), ("ours", ours))
    }

    def step(name: str, loss: Tensor) -> None:
        steps[name].zero_grad()
        loss.backward()
        steps[name].step()

    def accumulated(turn: int, size: int) -> None:
        # as the trainer does with training.micro_batch: the same sum, in parts that fit the cache
        steps["ours"].zero_grad()
        seeds = combine_seeds(turn, torch.arange(len(series)))
        for x, drawn in zip(series.split(size), seeds.split(size), strict=True):
            total = variational_objective(ours, x, seeds=drawn, tolerance=1e-3).total
            (total / len(series)).backward()
        steps["ours"].step()

    first = "infocnf, tolerance 1e-3, 1,000 series at a time"
    contenders = {
        first: lambda turn: accumulated(turn, 1000),
        "infocnf, tolerance 1e-3, all at once": lambda turn: accumulated(turn, 5000),
        "public, its own tolerances": lambda turn: step(
            "public", public.loss(series[..., 1:], times)
        ),
        "public, same tolerance": lambda turn: step(
            "public", public.loss(series[..., 1:], times, rtol=1e-3, atol=1e-3)
        ),
    }
    seconds = {name: median(values) for name, values in interleaved(contenders, rounds).items()}
    lines = ["| | seconds | ratio |", "|---|---|---|"]
    lines += [
        f"| {name} | {value:.2f} | {value / seconds[first]:.1f} |"
        for name, value in seconds.items()
    ]
    return SPEED.format(rounds=rounds, threads=threads) + "\n" + "\n".join(lines)


def spread(values: list[float], form: str = ".3f") -> str:
    """Mean and deviation."""
    found = summary(values)
    return "" if found is None else found.text(form)


def quality(runner: ExperimentRunner) -> str:
    """The table of spirals: the runs of ``infocnf reproduce spirals``."""
    experiment = EXPERIMENTS["spirals"]
    runner.make(recipe for _, _, recipe in recipes_of(experiment, LAPTOP))
    found = gather(experiment, LAPTOP, runner).outcomes
    arms = {name: [outcome.evaluation for outcome in found[name]] for name in found}
    rows = {"within the window": "rmse_fit", "after it": "rmse_after", "before it": "rmse_before"}
    lines = ["| | baseline | partitioned | ratio of means |", "|---|---|---|---|"]
    for title, key in rows.items():
        one, two = ([run[key] for run in arms[name]] for name in (BASELINE, PARTITIONED))
        ratio = statistics.mean(two) / statistics.mean(one)
        lines.append(f"| rmse {title} | {spread(one)} | {spread(two)} | {ratio:.2f} |")
    ours = arms[PARTITIONED]
    for name in ("a", "b"):
        errors = [run["factors"][name]["rmse"] for run in ours]
        guess = ours[0]["factors"][name]["rmse_of_the_mean"]
        lines.append(f"| rmse of {name} | ({guess:.4f}: the mean) | {spread(errors, '.4f')} | |")
    wrong = spread([run["error_percent"] for run in ours], ".2f")
    lines.append(f"| wrong directions, % | | {wrong} | |")
    elbo = [spread([run["elbo"] for run in arms[n]], ".1f") for n in (BASELINE, PARTITIONED)]
    lines.append(
        f"| lower bound, nats (of log p(x), of log p(x given y)) | {elbo[0]} | {elbo[1]} | |"
    )
    text = QUALITY.format(last=len(ours) - 1, draws=ours[0]["draws"])
    return text + "\n" + "\n".join(lines)


def vowels(runner: ExperimentRunner, seeds: Sequence[int] = LAPTOP.seeds) -> str:
    """The table of speakers."""
    recipes = [Recipe("japanese-vowels", (f"training.seed={seed}",)) for seed in seeds]
    runner.make(recipes)
    found = [Run.open(runner.folder_of(one)).read_json("evaluation.json") for one in recipes]
    wrong = spread([run["error_percent"] for run in found], ".2f")
    fit = spread([run["rmse_fit"] for run in found])
    return "\n".join(
        [
            "## Japanese vowels",
            "",
            "The preset `japanese-vowels` on the 370 test series, "
            f"seeds 0 to {seeds[-1]}; nearest neighbour by dynamic time warping errs in about 5 %.",
            "",
            "| speakers wrong, % | rmse of the reconstruction, against the observations |",
            "|---|---|",
            f"| {wrong} | {fit} |",
        ]
    )


def main() -> None:
    """Measure, train, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "reproduce")
    parser.add_argument("--data", type=Path, help="folder with japanese_vowels.npz", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()

    runner = ExperimentRunner(arguments.out, (f"data.directory={str(arguments.data)!r}",), jobs=2)
    parts = [HEAD, machine(), speed(arguments.rounds, arguments.threads)]
    publish(RESULT, [*parts, quality(runner), vowels(runner)])
    print(f"written: {RESULT}")


if __name__ == "__main__":
    main()
