"""Every example of a test set: likelihood given its label and averaged over labels, its numerical
error, the label read off, and what the solver took.

Examples are solved each with its own steps and fixed noise, so the result does not depend on how
they are batched (but for tolerances that are learned per batch).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from infocnf.data import Preparation
from infocnf.evaluation.calibration import calibration_error, reliability
from infocnf.evaluation.certificate import Tighter, more_steps
from infocnf.evaluation.familiar import Familiar
from infocnf.models import Categorical, InfoCNF, LatentODE
from infocnf.models.codes import Code
from infocnf.models.reading import reads_in_one_step
from infocnf.objectives import bits_per_dim
from infocnf.tolerances import Fixed, Policy

__all__ = ["Evaluation", "Scores", "evaluate", "read_in_one_step", "score"]

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Evaluation:
    """The figures of a test set.

    Arguments:
        examples: Number of examples, all of which count.
        tolerance: Tolerance of the solves; per block for a policy.
        trace: ``exact``, or ``hutchinson`` where any block's trace is estimated.
        error_percent: Wrong classes, read through the flow; None without a categorical label.
        bits_per_dim: Of the examples given their labels.
        bits_per_dim_marginal: Averaged over the labels.
        bits_per_dim_standard_error: Of the mean, over examples and the noise of their traces.
        numerical_error_bits_per_dim: Mean change under a ten times tighter solve.
        numerical_error_largest: The largest such change, in bits per dimension.
        nfe_forward: Field evaluations per example, over all blocks.
        calibration_error: Expected calibration error.
        seconds: Time it took.
        factors: By factor: error and calibration, or the root of the mean squared error.
        confusion: By categorical factor: rows are true classes, columns answers.
        nfe_blocks: Field evaluations per example of each block.
        one_step: Of a model that reads labels in one evaluation of the field, too: number of
            examples and figures of each factor.
        read: How the model's predictions read labels: ``flow`` or ``one_step``.
        familiar: What log-likelihoods log p(x) the examples have, in nats: mean and quantiles, by
            which predictions say how usual an example is.
        reliability: By categorical factor, in bins of the probability of the answer: its mean, the
            share of right answers, the number of examples.
        outliers: Areas under ROC curves, by kind of strange example and score.
        within_budget: What a numerical error within a budget costs: the loosest tolerance that has
            it, and its figures.
    """

    examples: int
    tolerance: float | list[float]
    trace: str
    error_percent: float | None
    bits_per_dim: float
    bits_per_dim_marginal: float
    bits_per_dim_standard_error: float
    numerical_error_bits_per_dim: float
    numerical_error_largest: float
    nfe_forward: float
    calibration_error: float | None
    seconds: float
    factors: dict[str, dict[str, float]] = field(default_factory=dict)
    confusion: dict[str, list[list[int]]] = field(default_factory=dict)
    nfe_blocks: list[float] = field(default_factory=list)
    one_step: dict[str, Any] = field(default_factory=dict)
    read: str = "flow"
    within_budget: dict[str, Any] = field(default_factory=dict)
    familiar: dict[str, Any] = field(default_factory=dict)
    reliability: dict[str, list[list[float]]] = field(default_factory=dict)
    outliers: dict[str, dict[str, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Scores:
    """What one pass over a batch gives, each ``(batch, ...)``."""

    log_prob: Tensor
    marginal: Tensor
    evaluations: Tensor  # (batch, blocks)
    tolerances: Tensor  # (batch, blocks)
    answers: dict[str, Tensor]
    distance: Tensor  # of the supervised code from those of labels


@torch.no_grad()
def score(
    model: InfoCNF, x: Tensor, labels: Mapping[str, Tensor], policy: Policy, log_scale: float
) -> Scores:
    """Scores of prepared examples."""
    code = model.encode(x, tolerance=policy)
    assert code.stats is not None
    solves = code.stats.solves
    evaluations = [solve.solution.stats.forward.expand(len(x)) for solve in solves]
    tolerances = [
        torch.as_tensor(solve.choice.tolerance, dtype=torch.float64).expand(len(x))
        for solve in solves
    ]
    return Scores(
        log_prob=log_density(model, code, labels) - log_scale,
        marginal=log_density(model, code, {}) - log_scale,
        evaluations=torch.stack(evaluations, 1),
        tolerances=torch.stack(tolerances, 1),
        answers=model.code.answers(code.supervised),
        distance=model.code.distance(code.supervised).double(),
    )


def log_density(model: InfoCNF, code: Code, labels: Mapping[str, Tensor]) -> Tensor:
    """Log-density in double precision, so that averages do not round."""
    return model.code_log_prob(code, labels).double()


def evaluate(
    model: InfoCNF,
    preparation: Preparation,
    x: Tensor,
    labels: Mapping[str, Tensor],
    *,
    tolerance: float | None = 1e-5,
    batch_size: int = 500,
    progress: Progress = lambda count: None,
) -> Evaluation:
    """Figures of all examples.

    Arguments:
        model: The model, in evaluation mode.
        preparation: How examples become what the model reads.
        x: Examples as read.
        labels: Their labels by factor.
        tolerance: Tolerance of the solves; None for those of the model's own policy.
        batch_size: Examples solved at a time.
        progress: Told of the number of examples after each batch.
    """
    started = perf_counter()
    model.eval()
    policy: Policy = model.policy if tolerance is None else Fixed(tolerance)
    dtype = next(model.flow.parameters()).dtype
    found: list[tuple[Scores, Tensor]] = []
    for begin in range(0, len(x), batch_size):
        part = slice(begin, begin + batch_size)
        prepared = preparation(x[part].to(model.device), dtype)
        mine = {name: y[part].to(model.device) for name, y in labels.items()}
        scores = score(model, prepared, mine, policy, preparation.log_scale)
        with more_steps(model):
            tight = score(model, prepared, mine, Tighter(policy), preparation.log_scale)
        found.append((scores, (scores.log_prob - tight.log_prob).abs()))
        progress(len(prepared))

    def gather(name: str) -> Tensor:
        return torch.cat([getattr(scores, name) for scores, _ in found])

    def bits(log_prob: Tensor) -> Tensor:
        return bits_per_dim(log_prob, model.dimensions, preparation.levels)

    conditional = bits(gather("log_prob"))
    error = torch.cat([change for _, change in found]) / (model.dimensions * math.log(2.0))
    answers = {
        name: torch.cat([scores.answers[name] for scores, _ in found]) for name in model.code.heads
    }
    factors, confusion = judge(model, answers, labels)
    evaluations = gather("evaluations").double()
    return Evaluation(
        examples=len(x),
        tolerance=gather("tolerances").mean(0).tolist() if tolerance is None else tolerance,
        trace="exact" if all(block.exact for block in model.flow.blocks) else "hutchinson",
        error_percent=mean_of(factors, "error_percent"),
        bits_per_dim=float(conditional.mean()),
        bits_per_dim_marginal=float(bits(gather("marginal")).mean()),
        bits_per_dim_standard_error=float(conditional.std() / len(conditional) ** 0.5)
        if len(conditional) > 1
        else float("nan"),
        numerical_error_bits_per_dim=float(error.mean()),
        numerical_error_largest=float(error.max()),
        nfe_forward=float(evaluations.sum(1).mean()),
        calibration_error=mean_of(factors, "calibration_error"),
        seconds=perf_counter() - started,
        factors=factors,
        confusion=confusion,
        nfe_blocks=evaluations.mean(0).tolist(),
        read=model.read,
        familiar=asdict(Familiar.of(gather("marginal"))),
        reliability=reliabilities(model, answers, labels),
    )


@torch.no_grad()
def read_in_one_step(
    model: InfoCNF,
    preparation: Preparation,
    x: Tensor,
    labels: Mapping[str, Tensor],
    batch_size: int = 500,
) -> dict[str, Any]:
    """How good labels are that are read off one evaluation of the field; nothing of a model that
    was not made for it.
    """
    if not reads_in_one_step(model):
        return {}
    model.eval()
    dtype, parts = next(model.flow.parameters()).dtype, []
    for begin in range(0, len(x), batch_size):
        prepared = preparation(x[begin : begin + batch_size].to(model.device), dtype)
        parts.append(model.answers(prepared, None, read="one_step"))
    answers = {name: torch.cat([part[name] for part in parts]) for name in model.code.heads}
    factors, confusion = judge(model, answers, labels)
    return {
        "examples": len(x),
        "error_percent": mean_of(factors, "error_percent"),
        "calibration_error": mean_of(factors, "calibration_error"),
        "factors": factors,
        "confusion": confusion,
        "reliability": reliabilities(model, answers, labels),
    }


def judge(
    model: InfoCNF | LatentODE, answers: Mapping[str, Tensor], labels: Mapping[str, Tensor]
) -> tuple[dict[str, dict[str, float]], dict[str, list[list[int]]]]:
    """How good the answers are, factor by factor, and which classes are taken for which."""
    from torchmetrics.functional.classification import (
        multiclass_accuracy,
        multiclass_confusion_matrix,
    )

    figures: dict[str, dict[str, float]] = {}
    confusion: dict[str, list[list[int]]] = {}
    for name, answer in answers.items():
        factor, truth = model.factors[name], labels[name].to(answer.device)
        if isinstance(factor, Categorical):
            classes, probabilities = factor.classes, factor.distribution(answer)
            right = multiclass_accuracy(probabilities, truth, classes, average="micro")
            figures[name] = {
                "error_percent": 100.0 * (1.0 - float(right)),
                "calibration_error": calibration_error(probabilities, truth),
            }
            confusion[name] = multiclass_confusion_matrix(answer, truth, classes).tolist()
        else:
            difference = (factor.read(answer) - truth).double()
            figures[name] = {"rmse": float(difference.square().mean().sqrt())}
    return figures, confusion


def reliabilities(
    model: InfoCNF, answers: Mapping[str, Tensor], labels: Mapping[str, Tensor]
) -> dict[str, list[list[float]]]:
    """Whether probabilities are what they say, by categorical factor."""
    return {
        name: reliability(factor.distribution(answer), labels[name].to(answer.device))
        for name, answer in answers.items()
        if isinstance(factor := model.factors[name], Categorical)
    }


def label_entropy(model: InfoCNF | LatentODE, answers: Mapping[str, Tensor]) -> Tensor | None:
    """Entropy of the classes' probabilities in nats, ``(examples,)``, summed over categorical
    factors; None without one.
    """
    total: Tensor | None = None
    for name, answer in answers.items():
        factor = model.factors[name]
        if isinstance(factor, Categorical):
            mine = torch.special.entr(factor.distribution(answer.double())).sum(1)
            total = mine if total is None else total + mine
    return total


def mean_of(figures: Mapping[str, Mapping[str, float]], name: str) -> float | None:
    """A figure averaged over the factors that have it."""
    found = [values[name] for values in figures.values() if name in values]
    return sum(found) / len(found) if found else None
