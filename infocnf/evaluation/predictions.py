"""Labels and likelihoods of new examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from infocnf.evaluation.calibration import label_entropy
from infocnf.evaluation.driver import Driver, quiet
from infocnf.evaluation.likelihood import ReferenceLikelihood, logits_of, score_all
from infocnf.models import Categorical, InfoCNF, PartitionedModel

__all__ = ["Predictions", "label_columns", "predict"]


@dataclass(frozen=True)
class Predictions:
    """Columns of a table with a row per example, in order.

    Arguments:
        columns: By name; NaN where an example could not be solved.
        unsolved: How many examples have no finite likelihood.
    """

    columns: dict[str, list[object]]
    unsolved: int


def predict(
    driver: Driver[InfoCNF],
    x: Tensor,
    classes: Mapping[str, Sequence[str]],
    *,
    reference: ReferenceLikelihood | None = None,
    tolerance: float | None = None,
) -> Predictions:
    """Labels and likelihoods of new examples.

    Arguments:
        driver: How examples go through the model.
        x: Examples as read.
        classes: Names of the classes of each categorical factor.
        reference: What likelihoods are usual; without it nothing is said of that.
        tolerance: Tolerance of the solves; the model's own when None.
    """
    model = driver.model
    found = score_all(driver, x, tolerance, driver.preparation.log_scale, error=True)
    logits = logits_of(found)
    if model.readout == "one_step":  # which needs no solve
        alone = replace(driver, progress=quiet)
        logits = alone.collect(x, lambda some, _: model.logits(some, readout="one_step"))

    columns: dict[str, list[object]] = {}
    for name, mine in logits.items():
        columns.update(label_columns(model, name, mine, classes.get(name, ())))
    likelihood = found["marginal"]
    columns["log_likelihood"] = likelihood.tolist()
    columns["log_likelihood_error"] = found["error marginal"].tolist()
    if reference is not None:
        columns["percentile"] = reference.percentile(likelihood).tolist()
        columns["typicality"] = reference.typicality(likelihood).tolist()
    entropy = label_entropy(model, logits)
    if entropy is not None:
        columns["entropy"] = entropy.tolist()
    if logits:
        columns["distance"] = found["distance"].tolist()
    columns["nfe"] = found["evaluations"].sum(1).tolist()
    return Predictions(columns, unsolved=int((~likelihood.isfinite()).sum()))


def label_columns(
    model: PartitionedModel, name: str, logits: Tensor, names: Sequence[str]
) -> dict[str, list[object]]:
    """What is predicted for one factor: a class with its probability and those of the others, or a
    number with its standard deviation.
    """
    factor = model.factors[name]
    if not isinstance(factor, Categorical):
        normal = factor.distribution(logits)
        return {name: normal.mean.tolist(), f"{name}_sd": normal.stddev.tolist()}
    probabilities = factor.distribution(logits)
    labels = list(names) or [str(i) for i in range(factor.classes)]
    columns: dict[str, list[object]] = {
        name: [
            labels[i] if known else ""
            for i, known in zip(
                factor.predict(logits).tolist(), logits.isfinite().all(1).tolist(), strict=True
            )
        ],
        f"{name}_probability": probabilities.amax(1).tolist(),
    }
    for i, label in enumerate(labels):
        columns[f"{name}={label}"] = probabilities[:, i].tolist()
    return columns
