"""The flows that are measured, trained by maximum likelihood until their fields have bent; kept in
a folder, so that a second run starts at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.peers.peers import base_loss
from infocnf.flows import Traversal
from infocnf.models import InfoCNF
from infocnf.random import combine_seeds
from infocnf.tolerances import Fixed

__all__ = ["FLOWS", "Bench", "prepare"]


@dataclass(frozen=True)
class Recipe:
    """A flow, its data and how long it is trained.

    Arguments:
        data: Makes the samples ``(count, *shape)``.
        arguments: Of :class:`InfoCNF`, besides the shape.
        steps: Training steps.
        batch: Samples of a training step.
    """

    data: Callable[[], Tensor]
    arguments: dict[str, Any]
    steps: int
    batch: int


@dataclass(frozen=True)
class Bench:
    """A trained flow and data it has not seen."""

    flow: nn.Module
    test: Tensor


def moons() -> Tensor:
    """Two interleaved half circles, in the plane."""
    from sklearn.datasets import make_moons

    x, _ = make_moons(12000, noise=0.05, random_state=0)
    return standardised(x)


def components() -> Tensor:
    """Handwritten digits by their 43 leading principal components: as many columns as MiniBooNE,
    the customary table, has.
    """
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA

    return standardised(PCA(43, whiten=True, random_state=0).fit_transform(load_digits().data))


def images(size: int) -> Callable[[], Tensor]:
    """Handwritten digits with pixels in (0, 1), enlarged to ``size``."""

    def make() -> Tensor:
        from sklearn.datasets import load_digits

        x = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 17.0
        if size != 8:
            x = F.interpolate(x, size=(size, size), mode="bilinear")
        noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
        return (x + noise / 17.0).clamp(1e-3, 1 - 1e-3)

    return make


def standardised(x: np.ndarray) -> Tensor:
    """Columns of mean 0 and deviation 1."""
    return torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)


IMAGE = {"blocks": 1, "hidden": (32, 32, 32), "trace": "hutchinson"}
FLOWS = {
    "2-D": Recipe(moons, {"blocks": 2, "hidden": (64, 64, 64)}, 400, 256),
    "43-D": Recipe(
        components, {"blocks": 2, "hidden": (128, 128), "trace": "hutchinson"}, 200, 256
    ),
    "8x8": Recipe(images(8), IMAGE, 250, 64),
    "28x28": Recipe(images(28), IMAGE, 120, 16),
    "28x28, untrained": Recipe(images(28), IMAGE, 0, 16),
}


def prepare(name: str, folder: Path, say: Callable[[str], None]) -> Bench:
    """A flow trained, or read from the folder where it has been before."""
    recipe = FLOWS[name]
    torch.manual_seed(0)
    data = recipe.data()
    train, test = data[: len(data) * 3 // 4], data[len(data) * 3 // 4 :]
    flow = InfoCNF(tuple(data.shape[1:]), **recipe.arguments).flow
    kept = folder / f"flow-{name}-{recipe.steps}.safetensors"
    if not recipe.steps:
        return Bench(flow, test)
    if kept.exists():
        flow.load_state_dict(load_file(kept))
        return Bench(flow, test)

    optimiser = torch.optim.Adam(flow.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.steps)
    for step in range(recipe.steps):
        rows = torch.randint(len(train), (recipe.batch,))
        traversal = Traversal(
            Fixed(1e-3),
            {"stepping": "shared", "method": "bosh3"},
            seeds=combine_seeds(step, rows),
            warm=True,
        )
        loss = base_loss(*flow(train[rows], traversal))
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 10.0)
        optimiser.step()
        schedule.step()
        if step % 50 == 0 or step == recipe.steps - 1:
            say(f"training the {name} flow: step {step + 1} of {recipe.steps}, loss {loss:.3f}")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(flow.state_dict(), kept)

    return Bench(flow, test)
