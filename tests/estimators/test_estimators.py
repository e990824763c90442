"""Estimators that behave as scikit-learn's do, and what they have more."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris, make_regression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

from infocnf.estimators import FlowDensity, InfoCNFClassifier, InfoCNFRegressor

pytestmark = pytest.mark.slow

FAST = {"width": 32, "random_state": 0}


@parametrize_with_checks(
    [
        InfoCNFClassifier(steps=100, width=32, random_state=0),
        InfoCNFRegressor(steps=150, width=32, random_state=0),
        FlowDensity(steps=20, width=32, random_state=0),
    ]
)
def test_scikit_learns_own_checks(estimator: object, check: object) -> None:
    check(estimator)  # type: ignore[operator]


def test_in_pipelines_searches_and_folds() -> None:
    x, y = load_iris(return_X_y=True)
    chain = make_pipeline(
        PolynomialFeatures(1, include_bias=False), InfoCNFClassifier(steps=150, **FAST)
    )
    search = GridSearchCV(chain, {"infocnfclassifier__beta": [0.1, 0.5]}, cv=2).fit(x, y)
    assert search.best_score_ > 0.85
    assert cross_val_score(clone(search.best_estimator_), x, y, cv=3).mean() > 0.85


def test_no_probability_is_surer_than_the_rows_that_were_seen_allow() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    x = rng.normal(size=(60, 2)) + 20.0 * y[:, None]  # two clouds far apart
    flow = InfoCNFClassifier(steps=200, **FAST).fit(x, y)
    found = flow.predict_proba(x)
    np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-12)
    assert found.max() == pytest.approx(61 / 62)
    flow.partial_fit(x, y)
    assert flow.predict_proba(x).max() == pytest.approx(121 / 122)


def test_going_on_learns_how_frequent_classes_are() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 60)
    x = rng.normal(size=(120, 2)) + 3.0 * y[:, None]
    flow = InfoCNFClassifier(steps=60, **FAST)
    flow.partial_fit(x[:60], y[:60], classes=[0, 1], labels={"k": x[:60, 0]})
    assert flow.model_.factors["target"].probabilities[1] < 0.02
    flow.partial_fit(x[60:], y[60:], labels={"k": x[60:, 0]})
    assert flow.model_.factors["target"].probabilities[1] == pytest.approx(0.5)
    kept = flow.predict_proba(x)
    with pytest.raises(ValueError, match="needs the labels of the first fit"):
        flow.partial_fit(x, y)
    np.testing.assert_array_equal(flow.predict_proba(x), kept)  # as it was, in double precision


def test_labels_must_be_as_many_as_rows_and_known() -> None:
    x, y = load_iris(return_X_y=True)
    flow = InfoCNFClassifier(steps=20, **FAST)
    with pytest.raises(ValueError, match="one value for each of 75 rows"):
        flow.fit(x[:75], y[:75] % 2, labels={"kind": y})
    kinds = np.array(["a", "b"])
    flow.fit(x, y, labels={"kind": kinds[y % 2]})
    with pytest.raises(ValueError, match="no class is called 'c'"):
        flow.partial_fit(x, y, labels={"kind": np.repeat("c", len(y))})
    with pytest.raises(ValueError, match="validation_fraction must be in"):
        InfoCNFClassifier(validation_fraction=1.0).fit(x, y)


def test_a_pickle_holds_no_code_of_the_model_and_answers_the_same() -> None:
    x, y = load_iris(return_X_y=True)
    flow = InfoCNFClassifier(steps=60, **FAST).fit(x, y)
    content = pickle.dumps(flow)
    assert b"torch" not in content.replace(b"torch.float", b"")
    again = pickle.loads(content)
    np.testing.assert_array_equal(again.predict_proba(x), flow.predict_proba(x))
    np.testing.assert_array_equal(again.score_samples(x), flow.score_samples(x))


def test_the_density_is_in_the_units_of_the_rows_and_integrates_to_one() -> None:
    rng = np.random.default_rng(0)
    x = 100.0 + 25.0 * rng.normal(size=(400, 1))
    flow = FlowDensity(steps=300, tolerance=1e-5, **FAST).fit(np.hstack([x, np.full_like(x, 7.0)]))
    grid = np.linspace(-50.0, 250.0, 8001)  # its normalisations make fine structure near the mean
    rows = np.stack([grid, np.full_like(grid, 7.0)], 1)
    values = np.exp(flow.score_samples(rows))
    assert np.trapezoid(values, grid) == pytest.approx(1.0, abs=1e-3)
    truth = -0.5 * ((x[:, 0] - 100.0) / 25.0) ** 2 - np.log(25.0 * np.sqrt(2.0 * np.pi))
    found = flow.score_samples(np.hstack([x, np.full_like(x, 7.0)]))
    assert found.mean() == pytest.approx(truth.mean(), abs=0.05)
    drawn = flow.sample(500, random_state=1)
    assert drawn[:, 0].std() == pytest.approx(25.0, rel=0.15) and set(drawn[:, 1]) == {7.0}
    assert flow.score(rows[:3]) == pytest.approx(flow.score_samples(rows[:3]).sum())


def test_samples_have_the_label_that_was_asked_for() -> None:
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    flow = InfoCNFClassifier(steps=600, **FAST).fit(x, names)
    drawn = flow.sample(60, y=np.repeat(flow.classes_, 20), random_state=0)
    assert (flow.predict(drawn) == np.repeat(flow.classes_, 20)).mean() > 0.8
    with pytest.raises(ValueError, match="no class is called 'rose'"):
        flow.sample(3, y="rose")
    with pytest.raises(ValueError, match="knows no labels"):
        FlowDensity(steps=5, **FAST).fit(x).sample(3, y=1)


def test_several_labels_of_mixed_kinds() -> None:
    x, amount = make_regression(200, 6, n_informative=3, random_state=0)
    side = np.where(x[:, 0] > 0, "right", "left")
    flow = InfoCNFRegressor(steps=800, **FAST).fit(x, amount, labels={"side": side})
    found = flow.predict_labels(x)
    assert (found["side"] == side).mean() > 0.9
    np.testing.assert_array_equal(found["target"], flow.predict(x))
    assert flow.score(x, amount) > 0.7


def test_more_rows_than_come_at_once() -> None:
    x, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    flow = InfoCNFClassifier(steps=100, **FAST)
    with pytest.raises(ValueError, match="must name all classes"):
        flow.partial_fit(x, y)
    first = flow.partial_fit(x[order[:75]], y[order[:75]], classes=[0, 1, 2]).score(x, y)
    for _ in range(4):
        for part in (order[75:], order[:75]):
            flow.partial_fit(x[part], y[part])
    assert flow.score(x, y) > max(0.9, first - 0.02)
    with pytest.raises(ValueError, match="no class is called 9"):
        flow.partial_fit(x[:2], [9, 0])
