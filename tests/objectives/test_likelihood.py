"""Likelihoods against the change of variables by autograd, explicit sums over labels, and areas
under densities.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from infocnf import Categorical, InfoCNF, Real
from infocnf.models.code import FactorHead, normal_log_prob
from infocnf.objectives import bits_per_dim, likelihood_objective


def shake(model: InfoCNF, size: float = 0.5) -> InfoCNF:
    """Give priors and classifiers weights that are not zero."""
    with torch.no_grad():
        for parameter in model.code.parameters():
            nn.init.normal_(parameter, std=size)
    return model.eval()


CASES = {
    "vector": ((3,), {"hidden": (16, 16)}),
    "squashed vector": ((3,), {"hidden": (16,), "time": "concat_squash", "activation": "tanh"}),
    "image 4x4": ((1, 4, 4), {"hidden": (6, 6), "scales": 2, "alpha": 0.05}),
    "image 8x8": ((1, 8, 8), {"hidden": (4,), "alpha": 0.05, "blocks": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_log_prob_is_the_change_of_variables_with_autograds_jacobian(name: str) -> None:
    shape, options = CASES[name]
    model = shake(InfoCNF(shape, {"kind": Categorical(3)}, trace="exact", **options))
    model.gradient = "backprop"
    x, y = torch.rand(2, *shape), torch.tensor([0, 2])
    with torch.no_grad():
        found = model.log_prob(x, y, tolerance=1e-8)

    for i in range(2):

        def whole(flat: Tensor, i: int = i) -> Tensor:
            code = model.encode(flat.reshape(1, *shape), tolerance=1e-9, log_det=False)
            return torch.cat([code.supervised, code.unsupervised], 1).flatten()

        z = whole(x[i].flatten()).detach()
        jacobian = torch.autograd.functional.jacobian(whole, x[i].flatten())
        mean, log_scale = model.code.heads["kind"].moments(y[i])
        count = len(mean)
        base = normal_log_prob(z[:count], mean, log_scale) + normal_log_prob(z[count:])
        expected = base + torch.linalg.slogdet(jacobian).logabsdet
        assert found[i].item() == pytest.approx(expected.item(), abs=1e-5)


def mixture(count: int) -> tuple[Tensor, Tensor]:
    """The paper's mixture of three Gaussians, with the component of each number."""
    component = torch.arange(count) % 3
    mean = torch.tensor([-2.8, -0.9, 2.0])[component]
    return (mean + math.sqrt(0.4) * torch.randn(count)).unsqueeze(1), component


def fit(model: InfoCNF, x: Tensor, y: Tensor | None, steps: int) -> float:
    """Train on all data at once; the last likelihood in nats."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    model.train()
    for _ in range(steps):
        objective = likelihood_objective(model, x, y, tolerance=1e-4)
        optimiser.zero_grad()
        objective.loss.backward()
        optimiser.step()
    model.eval()
    return objective.log_prob.mean().item()


@pytest.mark.slow
def test_a_trained_density_of_one_dimension_integrates_to_one() -> None:
    x, _ = mixture(600)
    model = InfoCNF((1,), hidden=(32, 32), activation="tanh", blocks=1)
    untrained = model.eval().log_prob(x).mean().item()
    assert fit(model, x, None, 150) > untrained + 0.2

    grid = torch.linspace(-15.0, 15.0, 6001).unsqueeze(1)
    with torch.no_grad():
        density = model.log_prob(grid, tolerance=1e-5).exp()
    assert torch.trapezoid(density, grid[:, 0]).item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("labelled", [False, True])
def test_a_trained_density_of_two_dimensions_integrates_to_one(labelled: bool) -> None:
    a, y = mixture(400)
    x = torch.cat([a, 0.3 * a.square() + 0.5 * torch.randn_like(a)], 1)
    model = InfoCNF((2,), {"part": Categorical(3)}, 0.5, hidden=(24, 24), blocks=1)
    fit(model, x, y, 60)

    axis = torch.linspace(-12.0, 12.0, 201)
    grid = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        density = model.log_prob(grid, 1 if labelled else None, tolerance=1e-5).exp()
    area = torch.trapezoid(torch.trapezoid(density.reshape(201, 201), axis), axis)
    assert area.item() == pytest.approx(1.0, abs=1e-3)


FACTORS = {"letter": Categorical(3), "digit": Categorical(2, (0.3, 0.7)), "size": Categorical(4)}


def test_only_its_own_code_depends_on_a_label() -> None:
    model = shake(InfoCNF((11,), FACTORS, supervised=0.8, hidden=(4,)))
    z_y = torch.randn(1, 9, requires_grad=True)
    z_u = torch.randn(1, 2, requires_grad=True)
    base = {name: torch.tensor([0]) for name in FACTORS}
    start = 0
    for name, share in zip(FACTORS, model.code.shares, strict=True):
        other = {**base, name: torch.tensor([1])}
        gap = model.code.log_prob(z_y, z_u, base) - model.code.log_prob(z_y, z_u, other)
        slope_y, slope_u = torch.autograd.grad(gap.sum(), [z_y, z_u])
        mine = torch.zeros(9, dtype=torch.bool)
        mine[start : start + share] = True

        assert (slope_y[0, mine] != 0).all() and (slope_y[0, ~mine] == 0).all()
        assert (slope_u == 0).all()
        start += share
    assert start == 9


def test_the_marginal_likelihood_is_the_sum_over_all_combinations_of_labels() -> None:
    model = shake(InfoCNF((11,), FACTORS, supervised=0.8, hidden=(4,)))
    x = torch.randn(5, 11)
    ranges = [range(factor.classes) for factor in FACTORS.values()]
    terms = []
    with torch.no_grad():
        for labels in itertools.product(*ranges):
            y = dict(zip(FACTORS, labels, strict=True))
            log_p = math.log(1 / 3) + math.log([0.3, 0.7][y["digit"]]) + math.log(1 / 4)
            terms.append(model.log_prob(x, y) + log_p)
        marginal = model.log_prob(x)
        partly = model.log_prob(x, {"digit": 1})
    assert len(terms) == 24
    torch.testing.assert_close(marginal, torch.logsumexp(torch.stack(terms), 0))

    with torch.no_grad():
        named = [
            model.log_prob(x, {"digit": 1, "letter": a, "size": b})
            for a in range(3)
            for b in range(4)
        ]
    torch.testing.assert_close(partly, torch.logsumexp(torch.stack(named), 0) - math.log(12))


def brute_force(head: FactorHead, z: Tensor) -> Tensor:
    """The marginal of each code by a million-point sum over standardised labels from -40 to 40."""
    u = torch.linspace(-40.0, 40.0, 1_000_001)
    rows = []
    for code in z:
        pieces = [
            normal_log_prob(code, *head.embedded_moments(part.unsqueeze(1))) - 0.5 * part.square()
            for part in u.split(50_000)
        ]
        rows.append(torch.logsumexp(torch.cat(pieces), 0) + (u[1] - u[0]).log())
    return torch.stack(rows) - 0.5 * math.log(2.0 * math.pi)


@pytest.mark.parametrize("slopes", [(1.0, 0.0), (1.0, 1.0), (5.0, 1.0), (2.0, 1.0), (0.3, -2.0)])
def test_the_marginal_over_a_real_label_is_its_integral(slopes: tuple[float, float]) -> None:
    head = FactorHead(Real(1.5, 2.0), 1, 0.0)
    with torch.no_grad():
        head.prior.weight.copy_(torch.tensor(slopes).unsqueeze(1))
        z = torch.tensor([[-12.0], [-3.5], [-0.2], [0.7], [6.0], [25.0]])
        torch.testing.assert_close(head.log_prob(z, None), brute_force(head, z), rtol=0, atol=1e-4)


def test_the_marginal_of_a_wide_code_over_a_real_label_is_its_integral() -> None:
    head = FactorHead(Real(), 40, 0.0)
    with torch.no_grad():
        head.prior.weight.normal_(std=0.5)
        mean, log_scale = head.moments(torch.tensor([-2.0, 0.1, 1.3]))
        z = mean + log_scale.exp() * torch.randn(3, 40)
        torch.testing.assert_close(head.log_prob(z, None), brute_force(head, z), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_marginal_over_a_real_label_has_finite_gradients_everywhere(dtype: torch.dtype) -> None:
    head = FactorHead(Real(), 3, 0.0).to(dtype)
    with torch.no_grad():
        head.prior.weight.normal_()
    z = (10.0 * torch.randn(50, 3, dtype=dtype)).requires_grad_()
    value = head.log_prob(z, None)
    slopes = torch.autograd.grad(value.sum(), [z, *head.prior.parameters()])
    assert all(slope.isfinite().all() for slope in slopes)
    with torch.inference_mode():
        torch.testing.assert_close(head.log_prob(z, None), value.detach())


def test_real_labels_of_a_large_mean_keep_their_digits() -> None:
    model = shake(InfoCNF((2,), {"when": Real(1.7e9, 10.0)}, 1.0, hidden=(4,)))
    x = torch.randn(2, 2)
    with torch.no_grad():
        torch.set_default_dtype(torch.float32)
        answers = [
            model.log_prob(x, y)
            for y in (1_700_000_005, 1_700_000_005.0, torch.tensor(1_700_000_005))
        ]
        single = model.float().log_prob(x.float(), 1_700_000_005).double()
    torch.testing.assert_close(answers[0], answers[1])
    torch.testing.assert_close(answers[0], answers[2])
    torch.testing.assert_close(single, answers[0], rtol=0, atol=1e-4)


def test_a_likelihood_can_be_differentiated_twice() -> None:
    model = InfoCNF((3,), hidden=(8,), blocks=1, gradient="backprop", tolerance=1e-9).eval()
    x = torch.randn(1, 3)
    assert torch.autograd.gradgradcheck(
        lambda x: model.log_prob(x, tolerance=1e-9), (x.requires_grad_(),), atol=1e-4
    )


def test_the_marginal_over_a_real_label_is_exact_where_it_is_gaussian() -> None:
    model = InfoCNF((2,), {"angle": Real()}, supervised=1.0, hidden=(4,)).eval()
    head = model.code.heads["angle"]
    with torch.no_grad():  # mean 3 y in the first dimension, unit scale: z_1 ~ N(0, 10)
        head.prior.weight[0, 0] = 3.0
        z = torch.randn(4, 2) * 3.0
        found = head.log_prob(z, None)
    wide = normal_log_prob(z[:, :1], 0.0, math.log(10.0) / 2) + normal_log_prob(z[:, 1:])
    torch.testing.assert_close(found, wide)


def test_the_objective_is_the_papers() -> None:
    model = shake(InfoCNF((1, 4, 4), {"digit": Categorical(10)}, hidden=(4,), dropout=0.0))
    x, y = torch.rand(6, 1, 4, 4), torch.arange(6)
    objective = likelihood_objective(model, x, y, beta=0.5, levels=17, tolerance=1e-6)

    log_prob = model.log_prob(x, y, tolerance=1e-6)
    bits = -(log_prob / 16 - math.log(17)) / math.log(2)
    entropy = nn.functional.nll_loss(model.predict_proba(x, tolerance=1e-6).log(), y)
    assert objective.loss.item() == pytest.approx((bits.mean() + 0.5 * entropy).item(), abs=1e-6)
    torch.testing.assert_close(bits_per_dim(log_prob, 16, 17), bits)


def test_without_labels_the_objective_is_the_marginal_likelihood() -> None:
    model = shake(InfoCNF((3,), {"digit": Categorical(4)}, hidden=(4,)))
    x = torch.randn(5, 3)
    objective = likelihood_objective(model, x, tolerance=1e-6)
    torch.testing.assert_close(objective.log_prob, model.log_prob(x, tolerance=1e-6))
    assert (objective.cross_entropy == 0).all()


def test_training_moves_every_parameter() -> None:
    factors = {"digit": Categorical(3), "angle": Real()}
    model = InfoCNF((1, 4, 4), factors, hidden=(4,), scales=2).train()
    y = {"digit": torch.arange(6) % 3, "angle": torch.randn(6)}
    likelihood_objective(shake(model).train(), torch.rand(6, 1, 4, 4), y).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
