"""NFE of one training iteration of the paper's MNIST model, and what makes them fewer than the
reference's: ``python -m benchmarks.mnist_nfe RUN --reference CURVES.csv``.

RUN is a run of the preset ``paper-mnist``, trained for as many iterations as the reference's
first epoch. Each row changes one thing, on the same weights, images and probes.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.peers.measure import machine, publish
from benchmarks.peers.peers import Augmented
from infocnf import InfoCNF
from infocnf.experiments.analysis import read_rows
from infocnf.flows import ContinuousBlock
from infocnf.objectives import likelihood_objective
from infocnf.ode.divergence import draw_probes
from infocnf.random import combine_seeds
from infocnf.runs import Run, checkpoints
from infocnf.runs.build import build_model

RESULT = Path(__file__).parent.parent / "docs" / "results" / "mnist-nfe.md"
TOLERANCE = 1e-5

HEAD = """# NFE of the paper's MNIST model

Made by `python -m benchmarks.mnist_nfe`. The 10-block model of the preset `paper-mnist` at
tolerance 1e-5: field evaluations of one training iteration, summed over the blocks, in a batch of
{batch} images (shared steps). The reference's log has **{reference}** (forward + backward) for its
first epoch of 67 iterations at batch 900.
"""


def count_ours(
    model: InfoCNF, x: Tensor, y: Tensor, seeds: Tensor, gradient: str, warm: bool
) -> tuple[int, int]:
    """Forward and backward evaluations of this package."""
    model.gradient = gradient
    if not warm:
        for block in model.flow.blocks:
            block.first_step = None
    stats = None
    for _ in range(4 if warm else 1):  # each warms the next
        model.zero_grad()
        objective = likelihood_objective(model, x, y, levels=256, seeds=seeds, tolerance=TOLERANCE)
        objective.loss.backward()
        stats = objective.stats
    assert stats is not None
    return int(stats.forward), int(stats.backward)


def block_traffic(
    model: InfoCNF, x: Tensor, y: Tensor, seeds: Tensor
) -> list[tuple[ContinuousBlock, Tensor, Tensor, Tensor]]:
    """What enters each block, and the gradients that come back to what leaves it."""
    seen: list[tuple[ContinuousBlock, Tensor, Tensor, Tensor]] = []

    def record(block: ContinuousBlock, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        for output in outputs:
            output.retain_grad()
        seen.append((block, inputs[0].detach(), outputs[0], outputs[1]))

    handles = [block.register_forward_hook(record) for block in model.flow.blocks]
    model.gradient = "checkpoint"
    likelihood_objective(model, x, y, levels=256, seeds=seeds, tolerance=TOLERANCE).loss.backward()
    for handle in handles:
        handle.remove()
    return [(b, z, out.grad, change.grad) for b, z, out, change in seen]  # type: ignore[misc]


def count_torchdiffeq(model: InfoCNF, x: Tensor, y: Tensor, seeds: Tensor) -> tuple[int, int]:
    """The same blocks by torchdiffeq's dopri5 and continuous adjoint, as FFJORD solves them."""
    from torchdiffeq import odeint_adjoint

    forward = backward = 0
    for block, z, gradient, gradient_log_det in block_traffic(model, x, y, seeds):
        probes = draw_probes(seeds, z, 1, stream=block.index).transpose(0, 1)
        field = Augmented(block.dynamics.field, probes, stacked=False)
        start = z.clone().requires_grad_()
        path, change = odeint_adjoint(
            field,
            (start, z.new_zeros(len(z))),
            z.new_tensor([0.0, 1.0]),
            rtol=TOLERANCE,
            atol=TOLERANCE,
            method="dopri5",
        )
        forward += field.evaluations
        before = field.evaluations
        torch.autograd.backward([path[-1], change[-1]], [gradient, gradient_log_det])
        backward += field.evaluations - before
    return forward, backward


def table(model: InfoCNF, x: Tensor, y: Tensor, seeds: Tensor) -> str:
    """One row per way to solve."""
    rows = [
        ("this package: warm start, discrete gradient", count_ours, ("checkpoint", True)),
        ("without warm start", count_ours, ("checkpoint", False)),
        ("without warm start, continuous adjoint", count_ours, ("adjoint", False)),
        ("torchdiffeq, continuous adjoint (FFJORD's way)", count_torchdiffeq, ()),
    ]
    lines = ["| | forward | backward | together |", "|---|---|---|---|"]
    for name, count, options in rows:
        forward, backward = count(model, x, y, seeds, *options)  # type: ignore[operator]
        lines.append(f"| {name} | {forward} | {backward} | {forward + backward} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Count, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--images", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with arguments.reference.open() as stream:
        reference = next(csv.DictReader(stream))["nfe_ema"]

    run = Run.open(arguments.run)
    data, preparation = run.data(), run.preparation
    raw, labels = data.examples("train")
    seeds = combine_seeds(0, torch.arange(arguments.images))
    x = preparation(raw[: arguments.images], torch.float32, seeds)
    y = labels["label"][: arguments.images]

    fresh = build_model(run.config, data).train()
    trained = build_model(run.config, data).train()
    saved = checkpoints.read(run.folder / "checkpoints" / "last.ckpt")
    trained.load_state_dict(saved["weights"]["model"])
    epoch = read_rows(run.folder)[0]
    logged = epoch["nfe_forward"] + epoch["nfe_backward"]

    parts = [HEAD.format(batch=arguments.images, reference=reference), machine()]
    for title, model in (
        ("Weights as initialised", fresh),
        (f"After {saved['steps']} iterations", trained),
    ):
        print(title)
        parts += [f"## {title}", table(model, x, y, seeds)]
    parts.append(
        f"Over the {saved['steps']} iterations of that run (batch "
        f"{run.config.training.batch_size}, learning rate warming up as in the preset) the mean of "
        f"`metrics.csv` is {logged:.0f}: {epoch['nfe_forward']:.0f} forward and "
        f"{epoch['nfe_backward']:.0f} backward."
    )
    publish(RESULT, parts)
    print(f"written: {RESULT}")


if __name__ == "__main__":
    main()
