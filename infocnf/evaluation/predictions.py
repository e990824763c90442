"""Labels and likelihoods of new examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from infocnf.data import Preparation
from infocnf.evaluation.density import Scores, label_entropy, score
from infocnf.evaluation.familiar import Familiar
from infocnf.models import Categorical, InfoCNF, LatentODE
from infocnf.ode import SolveError
from infocnf.tolerances import Fixed, Policy

__all__ = ["Predictions", "predict"]


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
    model: InfoCNF,
    preparation: Preparation,
    x: Tensor,
    classes: Mapping[str, Sequence[str]],
    *,
    familiar: Familiar | None = None,
    tolerance: float = 1e-5,
    batch_size: int = 500,
    progress: Callable[[int], None] = lambda count: None,
) -> Predictions:
    """Answers of the model to new examples.

    Arguments:
        model: The model, in evaluation mode.
        preparation: How examples become what the model reads.
        x: Examples as read.
        classes: Names of the classes of each categorical factor.
        familiar: What likelihoods are usual; without it nothing is said of that.
        tolerance: Tolerance of the solves.
        batch_size: Examples solved at a time.
        progress: Told of the number of examples after each batch.
    """
    model.eval()
    dtype = next(model.flow.parameters()).dtype
    parts = []
    for begin in range(0, len(x), batch_size):
        raw = x[begin : begin + batch_size].to(model.device)
        prepared = preparation(raw, dtype)
        found = score_all(model, prepared, Fixed(tolerance), preparation.log_scale)
        if model.read == "one_step":
            found = replace(found, answers=answers_in_one_step(model, prepared))
        parts.append(found)
        progress(len(raw))

    columns: dict[str, list[object]] = {}
    for name in model.code.heads:
        answer = torch.cat([part.answers[name] for part in parts])
        columns.update(answer_columns(model, name, answer, classes.get(name, ())))
    likelihood = torch.cat([part.marginal for part in parts])
    columns["log_likelihood"] = likelihood.tolist()
    if familiar is not None:
        columns["percentile"] = familiar.percentile(likelihood).tolist()
        columns["typicality"] = familiar.typicality(likelihood).tolist()
    if model.code.heads:
        answers = {name: torch.cat([p.answers[name] for p in parts]) for name in model.code.heads}
        entropy = label_entropy(model, answers)
        columns |= {} if entropy is None else {"entropy": entropy.tolist()}
        columns["distance"] = torch.cat([part.distance for part in parts]).tolist()
    columns["nfe"] = torch.cat([part.evaluations.sum(1) for part in parts]).tolist()
    return Predictions(columns, unsolved=int((~likelihood.isfinite()).sum()))


@torch.no_grad()
def answers_in_one_step(model: InfoCNF, x: Tensor) -> dict[str, Tensor]:
    """Answers to prepared examples that need no solve."""
    return model.answers(x, None, "one_step")


def score_all(model: InfoCNF, x: Tensor, policy: Policy, log_scale: float) -> Scores:
    """Scores of prepared examples; NaN, and no evaluations, for those that cannot be solved."""
    kept = torch.arange(len(x))
    while len(kept):
        try:
            found = score(model, x[kept], {}, policy, log_scale)
            break
        except SolveError as error:
            kept = kept[error.solution.done.cpu()]
    else:
        nothing = x.new_empty(0, dtype=torch.float64)
        counts = torch.empty(0, len(model.flow.blocks), dtype=torch.int64)
        answers = {n: x.new_empty(0, head.factor.outputs) for n, head in model.code.heads.items()}
        found = Scores(nothing, nothing, counts, counts.double(), answers, nothing)

    def spread(values: Tensor) -> Tensor:
        whole = values.new_full(
            (len(x), *values.shape[1:]), math.nan if values.is_floating_point() else 0
        )
        whole[kept] = values[: len(kept)]
        return whole

    return Scores(
        log_prob=spread(found.log_prob),
        marginal=spread(found.marginal),
        evaluations=spread(found.evaluations),
        tolerances=spread(found.tolerances),
        answers={name: spread(answer) for name, answer in found.answers.items()},
        distance=spread(found.distance),
    )


def answer_columns(
    model: InfoCNF | LatentODE, name: str, answer: Tensor, names: Sequence[str]
) -> dict[str, list[object]]:
    """The answer for one factor: a class with its probability and those of the others, or a number
    with its standard deviation.
    """
    factor = model.factors[name]
    if not isinstance(factor, Categorical):
        normal = factor.distribution(answer)
        return {name: normal.mean.tolist(), f"{name}_sd": normal.stddev.tolist()}
    probabilities = factor.distribution(answer)
    labels = list(names) or [str(i) for i in range(factor.classes)]
    columns: dict[str, list[object]] = {
        name: [
            labels[i] if known else ""
            for i, known in zip(
                factor.read(answer).tolist(), answer.isfinite().all(1).tolist(), strict=True
            )
        ],
        f"{name}_probability": probabilities.amax(1).tolist(),
    }
    for i, label in enumerate(labels):
        columns[f"{name}={label}"] = probabilities[:, i].tolist()
    return columns
