"""How often certificates hold: ``python -m benchmarks.certificate`` compares log-likelihoods of
held-out samples of five models with exact ones, and writes ``docs/results/certificate.md``.

Two models need a run of their own, made by ``infocnf train digits-likelihood --out
runs/digits-likelihood`` and ``infocnf train mnist --out runs/mnist``; ``--only`` leaves
them out.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.measure import machine, publish
from infocnf.flows.bijection import BlockSolve, Traversal
from infocnf.flows.continuous import ContinuousBlock, Traces
from infocnf.models import InfoCNF
from infocnf.objectives import likelihood_objective
from infocnf.ode import solve_path
from infocnf.ode.quadrature import rule
from infocnf.runs import Run
from infocnf.runs.build import build_data

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "docs" / "results" / "certificate.md"
TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
BATCHES = (1, 7)
LARGE = {"MNIST, by matching": (1e-3, 1e-4, 1e-5)}  # tolerances, where a sample takes seconds

HEAD = """# Do certificates hold?

Made by `python -m benchmarks.certificate`. Held-out samples of five models: their log p(x | y)
with its stated bound, in the precision of the model, against a solve in double precision with the
exact trace at 1e-10 (digits at 1e-8; MNIST's path in double precision at 1e-8, and its 784
products at 31 nodes of that path in single precision). *Covered* is the share of samples whose
true error is below the bound (asked: 95 %), the ratio that of the medians of bound and true error
(asked: at most 10). The parts are medians, in nats. *Batches* is the share of samples whose log p
changes by no more than its bound when it is computed alone, among seven, and with one thread
instead of two.
"""
COLUMNS = (
    "| model | tolerance | true error | bound | covered | ratio | solver | quadrature | trace "
    "| rounding | evaluations | products | batches |"
)

Held = tuple[InfoCNF, Tensor, Tensor | None, float]
"""A model, samples and labels, and the tolerance of the truth."""


def plane(count: int) -> Held:
    """Two half circles, by maximum likelihood."""
    from sklearn.datasets import make_moons

    x = torch.tensor(make_moons(2000, noise=0.1, random_state=0)[0])
    x = ((x - x.mean(0)) / x.std(0)).float()
    torch.manual_seed(0)
    model = InfoCNF((2,), hidden=(64, 64), tolerance=1e-3)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(300):
        rows = torch.randint(1500, (256,))
        loss = likelihood_objective(model, x[rows]).loss
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return model.eval(), x[-count:], None, 1e-10


def rows(count: int) -> Held:
    """Wines by 13 columns, as the estimator fits them."""
    from sklearn.datasets import load_wine

    from infocnf.estimators import InfoCNFClassifier

    x, y = load_wine(return_X_y=True)
    fitted = InfoCNFClassifier(random_state=0).fit(x[::2], y[::2])
    held = fitted.preparation_(torch.from_numpy(x[1::2][:, fitted.columns_]), torch.float64)
    return fitted.model_.eval(), held[:count], torch.from_numpy(y[1::2])[:count], 1e-10


def images(run: Path, count: int) -> Held:
    """Test images of a run."""
    opened = Run.open(run)
    data = build_data(opened.config)
    x, labels = data.examples("test")
    model = opened.model().eval()
    held = opened.preparation(x[:count], torch.float32)
    return model, held, next(iter(labels.values()))[:count], 1e-8


MODELS: dict[str, Callable[[int], Held]] = {
    "2-D, by likelihood": plane,
    "wine, by matching": rows,
    "digits, by likelihood": lambda n: images(ROOT / "runs/digits-likelihood", n),
    "digits, by matching": lambda n: images(Path("digits"), n),
    "MNIST, by matching": lambda n: images(ROOT / "runs/mnist", n // 3),
}


def kept_truth(
    folder: Path, model: InfoCNF, x: Tensor, y: Tensor | None, tolerance: float, large: bool
) -> Tensor:
    """Exact log-likelihoods, computed once for a model and its samples."""
    labels = [] if y is None else [y]
    tensors = [*(parameter.detach() for parameter in model.parameters()), x, *labels]
    seen = hashlib.sha256(b"".join(part.numpy().tobytes() for part in tensors))
    file = folder / f"truth-{seen.hexdigest()[:16]}-{tolerance:g}.npy"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.save(file, truth(model, x, y, tolerance, large).numpy())
    return torch.from_numpy(np.load(file))


@torch.no_grad()
def truth(model: InfoCNF, x: Tensor, y: Tensor | None, tolerance: float, large: bool) -> Tensor:
    """Exact log-likelihoods."""
    exact = copy.deepcopy(model).double()
    for block, single in zip(exact.blocks, model.blocks, strict=True):
        block.dynamics.most = math.inf
        if large:
            block.integrate = partial(integrate_exactly, block, single)
    parts = []
    for i in range(0, len(x), 1 if large else 20):
        some = slice(i, i + (1 if large else 20))
        own = None if y is None else y[some]
        parts.append(exact.log_prob(x[some].double(), own, tolerance))
        if large:
            print(f"truth of sample {i + 1} of {len(x)}", flush=True)
    return torch.cat(parts).double()


def integrate_exactly(
    block: ContinuousBlock,
    single: ContinuousBlock,
    x: Tensor,
    seeds: Tensor,
    traversal: Traversal,
) -> tuple[Tensor, Tensor]:
    """Final states and log-determinants of a block: the path in double precision, exact traces at
    nodes of it in single precision, which is precise enough for a sum and many times faster.
    """
    choice, tolerance, options = block.plan(x, traversal)
    path = solve_path(block.field, x, tolerance=tolerance, options=options)
    nodes, weights = rule(31)
    times, total = (nodes + 1.0) / 2.0, torch.zeros(len(x), dtype=torch.float64)
    traces = Traces(single, x.float(), (), seeds, None)
    for row in range(len(x)):
        for time, weight in zip(times, weights / 2.0, strict=True):
            who, when = np.array([row]), np.array([time])
            found = traces(who, when, path.states(who, when).float())
            total[row] += float(weight) * found[0, 1].double()
    traversal.solves.append(BlockSolve(block.index, choice, path.solution))
    assert isinstance(path.solution.state, Tensor)
    return path.solution.state, total


@torch.no_grad()
def same_in_batches(
    model: InfoCNF, x: Tensor, y: Tensor | None, tolerance: float, found: Tensor, bound: Tensor
) -> float:
    """Share of samples whose answer in other batches differs by no more than its bound."""
    worst = torch.zeros_like(found)
    threads = torch.get_num_threads()
    for size in BATCHES:
        torch.set_num_threads(1)
        for i in range(0, len(x), size):
            some = slice(i, i + size)
            own = model.log_prob(x[some], None if y is None else y[some], tolerance)
            worst[some] = torch.maximum(worst[some], (own.double() - found[some]).abs())
        torch.set_num_threads(threads)
    return float((worst <= bound).double().mean())


@torch.no_grad()
def lines_of(name: str, held: Held, tolerances: tuple[float, ...], batches: int) -> list[str]:
    """A row for each tolerance."""
    model, x, y, finest = held
    exact = kept_truth(ROOT / "outputs/truth", model, x, y, finest, name in LARGE)
    lines = []
    for tolerance in tolerances:
        found, error = model.log_prob(x, y, tolerance, error=True)
        found, bound = found.double(), error.total.double()
        true = (found - exact).abs()
        stats = model.encode(x[:10], tolerance=tolerance).stats
        assert stats is not None
        few = slice(0, 5 if name in LARGE else batches)
        own = None if y is None else y[few]
        same = same_in_batches(model, x[few], own, tolerance, found[few], bound[few])
        parts = error.parts()
        cells = [
            f"{name}, {len(x)} samples",
            f"{tolerance:.0e}",
            f"{float(true.median()):.1e}",
            f"{float(bound.median()):.1e}",
            f"{100 * float((true <= bound).double().mean()):.0f} %",
            f"{float(bound.median() / true.median()):.1f}",
            *(f"{float(part.median()):.0e}" for n, part in parts.items() if n != "total"),
            f"{float(stats.forward.double().mean()):.0f}",
            f"{float(stats.products.double().mean()):.0f}",
            f"{100 * same:.0f} % of {len(x[few])}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--tolerances", type=float, nargs="*", default=TOLERANCES)
    parser.add_argument("--batches", type=int, default=21)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    lines = [COLUMNS, "|---" * (COLUMNS.count("|") - 1) + "|"]
    for name in arguments.only:
        held = MODELS[name](arguments.samples)
        tolerances = LARGE.get(name, tuple(arguments.tolerances))
        lines += lines_of(name, held, tolerances, arguments.batches)
        publish(arguments.out, [HEAD, machine(), "\n".join(lines)])
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    main()
