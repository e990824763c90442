"""How often classes occur, where nobody names one: counted, given or said to be unknown."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
import torch

import infocnf
from infocnf import Categorical, InfoCNF, LatentODE, Real
from infocnf.matching import matching_objective
from infocnf.objectives import likelihood_objective, variational_objective

RARE = torch.tensor([0] * 19 + [1])


def model(**options: object) -> InfoCNF:
    return InfoCNF((2,), {"side": Categorical(2)}, hidden=(4,), **options)  # type: ignore[arg-type]


def test_the_marginal_weighs_classes_as_often_as_they_occur() -> None:
    flow, x = model().eval(), torch.randn(3, 2)
    each = torch.stack([flow.log_prob(x, y) for y in (0, 1)])
    flow.fit_frequencies(RARE)
    weights = torch.tensor([20 / 22, 2 / 22])  # each class with one more
    expected = torch.logsumexp(each + weights.log().unsqueeze(1), 0)
    torch.testing.assert_close(flow.log_prob(x), expected)
    seeds = flow.drawn_seeds(20_000, torch.Generator().manual_seed(0))
    drawn = flow.drawn_labels(None, seeds)["side"]
    spread = math.sqrt(weights.prod() / 20_000)
    assert abs(float(drawn.double().mean()) - float(weights[1])) < 4 * spread


@pytest.mark.parametrize("objective", [likelihood_objective, matching_objective])
def test_objectives_count_the_classes_they_meet_in_training(objective: object) -> None:
    own = {"architecture": "residual", "separation": 1.0, "blocks": 1}
    flow = model(**own) if objective is matching_objective else model()
    labels = torch.cat([RARE, torch.tensor([-1, -1])])  # those that are missing do not count
    objective(flow.train(), torch.randn(22, 2), labels)  # type: ignore[operator]
    flow.eval()
    assert flow.factors["side"].probabilities == (20 / 22, 2 / 22)  # type: ignore[union-attr]
    objective(flow, torch.randn(2, 2), torch.tensor([1, 1]))  # type: ignore[operator]
    assert flow.eval().factors["side"].probabilities == (20 / 22, 2 / 22)  # type: ignore[union-attr]


def test_frequencies_that_were_given_stay_and_all_are_saved(tmp_path: Path) -> None:
    given = InfoCNF((2,), {"side": Categorical(2, (0.5, 0.5))}, hidden=(4,))
    likelihood_objective(given.train(), torch.randn(20, 2), RARE)
    assert given.eval().factors["side"].probabilities == (0.5, 0.5)  # type: ignore[union-attr]
    counted = model().eval()
    counted.fit_frequencies(RARE)
    counted.save_pretrained(tmp_path)
    again, x = infocnf.load(tmp_path), torch.randn(3, 2)
    assert torch.equal(again.log_prob(x), counted.log_prob(x))


def test_frequencies_that_were_never_set_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    flow, x = model().eval(), torch.randn(2, 2)
    with caplog.at_level(logging.WARNING, logger="infocnf"):
        flow.log_prob(x, 1)
        assert not caplog.messages
        flow.log_prob(x)
        flow.sample(2)
    assert len(caplog.messages) == 1 and "equally frequent: call fit_frequencies" in caplog.text


def test_missing_labels_of_series_are_averaged_over_as_the_classifier_believes() -> None:
    factors = {"kind": Categorical(3), "size": Real(0.0, 1.0)}
    series = LatentODE(1, factors, latent=6, units=5, hidden=(4,), decoder=4, separation=1.0).eval()
    x = torch.stack([torch.arange(5.0).expand(4, 5), torch.randn(4, 5)], 2)
    labels = {"kind": torch.tensor([0, -1, 2, -1]), "size": torch.tensor([0.5, 0.1, math.nan, 1.0])}
    mixed = variational_objective(series, x, labels)
    every = {"kind": torch.tensor([0, 0, 2, 0]), "size": torch.tensor([0.5, 0.1, 0.0, 1.0])}
    known = variational_objective(series, x, every)
    only_kind = variational_objective(series, x, {"kind": every["kind"]})
    torch.testing.assert_close(mixed.losses[0], known.losses[0])
    torch.testing.assert_close(mixed.losses[2], only_kind.losses[2])
    only_size = variational_objective(series, x, {"size": every["size"]})
    torch.testing.assert_close(mixed.losses[[1, 3]], only_size.losses[[1, 3]])
