"""Series at irregular times: which speed has an oscillation, and where does it go?

python examples/series.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from infocnf import Categorical, LatentODE
from infocnf.objectives import variational_objective


def oscillations(count: int, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Slow and fast ones with noise, each seen at its own times: ``(count, rows, 3)``, labels."""
    draw = torch.Generator().manual_seed(seed)
    times = torch.rand(count, rows, generator=draw).sort(1).values * 3.0
    times = times - times[:, :1]
    fast = torch.arange(count) % 2
    phase = 6.28 * torch.rand(count, 1, generator=draw)
    angle = (1.0 + fast[:, None]) * times + phase
    values = torch.stack([angle.cos(), angle.sin()], 2)
    values = values + 0.1 * torch.randn(values.shape, generator=draw)
    return torch.cat([times.unsqueeze(2), values], 2), fast


def main(steps: int = 600) -> dict[str, float]:
    """Train, read the speed of new series, go on beyond their end."""
    torch.manual_seed(0)
    series, fast = oscillations(128, 20, seed=0)
    model = LatentODE(
        2, {"speed": Categorical(2)}, 0.5, latent=4, encoder="gru", noise=0.1, separation=1.0
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        seeds = torch.randint(2**62, (len(series),))
        variational_objective(model, series, fast, beta=50.0, seeds=seeds).loss.backward()
        optimiser.step()
    model.eval()

    new, speed = oscillations(64, 20, seed=1)
    half = new[:, :10]  # the model sees the first half
    beyond = model.reconstruct(half, new[:, 10:, 0], tolerance=1e-4)
    last = half[:, -1:, 1:].expand_as(beyond)  # or the series stays where it was

    def error(found: Tensor) -> float:
        return float((found - new[:, 10:, 1:]).square().mean().sqrt())

    return {
        "wrong speeds, %": 100.0 * float((model.predict(new) != speed).float().mean()),
        "rmse beyond the end": error(beyond.detach()),
        "rmse of standing still": error(last),
    }


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name:<24} {value:.3f}")
