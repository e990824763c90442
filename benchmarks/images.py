"""What each choice of the recipe for images is worth: ``python -m benchmarks.images --data FOLDER``
trains CIFAR-10 for a few minutes with and without it, and writes ``docs/results/images.md``.

Every arm trains for the same time, measured by its own steps, and ends with a learning rate of
nearly nothing. What is compared is a bound on the bits per dimension of validation images that
needs no solver (Kingma et al. 2021): a diffusion that knows the noise as well as the field says has

    -log p(x) <= 1/2 int E |z - E[z | z_t]|^2 d lambda + const,    lambda = 2 log((1 - t) / t),

and a flow that was matched is about as likely. Arms that are in the file already are kept.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.peers.measure import commit, machine, publish
from infocnf.files import write
from infocnf.flows import Traversal
from infocnf.matching.loss import place_codes
from infocnf.models import InfoCNF
from infocnf.runs.build import build_data, build_model, settle
from infocnf.runs.parsing import read_config
from infocnf.tolerances import Fixed
from infocnf.training.distributed import launch
from infocnf.training.loop import Training

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "docs" / "results" / "images.md"
EARLIEST, LATEST = 0.005, 0.93  # times between which the bound is integrated
WARM = 10  # steps before the pace of an arm is measured, by twice as many
BATCH = 250

HEAD = """# What each choice of the recipe for images is worth

Made by `python -m benchmarks.images`. CIFAR-10, 1,000 validation images, one seed, {minutes:g}
minutes of training for each row; a row differs from the first in what it says. *Bits* are a bound
by the errors of the field, which needs no solver; *labels* are read in one step.
"""
COMMON = ("matching.batch_size=64", "matching.epochs=1", "data.validation=1000")
ARMS: dict[str, tuple[str, ...]] = {
    "the recipe": (),
    "no labels": ("model.supervised=0",),
    "float32": ("matching.precision=float32",),
    "patches not whitened": ("model.whiten=false",),
    "times in the middle (`logit_normal`)": ("matching.times=logit_normal",),
    "time, not log-SNR": ("model.time=concat",),
    "Adam at 4e-3": ("matching.optimizer=adam", "matching.learning_rate=4e-3"),
    "rate 5e-3": ("matching.learning_rate=5e-3",),
    "rate 2e-2": ("matching.learning_rate=2e-2",),
    "batches of 32": ("matching.batch_size=32",),
    "batches of 128": ("matching.batch_size=128",),
    "widths 64, 128, 256, two blocks": ("model.hidden=[64,128,256]", "model.blocks=2"),
    "widths 128, two blocks": ("model.hidden=[128,128,128]", "model.blocks=2"),
    "widths 256, two resolutions": ("model.hidden=[256,256]",),
    "patterns three times as far apart": ("model.separation=0.6",),
    "twice the share of labels": ("matching.share=0.5",),
    "cross-entropy times 5": ("matching.beta=0.2",),
    "images not moved": ("matching.shift=0",),
}


@torch.no_grad()
def bound(model: InfoCNF, x: Tensor, labels: Mapping[str, Tensor], levels: int) -> float:
    """Bits per dimension of prepared images, whose times are evenly spread."""
    first, last = (math.log(t / (1.0 - t)) for t in (EARLIEST, LATEST))
    seeds = torch.Generator().manual_seed(0)
    places = (torch.randperm(len(x), generator=seeds) + 0.5) / len(x)
    times = torch.sigmoid(first + (last - first) * places)
    field, error, log_det = model.flow.single[1].matched_field, 0.0, 0.0
    for rows in torch.arange(len(x)).split(BATCH):
        state, t = x[rows], times[rows]
        for part in model.flow.single[0]:
            state, found = part(state, Traversal(Fixed()))
            log_det += float(found.sum())
        noise = torch.randn(state.flatten(1).shape, generator=seeds)
        mine = {name: y[rows] for name, y in labels.items() if name in model.code.heads}
        z = place_codes(model, noise, mine, state)
        between = torch.lerp(state, z, t.view(-1, 1, 1, 1))
        wrong = (field(t, between) - (z - state)).square().flatten(1).mean(1)
        error += float(((1.0 - t).square() * wrong).sum())
    entropy = 0.5 * math.log(2.0 * math.pi * math.e) + first
    nats = entropy + (last - first) * error / len(x) - log_det / x.numel() + math.log(levels)
    return nats / math.log(2.0)


def train(settings: tuple[str, ...], minutes: float) -> dict[str, float]:
    """An arm: how it stands after so many minutes of training."""
    config = read_config("cifar10", [*COMMON, *settings])
    data = build_data(config)
    pace = Training(settle(config, data), build_model(config, data), data, launch(config.trainer))
    began = 0.0
    for step in range(3 * WARM):
        if step == WARM:
            began = time.perf_counter()
        pace.step()
        pace.batch += 1
    steps = int(60.0 * minutes / (time.perf_counter() - began) * 2 * WARM)
    limit = min(steps * config.matching.batch_size, len(data.parts["train"]))
    config = read_config("cifar10", [*COMMON, *settings, f"data.limit={limit}"])
    data = build_data(config)
    config = settle(config, data)
    training = Training(config, build_model(config, data), data, launch(config.trainer))
    began = time.perf_counter()
    last = training.stage.sampler.steps - 1  # after which a prior would be fitted
    while training.batch < last:
        training.step()
        training.batch += 1
    seconds = time.perf_counter() - began

    model = training.evaluated.eval()
    assert isinstance(model, InfoCNF)
    x, labels = training.take("validation", torch.arange(1000))
    prepared = torch.cat([training.preparation(part, model.dtype) for part in x.split(BATCH)])
    found = {"images": float(last * config.matching.batch_size), "seconds": seconds}
    found["bits"] = bound(model, prepared, labels, training.preparation.levels)
    if model.code.heads:
        with torch.no_grad():
            read = torch.cat([model.predict(p, readout="one_step") for p in prepared.split(BATCH)])
        found["error"] = 100.0 * float((read != labels["label"]).double().mean())
    return found


def table_of(found: Mapping[str, Mapping[str, float]]) -> str:
    """A row for each arm."""
    lines = ["| | bits/dim, bound | labels wrong, % | images a second |", "|---|---|---|---|"]
    for name, arm in found.items():
        wrong = f"{arm['error']:.1f}" if "error" in arm else ""
        pace = arm["images"] / arm["seconds"]
        lines.append(f"| {name} | {arm['bits']:.3f} | {wrong} | {pace:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Train all arms that are not there yet, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with cifar10.npz")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "images.json")
    arguments = parser.parse_args()

    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name, settings in ARMS.items():
        if name not in found:
            given = f"data.directory={arguments.data.absolute()}"
            found[name] = {**train((given, *settings), arguments.minutes), "commit": commit()}
            write(arguments.out, json.dumps(found, indent=2).encode())
            print(name, found[name], flush=True)
    publish(RESULT, [HEAD.format(minutes=arguments.minutes), machine(), table_of(found)])
    print(f"written: {RESULT}")


if __name__ == "__main__":
    main()
