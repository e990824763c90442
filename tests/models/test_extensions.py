"""What others plug in: a field of their own, covariates, and the manner of torch.distributions."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from infocnf import Categorical, InfoCNF, LatentODE, Real, load
from infocnf.matching import matching_objective
from infocnf.objectives import likelihood_objective, variational_objective


class Swirl(nn.Module):
    """A linear field whose strength changes with time."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.matrix = nn.Parameter(0.5 * torch.randn(math.prod(shape), math.prod(shape)))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        strength = torch.cos(t).reshape(-1, *[1] * (z.ndim - 1))
        return strength * (z.flatten(1) @ self.matrix).view_as(z)


# --------------------------------------------------------------------------------------- a field


@pytest.mark.parametrize("given", ["class", "module"])
def test_a_field_of_ones_own_is_the_flow(given: str) -> None:
    """Its log-determinant is known: the matrices' traces times the integral of the strength."""
    model = InfoCNF((3,), field=Swirl if given == "class" else Swirl((3,)), blocks=2).eval()
    assert len(model.blocks) == (2 if given == "class" else 1)
    traces = [float(block.field.matrix.trace()) for block in model.blocks]  # type: ignore[union-attr]
    code = model.encode(torch.randn(5, 3), tolerance=1e-10)
    truth = torch.full((5,), sum(traces) * math.sin(1.0))
    torch.testing.assert_close(code.log_det, truth, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("scales", [None, 2])
def test_a_field_of_ones_own_has_the_shape_of_its_block(scales: int | None) -> None:
    own = Swirl if scales else Swirl((4, 2, 2))  # a module: one block, squeezed
    model = InfoCNF((1, 4, 4), field=own, blocks=1, scales=scales).eval()
    sizes = [math.isqrt(block.field.matrix.numel()) for block in model.blocks]  # type: ignore[union-attr]
    assert sizes == ([16, 16, 8] if scales else [16])
    x = torch.rand(3, 1, 4, 4)
    torch.testing.assert_close(model.decode(model.encode(x)), x, rtol=0, atol=1e-3)


def test_a_field_of_ones_own_learns_by_likelihood_and_by_matching() -> None:
    y, x = torch.arange(64) % 2, torch.randn(64, 3)
    for objective in (likelihood_objective, matching_objective):
        model = InfoCNF((3,), {"kind": Categorical(2)}, field=Swirl((3,)), separation=1.0)
        before = model.blocks[0].matched_field.matrix.detach().clone()  # type: ignore[union-attr]
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        losses = []
        for step in range(30):
            loss = objective(model, x, y, seeds=torch.arange(64)).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
            assert step or model.blocks[0].matched_field.matrix.grad.abs().sum() > 0  # type: ignore[union-attr]
        assert losses[-1] < losses[0]
        assert not torch.equal(before, model.blocks[0].matched_field.matrix)  # type: ignore[arg-type]


def test_a_field_of_ones_own_is_saved_and_must_be_passed_again(tmp_path: Path) -> None:
    model = InfoCNF((3,), {"kind": Categorical(2)}, field=Swirl, blocks=2).eval()
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"a field of its own, .*test_extensions:Swirl: pass it"):
        load(tmp_path)
    again, x = load(tmp_path, field=Swirl), torch.randn(4, 3)
    assert torch.equal(model.log_prob(x), again.log_prob(x))  # type: ignore[operator]
    with pytest.raises(ValueError, match="this flow has several"):
        InfoCNF((3,), field=Swirl((3,)), architecture="flat", blocks=2)


# -------------------------------------------------------------------------------------- a context


ARCHITECTURES = {
    "flat": ((3,), {"blocks": 1, "hidden": (8,)}),
    "residual": ((3,), {"hidden": (8,)}),
    "multiscale": ((1, 4, 4), {"blocks": 1, "hidden": (4,), "scales": 2}),
    "unet": ((1, 4, 4), {"blocks": 1, "hidden": (8,)}),
}


def contextual(architecture: str, separation: float = 0.0, **more: object) -> InfoCNF:
    torch.manual_seed(2)
    shape, own = ARCHITECTURES[architecture]
    model = InfoCNF(
        shape,
        {"kind": Categorical(3)},
        architecture=architecture,
        context=2,
        separation=separation,
        trace="exact",
        **{**own, **more},  # type: ignore[arg-type]
    )
    for parameter in model.flow.parameters():
        nn.init.normal_(parameter, std=0.15)
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_with_a_context_densities_are_those_of_the_whole_jacobian(architecture: str) -> None:
    model = contextual(architecture)
    x, c = torch.rand(2, *model.shape) * 0.8 + 0.1, torch.randn(2, 2)
    code = model.encode(x, context=c, tolerance=1e-7)
    assert code.log_det is not None
    for i in range(2):

        def whole(one: Tensor, i: int = i) -> Tensor:
            found = model.encode(one, context=c[i : i + 1], tolerance=1e-7, log_det=False)
            return model.code.merge(found.supervised, found.unsupervised)[0]

        jacobian = torch.autograd.functional.jacobian(whole, x[i : i + 1]).flatten(1)
        truth = torch.linalg.slogdet(jacobian)[1]
        torch.testing.assert_close(code.log_det[i].detach(), truth, rtol=1e-4, atol=1e-4)
    again = model.decode(code, context=c, tolerance=1e-7)
    torch.testing.assert_close(again, x, rtol=0, atol=1e-5)
    other = model.encode(x, context=c + 1.0, tolerance=1e-7)
    assert (other.unsupervised - code.unsupervised).abs().max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["flat", "residual"])
def test_a_context_tells_what_the_data_depends_on(architecture: str) -> None:
    """Samples around a point that the context gives: by likelihood, and by matching."""
    objective = matching_objective if architecture == "residual" else likelihood_objective
    torch.manual_seed(0)
    model = InfoCNF(
        (2,), architecture=architecture, context=1, hidden=(32,), blocks=1, tolerance=1e-3
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(150):
        c = torch.randn(128, 1)
        x = 2.0 * c + 0.3 * torch.randn(128, 2)
        optimiser.zero_grad()
        objective(model, x, context=c).loss.backward()
        optimiser.step()
    model.eval()
    for centre in (-1.0, 1.0):
        drawn = model(None, torch.tensor([centre])).sample((400,))
        assert (drawn.mean(0) - 2.0 * centre).abs().max() < 0.25
        truth = MultivariateNormal(torch.full((2,), 2.0 * centre), 0.09 * torch.eye(2))
        x = truth.sample((200,))
        with torch.no_grad():
            found = model(None, torch.tensor([centre])).log_prob(x)
        assert (found - truth.log_prob(x)).mean().abs() < 0.4


def test_labels_are_read_with_the_context_too() -> None:
    model = contextual("unet", separation=1.0)
    x, c = torch.rand(3, 1, 4, 4), torch.randn(3, 2)
    for readout in ("flow", "one_step"):
        whole = model.predict_proba(x, readout=readout, context=c)
        alone = model.predict_proba(x[1:2], readout=readout, context=c[1:2])
        torch.testing.assert_close(whole[1:2], alone)
        assert not torch.allclose(whole, model.predict_proba(x, readout=readout, context=-c))
    assert model.counterfactual(x, 1, context=c).shape == x.shape


def test_a_context_that_does_not_fit_is_refused() -> None:
    model, x = contextual("flat"), torch.zeros(4, 3)
    for wrong in (None, torch.zeros(3, 2), torch.zeros(4, 5)):
        with pytest.raises(ValueError, match=r"context must have shape \(4, 2\), got"):
            model.log_prob(x, context=wrong)
    with pytest.raises(ValueError, match="context must have shape none, got"):
        InfoCNF((3,), hidden=(4,)).log_prob(x, context=torch.zeros(4, 2))


def test_a_latent_ode_knows_static_covariates() -> None:
    torch.manual_seed(0)
    model = LatentODE(1, {"size": Real()}, latent=3, hidden=(8,), context=2, noise=0.5)
    times = torch.linspace(0.0, 1.0, 5)
    series = torch.stack([times.expand(4, -1), torch.randn(4, 5)], 2)
    c = torch.randn(4, 2)
    found = variational_objective(model, series, torch.zeros(4), context=c, seeds=torch.arange(4))
    found.loss.backward()
    weight = model.block.field.layers[0].weight  # type: ignore[union-attr]
    assert weight.grad is not None and weight.grad[:, 3:].abs().min() > 0
    model.eval()
    one, two = (model.reconstruct(series, times, context=k) for k in (c, -c))
    assert (one - two).abs().max() > 1e-3
    assert model.sample(3, times, context=c[:3]).shape == (3, 5, 1)
    with pytest.raises(ValueError, match="context must have shape"):
        model.encode(series)


# ------------------------------------------------------------------------- torch.distributions


@pytest.mark.parametrize("y", [None, 1, torch.tensor([0, 2, 1])])
def test_transform_and_base_make_the_density(y: object) -> None:
    model = InfoCNF((3,), {"kind": Categorical(3, (0.5, 0.2, 0.3))}, hidden=(8,)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    flow, x = model(y), torch.randn(5, 3, 3) if isinstance(y, Tensor) else torch.randn(5, 3)
    z = flow.transform(x)
    found = flow.base.log_prob(z) + flow.transform.log_abs_det_jacobian(x, z)
    torch.testing.assert_close(found, flow.log_prob(x))
    torch.testing.assert_close(flow.transform.inv(z), x, rtol=0, atol=1e-4)


def test_samples_have_gradients_where_they_are_asked_for() -> None:
    model = InfoCNF((2,), {"kind": Categorical(2)}, hidden=(8,), tolerance=1e-8).eval()
    weight = model.blocks[0].field.layers[0].map.weight  # type: ignore[union-attr]

    def spread() -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return model(1).rsample((6,), generator=generator).square().sum()

    (found,) = torch.autograd.grad(spread(), weight)
    values = []
    with torch.no_grad():
        for shift in (1e-4, -2e-4):
            weight[0, 0] += shift
            values.append(float(spread()))
    assert float(found[0, 0]) == pytest.approx((values[0] - values[1]) / 2e-4, rel=1e-4)
    assert abs(float(found[0, 0])) > 1e-4 and not model(1).sample((2,)).requires_grad
    assert model(torch.tensor([0, 1])).rsample((4,)).shape == (4, 2, 2)


# ----------------------------------------------------------------------- tolerances, precision


def test_a_model_solves_at_its_own_tolerance() -> None:
    x = torch.randn(6, 2)
    for dear, cheap in ((1e-8, 1e-2), ([1e-8, 1e-8], [1e-2, 1e-2])):
        counts = []
        for tolerance in (dear, cheap):
            torch.manual_seed(0)
            model = InfoCNF((2,), hidden=(16,), tolerance=tolerance).eval()
            code = model.encode(x)
            assert code.stats is not None
            counts.append(int(code.stats.forward.sum()))
            torch.testing.assert_close(model.log_prob(x), model.log_prob(x, tolerance=tolerance))
        assert counts[0] > 1.5 * counts[1]
    both = InfoCNF((2,), hidden=(16,), tolerance=1e-8, training_tolerance=1e-2)
    tolerances = {}
    for mode in (True, False):
        code = both.train(mode).encode(x)
        assert code.stats is not None
        tolerances[mode] = code.stats.solves[0].choice.tolerance
    assert tolerances == {True: 1e-2, False: 1e-8}


@pytest.mark.parametrize("architecture", ["multiscale", "unet"])
def test_bfloat16_where_autocast_wants_it(architecture: str) -> None:
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    separation = 1.0 if architecture == "unet" else 0.0
    model = InfoCNF(
        (1, 8, 8),
        {"kind": Categorical(2)},
        architecture=architecture,
        hidden=(8,),
        separation=separation,
        tolerance=1e-2,
    )
    x, y, seeds = torch.rand(8, 1, 8, 8), torch.arange(8) % 2, torch.arange(8)
    objectives = [likelihood_objective, *([matching_objective] if separation else [])]
    for objective in objectives:
        exact = objective(model, x, y, seeds=seeds).losses.detach()
        with torch.autocast("cpu", torch.bfloat16):
            found = objective(model, x, y, seeds=seeds)
        torch.testing.assert_close(found.losses.detach(), exact, rtol=0.05, atol=0.1)
        assert not torch.equal(found.losses, exact)
        model.zero_grad()
        found.total.backward()
        gradients = [p.grad for p in model.flow.parameters() if p.grad is not None]
        assert gradients and all(g.isfinite().all() and g.dtype == x.dtype for g in gradients)


# ----------------------------------------------------------------------------------- odd models


class Rotation(nn.Module):
    """A field without parameters."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return torch.stack([-z[:, 1], z[:, 0]], 1)


def test_a_field_without_parameters_turns_samples(tmp_path: Path) -> None:
    model = InfoCNF((2,), field=Rotation, blocks=1).eval()
    x = torch.randn(4, 2)
    normal = MultivariateNormal(torch.zeros(2), torch.eye(2))
    torch.testing.assert_close(model.log_prob(x), normal.log_prob(x), rtol=0, atol=1e-4)
    assert model.sample(3).shape == (3, 2)
    model.save_pretrained(tmp_path)
    assert load(tmp_path, field=Rotation).dtype == torch.float64


def test_a_multiscale_flow_of_one_block_can_be_sharpened() -> None:
    own = {"scales": 1, "blocks": 1, "hidden": (4,), "supervised": 1.0, "separation": 2.0}
    model = InfoCNF((1, 8, 8), {"y": Categorical(3)}, **own).eval()  # type: ignore[arg-type]
    assert model.has_one_step
    x = torch.rand(3, 1, 8, 8)
    before = model.log_prob(x)
    model.sharpen(4.0)
    assert not torch.allclose(before, model.log_prob(x))


@pytest.mark.parametrize("t", [torch.tensor(0.1), torch.tensor([0.05, 0.3, 0.9])])
def test_tangents_of_a_sharpened_field_are_those_of_autograd(t: Tensor) -> None:
    model = contextual("residual", separation=1.5, supervised=1.0)
    field, z, tangents, c = model.blocks[0].field, torch.randn(3, 3), torch.randn(2, 3, 3), None
    model.sharpen(4.0)
    c = torch.randn(3, 2)
    slopes, pushed = field.pushforward(t, z, tangents, c)  # type: ignore[operator]
    torch.testing.assert_close(slopes, field(t, z, c))
    for tangent, found in zip(tangents, pushed, strict=True):
        _, truth = torch.autograd.functional.jvp(lambda a: field(t, a, c), z, tangent)
        torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-8)
    far = 50.0 * torch.ones(3, 3)  # shares far below zero: nothing is NaN
    assert field.pushforward(t, far, tangents, c)[1].isfinite().all()  # type: ignore[operator]


def test_one_context_for_all_samples_serves_measuring_policies() -> None:
    from infocnf.tolerances import Learned

    policy = Learned(reward="error", every=1, samples=2)
    model = InfoCNF((2,), context=3, hidden=(4,), training_tolerance=policy).train()
    policy.begin_step(0.0)
    found = likelihood_objective(model, torch.randn(4, 2), context=torch.randn(3))
    assert found.sums["measured"] == 2.0


def test_a_model_is_known_by_its_configuration_however_it_is_written(tmp_path: Path) -> None:
    import json

    LatentODE(1, hidden=(4,)).save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text())))
    assert isinstance(load(tmp_path), LatentODE)

    class Wider(InfoCNF):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[arg-type]

    Wider((2,), hidden=(4,)).save_pretrained(tmp_path / "wider")
    assert Wider.from_pretrained(tmp_path / "wider").shape == (2,)
