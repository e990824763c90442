"""Marginal Gaussianisation against its definition, autograd and numerical integration."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from infocnf import InfoCNF
from infocnf.flows import Gaussianise, Traversal
from infocnf.flows.architectures import fit_marginals
from infocnf.flows.gaussianise import column_tables, pixel_tables
from infocnf.models.code import normal_log_prob
from infocnf.models.readout import data_end
from infocnf.networks.unet import Thresholds
from infocnf.tolerances import Fixed

WAY = Traversal(Fixed())


def images(count: int = 200) -> Tensor:
    """Whole numbers 0 .. 4 of very uneven frequency, one pixel always black."""
    generator = torch.Generator().manual_seed(0)
    found = (torch.rand(count, 1, 2, 3, generator=generator) ** 3 * 5).long()
    found[:, 0, 0, 0] = 0
    return found


def fitted(kind: str) -> tuple[Gaussianise, Tensor]:
    """A map with tables of some data, and numbers in and beyond its range."""
    if kind == "pixels":
        made = Gaussianise((1, 2, 3), 5)
        made.fit(*pixel_tables(images(), 5))
        return made, torch.rand(50, 1, 2, 3).double()
    rows = torch.from_numpy(stats.gamma.rvs(2.0, size=(500, 3), random_state=0))
    made = Gaussianise((3,), 16, margin=1e-3)
    made.fit(*column_tables(rows, 16))
    return made, torch.cat([rows[:40], torch.tensor([[-3.0, 30.0, 0.0]]).double()])


@pytest.mark.parametrize("kind", ["pixels", "columns"])
def test_the_map_is_inverted_and_knows_its_determinant(kind: str) -> None:
    made, x = fitted(kind)
    z, log_det = made(x, WAY)
    torch.testing.assert_close(made.inverse(z, WAY), x, atol=1e-9, rtol=1e-9)
    for i in range(len(x)):
        jacobian = torch.autograd.functional.jacobian(
            lambda one: made(one[None], WAY)[0].flatten(), x[i]
        )
        slopes = jacobian.flatten(1).diagonal()
        torch.testing.assert_close(slopes.log().sum(), log_det[i], atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("kind", ["pixels", "columns"])
def test_every_marginal_integrates_to_one(kind: str) -> None:
    made, x = fitted(kind)
    size = x[0].numel()
    for feature in range(size):

        def density(value: float, feature: int = feature) -> float:
            one = x[:1].flatten(1).clone()
            one[0, feature] = value
            z, _ = made(one.view_as(x[:1]), WAY)
            step = 1e-7
            two = one.clone()
            two[0, feature] += step
            ahead, _ = made(two.view_as(x[:1]), WAY)
            slope = (ahead - z).flatten()[feature] / step
            return float(normal_log_prob(z.flatten()[feature : feature + 1]).exp() * slope)

        inside = made.knots[feature].tolist()
        spread = inside[-1] - inside[0]
        edges = [inside[0] - 3 * spread, *inside, inside[-1] + 3 * spread]
        total = sum(
            integrate.quad(density, a, b, limit=20, epsabs=1e-7)[0] for a, b in pairwise(edges)
        )
        assert total == pytest.approx(1.0, abs=1e-4)


def test_data_becomes_standard_normal() -> None:
    rows = torch.from_numpy(stats.lognorm.rvs(1.0, size=(4000, 2), random_state=1))
    made = Gaussianise((2,), 64, margin=1e-4)
    made.fit(*column_tables(rows[:2000], 64))
    z, _ = made(rows[2000:], WAY)
    for column in z.t():
        assert stats.kstest(column.numpy(), "norm").pvalue > 1e-3


@pytest.mark.slow
def test_an_identity_flow_has_the_likelihood_of_independent_pixels() -> None:
    data = images(400)
    model = InfoCNF(
        (1, 2, 3), architecture="unet", hidden=(8,), blocks=1, marginals=5, trace="exact"
    ).double()
    tables = pixel_tables(data, 5)
    gaussian = next(m for m in model.modules() if isinstance(m, Gaussianise))
    gaussian.fit(*tables)
    x = (data.double() + torch.rand(data.shape).double()) / 5
    shares = tables[1] / tables[1].sum(1, keepdim=True)
    margin = 1.0 - 2.0 * gaussian.margin
    truth = sum((shares[i] * 5 * margin).log()[data.flatten(1)[:, i]] for i in range(len(shares)))
    found = model.eval().log_prob(x, tolerance=1e-9)
    torch.testing.assert_close(found, truth, atol=1e-6, rtol=0)


def test_a_field_is_told_which_pixels_are_brighter_than_a_level() -> None:
    data = images(400)[..., [0, 1, 2, 2]]
    model = InfoCNF((1, 2, 4), architecture="unet", hidden=(8,), blocks=1, marginals=5)
    fit_marginals(model.flow, *pixel_tables(data, 5))
    x = (data + torch.rand(data.shape)) / 5
    state = data_end(model, x)
    thresholds = model.flow.single[1].matched_field.thresholds
    t = torch.zeros(1, 1, 1, 1)
    told = thresholds(state, t, t + 1.0).unflatten(1, thresholds.values.shape[:2])
    for level, seen in zip((1, 2, 3, 4), told.unbind(1), strict=True):
        assert torch.equal(seen > 0, F.pixel_unshuffle(data, 2) >= level)


@pytest.mark.parametrize("t", [0.2, 0.5, 0.9])
def test_what_a_field_is_told_on_the_way_is_bayes_rule(t: float) -> None:
    thresholds = Thresholds((1, 1, 1), 1)
    thresholds.values.fill_(0.7)
    x, z = torch.randn(2, 400_000)
    seen = (1.0 - t) * x + t * z
    points = torch.linspace(-1.5, 1.5, 7)
    times = torch.full((1, 1, 1, 1), t)
    told = thresholds(points.view(-1, 1, 1, 1), times, (1.0 - times) ** 2 + times**2)
    counted = torch.stack([(x > 0.7)[(seen - p).abs() < 0.05].double().mean() for p in points])
    torch.testing.assert_close(0.5 + 0.5 * told.flatten(), counted, atol=0.05, rtol=0)


def test_histograms_count_what_was_seen_and_allow_what_was_not() -> None:
    data = images()
    knots, shares = pixel_tables(data, 5, neighbours=0.0, everywhere=0.0, worth=-math.inf)
    counts = np.stack([np.bincount(c, minlength=5) for c in data.flatten(1).t().numpy()])
    np.testing.assert_allclose(shares.numpy(), counts + 0.1)
    assert torch.equal(knots[0], torch.linspace(0, 1, 6).double())
    _, smooth = pixel_tables(data, 5, worth=-math.inf)
    assert (smooth > shares).all()


def test_repeated_numbers_in_a_column_have_a_density() -> None:
    rows = torch.tensor([[0.0], [0.0], [0.0], [1.0], [1.0], [5.0]]).double().repeat(10, 1)
    made = Gaussianise((1,), 8, margin=1e-3)
    made.fit(*column_tables(rows, 8))
    z, log_det = made(rows, WAY)
    assert z.isfinite().all() and log_det.isfinite().all() and (made.knots.diff() > 0).all()


def test_tables_stay_in_double_precision_and_travel_with_the_model(tmp_path: object) -> None:
    made, _ = fitted("pixels")
    before = made.below.clone()
    assert made.float().below.dtype == torch.float64 and torch.equal(made.below, before)
    x = torch.rand(20, 1, 2, 3).float()
    z, log_det = made(x, WAY)
    assert z.dtype == log_det.dtype == torch.float32
    torch.testing.assert_close(made.inverse(z, WAY), x, atol=1e-5, rtol=0)

    model = InfoCNF((1, 2, 3), architecture="unet", hidden=(8,), blocks=1, marginals=5).float()
    fit_marginals(model.flow, *pixel_tables(images(), 5))
    model.save_pretrained(str(tmp_path))
    again = InfoCNF.from_pretrained(str(tmp_path))
    torch.testing.assert_close(again.log_prob(x), model.eval().log_prob(x))


@pytest.mark.parametrize("arguments", [{"bins": 0}, {"bins": 4, "margin": 0.5}])
def test_impossible_tables_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        Gaussianise((2,), **arguments)  # type: ignore[arg-type]


def test_a_number_at_the_very_edge_is_finite() -> None:
    made, _ = fitted("pixels")
    z, log_det = made(torch.tensor([0.0, 1.0]).repeat(3).view(1, 1, 2, 3).double(), WAY)
    assert z.isfinite().all() and log_det.isfinite().all()
    assert float(z.abs().max()) == pytest.approx(-stats.norm.ppf(1e-6), rel=1e-6)
    assert math.isfinite(float(made.inverse(z, WAY).sum()))


def likelihood(table: Tensor, images: Tensor) -> float:
    """Bits of a pixel by the shares of its levels."""
    shares = table / table.sum(1, keepdim=True)
    return -float(shares.gather(1, images.flatten(1).t()).log2().mean())


def test_histograms_of_few_images_are_blurred_as_far_as_helps() -> None:
    draw = torch.Generator().manual_seed(0)
    levels = 256

    def smooth(count: int) -> Tensor:
        grey = 128.0 + 40.0 * torch.randn(count, 1, 6, 6, generator=draw)
        return grey.round().clamp(0, 255).long()

    entropy = math.log2(40.0 * math.sqrt(2.0 * math.pi * math.e))
    _, shares = pixel_tables(smooth(300), levels, worth=-math.inf)
    assert likelihood(shares, smooth(3000)) < entropy + 0.05  # 1.2 more without

    spikes = 50 * torch.randint(0, 5, (300, 1, 6, 6), generator=draw)  # five levels, no others
    _, shares = pixel_tables(spikes, levels, worth=-math.inf)
    assert likelihood(shares, spikes) < math.log2(5) + 0.1
    assert (shares[:, 1::50] < 0.1).all()


def test_pixels_have_histograms_of_their_own_only_where_these_differ() -> None:
    draw = torch.Generator().manual_seed(0)
    alike = torch.randint(0, 5, (400, 2, 3, 3), generator=draw)
    alike[:, 1] = alike[:, 1].clamp(max=2)  # channels do
    differing = alike.clone()
    differing[..., 1:] = differing[..., 1:].clamp(max=1)
    for data, spread in ((alike, False), (differing, True)):
        _, shares = pixel_tables(data, 5)
        each = (shares / shares.sum(1, keepdim=True)).view(2, 9, 5)
        assert bool((each.std(1) > 1e-9).any()) == spread
        assert float((each[0] - each[1]).abs().max()) > 0.1
