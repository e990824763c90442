"""Estimators on tables: ``python -m benchmarks.tabular`` compares those of infocnf, at their
defaults, with scikit-learn's on its own data sets by 5-fold cross-validation, and writes
``docs/results/tabular.md``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.peers.measure import machine, publish
from infocnf.estimators import InfoCNFClassifier, InfoCNFRegressor

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "docs" / "results" / "tabular.md"

HEAD = """# Tables

Made by `python -m benchmarks.tabular`: 5-fold cross-validation on scikit-learn's own data sets, the
same folds for all; mean and standard deviation over folds. Estimators are at their defaults, but
logistic regression may take 5,000 iterations, and the mixtures, one for each class, choose their
parts (1 to 3) and `reg_covar` (1e-6 to 1e-2) by cross-validation within the training rows. Rows are
standardised for those that do not do it themselves, and columns that are constant in the training
rows of a fold are left out for all. *Log-likelihood* is the mean of log p(x) of test rows in nats,
in the data's own units, whatever their label. Seconds are those of fitting one fold on {threads}
threads.
"""


class MixtureClassifier(ClassifierMixin, BaseEstimator):
    """Bayes' rule with a Gaussian mixture for each class, whose parts and least variance are those
    that rows held out within training like best.
    """

    def __init__(self, largest: int = 3) -> None:
        self.largest = largest

    def fit(self, X: np.ndarray, y: np.ndarray) -> MixtureClassifier:
        self.classes_, counts = np.unique(y, return_counts=True)
        self.priors_ = np.log(counts / len(y))
        self.parts_ = []
        for name in self.classes_:
            mine = X[y == name]
            found = [
                GaussianMixture(k, reg_covar=least, random_state=0)
                for k in range(1, self.largest + 1)
                for least in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
            ]
            inner = KFold(5, shuffle=True, random_state=0)
            best = max(found, key=lambda one: cross_val_score(one, mine, cv=inner).mean())
            self.parts_.append(best.fit(mine))
        return self

    def joint(self, X: np.ndarray) -> np.ndarray:
        each = np.stack([part.score_samples(X) for part in self.parts_], 1)
        return each + self.priors_

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        joint = self.joint(X)
        return np.exp(joint - np.logaddexp.reduce(joint, 1, keepdims=True))

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.classes_[self.joint(X).argmax(1)]

    def score_samples(self, X: np.ndarray) -> np.ndarray:
        return np.logaddexp.reduce(self.joint(X), 1)


CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "InfoCNFClassifier": lambda: InfoCNFClassifier(random_state=0),
    "logistic regression": lambda: make_pipeline(
        StandardScaler(), LogisticRegression(max_iter=5000)
    ),
    "gradient boosting": lambda: HistGradientBoostingClassifier(random_state=0),
    "Gaussian mixtures": lambda: make_pipeline(StandardScaler(), MixtureClassifier()),
}
REGRESSORS: dict[str, Callable[[], Any]] = {
    "InfoCNFRegressor": lambda: InfoCNFRegressor(random_state=0),
    "ridge regression": lambda: make_pipeline(StandardScaler(), Ridge()),
    "gradient boosting": lambda: HistGradientBoostingRegressor(random_state=0),
}
SETS = {"wine": load_wine, "breast cancer": load_breast_cancer, "digits": load_digits}


def density_of(model: Any, x: np.ndarray) -> float | None:
    """Mean log-likelihood of rows in their own units, of a model that has one."""
    last = model[-1] if isinstance(model, Pipeline) else model
    if not hasattr(last, "score_samples"):
        return None
    if last is model:
        return float(last.score_samples(x).mean())
    scales = model[0].scale_
    return float(last.score_samples(model[0].transform(x)).mean() - np.log(scales).sum())


def classify(make: Callable[[], Any], x: np.ndarray, y: np.ndarray) -> list[dict[str, float]]:
    """Figures of each fold."""
    found = []
    whole = x
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(x, y):
        x = whole[:, np.ptp(whole[train], 0) > 0]
        began = time.perf_counter()
        model = make().fit(x[train], y[train])
        seconds = time.perf_counter() - began
        probabilities = model.predict_proba(x[test])
        wrong = model.predict(x[test]) != y[test]
        fold = {
            "error": 100.0 * float(wrong.mean()),
            "loss": float(log_loss(y[test], probabilities, labels=model.classes_)),
            "seconds": seconds,
        }
        density = density_of(model, x[test])
        found.append(fold if density is None else {**fold, "density": density})
    return found


def regress(make: Callable[[], Any], x: np.ndarray, y: np.ndarray) -> list[dict[str, float]]:
    """Figures of each fold."""
    found = []
    for train, test in KFold(5, shuffle=True, random_state=0).split(x):
        began = time.perf_counter()
        model = make().fit(x[train], y[train])
        seconds = time.perf_counter() - began
        rest = model.predict(x[test]) - y[test]
        fold = {"rmse": float(np.sqrt((rest**2).mean())), "seconds": seconds}
        fold["r2"] = 1.0 - float((rest**2).mean() / y[test].var())
        density = density_of(model, x[test])
        found.append(fold if density is None else {**fold, "density": density})
    return found


def table(
    folds: Mapping[str, list[dict[str, float]]], columns: Mapping[str, tuple[str, str]]
) -> str:
    """Mean and deviation over folds; empty where an estimator has no such figure."""
    lines = [
        "| | " + " | ".join(title for title, _ in columns.values()) + " |",
        "|" + "---|" * (len(columns) + 1),
    ]
    for name, found in folds.items():
        cells = []
        for key, (_, form) in columns.items():
            values = [fold[key] for fold in found if key in fold]
            cells.append(
                f"{np.mean(values):{form}} ± {np.std(values, ddof=1):{form}}" if values else ""
            )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore")
    parts = [HEAD.format(threads=arguments.threads), machine()]
    columns = {
        "error": ("error %", ".2f"),
        "loss": ("log-loss", ".3f"),
        "density": ("log-likelihood", ".2f"),
        "seconds": ("seconds", ".1f"),
    }
    for name, load in SETS.items():
        x, y = load(return_X_y=True)
        folds = {}
        for estimator, make in CLASSIFIERS.items():
            folds[estimator] = classify(make, x, y)
            print(
                name, estimator, np.mean([fold["error"] for fold in folds[estimator]]), flush=True
            )
        title = f"## {name}: {len(x):,} rows, {x.shape[1]} columns, {len(set(y))} classes"
        parts.append(f"{title}\n\n{table(folds, columns)}")
        publish(RESULT, parts)
    x, y = load_diabetes(return_X_y=True)
    columns = {
        "rmse": ("rmse", ".2f"),
        "r2": ("R²", ".3f"),
        "density": ("log-likelihood", ".2f"),
        "seconds": ("seconds", ".1f"),
    }
    folds = {name: regress(make, x, y) for name, make in REGRESSORS.items()}
    title = f"## diabetes: {len(x):,} rows, {x.shape[1]} columns, an amount"
    parts.append(f"{title}\n\n{table(folds, columns)}")
    publish(RESULT, parts)


if __name__ == "__main__":
    main()
