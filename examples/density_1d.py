"""Fit a continuous flow to a mixture of three Gaussians by maximum likelihood, and look at what it
learned.

    python examples/density_1d.py [--iterations 400] [--seed 0] [--out outputs/density_1d.png]

The mixture is the paper's: equal weights, means -2.8, -0.9 and 2.0, variance 0.4. The picture shows
the learned density over the true one, and how far the area under it is from 1 at each tolerance of
the solver.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor

from infocnf import InfoCNF
from infocnf.data.synthetic import MEANS, VARIANCE, mixture_log_density
from infocnf.objectives import likelihood_objective


def draw(count: int, generator: torch.Generator) -> Tensor:
    """Numbers from the mixture, ``(count, 1)``."""
    component = torch.randint(3, (count,), generator=generator)
    noise = torch.randn(count, generator=generator, dtype=torch.float64)
    return (torch.tensor(MEANS)[component] + math.sqrt(VARIANCE) * noise).unsqueeze(1)


def true_log_density(x: Tensor) -> Tensor:
    """Logarithm of the mixture's density at ``x`` of shape ``(batch, 1)``."""
    return torch.from_numpy(mixture_log_density(x[:, 0].numpy()))


def train(model: InfoCNF, iterations: int, generator: torch.Generator) -> None:
    """Maximise the likelihood of fresh numbers from the mixture."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, iterations)
    model.train()
    for iteration in range(1, iterations + 1):
        objective = likelihood_objective(model, draw(512, generator))
        optimiser.zero_grad()
        objective.loss.backward()
        optimiser.step()
        schedule.step()
        if iteration % 20 == 0 or iteration == iterations:
            done = round(30 * iteration / iterations)
            nats = -objective.log_prob.mean().item()
            nfe = int(objective.stats.evaluations)
            bar = "#" * done + "." * (30 - done)
            end = "\n" if iteration == iterations else ""
            print(
                f"\r{bar} {iteration}/{iterations}  {nats:.3f} nats  NFE {nfe}", end=end, flush=True
            )
    model.eval()


def areas(model: InfoCNF, tolerances: list[float]) -> list[float]:
    """Area under the learned density on [-15, 15] at each tolerance, by the trapezoidal rule."""
    grid = torch.linspace(-15.0, 15.0, 3001).unsqueeze(1)
    found = []
    with torch.no_grad():
        for tolerance in tolerances:
            density = model.log_prob(grid, tolerance=tolerance).exp()
            found.append(torch.trapezoid(density, grid[:, 0]).item())
    return found


def plot(model: InfoCNF, tolerances: list[float], found: list[float], path: Path) -> None:
    """Draw the densities and the errors of the area."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    x = torch.linspace(-6.0, 5.0, 600).unsqueeze(1)
    with torch.no_grad():
        learned = model.log_prob(x).exp()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 3.8), width_ratios=(3, 2), layout="constrained"
    )
    left.fill_between(x[:, 0], true_log_density(x).exp(), color="0.85", label="true density")
    left.plot(x[:, 0], learned, color="C3", linewidth=2, label="learned by the flow")
    left.set(xlabel="x", ylabel="density", ylim=(0, 0.27))
    left.set_title("A continuous flow fitted to three Gaussians")
    left.legend(frameon=False, loc="upper left", ncols=2)
    right.loglog(tolerances, [max(abs(area - 1.0), 1e-12) for area in found], "o-", color="C0")
    right.set(xlabel="tolerance of the solver", ylabel="|area - 1|")
    right.set_title("Area under the learned density")
    right.invert_xaxis()
    right.grid(alpha=0.3)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}")
    figure.savefig(draft, dpi=130, format="png")
    draft.replace(path)


def main() -> None:
    """Train, measure, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("outputs/density_1d.png"))
    arguments = parser.parse_args()

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(arguments.seed)
    generator = torch.Generator().manual_seed(arguments.seed)
    model = InfoCNF((1,), hidden=(32, 32), activation="tanh", blocks=1)

    print("Fitting a continuous flow to a mixture of three Gaussians by maximum likelihood.")
    train(model, arguments.iterations, generator)

    test = draw(10_000, torch.Generator().manual_seed(arguments.seed + 1))
    with torch.no_grad():
        ours, best = -model.log_prob(test).mean().item(), -true_log_density(test).mean().item()
    tolerances = [10.0**-k for k in range(1, 9)]
    found = areas(model, tolerances)
    plot(model, tolerances, found, arguments.out)

    print(
        f"negative log-likelihood of 10,000 new numbers: {ours:.4f} nats (true density: {best:.4f})"
    )
    print(f"area under the learned density at tolerance 1e-5: {found[4]:.7f}")
    print(f"picture: {arguments.out}")


if __name__ == "__main__":
    main()
