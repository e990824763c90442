"""Passengers against quadrature of a known path, and seeds that make an objective a function of its
samples.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from infocnf import Categorical, InfoCNF
from infocnf.flows import ContinuousBlock, Traversal
from infocnf.flows.bijection import FlowStats
from infocnf.objectives import likelihood_objective, path_penalty
from infocnf.random import combine_seeds, draw_uniform
from infocnf.tolerances import Fixed


class Turn(nn.Module):
    """A rotation: speed and Jacobian norm are constant along every path."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(rate))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return self.rate * torch.stack([-z[:, 1], z[:, 0]], 1)


@pytest.mark.parametrize("trace", ["exact", "hutchinson"])
def test_auxiliary_integrals_are_the_energy_and_the_jacobian_norm_of_a_rotation(trace: str) -> None:
    block = ContinuousBlock(Turn(3.0), (2,), trace=trace)
    x = torch.randn(5, 2)
    travel = Traversal(Fixed(1e-8), seeds=torch.arange(5), auxiliary=True)
    block(x, travel)
    energy, norm = travel.solves[0].auxiliary
    torch.testing.assert_close(energy, 9.0 * x.square().mean(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(norm, torch.full((5,), 9.0), rtol=1e-6, atol=0)  # |J|^2 / D

    stats = FlowStats(tuple(travel.solves))
    torch.testing.assert_close(path_penalty(stats, 2.0, 0.5), 2.0 * energy + 0.5 * norm)


def test_the_penalty_has_the_gradient_of_a_finite_difference_and_costs_no_steps() -> None:
    model = InfoCNF((3,), hidden=(8,), blocks=2, tolerance=1e-9).train()
    x, seeds = torch.randn(6, 3), torch.arange(6)

    def loss(weight: float) -> tuple[Tensor, Tensor]:
        for block in model.flow.blocks:
            block.first_step = None
        done = likelihood_objective(model, x, kinetic=weight, jacobian=weight, seeds=seeds)
        return done.loss, done.stats.forward

    (plain, steps), (penalised, same) = loss(0.0), loss(0.3)
    assert steps == same and penalised > plain
    model.zero_grad()
    penalised.backward()
    weight = next(model.flow.parameters())
    slope, h = weight.grad[0, 0].item(), 1e-5
    with torch.no_grad():
        weight[0, 0] += h
        above = loss(0.3)[0]
        weight[0, 0] -= 2 * h
        below = loss(0.3)[0]
    assert slope == pytest.approx((above - below).item() / (2 * h), rel=1e-4)


def test_with_seeds_a_sample_is_treated_alike_in_every_batch() -> None:
    model = InfoCNF((1, 4, 4), {"kind": Categorical(3)}, hidden=(4,), tolerance=1e-9).train()
    for parameter in model.code.parameters():
        nn.init.normal_(parameter)
    x, y = torch.rand(6, 1, 4, 4), torch.arange(6) % 3
    seeds = combine_seeds(7, torch.arange(6))
    whole = likelihood_objective(model, x, y, seeds=seeds).losses
    again = [
        likelihood_objective(model, x[part], y[part], seeds=seeds[part]).losses
        for part in (slice(0, 2), slice(2, 6))
    ]
    torch.testing.assert_close(torch.cat(again), whole, rtol=1e-6, atol=1e-6)
    other = likelihood_objective(model, x, y, seeds=seeds + 1).losses
    assert (other - whole).abs().min() > 1e-6


def test_uniform_numbers_are_uniform_and_unrelated_between_seeds_and_streams() -> None:
    seeds = combine_seeds(3, torch.arange(4000))
    first, second = (draw_uniform(seeds, torch.zeros(4000, 2), stream) for stream in (0, 1))
    counts = torch.histc(first, bins=20, min=0.0, max=1.0)
    assert ((counts - 400).square() / 400).sum() < 50  # chi-squared with 19 degrees of freedom
    both = torch.stack([first[:, 0], first[:, 1], second[:, 0], first[:, 0].roll(1)])
    assert (torch.corrcoef(both) - torch.eye(4)).abs().max() < 0.07
