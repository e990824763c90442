"""Matching against problems whose answer is known: Gaussians, mixtures, the same model trained by
maximum likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal

from infocnf import Categorical, InfoCNF, Real
from infocnf.flows import Scale
from infocnf.matching import StraightPath, matching_objective
from infocnf.matching.loss import moved
from infocnf.matching.paths import TIMES
from infocnf.matching.refit import refit
from infocnf.models.code import sign_codes
from infocnf.models.readout import head_logits
from infocnf.networks.sharpened import Sharpened
from infocnf.networks.unet import residual_field, unet_field
from infocnf.objectives import likelihood_objective
from infocnf.random import combine_seeds

SEEDS = combine_seeds(0, torch.arange(20000))


def shaken(field: nn.Module, strength: float = 0.2) -> nn.Module:
    """Weights that are not those of the start, where much is zero."""
    for parameter in field.parameters():
        nn.init.normal_(parameter, std=strength)
    return field


# ---------------------------------------------------------------------------------- the fields


@pytest.mark.parametrize("kind", ["images", "vectors"])
@pytest.mark.parametrize("each", [False, True])
def test_tangents_are_those_of_autograd(kind: str, each: bool) -> None:
    shape = (3, 4, 7, 5) if kind == "images" else (3, 5)
    field = shaken(
        unet_field((4, 7, 5), (8, 12, 8), thresholds=2, whitened=True, log_snr=True)
        if kind == "images"
        else residual_field(5, (8, 12))
    )
    for thresholds in field.buffers():
        thresholds.normal_()
    t = torch.rand(3) if each else torch.tensor(0.3)
    z, tangents = torch.randn(shape), torch.randn(2, *shape)
    slopes, pushed = field.pushforward(t, z, tangents)  # type: ignore[operator]
    torch.testing.assert_close(slopes, field(t, z))
    for tangent, found in zip(tangents, pushed, strict=True):
        _, truth = torch.autograd.functional.jvp(lambda a: field(t, a), z, tangent)
        torch.testing.assert_close(found, truth)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 5), (6,)])
def test_a_fresh_flow_is_the_identity(shape: tuple[int, ...]) -> None:
    images = len(shape) == 3
    model = InfoCNF(
        shape, architecture="unet" if images else "residual", hidden=(8,), blocks=1, marginals=4
    ).eval()
    x = torch.rand(4, *shape)
    code = model.encode(x, tolerance=1e-8)
    block = model.flow.single[1]
    state = x
    for part in model.flow.single[0]:
        state, _ = part(state, model.traversal(1e-8))
    assert block.index == 0
    torch.testing.assert_close(
        model.code.merge(code.supervised, code.unsupervised), state.flatten(1), atol=1e-7, rtol=0
    )
    torch.testing.assert_close(model.decode(code, tolerance=1e-8), x, atol=1e-6, rtol=0)


def test_a_sample_does_not_depend_on_its_batch() -> None:
    model = labelled((1, 8, 8), 3)
    shaken(model.flow.single[1].dynamics.field, 0.1)
    x = torch.rand(6, 1, 8, 8)
    whole = model.eval().log_prob(x)
    torch.testing.assert_close(whole[2:4], model.log_prob(x[2:4]), atol=1e-9, rtol=0)


def test_rounding_does_not_grow_to_the_size_of_the_tolerance_between_batches() -> None:
    model = labelled((3, 16, 16), 2, hidden=(16, 32)).float().eval()
    for weight in model.parameters():  # a field that bends
        weight.data += 0.05 * torch.randn_like(weight)
    x = torch.rand(8, 3, 16, 16, dtype=torch.float32)
    with torch.no_grad():
        whole, tight = (model.log_prob(x, tolerance=tolerance) for tolerance in (1e-3, 1e-6))
        alone = torch.cat([model.log_prob(x[i : i + 1], tolerance=1e-3) for i in range(len(x))])
    assert (whole - tight).abs().mean() > 0.05  # nats: what is left of the steps' choice
    assert (whole - alone).abs().max() < 0.02


def labelled(shape: tuple[int, ...], classes: int, **arguments: Any) -> InfoCNF:
    kind = "unet" if len(shape) == 3 else "residual"
    own = {"architecture": kind, "hidden": (8, 8), "blocks": 1, "separation": 1.0, **arguments}
    return InfoCNF(shape, {"y": Categorical(classes)}, **own)


# ------------------------------------------------------------------------- Gaussian to Gaussian


MEAN, SPREAD = torch.tensor([0.7, -1.0]).double(), torch.tensor([0.5, 1.8]).double()


class Exact(nn.Module):
    r"""The best field between :math:`\mathcal N(a, s^2)` and the standard normal distribution,
    :math:`-a + \frac{t - (1 - t) s^2}{(1 - t)^2 s^2 + t^2} (z - (1 - t) a)`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.off = nn.Parameter(torch.zeros(3))  # adds what the best field does not have

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        t = t.reshape(-1, 1)
        variance = (1 - t) ** 2 * SPREAD**2 + t**2
        exact = -MEAN + (t - (1 - t) * SPREAD**2) / variance * (z - (1 - t) * MEAN)
        return exact + self.off[0] + self.off[1] * z + self.off[2] * t


def gaussian_model() -> InfoCNF:
    model = InfoCNF((2,), supervised=0.0, architecture="residual", hidden=(8,), trace="exact")
    model.flow.single[1].dynamics.field = Exact()
    return model


@pytest.mark.parametrize("times", list(TIMES))
def test_the_loss_is_least_at_the_closed_form(times: str) -> None:
    model = gaussian_model().train()
    x = MEAN + SPREAD * torch.randn(20000, 2)
    off = model.flow.single[1].dynamics.field.off
    found = matching_objective(model, x, times=times, seeds=SEEDS)
    (slope,) = torch.autograd.grad(found.loss, off)
    rows = torch.stack(
        [
            torch.autograd.grad(
                matching_objective(
                    model, x[i : i + 1000], times=times, seeds=SEEDS[i : i + 1000]
                ).loss,
                off,
            )[0]
            for i in range(0, 20000, 1000)
        ]
    )
    assert (slope.abs() < 4.0 * rows.std(0) / len(rows) ** 0.5).all()  # zero but for noise

    # what is left is the variance of z - x given z_t
    t = TIMES[times](Normal(0.0, 1.0).icdf(torch.linspace(0.5e-4, 1 - 0.5e-4, 10**4)))[:, None]
    variance = (1 - t) ** 2 * SPREAD**2 + t**2
    rest = 1.0 + SPREAD**2 - (t - (1 - t) * SPREAD**2) ** 2 / variance
    assert float(found.loss.detach()) == pytest.approx(float(rest.mean()), rel=0.02)


def test_the_best_field_has_the_exact_likelihood() -> None:
    x = MEAN + SPREAD * torch.randn(50, 2)
    with torch.no_grad():
        found = gaussian_model().eval().log_prob(x, tolerance=1e-10)
    torch.testing.assert_close(found, Normal(MEAN, SPREAD).log_prob(x).sum(1), atol=1e-7, rtol=0)


def train(model: InfoCNF, loss: Callable[[int], Tensor], steps: int, rate: float) -> None:
    optimiser = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    model.train()
    for step in range(steps):
        optimiser.zero_grad()
        loss(step).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimiser.step()
        schedule.step()
    model.eval()


@pytest.mark.slow
def test_a_network_learns_the_closed_form() -> None:
    torch.set_default_dtype(torch.float32)
    model = InfoCNF((2,), supervised=0.0, architecture="residual", hidden=(32, 32), blocks=1)
    draw = torch.Generator().manual_seed(0)

    def loss(step: int) -> Tensor:
        x = (MEAN + SPREAD * torch.randn(256, 2, generator=draw).double()).float()
        return matching_objective(model, x, seeds=combine_seeds(step, torch.arange(256))).loss

    train(model, loss, 600, 5e-3)
    x = (MEAN + SPREAD * torch.randn(500, 2)).float()
    with torch.no_grad():
        found = model.log_prob(x)
    truth = Normal(MEAN, SPREAD).log_prob(x.double()).sum(1)
    assert (found - truth).mean().abs() < 0.02
    assert (found - truth).abs().mean() < 0.06


# ----------------------------------------------------------------------------- labels in one step


class Mixture:
    """Two classes of unequal frequency in the plane."""

    weights = torch.tensor([0.3, 0.7]).double()
    classes = (
        MultivariateNormal(torch.tensor([-1.0, 0.0]).double(), torch.eye(2).double()),
        MultivariateNormal(torch.tensor([1.0, 0.5]).double(), 0.5 * torch.eye(2).double()),
    )

    def posterior(self, x: Tensor) -> Tensor:
        """Bayes' rule."""
        joint = torch.stack([c.log_prob(x.double()) for c in self.classes], 1) + self.weights.log()
        return joint.softmax(1)


class DataEnd(nn.Module):
    """The best field at the data end, by Bayes' rule."""

    def __init__(self, model: InfoCNF) -> None:
        super().__init__()
        head = model.code.heads["y"]
        self.weight = nn.Parameter(torch.zeros(()))  # a flow's type is that of its weights
        self.means = head.embedded_moments(torch.eye(2))[0].detach()
        self.code = [model.code]

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        assert float(t) == 0.0
        expected = Mixture().posterior(z) @ self.means
        whole = self.code[0].merge(expected, torch.zeros(len(z), self.code[0].sizes[1]))
        return whole - z


@pytest.mark.parametrize("supervised", [0.5, 1.0])
def test_what_is_read_in_one_step_is_bayes_rule(supervised: float) -> None:
    model = labelled((2,), 2, supervised=supervised).eval()
    model.flow.single[1].dynamics.field = DataEnd(model)
    x = torch.randn(200, 2)
    found = model.predict_proba(x, readout="one_step")
    torch.testing.assert_close(found, Mixture().posterior(x), atol=1e-5, rtol=0)
    assert torch.equal(model.predict(x, readout="one_step"), Mixture().posterior(x).argmax(1))


class Midway(nn.Module):
    """The best field between a mixture whose classes overlap and two patterns, by Bayes' rule: x_1
    ~ N(+-1, 0.8^2), other dimensions standard.
    """

    scale = 0.8

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.means = means
        self.start = torch.zeros_like(means)
        self.start[:, 0] = torch.tensor([-1.0, 1.0])
        self.spread = torch.ones(means.shape[1])
        self.spread[0] = self.scale

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        t = t.reshape(-1, 1)
        variance = ((1 - t) * self.spread) ** 2 + t**2
        rest = z.unsqueeze(1) - ((1 - t).unsqueeze(1) * self.start + t.unsqueeze(1) * self.means)
        known = (-0.5 * rest.square() / variance.unsqueeze(1)).sum(-1).softmax(-1)
        gain = (t - (1 - t) * self.spread**2) / variance  # of z - x from the rest
        each = self.means - self.start + gain.unsqueeze(1) * rest
        return (known.unsqueeze(-1) * each).sum(1)


def ambiguous() -> tuple[InfoCNF, Tensor, Tensor]:
    """The model with that field, and samples."""
    model = labelled((12,), 2, supervised=1.0, architecture="flat", blocks=1, hidden=(4,)).eval()
    field = model.flow.single[1].dynamics.field
    assert isinstance(field, Sharpened)
    field.field = Midway(model.code.heads["y"].patterns)
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(2, (4000,), generator=draw)
    x = torch.randn(4000, 12, generator=draw)
    x[:, 0] = Midway.scale * x[:, 0] + 2.0 * y - 1.0
    return model, x, y


def test_a_sharpened_flow_decides_as_bayes_rule_does() -> None:
    model, x, y = ambiguous()

    def wrong(read: str) -> float:
        with torch.no_grad():
            return float((model.predict(x, readout=read) != y).double().mean())

    bayes = float(((x[:, 0] > 0).long() != y).double().mean())
    assert wrong("one_step") == bayes
    matched = wrong("flow")
    model.sharpen(8.0)
    assert wrong("one_step") == bayes  # which looks at the field as it was matched
    sharp = wrong("flow")
    assert matched - bayes > 0.01
    assert sharp - bayes < 0.5 * (matched - bayes)


def test_the_likelihood_of_a_sharpened_flow_is_exact() -> None:
    model, x, y = ambiguous()
    model.sharpen(4.0)
    model.double()
    model.flow.single[1].dynamics.field.field = Midway(model.code.heads["y"].patterns)
    few = x[:4].double()

    def code(sample: Tensor) -> Tensor:
        found = model.encode(sample.unsqueeze(0), tolerance=1e-9, log_det=False)
        return model.code.merge(found.supervised, found.unsupervised)[0]

    model.gradient = "backprop"
    found = model.log_prob(few, y[:4], tolerance=1e-9)
    for sample, label, value in zip(few, y, found, strict=False):
        _, log_det = torch.linalg.slogdet(torch.autograd.functional.jacobian(code, sample))
        z = code(sample).unsqueeze(0)
        expected = model.code.log_prob(*model.code.split(z), {"y": label.unsqueeze(0)}) + log_det
        torch.testing.assert_close(value, expected[0], atol=1e-6, rtol=0)


def test_sharpness_is_kept_with_the_weights(tmp_path: Path) -> None:
    model = labelled((4,), 2).eval()
    model.sharpen(3.0)
    model.save_pretrained(tmp_path)
    again = InfoCNF.from_pretrained(tmp_path)
    assert again.flow.blocks[0].dynamics.field.sharpness == 3.0
    x = torch.randn(5, 4)
    assert torch.equal(again.log_prob(x), model.log_prob(x))
    with pytest.raises(ValueError, match="at least 1"):
        model.sharpen(0.5)
    with pytest.raises(ValueError, match="can be sharpened"):
        InfoCNF((2,), {"y": Categorical(2)}, hidden=(4,)).sharpen(2.0)


@pytest.mark.slow
@pytest.mark.parametrize(("end", "beta"), [(1.0, 0.0), (0.0, 0.1)])
def test_a_network_learns_bayes_rule(end: float, beta: float) -> None:
    torch.set_default_dtype(torch.float32)
    mixture = Mixture()
    model = labelled((2,), 2, hidden=(32, 32))
    draw = torch.Generator().manual_seed(0)

    def loss(step: int) -> Tensor:
        y = (torch.rand(256, generator=draw) < 0.7).long()
        centre = torch.stack([c.mean for c in mixture.classes])[y]
        scale = torch.stack([c.covariance_matrix.diagonal().sqrt() for c in mixture.classes])[y]
        x = (centre + scale * torch.randn(256, 2, generator=draw).double()).float()
        seeds = combine_seeds(step, torch.arange(256))
        return matching_objective(model, x, y, end=end, beta=beta, seeds=seeds).loss

    train(model, loss, 600, 5e-3)
    x = torch.cat([c.sample((300,)) for c in mixture.classes]).float()
    with torch.no_grad():
        found = model.predict_proba(x, readout="one_step")
    assert (found - mixture.posterior(x)).abs().mean() < 0.04


def test_labels_are_read_against_what_was_matched_whatever_the_prior_becomes() -> None:
    model = labelled((2,), 2, supervised=1.0).eval()
    model.flow.single[1].dynamics.field = DataEnd(model)
    size = InfoCNF(
        (3,), {"size": Real(5.0, 2.0)}, architecture="residual", hidden=(8,), separation=1.3
    )
    x, y = torch.randn(200, 2), torch.tensor([1.0, 5.0, 8.0])
    expected, _ = size.code.heads["size"].moments(y)
    with torch.no_grad():  # as a refit does
        for head in (model.code.heads["y"], size.code.heads["size"]):
            head.prior.weight *= 0.4
            head.prior.bias += 0.3
    found = model.predict_proba(x, readout="one_step")
    torch.testing.assert_close(found, Mixture().posterior(x), atol=1e-5, rtol=0)
    head = size.code.heads["size"]
    torch.testing.assert_close(head.factor.predict(head_logits(head, expected)), y.double())


def test_what_is_validated_is_what_is_predicted() -> None:
    """In evaluation mode nothing of the code that was drawn for the true label shows through."""
    model = labelled((6,), 3)
    shaken(model.flow.single[1].dynamics.field, 0.3)
    x, y = torch.randn(40, 6), torch.arange(40) % 3
    answers = matching_objective(model.eval(), x, y, seeds=SEEDS[:40]).logits["y"]
    again = model.logits(x, readout="one_step")["y"]
    likely = again.exp() > 0.2  # below a floor training goes on with another logarithm
    torch.testing.assert_close(answers[likely], again[likely])
    drawn = matching_objective(model.train(), x, y, seeds=SEEDS[:40]).logits["y"]
    assert (drawn - answers).abs().max() > 1e-3


def test_a_real_label_is_read_off_the_line_it_lies_on() -> None:
    model = InfoCNF(
        (3,), {"size": Real(5.0, 2.0)}, architecture="residual", hidden=(8,), separation=1.3
    )
    head = model.code.heads["size"]
    y = torch.tensor([1.0, 5.0, 8.0])
    expected, _ = head.moments(y)
    torch.testing.assert_close(head.factor.predict(head_logits(head, expected)), y.double())


def test_the_logarithm_of_a_share_goes_on_below_its_floor() -> None:
    model = labelled((4,), 3)
    head = model.code.heads["y"]
    means = head.embedded_moments(torch.eye(3))[0].detach()
    shares = torch.tensor([[1.2, -0.1, -0.1], [0.98, 0.01, 0.01], [0.4, 0.3, 0.3]])
    answer = head_logits(head, (shares @ means).requires_grad_(), floor=0.05)
    assert answer.isfinite().all()
    torch.testing.assert_close(answer[2], shares[2].log())
    assert (answer[0] < answer[1])[1:].all()  # the more wrong, the worse
    below = math.log(0.05) + (shares[0, 1] - 0.05) / 0.05
    assert float(answer[0, 1].detach()) == pytest.approx(float(below))


# --------------------------------------------------------------------- patterns, prior, classifier


def test_patterns_are_far_apart_and_always_the_same() -> None:
    codes = sign_codes(10, 32)
    different = (codes[:, None] != codes[None]).sum(-1) + 32 * torch.eye(10).long()
    assert int(different.min()) >= 11
    assert torch.equal(codes, sign_codes(10, 32)) and set(codes.flatten().tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize("fitted", [False, True])
def test_the_classifier_starts_as_bayes_rule_for_the_prior(fitted: bool) -> None:
    factor = Categorical(3, (0.2, 0.3, 0.5))
    model = InfoCNF((4,), {"y": factor}, architecture="residual", hidden=(8,), separation=0.8)
    head = model.code.heads["y"]
    if fitted:
        with torch.no_grad():
            head.prior.bias.normal_(std=0.3)
        head.decide()
    z = torch.randn(20, 2)
    each = torch.stack([head.log_prob(z, torch.full((20,), y)) for y in range(3)], 1)
    truth = (each + torch.tensor(factor.probabilities).log()).softmax(1)
    torch.testing.assert_close(head.factor.distribution(head.logits(z)), truth)


def test_the_answer_for_a_real_label_starts_as_bayes_rule_for_the_prior() -> None:
    model = InfoCNF(
        (4,), {"s": Real(1.0, 3.0)}, architecture="residual", hidden=(8,), separation=0.8
    )
    head = model.code.heads["s"]
    with torch.no_grad():
        head.prior.bias[:2] = torch.tensor([0.4, -0.2])
    head.decide()
    z = torch.randn(5, 2)
    u = torch.linspace(-8, 8, 4001)
    label = 1.0 + 3.0 * u
    joint = torch.stack([head.log_prob(one.expand(4001, 2), label) for one in z]) - 0.5 * u**2
    weights = joint.softmax(1)
    mean = weights @ label
    deviation = (weights @ label**2 - mean**2).sqrt()
    found = head.factor.distribution(head.logits(z))
    torch.testing.assert_close(found.mean, mean, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.stddev, deviation, atol=1e-4, rtol=0)


def test_a_prior_fitted_to_codes_makes_them_more_likely() -> None:
    model = labelled((4,), 2).eval()
    y = torch.arange(400) % 2
    x = torch.randn(400, 4) * torch.tensor([0.5, 1.0, 2.0, 1.0]) + 0.7 * y[:, None] + 0.3
    before = model.log_prob(x[200:], y[200:]).mean().detach()
    parts = [(x[:200], {"y": y[:200]}), (x[200:], {"y": y[200:]})]
    gains = refit(model, parts[0], parts[1], tolerance=1e-6)
    after = model.log_prob(x[200:], y[200:]).mean().detach()
    assert min(gains.values()) > 0.05
    assert float(after - before) == pytest.approx(sum(gains.values()), abs=1e-3)
    code = model.encode(x[:200], log_det=False)
    torch.testing.assert_close(code.unsupervised.mean(0), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(code.unsupervised.std(0), torch.ones(2), atol=1e-3, rtol=0)
    assert isinstance(model.flow.single[2][-1], Scale)


def test_a_prior_that_would_fit_worse_is_left_alone() -> None:
    model = labelled((4,), 2).eval()
    y = torch.arange(200) % 2
    x = model.sample(200, y=y, generator=torch.Generator().manual_seed(0))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    elsewhere = 9.0 + 5.0 * torch.randn(200, 4)
    gains = refit(model, (elsewhere, {"y": y}), (x, {"y": y}))
    assert set(gains.values()) == {0.0}
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


# ------------------------------------------------------------------------------------- the loss


def test_the_loss_of_a_sample_depends_on_its_seed_and_not_on_its_batch() -> None:
    model = labelled((1, 4, 4), 3)
    shaken(model.flow.single[1].dynamics.field)
    x, y = torch.rand(6, 1, 4, 4), torch.arange(6) % 3
    whole = matching_objective(model, x, y, seeds=SEEDS[:6])
    part = matching_objective(model, x[2:4], y[2:4], seeds=SEEDS[2:4])
    torch.testing.assert_close(whole.losses[2:4], part.losses)
    other = matching_objective(model, x, y, seeds=SEEDS[6:12])
    assert not torch.allclose(whole.losses, other.losses)
    torch.testing.assert_close(
        whole.losses, whole.error + whole.end_error + 0.02 * whole.cross_entropy
    )


def test_matching_moves_no_pattern() -> None:
    model = labelled((1, 4, 4), 3)
    shaken(model.flow.single[1].dynamics.field)
    matching_objective(
        model, torch.rand(6, 1, 4, 4), torch.arange(6) % 3, seeds=SEEDS[:6]
    ).total.backward()
    assert all(p.grad is None for p in model.code.parameters())
    assert all(p.grad is not None for p in model.flow.single[1].dynamics.parameters())


def test_labels_of_a_share_are_read_and_weigh_as_much_as_those_of_all() -> None:
    model = labelled((3,), 2)
    shaken(model.flow.single[1].dynamics.field)
    x, y, seeds = torch.randn(20000, 3), torch.arange(20000) % 2, SEEDS
    whole = matching_objective(model, x, y, seeds=seeds)
    some = matching_objective(model, x, y, seeds=seeds, share=0.25)
    assert len(whole.read) == 20000 and abs(len(some.read) - 5000) < 250
    torch.testing.assert_close(some.end_error, whole.end_error[some.read])
    assert float(some.loss.detach()) == pytest.approx(float(whole.loss.detach()), rel=0.02)
    unread = torch.ones(20000).bool()
    unread[some.read] = False
    torch.testing.assert_close(some.losses[unread], whole.error[unread])
    assert len(matching_objective(model.eval(), x, y, seeds=seeds, share=0.25).read) == 20000


def test_examples_are_erased_only_where_labels_are_read_and_only_in_training() -> None:
    model = InfoCNF(
        (1, 8, 8),
        {"kind": Categorical(3)},
        architecture="unet",
        hidden=(8,),
        blocks=1,
        separation=1.0,
        dropout=0.0,
    )
    shaken(model.flow.single[1].dynamics.field, 0.1)
    x, y = torch.rand(6, 1, 8, 8), torch.arange(6) % 3
    for training in (True, False):
        model.train(training)
        plain = matching_objective(model, x, y, seeds=SEEDS[:6])
        erased = matching_objective(model, x, y, seeds=SEEDS[:6], erase=0.3)
        torch.testing.assert_close(erased.error, plain.error)
        same = torch.equal(erased.end_error, plain.end_error)
        assert same != training
        again = matching_objective(model, x, y, seeds=SEEDS[:6], erase=0.3)
        assert torch.equal(erased.losses, again.losses)


def test_images_are_moved_by_whole_pixels_and_their_borders_repeated() -> None:
    x = (
        torch.arange(5 * 7.0).view(1, 1, 5, 7).expand(300, 3, 5, 7)
        + torch.arange(300.0)[:, None, None, None]
    )
    found, seen = moved(x, SEEDS[:300], 2), set()
    for image, original in zip(found, x, strict=True):
        padded = nn.functional.pad(original, (2, 2, 2, 2), mode="replicate")
        places = [
            (i, j)
            for i in range(5)
            for j in range(5)
            if torch.equal(image, padded[:, i : i + 5, j : j + 7])
        ]
        assert len(places) == 1
        seen.update(places)
    assert len(seen) == 25
    torch.testing.assert_close(moved(x[7:9], SEEDS[7:9], 2), found[7:9])


def test_half_precision_changes_a_loss_by_its_rounding_only() -> None:
    model = labelled((3, 16, 16), 2, hidden=(16, 32), marginals=4, time="log_snr").float()
    shaken(model.flow.single[1].matched_field, 0.1)
    x, y = torch.rand(64, 3, 16, 16).float(), torch.arange(64) % 2
    full, half = (
        matching_objective(model, x, y, precision=precision, seeds=SEEDS[:64])
        for precision in ("float32", "bfloat16")
    )
    assert full.losses.dtype == half.losses.dtype == torch.float32
    assert not torch.equal(full.losses, half.losses)
    torch.testing.assert_close(full.losses, half.losses, rtol=0.05, atol=0.0)
    assert float(half.loss) == pytest.approx(float(full.loss), rel=0.01)


def test_transport_shortens_lines_within_classes_only() -> None:
    x, z, y = torch.randn(40, 3), torch.randn(40, 3), torch.arange(40) % 4
    dealt = StraightPath(coupling="ot").couple(x, z, {"y": y})
    for label in range(4):
        mine = y == label
        assert {tuple(row) for row in dealt[mine].tolist()} == {
            tuple(row) for row in z[mine].tolist()
        }
    assert (dealt - x).square().sum() < 0.8 * (z - x).square().sum()
    from itertools import permutations

    few = StraightPath(coupling="ot").couple(x[:5], z[:5], {})
    best = min((z[list(p)] - x[:5]).square().sum() for p in permutations(range(5)))
    assert float((few - x[:5]).square().sum()) == pytest.approx(float(best))


def test_codes_of_a_refitted_flow_are_still_matched() -> None:
    model = labelled((3,), 2, supervised=0.34)
    last = model.flow.single[2][-1]
    with torch.no_grad():
        last.shift.copy_(torch.tensor([0.0, 1.0, 2.0]))
        last.scale.copy_(torch.tensor([1.0, 0.5, 2.0]))
    x = torch.zeros(20000, 3)
    model.flow.single[1].dynamics.field = Zero()
    found = matching_objective(model, x, torch.zeros(20000).long(), beta=0.0, end=0.0, seeds=SEEDS)
    # E|z|^2 of the block's own codes: pattern 1 + 1, then scale^2 + shift^2
    truth = (2.0 + (0.25 + 1.0) + (4.0 + 4.0)) / 3.0
    assert float(found.loss.detach()) == pytest.approx(truth, rel=0.03)


class Zero(nn.Module):
    """Stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return self.weight * z


@pytest.mark.parametrize(
    ("make", "y", "options", "message"),
    [
        (lambda: labelled((3,), 2), torch.zeros(4), {"times": "never"}, "times must be one of"),
        (lambda: labelled((3,), 2), None, {}, "labels of every factor: 'y' has none"),
        (lambda: InfoCNF((3,), blocks=2, hidden=(4,)), None, {}, "single block, .* has 2"),
    ],
)
def test_what_cannot_be_matched_is_refused(
    make: Callable[[], InfoCNF], y: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        matching_objective(make(), torch.zeros(4, 3), y, **options)


def test_answers_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ValueError, match="readout must be one of flow, one_step, got 'twice'"):
        labelled((3,), 2).predict(torch.zeros(1, 3), readout="twice")
    with pytest.raises(ValueError, match=r"separation > 0"):
        InfoCNF((3,), {"y": Categorical(2)}, blocks=1).predict(
            torch.zeros(1, 3), readout="one_step"
        )
    with pytest.raises(ValueError, match=r"4 classes cannot be told apart in .* 2 dimensions"):
        labelled((4,), 4)
    with pytest.raises(ValueError, match="'flat' does not make marginals normal"):
        InfoCNF((3,), marginals=8)
    with pytest.raises(ValueError, match="'residual' needs widths in hidden"):
        InfoCNF((3,), architecture="residual", hidden=())
    with pytest.raises(
        ValueError, match=r"8x8 pixels cannot have 5 resolutions: give hidden 1 to 4"
    ):
        InfoCNF((1, 16, 16), architecture="unet", hidden=(8,) * 5)
    with pytest.raises(ValueError, match="time of architecture 'unet' must be concat or log_snr"):
        InfoCNF((1, 16, 16), architecture="unet", hidden=(8,), time="concat_squash")


# ---------------------------------------------------------------------------------- two moons


def moons(count: int, seed: int) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import make_moons

    x, y = make_moons(count, noise=0.1, random_state=seed)
    x = (x - np.array([0.5, 0.25])) / np.array([0.87, 0.5])
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


@pytest.mark.slow
def test_matching_is_as_good_as_maximum_likelihood_on_two_moons() -> None:
    """As a density of all samples: given the label it stays behind, because lines of both classes
    cross, and a field that does not know the label sends some samples to the other pattern.
    """
    torch.set_default_dtype(torch.float32)
    x, y = moons(4000, 0)
    test, labels = moons(2000, 1)

    def batch(step: int, count: int) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(x), (count,), generator=torch.Generator().manual_seed(step))
        return x[rows], y[rows]

    def make() -> InfoCNF:
        torch.manual_seed(0)
        return InfoCNF(
            (2,),
            {"y": Categorical(2)},
            supervised=1.0,
            separation=1.0,
            architecture="flat",
            blocks=1,
            activation="tanh",
            training_method="bosh3",
            tolerance=1e-3,
        )

    matched, likeliest = make(), make()

    def matching(step: int) -> Tensor:
        seeds = combine_seeds(step, torch.arange(512))
        return matching_objective(
            matched, *batch(step, 512), beta=0.0, end=0.0, times="uniform", seeds=seeds
        ).loss

    train(matched, matching, 2500, 1e-2)
    train(
        likeliest,
        lambda step: likelihood_objective(likeliest, *batch(step, 256), beta=0.02).loss,
        300,
        1e-2,
    )
    with torch.no_grad():
        found = [model.log_prob(test, tolerance=1e-4).mean() for model in (matched, likeliest)]
    assert float(found[1]) > -1.95  # it was trained, too
    assert float(found[0] - found[1]) > -0.05
    with torch.no_grad():
        given = [
            model.log_prob(test, labels, tolerance=1e-4).mean() for model in (matched, likeliest)
        ]
    assert -0.25 < float(given[0] - given[1]) < -0.05  # docs/matching.md tells of this

    side = torch.linspace(-3.5, 3.5, 141)
    with torch.no_grad():
        density = matched.log_prob(torch.cartesian_prod(side, side), tolerance=1e-5).exp().double()
    assert float(density.sum()) * (7.0 / 140) ** 2 == pytest.approx(1.0, abs=2e-3)
