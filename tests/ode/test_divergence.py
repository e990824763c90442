"""Traces and probes against autograd's Jacobian and an enumeration of all signs."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from infocnf.networks import ConvField, DenseField
from infocnf.ode import solve
from infocnf.ode.divergence import (
    divergence,
    draw_probes,
    estimate_trace,
    orthogonal_probes,
    unit_probes,
)
from infocnf.random import sample_seeds


class Plain(nn.Module):
    """A field that offers no pushforward."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, features))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return self.net(z) * (1.0 + t.reshape(-1, 1))


FIELDS = {
    "plain": (lambda: Plain(4), (4,)),
    "dense": (lambda: DenseField(4, (8, 8)), (4,)),
    "squash": (lambda: DenseField(4, (8, 8), time="concat_squash", activation="tanh"), (4,)),
    "conv": (lambda: ConvField(2, (5, 5)), (2, 2, 3)),
}


def exact_trace(field: nn.Module, t: Tensor, z: Tensor) -> Tensor:
    """Sum of the diagonal of autograd's Jacobian, sample by sample."""
    times = t.expand(len(z))
    traces = []
    for time, sample in zip(times, z, strict=True):
        jacobian = torch.autograd.functional.jacobian(
            lambda flat, time=time, sample=sample: field(
                time, flat.reshape(1, *sample.shape)
            ).flatten(),
            sample.flatten(),
        )
        traces.append(jacobian.trace())
    return torch.stack(traces)


@pytest.mark.parametrize("per_sample_time", [False, True])
@pytest.mark.parametrize("name", FIELDS)
def test_unit_probes_give_the_exact_trace(name: str, per_sample_time: bool) -> None:
    make, shape = FIELDS[name]
    field, z = make(), torch.randn(3, *shape)
    t = torch.rand(3) if per_sample_time else torch.tensor(0.3)

    slopes, trace = divergence(field, t, z, unit_probes(z))
    torch.testing.assert_close(trace, exact_trace(field, t, z))
    torch.testing.assert_close(slopes, field(t, z))


@pytest.mark.parametrize("name", ["plain", "dense", "squash"])
def test_the_estimate_averaged_over_all_sign_probes_is_the_trace(name: str) -> None:
    make, shape = FIELDS[name]
    field, z, t = make(), torch.randn(2, *shape), torch.tensor(0.6)
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=4)))

    estimates = [divergence(field, t, z, sign.expand(1, 2, 4))[1] for sign in signs]
    torch.testing.assert_close(torch.stack(estimates).mean(0), exact_trace(field, t, z))
    assert torch.stack(estimates).std(0).min() > 1e-3  # single probes do differ


@pytest.mark.parametrize("name", FIELDS)
def test_the_gradient_of_the_divergence_is_that_of_the_trace(name: str) -> None:
    make, shape = FIELDS[name]
    field, z, t = make(), torch.randn(2, *shape).requires_grad_(), torch.tensor(0.2)
    slopes, trace = divergence(field, t, z, unit_probes(z))
    found = torch.autograd.grad(
        trace.sum() + slopes.sin().sum(), [z, *field.parameters()], allow_unused=True
    )

    def value() -> Tensor:
        with torch.no_grad():
            slopes, trace = divergence(field, t, z, unit_probes(z))
            return trace.sum() + slopes.sin().sum()

    with torch.no_grad():
        for source, slope in zip([z, *field.parameters()], found, strict=True):
            direction = torch.randn_like(source)
            source += 1e-6 * direction
            above = value()
            source -= 2e-6 * direction
            below = value()
            source += 1e-6 * direction
            expected = 0.0 if slope is None else (slope * direction).sum().item()
            assert ((above - below) / 2e-6).item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_field_without_pushforward_can_be_solved_and_differentiated() -> None:
    field = Plain(3)

    def augmented(t: Tensor, state: tuple[Tensor, Tensor], probes: Tensor) -> tuple[Tensor, Tensor]:
        return divergence(field, t, state[0], probes.transpose(0, 1))

    x, probes = torch.randn(4, 3, requires_grad=True), torch.ones(4, 1, 3)
    found = []
    for gradient in ("checkpoint", "backprop"):
        options = {
            "gradient": gradient,
            "parameters": list(field.parameters()),
            "context": (probes,),
        }
        z, log_det = solve(augmented, (x, torch.zeros(4)), (0.0, 1.0), **options).state
        found.append(
            torch.autograd.grad(
                z.sum() + log_det.sum(), [x, *field.parameters()], allow_unused=True
            )
        )
    for a, b in zip(*found, strict=True):
        assert (a is None or a.abs().max() == 0) == (b is None or b.abs().max() == 0)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", FIELDS)
def test_divergences_are_computed_in_inference_mode(name: str) -> None:
    make, shape = FIELDS[name]
    field, z, t = make(), torch.randn(2, *shape), torch.tensor(0.3)
    with torch.inference_mode():
        _, inside = divergence(field, t * 1.0, z * 1.0, unit_probes(z), weight=0.5)
    _, outside = divergence(field, t, z, unit_probes(z))
    torch.testing.assert_close(inside, 0.5 * outside)


def test_a_field_that_ignores_its_input_has_no_divergence() -> None:
    z, weight = torch.randn(3, 2), nn.Parameter(torch.ones(2))
    for field in (lambda t, z: torch.ones_like(z), lambda t, z: weight.expand(3, 2)):
        _, trace = divergence(field, torch.tensor(0.0), z, unit_probes(z))
        assert (trace == 0).all()


@pytest.mark.parametrize("distribution", ["rademacher", "gaussian"])
def test_probes_have_the_moments_that_make_the_estimate_unbiased(distribution: str) -> None:
    seeds = torch.arange(2000)
    probes = draw_probes(seeds, torch.zeros(2000, 4), 2, distribution)[:, :, :].reshape(-1, 4)
    n = len(probes)

    assert probes.mean(0).abs().max() < 4 / n**0.5
    covariance = probes.T @ probes / n
    assert (covariance - torch.eye(4)).abs().max() < 6 / n**0.5
    if distribution == "rademacher":
        assert set(probes.unique().tolist()) == {-1.0, 1.0}


def test_probes_depend_on_the_sample_and_the_stream_only() -> None:
    x = torch.randn(5, 3)
    seeds = sample_seeds(x)
    both = draw_probes(seeds, torch.zeros(5, 64), 1, stream=2)

    assert torch.equal(
        draw_probes(sample_seeds(x[[3, 1]]), torch.zeros(2, 64), 1, stream=2), both[[3, 1]]
    )
    assert not torch.equal(draw_probes(seeds, torch.zeros(5, 64), 1, stream=3), both)
    assert sample_seeds(torch.tensor([[1.0, 2.0]])) != sample_seeds(torch.tensor([[2.0, 1.0]]))
    assert len(seeds.unique()) == 5 and len(both.flatten(1).unique(dim=0)) == 5


def test_orthogonal_probes_cancel_all_that_lies_between_colours() -> None:
    z = torch.zeros(3, 2, 4, 4)
    probes = orthogonal_probes(torch.arange(3), z, 8).flatten(3)  # 2 channels, tiles of 2x2
    gram = torch.einsum("gkbi,gkbj->gbij", probes, probes) / 8
    colour = torch.arange(2).view(2, 1, 1) * 4 + torch.arange(4).view(4, 1) % 2 * 2
    colour = (colour + torch.arange(4) % 2).flatten()
    same = (colour.unsqueeze(1) == colour).to(gram)
    torch.testing.assert_close(gram.abs(), same.expand_as(gram))
    assert not torch.equal(probes[0], probes[1]) and not torch.equal(
        probes[0, :, 0], probes[0, :, 1]
    )


def test_as_many_orthogonal_probes_as_coordinates_give_the_trace_whatever_the_signs() -> None:
    matrix = torch.randn(8, 8)
    probes = orthogonal_probes(torch.arange(4), torch.zeros(4, 8), 8)
    each = torch.einsum("gkbi,ij,gkbj->gb", probes, matrix, probes) / 8
    torch.testing.assert_close(each, matrix.trace().expand(2, 4))


def test_an_estimated_trace_is_unbiased_and_its_groups_tell_its_variance() -> None:
    matrix = torch.randn(6, 6)
    count = 20_000
    z = torch.zeros(count, 6)
    fixed = torch.ones(1, count, 6)
    found = estimate_trace(
        lambda t, z: z @ matrix.T, torch.zeros(count), z, fixed, torch.arange(count), 4
    )
    smooth, trace, half, own = found.unbind(1)
    error = trace - matrix.trace()
    assert abs(float(error.mean())) < 4.0 * float(error.std()) / count**0.5
    assert float(half.square().mean()) == pytest.approx(float(error.square().mean()), rel=0.05)
    torch.testing.assert_close(own, matrix.sum().expand(count))
    torch.testing.assert_close(smooth, own)


def test_an_exact_trace_also_has_that_of_the_fixed_probes() -> None:
    matrix, z = torch.randn(5, 5), torch.randn(7, 5)
    fixed = torch.randn(2, 7, 5)
    found = estimate_trace(lambda t, z: z @ matrix.T, torch.zeros(7), z, fixed, None, 0)
    expected = torch.einsum("fbi,ij,fbj->b", fixed, matrix, fixed) / 2
    torch.testing.assert_close(found[:, 3], expected)
    torch.testing.assert_close(found[:, :2], matrix.trace().expand(7, 2))
    assert not found[:, 2].any()
