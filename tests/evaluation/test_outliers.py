"""How strange examples are, and whether probabilities are what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from infocnf import Categorical, InfoCNF, Real
from infocnf.data import load_data
from infocnf.evaluation.calibration import calibration_error, reliability
from infocnf.evaluation.driver import Driver
from infocnf.evaluation.outliers import (
    SCORES,
    ReferenceLikelihood,
    auroc,
    independent,
    make_outliers,
    outlier_table,
)


def test_the_area_is_the_share_of_pairs_in_the_right_order() -> None:
    draw = torch.Generator().manual_seed(0)
    usual = torch.randint(0, 6, (30,), generator=draw).double()
    strange = torch.randint(2, 9, (40,), generator=draw).double()
    strange[:2] = torch.tensor([math.nan, math.inf])
    filled = strange.nan_to_num(nan=math.inf)
    pairs = filled.unsqueeze(0) - usual.unsqueeze(1)
    share = ((filled.unsqueeze(0) > usual.unsqueeze(1)).double() + 0.5 * (pairs == 0)).mean()
    assert auroc(usual, strange) == pytest.approx(float(share))


def test_percentiles_are_ranks_among_usual_examples() -> None:
    values = torch.linspace(-10.0, 10.0, 1001)
    familiar = ReferenceLikelihood.of(torch.cat([values, torch.tensor([math.nan])]))
    new = torch.tensor([-99.0, -5.0, 0.0, 5.0, 99.0, math.nan])
    found = familiar.percentile(new)
    np.testing.assert_allclose(found[:5], [0.0, 25.0, 50.0, 75.0, 100.0])
    assert found[5].isnan()
    torch.testing.assert_close(familiar.typicality(new)[:3], torch.tensor([99.0, 5.0, 0.0]))


def test_the_distance_is_that_of_the_nearest_label() -> None:
    factors = {"kind": Categorical(3), "size": Real(5.0, 2.0)}
    model = InfoCNF((6,), factors, supervised=1.0, hidden=(4,), separation=1.3, blocks=1)
    for head in model.code.heads.values():
        torch.nn.init.normal_(head.prior.weight)
        torch.nn.init.normal_(head.classifier.weight)
    z = torch.randn(5, 6)
    expected = []
    for row in z:
        total = 0.0
        for head, code in model.code.by_factor(row.unsqueeze(0)).values():
            if isinstance(head.factor, Categorical):
                labels = torch.arange(3)
            else:
                labels = head.factor.predict(head.logits(code)).to(z)
            mean, log_scale = head.moments(labels)
            squares = ((code - mean) / log_scale.exp()).square().sum(-1)
            total += float(squares.min().detach())
        expected.append(math.sqrt(total / 6))
    np.testing.assert_allclose(model.code.distance(z).detach(), expected, rtol=1e-5)


def test_independent_pixels_have_the_density_of_their_histograms() -> None:
    data = load_data("digits", validation=100, test=100)
    log_prob, levels = independent(data), data.raw.levels
    x, _ = data.examples("train")
    prepared = data.preparation(x, torch.float64)
    bits = -log_prob(prepared).mean() / (64 * math.log(2.0)) + math.log2(levels)
    entropy = 0.0
    for pixel in x.flatten(1).t():
        shares = torch.bincount(pixel.long(), minlength=levels).double() / len(x)
        entropy += float(torch.special.entr(shares).sum()) / math.log(2.0)
    assert float(bits) == pytest.approx(entropy / 64, abs=0.03)  # histograms are smoothed a little


@pytest.mark.parametrize("levels", [1, 17])
def test_strange_examples_are_of_the_same_kind(levels: int) -> None:
    draw = torch.Generator().manual_seed(5)
    shape = (20, 3) if levels == 1 else (20, 1, 8, 8)
    x = torch.rand(shape, generator=draw)
    x = x if levels == 1 else (x * levels).floor().to(torch.uint8)
    kinds = make_outliers(x, levels)
    for strange in kinds.values():
        assert strange.shape == x.shape and strange.dtype == x.dtype
        assert not torch.equal(strange, x)
        if levels > 1:
            assert strange.min() >= 0 and strange.max() < levels
    if levels == 1:
        mixed = kinds["columns of different rows"]
        torch.testing.assert_close(mixed.sort(0).values, x.sort(0).values)


def test_every_score_has_its_place_in_the_table() -> None:
    data = load_data("digits", validation=20, test=20, limit=40)
    model = InfoCNF(data.shape, data.factors, hidden=(4,), blocks=1, scales=1).eval()
    told: list[int] = []
    table = outlier_table(
        Driver(model, data.preparation, progress=told.append), data, tolerance=1e-2
    )
    assert list(table) == list(make_outliers(data.examples("test")[0], 17))
    assert sum(told) == 20 * (len(table) + 2)
    for areas in table.values():
        assert tuple(areas) == SCORES and all(0.0 <= area <= 1.0 for area in areas.values())
    bare = InfoCNF(data.shape, {}, hidden=(4,), blocks=1, scales=1).eval()
    table = outlier_table(Driver(bare, data.preparation), data, tolerance=1e-2)
    assert set(table["noise"]) == {"log-likelihood", "typicality", "ratio"}


def test_the_reliability_diagram_adds_up_to_the_calibration_error() -> None:
    draw = torch.Generator().manual_seed(0)
    probabilities = (3.0 * torch.randn(500, 4, generator=draw)).softmax(1)
    labels = torch.randint(0, 4, (500,), generator=draw)
    rows = reliability(probabilities, labels, bins=15)
    assert sum(row[2] for row in rows) == 500
    gap = sum(count * abs(right - sure) for sure, right, count in rows) / 500
    assert gap == pytest.approx(calibration_error(probabilities, labels), abs=1e-5)
