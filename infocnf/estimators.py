"""scikit-learn estimators: a flow over rows that classifies, predicts real values and knows
densities.

>>> from sklearn.datasets import load_iris
>>> x, y = load_iris(return_X_y=True)
>>> flow = InfoCNFClassifier(steps=100, random_state=0).fit(x, y)
>>> flow.predict_proba(x).shape, flow.score_samples(x).shape, flow.sample(5, y=2).shape
((150, 3), (150,), (5, 4))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, DensityMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from infocnf.data import Dataset, Preparation
from infocnf.data.dataset import moments
from infocnf.evaluation.driver import Columns, Driver
from infocnf.models import Categorical, InfoCNF
from infocnf.runs import read_config
from infocnf.runs.config import Config
from infocnf.training.fit import fit_in_memory, rows_in_memory

__all__ = ["FlowDensity", "InfoCNFClassifier", "InfoCNFRegressor"]

TARGET = "target"
AT_ONCE = 1000  # rows solved at a time
Labels = Mapping[str, np.ndarray]
Classes = Mapping[str, tuple[str, ...]]


class FlowEstimator(BaseEstimator):
    """What the estimators share: rows are standardised, a flow is matched to them, and densities
    are given back in the rows' own units.

    Columns that do not vary have no density and are left out.

    Arguments:
        steps: Steps of training.
        width: Width of the field's layers.
        supervised: Fraction of the code that knows the labels.
        separation: How far apart labels are in the code; more reads labels better, at some cost in
            likelihood.
        beta: Weight of the label's cross-entropy.
        learning_rate: Learning rate.
        weight_decay: Decoupled weight decay.
        batch_size: Rows of a step.
        validation_fraction: Rows that choose whether a fitted prior is better than the first one.
        tolerance: Tolerance of the solver where densities and samples are asked for.
        random_state: Seed of weights, order and noise.
    """

    def __init__(
        self,
        *,
        steps: int = 1500,
        width: int = 128,
        supervised: float = 0.5,
        separation: float = 1.5,
        beta: float = 0.2,
        learning_rate: float = 2e-3,
        weight_decay: float = 0.1,
        batch_size: int = 128,
        validation_fraction: float = 0.1,
        tolerance: float = 1e-4,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.steps = steps
        self.width = width
        self.supervised = supervised
        self.separation = separation
        self.beta = beta
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.tolerance = tolerance
        self.random_state = random_state

    # ----------------------------------------------------------------------------- densities

    def score_samples(self, X: Any, return_error: bool = False) -> Any:
        """Nats of log p(x), ``(rows,)``, in the units of the rows, whatever their label; and bounds
        on their numerical errors where these are asked for.
        """

        def measure(x: Tensor, _: Tensor) -> Columns:
            found = self.model_.log_prob(x, tolerance=self.tolerance, error=return_error)
            if not return_error:
                return {"log_prob": found.double()}
            return {"log_prob": found[0].double(), "error": found[1].total.double()}

        found = self.collect(X, measure)
        log_prob = (found["log_prob"] - self.preparation_.log_scale).numpy()
        return (log_prob, found["error"].numpy()) if return_error else log_prob

    def sample(
        self,
        n_samples: int = 1,
        y: Any = None,
        *,
        temperature: float = 1.0,
        random_state: int | np.random.RandomState | None = None,
    ) -> np.ndarray:
        """Rows of the learned density, ``(n_samples, columns)``, of a label where it is given: one
        for all, or one for each.
        """
        check_is_fitted(self)
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, got {n_samples}")
        seed = self.random_state if random_state is None else random_state
        generator = torch.Generator().manual_seed(seed_of(seed))
        labels = None if y is None else {TARGET: self.inner_labels(y, n_samples)}
        drawn = self.model_.sample(
            n_samples, labels, temperature, tolerance=self.tolerance, generator=generator
        )
        rows = np.tile(self.constants_, (n_samples, 1))
        rows[:, self.columns_] = self.preparation_.restore(drawn).numpy()
        return rows

    def inner_labels(self, y: Any, count: int) -> Tensor:
        """Labels as the model knows them, ``(count,)``."""
        raise ValueError("this estimator knows no labels: leave y out")

    def predict_labels(self, X: Any) -> dict[str, np.ndarray]:
        """Every label that it was fitted to, by name: classes, or real values."""
        predicted = {}
        for name, logits in self.logits(X).items():
            values = self.model_.factors[name].predict(logits).numpy()
            known = self.names_.get(name)
            predicted[name] = values if known is None else known[values]
        return predicted

    # --------------------------------------------------------------------------------- inside

    def train(
        self,
        X: np.ndarray,
        target: np.ndarray | None,
        names: np.ndarray | None,
        labels: Mapping[str, Any] | None,
        go_on: bool = False,
    ) -> Self:
        """Fit a flow to checked rows, their target (numbers of classes where these have names) and
        further labels; from the weights so far where training goes on.
        """
        if len(X) < 2 and not go_on:
            raise ValueError(f"a density needs at least 2 rows, got n_samples = {len(X)}")
        if not go_on:
            self.columns_ = np.flatnonzero(np.ptp(X, 0) > 0)
            self.constants_ = X[0].copy()
            self.names_: dict[str, np.ndarray] = {} if names is None else {TARGET: names}
        rows = X[:, self.columns_]
        if not rows.shape[1]:
            raise ValueError("all columns are constant: there is no density to learn")
        if not go_on:
            mean, scale = moments(rows)
            self.preparation_ = Preparation(mean=tuple(mean.tolist()), scale=tuple(scale.tolist()))

        inner = {} if target is None else {TARGET: target}
        for name, values in (labels or {}).items():
            inner[name] = self.encode(name, np.asarray(values), len(X), go_on)
        if go_on and set(inner) != set(self.model_.factors):
            missing = sorted(set(self.model_.factors) ^ set(inner))[0]
            raise ValueError(f"partial_fit needs the labels of the first fit: see {missing!r}")
        seed = seed_of(self.random_state)
        data = rows_in_memory(
            rows,
            inner,
            {name: tuple(map(str, known)) for name, known in self.names_.items()},
            self.preparation_,
            validation=self.validation_fraction,
            seed=seed,
        )
        config = self.settings(data, seed)
        counts = {
            name: np.bincount(inner[name], minlength=len(known))
            + (self.counts_[name] if go_on else 0)
            for name, known in self.names_.items()
        }
        started = self.restarted(counts) if go_on else None
        # in double precision predictions do not depend on what else is asked
        self.model_: InfoCNF = fit_in_memory(config, data, started).double()
        self.counts_: dict[str, np.ndarray] = counts  # of each class, in all rows so far
        return self

    def restarted(self, counts: Labels) -> InfoCNF:
        """The model so far, to be trained on, with classes as frequent as these."""
        model = deepcopy(self.model_).float()
        for name, mine in counts.items():
            model.factors[name] = Categorical.as_often(mine.tolist())
        return model

    def encode(self, name: str, values: np.ndarray, count: int, go_on: bool) -> np.ndarray:
        """A further label as numbers: of classes, unless it is of real numbers."""
        if name == TARGET:
            raise ValueError(f"no further label may be called {TARGET!r}")
        if values.shape != (count,):
            raise ValueError(
                f"label {name!r} must have one value for each of {count} rows, got {values.shape}"
            )
        if values.dtype.kind == "f":
            return values
        if not go_on:
            self.names_[name] = np.unique(values)
        return numbers_of(values, self.names_[name])

    def settings(self, data: Dataset, seed: int) -> Config:
        """The configuration of training: by matching, whose code needs a dimension for each class
        but one; where rows have fewer, by maximum likelihood.
        """
        for name in ("steps", "width", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 <= self.validation_fraction < 1.0:
            raise ValueError(
                f"validation_fraction must be in [0, 1), got {self.validation_fraction}"
            )
        rows, width = len(data.parts["train"]), data.shape[0]
        size = min(self.batch_size, rows)
        epochs = math.ceil(self.steps / math.ceil(rows / size))
        each = max((len(names) - 1 for names in data.raw.classes.values()), default=1)
        needed = max(each, 1) * len(data.raw.labels)
        matched = needed <= width
        stage = "matching" if matched else "training"
        share = max(self.supervised, min(1.0, (needed + 0.5) / width)) if needed else 0.0
        given = [
            f"model.hidden={[self.width] * (1 if matched else 2)}",
            f"model.supervised={share}",
            f"model.separation={self.separation if matched else 0.0}",
            f"matching.beta={self.beta}",
            f"objective.beta={self.beta}",
            f"{stage}.learning_rate={self.learning_rate}",
            f"{stage}.weight_decay={self.weight_decay}",
            f"{stage}.batch_size={size}",
            f"{stage}.epochs={epochs}",
            f"training.validate_every={epochs}",
            f"training.seed={seed}",
        ]
        if not matched:
            given += ['training.stages=["likelihood"]', "model.architecture=flat", "model.blocks=1"]
        return read_config("rows", given)

    def collect(self, X: Any, measure: Callable[[Tensor, Tensor], Columns]) -> Columns:
        """What is measured of rows, as the model reads them."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        driver = Driver(self.model_, self.preparation_, AT_ONCE)
        return driver.collect(torch.from_numpy(X[:, self.columns_]), measure)

    def logits(self, X: Any) -> dict[str, Tensor]:
        """What the model says of labels: in one evaluation of its field where it was matched."""
        check_is_fitted(self)
        readout = "one_step" if self.model_.has_one_step else "flow"
        return self.collect(X, lambda x, _: self.model_.logits(x, self.tolerance, readout=readout))

    def __getstate__(self) -> dict[str, Any]:
        """The model as the bytes of its two files: nothing in them is code."""
        state = dict(super().__getstate__())
        if state.get("model_") is not None:
            state["model_"] = state["model_"].to_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Undo :meth:`__getstate__`."""
        state = dict(state)
        if state.get("model_") is not None:
            state["model_"] = InfoCNF.from_bytes(*state["model_"])
        super().__setstate__(state)


class InfoCNFClassifier(ClassifierMixin, FlowEstimator):
    """Classes, with the density of every class: see :class:`FlowEstimator` for its arguments.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([[0], [5]], 30, 0)
    >>> y = np.repeat(["left", "right"], 30)
    >>> str(InfoCNFClassifier(steps=60, random_state=0).fit(x, y).predict([[5.0, 5.0]])[0])
    'right'
    """

    def fit(self, X: Any, y: Any, *, labels: Mapping[str, Any] | None = None) -> Self:
        """Fit to rows ``(rows, columns)`` and their classes; further labels may be given by name.

        Integers and strings among them are classes, real numbers are regression targets.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, target = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"a classifier needs at least two classes, got only one class: {self.classes_[0]!r}"
            )
        return self.train(X, target, self.classes_, labels)

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, *, labels: Mapping[str, Any] | None = None
    ) -> Self:
        """Go on from the weights so far with more rows, standardised as the first were, and with
        the further labels of the first. The first call must name all classes.
        """
        first = not hasattr(self, "model_")
        X, y = validate_data(self, X, y, dtype=np.float64, reset=first)
        check_classification_targets(y)
        if first:
            if classes is None:
                raise ValueError("the first call of partial_fit must name all classes")
            self.classes_ = unique_labels(classes)
        return self.train(X, numbers_of(y, self.classes_), self.classes_, labels, not first)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities ``(rows, classes)``, in the order of ``classes_``: of n rows learned and k
        classes none is surer than (n + 1) / (n + k), the rule of succession, for what is read in
        one step can be exactly 0.
        """
        logits = self.logits(X)[TARGET]
        factor = self.model_.factors[TARGET]
        probabilities = factor.distribution(logits.double())
        assert isinstance(probabilities, Tensor)
        probabilities = probabilities / probabilities.sum(1, keepdim=True)
        seen, classes = int(self.counts_[TARGET].sum()), probabilities.shape[1]
        return ((seen * probabilities + 1.0) / (seen + classes)).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def inner_labels(self, y: Any, count: int) -> Tensor:
        """Numbers of classes."""
        given = np.broadcast_to(np.asarray(y), (count,))
        return torch.from_numpy(numbers_of(given, self.classes_))


class InfoCNFRegressor(RegressorMixin, FlowEstimator):
    """Regression, with the density of rows: see :class:`FlowEstimator` for its arguments."""

    def fit(self, X: Any, y: Any, *, labels: Mapping[str, Any] | None = None) -> Self:
        """Fit to rows ``(rows, columns)`` and their targets; further labels by name."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        return self.train(X, y.astype(np.float64), None, labels)

    def partial_fit(self, X: Any, y: Any, *, labels: Mapping[str, Any] | None = None) -> Self:
        """Go on from the weights so far with more rows and labels, rows and targets standardised as
        the first were.
        """
        first = not hasattr(self, "model_")
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, reset=first)
        return self.train(X, y.astype(np.float64), None, labels, not first)

    def predict(self, X: Any) -> np.ndarray:
        """The expected target of each row."""
        return self.predict_labels(X)[TARGET].astype(np.float64)

    def inner_labels(self, y: Any, count: int) -> Tensor:
        """Targets as they are."""
        given = np.broadcast_to(np.asarray(y, dtype=np.float64), (count,))
        return torch.from_numpy(given.copy()).to(self.model_.dtype)


class FlowDensity(DensityMixin, FlowEstimator):
    """The density of rows without labels, and an anomaly score: see :class:`FlowEstimator`."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to rows ``(rows, columns)``; ``y`` is not looked at."""
        return self.train(validate_data(self, X, dtype=np.float64), None, None, None)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Go on from the weights so far with more rows, standardised as the first were."""
        first = not hasattr(self, "model_")
        X = validate_data(self, X, dtype=np.float64, reset=first)
        return self.train(X, None, None, None, not first)

    def score(self, X: Any, y: Any = None) -> float:
        """Log-likelihood of all rows together, in nats: as scikit-learn's densities have it."""
        return float(self.score_samples(X).sum())


def numbers_of(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Numbers of classes, all of which must be known."""
    unknown: list[object] = np.setdiff1d(values, known).tolist()
    if unknown:
        raise ValueError(f"no class is called {unknown[0]!r}: there are {known}")
    return np.searchsorted(known, values)


def seed_of(state: int | np.random.RandomState | None) -> int:
    """A seed of what scikit-learn takes for one; the same each time for the same number."""
    return int(check_random_state(state).randint(2**31 - 1))
