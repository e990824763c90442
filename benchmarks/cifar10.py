"""The paper's comparisons on CIFAR-10 itself: ``python -m benchmarks.cifar10 compare --data DIR``
trains whole, half and a tenth of the code with labels, with and without the cross-entropy. ``python
-m benchmarks.cifar10 tolerances --run runs/cifar10`` goes on from a trained model by the exact
likelihood under every policy of tolerances. Both write into ``docs/results/cifar10.md``. Runs that
are there already are kept, so either can be interrupted and given again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.measure import commit, machine, publish_part, tell
from infocnf import load
from infocnf.experiments.declaration import Recipe
from infocnf.experiments.runner import ExperimentRunner
from infocnf.files import write_json
from infocnf.models import InfoCNF
from infocnf.objectives import likelihood_objective
from infocnf.random import combine_seeds
from infocnf.runs import Run
from infocnf.runs.parsing import apply_settings, parse_config
from infocnf.training.distributed import launch
from infocnf.training.loop import Training

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "docs" / "results" / "cifar10.md"
PARTS = ("compare", "tolerances")
HEAD = "# CIFAR-10"

SEEDS = (0, 1)
SMALLER = (
    "model.hidden=[32,64,128]",
    "model.blocks=2",
    "matching.epochs=5",
    "matching.batch_size=64",
    "matching.ema=0.999",
    "data.validation=200",
    "evaluation.limit=500",
)
# every second channel of the 12 of a whitened patch
SPREAD = [256 * channel + place for channel in range(0, 12, 2) for place in range(256)]
COMPARED: dict[str, tuple[str, ...]] = {
    "all of the code knows the label (CCNF)": ("model.supervised=1.0",),
    "half, the first channels (InfoCNF)": (),
    "half, every second channel": (f"model.supervised_at={SPREAD}",),
    "a tenth": ("model.supervised=0.1",),
    "half, no cross-entropy": ("matching.beta=0",),
}
METRICS = {
    "wrong in one step, %": lambda e: e["one_step"]["error_percent"],
    "wrong through the flow, %": lambda e: e["error_percent"],
    "bits/dim": lambda e: e["bits_per_dim"],
    "marginal": lambda e: e["bits_per_dim_marginal"],
    "evaluations": lambda e: e["nfe_forward"],
}


def compare(arguments: argparse.Namespace) -> str:
    """Arms of the same budget, and a table of their test images."""
    given = (f"data.directory={arguments.data.absolute()}",)
    runner = ExperimentRunner(arguments.out, given, threads=os.cpu_count() or 1, told=tell)
    lines = [f"| | {' | '.join(METRICS)} |", "|---" * (len(METRICS) + 1) + "|"]
    for name, settings in COMPARED.items():
        found = []
        for seed in SEEDS:
            own = (*SMALLER, *settings, f"data.seed={seed}", f"training.seed={seed}")
            recipe = Recipe("cifar10", own)
            runner.make([recipe])
            found.append(json.loads((runner.folder_of(recipe) / "evaluation.json").read_text()))
        cells = [", ".join(f"{metric(each):.4g}" for each in found) for metric in METRICS.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


STEPS = 200
POLICIES: dict[str, Any] = {
    "fixed 1e-5": 1e-5,
    "fixed 1e-3": 1e-3,
    "random": {"name": "random"},
    "budget of 1e-4 bits/dim": {"name": "budget", "error": 1e-4, "every": 8, "samples": 4},
    "learned per batch": {"name": "learned", "per": "batch", "reward": "error", "epsilon": 1e-4},
    "learned per sample": {"name": "learned", "per": "sample", "reward": "error", "epsilon": 1e-4},
}
EXACT = (
    'training.stages=["likelihood"]',
    "training.epochs=1",
    "training.batch_size=8",
    "training.learning_rate=1e-5",
    "training.schedule=constant",
    "training.warmup=0",
    "training.clip=10",
    "objective.beta=0.02",
)
JUDGED = 64  # validation images whose likelihood is compared before and after
REFERENCE = 1e-6


def likelihoods(model: InfoCNF, training: Training) -> torch.Tensor:
    """Bits per dimension of validation images at a tight tolerance, whatever the policy."""
    x, labels = training.take("validation", torch.arange(JUDGED))
    prepared = training.preparation(x, model.dtype)
    with torch.no_grad():
        found = likelihood_objective(
            model.eval(), prepared, labels, levels=training.preparation.levels, tolerance=1e-4
        )
    return found.bits_per_dim.double()


def error_of_training(model: InfoCNF, training: Training) -> float:
    """Mean error of a training batch's bits per dimension, by the same probes at a tight
    tolerance.
    """
    indices = torch.arange(8)
    x, labels = training.take("train", indices)
    seeds = combine_seeds(1, indices)
    prepared = training.preparation(x, model.dtype, seeds)
    with torch.no_grad():
        loose, tight = (
            likelihood_objective(model.train(), prepared, labels, seeds=seeds, tolerance=tolerance)
            for tolerance in (model.policy, REFERENCE)
        )
    return float((loose.bits_per_dim - tight.bits_per_dim).abs().mean())


def continued(run: Run, policy: object) -> dict[str, float]:
    """200 iterations of the exact likelihood from a run's weights under a policy."""
    tables = apply_settings(run.config.model_dump(), EXACT)
    config = parse_config({**tables, "tolerance": policy}, str(run.folder))
    model = load(run.folder, training_tolerance=config.tolerance)
    assert isinstance(model, InfoCNF)
    training = Training(config, model, run.data(), launch(config.trainer))
    before = likelihoods(model, training)
    counts, seconds = [], 0.0
    for _ in range(STEPS):
        began = time.perf_counter()
        training.step()
        seconds += time.perf_counter() - began
        training.batch += 1
        counts.append(training.latest["forward"] + training.latest["backward"])
    change = likelihoods(model, training) - before
    return {
        "evaluations": statistics.mean(counts),
        "seconds": seconds / STEPS,
        "error": error_of_training(model, training),
        "change": float(change.mean()),
        "spread": float(change.std()) / math.sqrt(JUDGED),
    }


def tolerances(arguments: argparse.Namespace) -> str:
    """The policies on a trained model, and their table."""
    path = arguments.out / "tolerances.json"
    kept: dict[str, Mapping[str, float]] = json.loads(path.read_text()) if path.exists() else {}
    lines = [
        "| | evaluations of an iteration | seconds | error, bits/dim | change of bits/dim |",
        "|---|---|---|---|---|",
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, policy in POLICIES.items():
        if name not in kept:
            kept[name] = continued(Run.open(arguments.run), policy)
            write_json(path, kept)
        found = kept[name]
        lines.append(
            f"| {name} | {found['evaluations']:.0f} | {found['seconds']:.1f} "
            f"| {found['error']:.1e} | {found['change']:+.4f} ± {found['spread']:.4f} |"
        )
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> None:
    """Measure one part, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data", type=Path, help="folder with cifar10.npz")
    parser.add_argument("--run", type=Path, default=ROOT / "runs" / "cifar10")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "cifar10-compared")
    arguments = parser.parse_args(given)
    if arguments.part == "compare" and arguments.data is None:
        parser.error("compare needs --data, the folder with cifar10.npz")
    table = {"compare": compare, "tolerances": tolerances}[arguments.part](arguments)
    publish_part(RESULT, HEAD, arguments.part, f"{table}\n\n{machine()}; {commit()}", PARTS)
    print(f"written: {RESULT}")


if __name__ == "__main__":
    main()
