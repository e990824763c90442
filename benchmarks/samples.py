"""How good samples of images are: ``python -m benchmarks.samples runs/cifar10`` writes
``docs/results/samples.md``.

A small convolutional network learns the classes from the run's training images, apart from the
flow, and judges: how many samples it takes for the class they were drawn of, and how far they are
from test images in its 128 features, by the kernel distance of Binkowski et al. 2018 (the square of
the mean discrepancy under ``(f.g / 128 + 1)^3``, unbiased). The usual figures use a network trained
on ImageNet, which cannot be had here; so these compare rows of one table, and nothing else. Its
first rows are real images, and what the flow draws before it has learned anything. What follows a
distance is its deviation over halves of the samples, drawn 50 times.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchmetrics.image.kid import KernelInceptionDistance

from benchmarks.peers.measure import commit, machine, publish
from infocnf.data import Dataset
from infocnf.files import write, write_json
from infocnf.matching.loss import moved
from infocnf.models import InfoCNF
from infocnf.random import combine_seeds
from infocnf.reports import class_grid, figures
from infocnf.reports.samples import draw_samples, main_factor
from infocnf.runs import Run
from infocnf.runs.build import build_model

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "docs" / "results" / "samples.md"
FEATURES, BATCH, EPOCHS = 128, 128, 8
FARTHEST = 0.1  # of their side by which images are moved where the judge learns

WAYS: dict[str, dict[str, float]] = {
    "as exact as 1e-3": {"tolerance": 1e-3},
    "as exact as 1e-2": {"tolerance": 1e-2},
    "50 steps of the midpoint rule": {"steps": 50},
    "25 steps": {"steps": 25},
    "10 steps": {"steps": 10},
    "25 steps, temperature 0.9": {"steps": 25, "temperature": 0.9},
    "25 steps, temperature 0.8": {"steps": 25, "temperature": 0.8},
    "25 steps, temperature 0.7": {"steps": 25, "temperature": 0.7},
}


def block(inputs: int, outputs: int) -> nn.Sequential:
    """Convolution, normalisation over the batch, and half the size."""
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True))


class Judge(nn.Module):
    """A classifier of images, and its features ``(N, 128)``."""

    def __init__(self, channels: int, classes: int, levels: int) -> None:
        super().__init__()
        self.levels = levels
        stem = nn.Conv2d(channels, 32, 3, padding=1)
        parts = (block(32, 64), block(64, 128), block(128, FEATURES))
        self.features = nn.Sequential(stem, nn.ReLU(), *parts, nn.AdaptiveAvgPool2d(1))
        self.classes = nn.Linear(FEATURES, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Features of images of whole grey levels."""
        return self.features(2.0 * images.float() / (self.levels - 1) - 1.0).flatten(1)

    def read(self, images: Tensor) -> Tensor:
        """Classes."""
        parts = [self.classes(self(part)).argmax(1) for part in images.split(1000)]
        return torch.cat(parts)


def train_judge(data: Dataset, name: str) -> Judge:
    """Learn the classes of the training images."""
    torch.manual_seed(0)
    x, labels = data.examples("train")
    y, levels = labels[name], data.preparation.levels
    judge = Judge(x.shape[1], int(y.max()) + 1, levels)
    optimizer = torch.optim.AdamW(judge.parameters(), weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, EPOCHS * -(-len(x) // BATCH))
    for epoch in range(EPOCHS):
        for chosen in torch.randperm(len(x)).split(BATCH):
            seen = moved(x[chosen], combine_seeds(epoch, chosen), int(FARTHEST * x.shape[-1]))
            with torch.autocast("cpu", torch.bfloat16):
                scores = judge.classes(judge(seen))
            optimizer.zero_grad()
            cross_entropy(scores.float(), y[chosen]).backward()
            optimizer.step()
            rate.step()
    return judge.eval()


@torch.no_grad()
def judged(judge: Judge, real: Tensor, images: Tensor, labels: Tensor) -> dict[str, float]:
    """Kernel distance to real images, over subsets, and images taken for another class."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it keeps features
        distance = KernelInceptionDistance(judge, subsets=50, subset_size=len(images) // 2)
    torch.manual_seed(0)
    for part in real.split(1000):
        distance.update(part, real=True)
    for part in images.split(1000):
        distance.update(part, real=False)
    mean, spread = distance.compute()
    wrong = float((judge.read(images) != labels).double().mean())
    return {"distance": float(mean), "spread": float(spread), "wrong": 100.0 * wrong}


def measure(run: Run, number: int, out: Path) -> dict[str, dict[str, float]]:
    """All ways of drawing, and the rows they are to be compared with."""
    model, data = run.any_model(), run.data()
    assert isinstance(model, InfoCNF)
    name = main_factor(model)
    assert name is not None, "samples are judged by their classes: this run has none"
    judge = train_judge(data, name)
    test, labels = data.examples("test")
    half = len(test) // 2
    real, others = test[:half], test[half:][:number]
    found = {"other test images": judged(judge, real, others, labels[name][half:][:number])}
    fresh = build_model(run.config, data).eval()
    assert isinstance(fresh, InfoCNF)
    for way, (drawn, how) in {
        "a flow that has learned nothing": (fresh, {"steps": 10}),
        **{way: (model, how) for way, how in WAYS.items()},
    }.items():
        began = time.perf_counter()
        with torch.no_grad():
            images = draw_samples(drawn, run.preparation, number, **how)  # type: ignore[arg-type]
        seconds = time.perf_counter() - began
        turn = torch.arange(number) % len(run.facts["classes"][name])
        found[way] = {**judged(judge, real, images, turn), "seconds": seconds}
        print(way, found[way], flush=True)
        grid = class_grid(images[:100], run.facts["classes"][name], run.preparation.levels)
        write(out / f"{way}.png", figures.grid(grid))
        write_json(out / "samples.json", {**found, "commit": commit()})
    return found


def table_of(found: dict[str, dict[str, float]]) -> str:
    """A row for each way."""
    lines = [
        "| | kernel distance | taken for another class, % | seconds |",
        "|---|---|---|---|",
    ]
    for way, row in found.items():
        distance = f"{row['distance']:.3f} ± {row['spread']:.3f}"
        seconds = f"{row['seconds']:.0f}" if "seconds" in row else ""
        lines.append(f"| {way} | {distance} | {row['wrong']:.1f} | {seconds} |")
    return "\n".join(lines)


def main() -> None:
    """Judge the samples of a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("-n", "--number", type=int, default=2000)
    arguments = parser.parse_args()
    out = ROOT / "runs" / f"samples-{arguments.run.name}"
    out.mkdir(parents=True, exist_ok=True)
    found = measure(Run.open(arguments.run), arguments.number, out)
    told = f"`python -m benchmarks.samples {arguments.run} -n {arguments.number}`; {machine()}"
    publish(RESULT, ["# Samples", told, table_of(found)])
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
