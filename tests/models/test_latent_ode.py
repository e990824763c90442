"""The partitioned latent ODE: times, batches, missing values, divergences, labels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from infocnf import Categorical, LatentODE, Real, load
from infocnf.models.code import FactorHead
from infocnf.networks.encoders import ENCODERS, SeriesEncoder, backwards
from infocnf.objectives import variational_objective
from infocnf.objectives.variational import excerpt, gaussian_kl, supervised_kl
from infocnf.ode import solve
from infocnf.random import Stream, combine_seeds, draw_normal
from infocnf.tolerances import Learned

FACTORS = {"amount": Real(2.0, 0.5), "way": Categorical(3, (0.2, 0.3, 0.5))}


def make(**arguments: Any) -> LatentODE:
    torch.manual_seed(0)
    own = {"factors": FACTORS, "supervised": 0.6, "noise": None, **arguments}
    model = LatentODE(2, **own).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def series(lengths: list[int], regular: bool = False) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    rows = max(lengths)
    gaps = torch.rand(len(lengths), rows, generator=draw, dtype=torch.float64) + 0.1
    times = torch.arange(rows).expand(len(lengths), -1) * 0.2 if regular else gaps.cumsum(1) * 0.2
    values = torch.randn(len(lengths), rows, 2, generator=draw, dtype=torch.float64)
    values[torch.rand(values.shape, generator=draw) < 0.1] = torch.nan
    values[:, 0] = 1.0
    whole = torch.cat([times.double().unsqueeze(2), values], 2)
    for i, length in enumerate(lengths):
        whole[i, length:] = torch.nan
    return whole


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_series_does_not_depend_on_its_batch(encoder: str) -> None:
    model = make(encoder=encoder)
    x = series([5, 9, 3, 9])
    y = {"amount": torch.tensor([1.0, 2.0, 3.0, 2.5]), "way": torch.tensor([0, 1, 2, 1])}
    seeds = combine_seeds(0, torch.arange(4))
    whole = variational_objective(model, x, y, seeds=seeds, tolerance=1e-6)
    for i in range(4):
        mine = {name: label[i : i + 1] for name, label in y.items()}
        rows = 5 if i == 0 else 9
        alone = variational_objective(
            model, x[i : i + 1, :rows], mine, seeds=seeds[i : i + 1], tolerance=1e-6
        )
        torch.testing.assert_close(alone.losses[0], whole.losses[i], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(alone.elbo[0], whole.elbo[i], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_what_lies_after_the_end_or_is_missing_is_not_read(encoder: str) -> None:
    torch.manual_seed(0)
    network = SeriesEncoder(2, 7, encoder).double()
    x = series([6, 4])
    longer = torch.cat([x, torch.full((2, 3, 3), torch.nan, dtype=torch.float64)], 1)
    torch.testing.assert_close(network(longer), network(x), rtol=1e-12, atol=1e-12)
    assert network(x).isfinite().all()
    inputs, lengths = backwards(x)
    assert lengths.tolist() == [6, 4]
    gaps = x[0, :6, 0].diff().flip(0)
    torch.testing.assert_close(inputs[0, 1:, -1], gaps)
    torch.testing.assert_close(inputs[1, 0, :2], x[1, 3, 1:].nan_to_num())


def test_irregular_times_are_those_of_a_regular_grid_that_holds_them() -> None:
    model = make()
    z = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    grid = torch.linspace(-2.0, 4.0, 61, dtype=torch.float64)
    whole, _ = model.decode(z, grid, tolerance=1e-9)
    chosen = torch.tensor([[0, 7, 31, 60], [3, 22, 23, 59], [1, 20, 21, 60]])
    few, _ = model.decode(z, grid[chosen], tolerance=1e-9)
    expected = whole.gather(1, chosen.unsqueeze(2).expand(-1, -1, 2))
    torch.testing.assert_close(few, expected, rtol=0, atol=1e-7)


def test_the_path_is_that_of_the_field_before_and_after() -> None:
    model = make()
    z = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found, _ = model.decode(z, torch.tensor([-1.5, 0.0, 2.5], dtype=torch.float64), tolerance=1e-9)
    for i, time in enumerate((-1.5, 0.0, 2.5)):
        state = solve(
            lambda t, z: model.block.field.layers(z),
            z,
            (0.0, time),
            tolerance=1e-10,
            gradient="backprop",
        ).state
        torch.testing.assert_close(found[:, i], model.decoder(state), rtol=0, atol=1e-7)


def test_training_follows_the_whole_series_from_a_state_within_it() -> None:
    model, x = make(noise=0.5).train(), series([12, 7])
    seeds = combine_seeds(0, torch.arange(2))
    seen = excerpt(x, 0.3, seeds)
    for part, whole in zip(seen, x, strict=True):  # rows of the series, one after the other
        rows = part[part[:, 0].isfinite()]
        first = int((whole[:, 0] == rows[0, 0]).nonzero())
        torch.testing.assert_close(rows, whole[first : first + len(rows)], equal_nan=True)
        assert 2 <= len(rows) < 12
    assert (seen[:, 0, 0] > x[:, 0, 0]).any()  # else the times below are the same anyway

    found = variational_objective(model, x, shortest=0.3, seeds=seeds, tolerance=1e-9)
    posterior = model.encode(seen)
    z = posterior.draw(draw_normal(seeds, posterior.mean, Stream.NOISE))
    start = model.code.merge(*model.split(z))
    for i in range(2):
        there = x[i, :, 1:].isfinite()
        total = 0.0
        for row in x[i][x[i, :, 0].isfinite()]:
            state = solve(
                lambda t, z: model.block.field.layers(z),
                start[i : i + 1],
                (float(seen[i, 0, 0]), float(row[0])),
                tolerance=1e-10,
                gradient="backprop",
            ).state
            total += (model.decoder(state)[0] - row[1:]).square().nansum().item()
        assert float(found.mse[i]) == pytest.approx(total / float(there.sum()), rel=1e-6)

    again = variational_objective(model, x, seeds=seeds, tolerance=1e-9)
    assert not torch.equal(again.losses, found.losses)
    one, two = (
        variational_objective(model.eval(), x, shortest=s, seeds=seeds).losses for s in (0.3, 1.0)
    )
    torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_labels_that_are_kept_apart_have_a_fixed_prior() -> None:
    model = make(separation=2.0, latent=8)
    for head in model.code.heads.values():
        assert not head.prior.weight.requires_grad and head.patterns.abs().max() == 2.0


def test_gradients_reach_every_weight_and_are_finite_differences() -> None:
    model = make()
    x = series([6, 8])
    y = {"amount": torch.tensor([1.0, 2.0]), "way": torch.tensor([0, 2])}
    seeds = combine_seeds(0, torch.arange(2))

    def loss() -> Tensor:
        return variational_objective(model, x, y, beta=0.7, seeds=seeds, tolerance=1e-9).loss

    loss().backward()
    draw = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        direction = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        values = []
        with torch.no_grad():
            for step in (1e-5, -2e-5):
                parameter += step * direction
                values.append(loss())
            parameter += 1e-5 * direction
        found = (parameter.grad * direction).sum()
        torch.testing.assert_close(found, (values[0] - values[1]) / 2e-5, rtol=1e-4, atol=1e-6)


def test_tolerances_of_series_are_learned() -> None:
    model = make(training_tolerance=Learned(reward="error", every=1, samples=2)).train()
    x = series([6, 8, 5])
    y = {"amount": torch.tensor([1.0, 2.0, 1.5]), "way": torch.tensor([0, 2, 1])}
    found = variational_objective(model, x, y, seeds=combine_seeds(0, torch.arange(3)))
    assert found.sums["measured"] == 2.0 and 0 < found.sums["error"] < 0.1
    found.total.backward()
    for name, parameter in model.policy.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_a_known_noise_is_not_learned() -> None:
    model = make(noise=0.3)
    assert not model.log_noise.requires_grad
    assert LatentODE(2, noise=0.3).log_noise.tolist() == pytest.approx([math.log(0.3)] * 2)


def test_the_reconstruction_term_is_the_gaussian_density() -> None:
    model = make(factors={}, noise=0.4)
    x = series([7, 4])
    found = variational_objective(model, x, tolerance=1e-8)
    times = x[..., 0] - x[:, :1, 0]
    posterior = model.encode(x)
    values = model.decode(posterior.mean, times, tolerance=1e-8)[0].nan_to_num()
    there = x[..., 1:].isfinite()
    each = Normal(values, model.log_noise.exp()).log_prob(x[..., 1:].nan_to_num())
    density = each.where(there, 0.0).sum((1, 2))
    kl = gaussian_kl(posterior.mean, posterior.log_scale)
    torch.testing.assert_close(found.elbo, (density - kl).detach())
    torch.testing.assert_close(found.losses, (kl - density) / there.sum((1, 2)))


# ----------------------------------------------------------------------------------- divergences


def head_of(factor: Categorical | Real) -> FactorHead:
    torch.manual_seed(4)
    head = FactorHead(factor, 2, 0.0).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    return head


DRAWS = 400_000


def within(values: Tensor, expected: Tensor) -> None:
    values, expected = values.detach(), expected.detach()
    error = values.std() / math.sqrt(DRAWS)
    assert float((values.mean() - expected).abs()) < 4.5 * float(error)


def test_the_divergence_of_gaussians_is_that_of_monte_carlo() -> None:
    mean, log_scale = torch.tensor([[0.3, -1.0]]).double(), torch.tensor([[-0.5, 0.2]]).double()
    other, other_scale = torch.tensor([[1.0, 0.1]]).double(), torch.tensor([[0.3, -0.4]]).double()
    q, p = Normal(mean, log_scale.exp()), Normal(other, other_scale.exp())
    torch.manual_seed(0)
    z = q.sample((DRAWS,))
    within(
        (q.log_prob(z) - p.log_prob(z)).sum((1, 2)),
        gaussian_kl(mean, log_scale, other, other_scale),
    )


@pytest.mark.parametrize("factor", list(FACTORS.values()))
@pytest.mark.parametrize("known", [True, False])
def test_the_divergence_of_a_supervised_code_is_that_of_monte_carlo(
    factor: Categorical | Real, known: bool
) -> None:
    head = head_of(factor)
    mean, log_scale = torch.tensor([[0.3, -1.0]]).double(), torch.tensor([[-0.5, 0.2]]).double()
    answer = head.logits(mean)
    label = torch.tensor([1]) if isinstance(factor, Categorical) else torch.tensor([2.4]).double()
    found = supervised_kl(head, mean, log_scale, answer, label if known else None)

    torch.manual_seed(0)
    q = Normal(mean, log_scale.exp())
    z = q.sample((DRAWS,))[:, 0]
    ratio = q.log_prob(z).sum(1)
    if known:
        y = label.expand(DRAWS)
    elif isinstance(factor, Categorical):
        log_q = answer.log_softmax(-1)[0]
        y = torch.multinomial(log_q.exp(), DRAWS, replacement=True)
        ratio = ratio + log_q[y] - factor.log_probabilities(torch.float64)[y]
    else:
        believed, prior = factor.distribution(answer), Normal(factor.mean, factor.scale)
        y = believed.sample((DRAWS,))[:, 0]
        ratio = ratio + believed.log_prob(y[:, None])[:, 0] - prior.log_prob(y)
    within(ratio - head.log_prob(z, y), found)


# ------------------------------------------------------------------------------------ the model


def test_a_model_is_kept_and_loaded(tmp_path: Path) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert isinstance(again, LatentODE)
    x = series([5, 3])
    times = torch.linspace(-1.0, 2.0, 4, dtype=torch.float64)
    assert torch.equal(again.reconstruct(x, times), model.reconstruct(x, times))
    assert set(again.predict(x)) == set(FACTORS)
    assert again.predict_proba(x)["way"].sum(1).allclose(torch.ones(2, dtype=torch.float64))


def test_samples_have_the_labels_that_were_asked_for() -> None:
    model = make()
    with torch.no_grad():
        model.code.heads["way"].prior.weight[0] = torch.tensor([-50.0, 0.0, 50.0])
    times = torch.linspace(0.0, 1.0, 5, dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    found = model.sample(4, times, {"way": torch.tensor([0, 0, 2, 2])}, generator=draw)
    assert found.shape == (4, 5, 2)
    assert (found[:2] - found[2:]).abs().mean() > (found[0] - found[1]).abs().mean()


@pytest.mark.slow
def test_a_model_learns_to_follow_a_circle_and_its_speed() -> None:
    """Points on a circle, at irregular times, at one of two speeds."""
    torch.set_default_dtype(torch.float32)
    draw = np.random.default_rng(0)
    count, rows = 256, 12
    way = draw.integers(0, 2, count)
    times = np.sort(draw.uniform(0.0, 3.0, (count, rows)), 1)
    times -= times[:, :1]
    phase = draw.uniform(-0.5, 0.5, (count, 1)) + np.where(way, 1.5, 0.7)[:, None] * times
    x = torch.from_numpy(np.stack([times, np.cos(phase), np.sin(phase)], 2)).float()
    torch.manual_seed(0)
    model = LatentODE(2, {"way": Categorical(2)}, 0.5, latent=4, encoder="gru", noise=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(250):
        optimizer.zero_grad()
        seeds = combine_seeds(step, torch.arange(count))
        variational_objective(model, x, torch.from_numpy(way), seeds=seeds).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    found = variational_objective(model, x, torch.from_numpy(way), tolerance=1e-4)
    assert float(found.mse.mean()) < 0.02
    assert float((model.predict(x) == torch.from_numpy(way)).double().mean()) > 0.95


def test_what_is_no_series_is_refused() -> None:
    model = make()
    with pytest.raises(ValueError, match="must have shape"):
        model.encode(torch.zeros(3, 4, 2))
    with pytest.raises(ValueError, match="encoder must be one of"):
        LatentODE(1, encoder="lstm")
    with pytest.raises(ValueError, match="noise must be positive"):
        LatentODE(1, noise=0.0)
    with pytest.raises(ValueError, match="no supervised code"):
        LatentODE(2).predict(series([3]).float())
    with pytest.raises(ValueError, match="hold a number"):
        model.decode(torch.zeros(1, 5).double(), torch.tensor([torch.nan]))


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0.0, math.nan, 2.0, 3.0], "rows of series 1 have no time"),
        ([0.0, 2.0, 1.0, 3.0], "rows of series 1 go back in time"),
    ],
)
def test_times_that_would_be_misread_are_refused(times: list[float], message: str) -> None:
    model = LatentODE(2).double().eval()
    series = torch.randn(2, 4, 3).double()
    series[0, :, 0] = torch.tensor([0.0, 1.0, 2.0, math.nan])  # ends early: as it should
    series[1, :, 0] = torch.tensor(times)
    with pytest.raises(ValueError, match=message):
        model.encode(series)
    assert model.encode(series[:1]) is not None
