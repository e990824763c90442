r"""Every example of a test set: likelihood given its label and averaged over labels, its numerical
error, the label read off, and what the solver took.

Examples are solved each with its own steps and fixed noise, so the result does not depend on how
they are batched (but for tolerances that are learned per batch). The numerical error of a
likelihood is how much it changes when it is solved ten times tighter,

.. math:: \Delta(x) = \big| \log p_{\tau}(x) - \log p_{\tau / 10}(x) \big| ,

with the same probes, so that nothing but the solver differs; a method without error estimate takes
twice as many steps instead. (It does not see the noise of Hutchinson's estimate, which the standard
error of an average does.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from infocnf.data import spread_over
from infocnf.errors import InputError, WorkError
from infocnf.evaluation.calibration import judge, mean_of, reliabilities
from infocnf.evaluation.driver import Columns, Driver, take
from infocnf.models import InfoCNF
from infocnf.objectives import bits_per_dim
from infocnf.tolerances import BlockShape, Choice, Fixed, Policy

__all__ = [
    "LARGEST_ERROR",
    "TOLERANCES",
    "Evaluation",
    "ReferenceLikelihood",
    "Tighter",
    "evaluate",
    "evaluate_within",
    "logits_of",
    "one_step_metrics",
    "score",
    "score_all",
]

LARGEST_ERROR = 1e-3  # bits per dimension up to which a likelihood is reported without a warning
TOLERANCES = tuple(10.0 ** (-0.5 * i) for i in range(2, 12))
"""Tolerances that are tried for a budget, from loose to tight."""
LOOK = 100  # examples on which tolerances are tried before all are solved
REFERENCE = 1e-6  # at which these examples are solved to compare
# (not at a tenth of the tolerance: where both are loose, both may take the same steps)
QUANTILES = 101


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a test set.

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
        confusion: By categorical factor: rows are true classes, columns predictions.
        nfe_blocks: Field evaluations per example of each block.
        one_step: Of a model that reads labels in one evaluation of the field, too: number of
            examples and metrics of each factor.
        readout: How the model's predictions read labels: ``flow`` or ``one_step``.
        reference_likelihood: What log-likelihoods log p(x) the examples have, in nats: mean and
            quantiles, by which predictions say how usual an example is.
        reliability: By categorical factor, in bins of the probability of the prediction: its mean,
            the share of right ones, the number of examples.
        outliers: Areas under ROC curves, by kind of outlier and score.
        within_budget: What a numerical error within a budget costs: the loosest tolerance that has
            it, and its metrics.
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
    readout: str = "flow"
    within_budget: dict[str, Any] = field(default_factory=dict)
    reference_likelihood: dict[str, Any] = field(default_factory=dict)
    reliability: dict[str, list[list[float]]] = field(default_factory=dict)
    outliers: dict[str, dict[str, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True)
class ReferenceLikelihood:
    """What log-likelihoods are usual, so that those of new examples mean something.

    Arguments:
        mean: Their mean, in nats.
        quantiles: From the least to the largest, evenly spaced in rank.
    """

    mean: float
    quantiles: tuple[float, ...]

    @classmethod
    def of(cls, log_prob: Tensor) -> ReferenceLikelihood:
        """That of examples of the data."""
        values = log_prob.double()
        values = values[values.isfinite()]
        ranks = torch.linspace(0.0, 1.0, QUANTILES, dtype=torch.float64)
        return cls(float(values.mean()), tuple(torch.quantile(values, ranks).tolist()))

    @classmethod
    def told(cls, evaluation: Mapping[str, Any] | None) -> ReferenceLikelihood | None:
        """That of an ``evaluation.json``, if there is one."""
        found = (evaluation or {}).get("reference_likelihood")
        return cls(found["mean"], tuple(found["quantiles"])) if found else None

    def typicality(self, log_prob: Tensor) -> Tensor:
        """Distance from the mean, in nats."""
        return (log_prob - self.mean).abs()

    def percentile(self, log_prob: Tensor) -> Tensor:
        """Percent of usual examples that are less likely, in whole percents; NaN where there is no
        likelihood.
        """
        table = torch.tensor(self.quantiles, dtype=torch.float64)
        below = torch.searchsorted(table, log_prob.double().nan_to_num(nan=-math.inf), right=True)
        whole = (below.double() - 1.0).clamp(min=0.0) * (100.0 / (len(table) - 1))
        return whole.where(log_prob.isfinite(), math.nan)


class Tighter(Policy):
    """Another policy's tolerances, ten times tighter; twice the steps where their number is given.

    Arguments:
        policy: The other policy.
        factor: How much tighter.

    >>> from infocnf.tolerances import Fixed
    >>> f"{Tighter(Fixed(1e-5))(block=0, features=None).tolerance:.0e}"
    '1e-06'
    """

    def __init__(self, policy: Policy, factor: float = 0.1) -> None:
        super().__init__()
        self.policy, self.factor = policy, factor

    def forward(self, block: int, features: Tensor, seeds: Tensor | None = None) -> Choice:
        choice = self.policy(block, features, seeds)
        return replace(choice, tolerance=choice.tolerance * self.factor, refine=2)

    def bind(self, blocks: Sequence[BlockShape]) -> None:
        self.policy.bind(blocks)

    def config(self) -> dict[str, Any]:
        raise ValueError("a certificate's policy belongs to one evaluation and is not saved")


@torch.no_grad()
def score(
    model: InfoCNF, x: Tensor, labels: Mapping[str, Tensor], policy: Policy, log_scale: float
) -> Columns:
    """Columns of prepared examples: ``log_prob`` given the labels, ``marginal`` over them, both in
    double precision so that averages do not round; ``evaluations`` and ``tolerances`` ``(batch,
    blocks)``; ``distance`` of the supervised code from those of labels; and logits of each factor.
    """
    code = model.encode(x, tolerance=policy)
    assert code.stats is not None
    solves = code.stats.solves
    evaluations = [solve.solution.stats.forward.expand(len(x)) for solve in solves]
    tolerances = [
        torch.as_tensor(solve.choice.tolerance, dtype=torch.float64).expand(len(x))
        for solve in solves
    ]
    return {
        "log_prob": model.code_log_prob(code, labels).double() - log_scale,
        "marginal": model.code_log_prob(code, {}).double() - log_scale,
        "evaluations": torch.stack(evaluations, 1),
        "tolerances": torch.stack(tolerances, 1),
        "distance": model.code.distance(code.supervised).double(),
        **{f"logits {name}": part for name, part in model.code.logits(code.supervised).items()},
    }


def logits_of(columns: Columns) -> dict[str, Tensor]:
    """Logits by factor, among the columns of :func:`score`."""
    prefix = "logits "
    return {n.removeprefix(prefix): v for n, v in columns.items() if n.startswith(prefix)}


def score_all(
    driver: Driver[InfoCNF], x: Tensor, tolerance: float | None, log_scale: float
) -> Columns:
    """Scores of examples as read, without their labels; NaN, and no evaluations, for those that
    cannot be solved.
    """
    model = driver.model
    policy = model.policy_for(tolerance)
    found = driver.collect(
        x, lambda some, rows: score(model, some, {}, policy, log_scale), partial=True
    )
    if found:
        return found
    nothing, count = torch.full((len(x),), math.nan, dtype=torch.float64), len(model.blocks)
    heads = {
        n: nothing.new_full((len(x), h.factor.outputs), math.nan)
        for n, h in model.code.heads.items()
    }
    return {
        **dict.fromkeys(("log_prob", "marginal", "distance"), nothing),
        "evaluations": torch.zeros(len(x), count, dtype=torch.int64),
        "tolerances": nothing.unsqueeze(1).expand(-1, count),
        **{f"logits {name}": part for name, part in heads.items()},
    }


def evaluate(
    driver: Driver[InfoCNF],
    x: Tensor,
    labels: Mapping[str, Tensor],
    *,
    tolerance: float | Policy | None = None,
) -> Evaluation:
    """Metrics of all examples.

    Arguments:
        driver: How examples go through the model.
        x: Examples as read.
        labels: Their labels by factor.
        tolerance: Tolerance of the solves; the model's own when None.
    """
    model, preparation = driver.model.eval(), driver.preparation
    started, policy = perf_counter(), model.policy_for(tolerance)

    def measure(some: Tensor, rows: Tensor) -> Columns:
        mine = take(labels, rows, model.device)
        found = score(model, some, mine, policy, preparation.log_scale)
        tight = score(model, some, mine, Tighter(policy), preparation.log_scale)
        return {**found, "error": (found["log_prob"] - tight["log_prob"]).abs()}

    found = driver.collect(x, measure)
    conditional, marginal = (
        bits_per_dim(found[name], model.dimensions, preparation.levels)
        for name in ("log_prob", "marginal")
    )
    error = found["error"] / (model.dimensions * math.log(2.0))
    logits = logits_of(found)
    factors, confusion = judge(model, logits, labels)
    evaluations = found["evaluations"].double()
    return Evaluation(
        examples=len(x),
        tolerance=float(policy.tolerance)
        if isinstance(policy, Fixed) and not isinstance(tolerance, Policy)
        else found["tolerances"].mean(0).tolist(),
        trace="exact" if all(block.exact for block in model.blocks) else "hutchinson",
        error_percent=mean_of(factors, "error_percent"),
        bits_per_dim=float(conditional.mean()),
        bits_per_dim_marginal=float(marginal.mean()),
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
        readout=model.readout,
        reference_likelihood=asdict(ReferenceLikelihood.of(found["marginal"])),
        reliability=reliabilities(model, logits, labels),
    )


def one_step_metrics(
    driver: Driver[InfoCNF], x: Tensor, labels: Mapping[str, Tensor]
) -> dict[str, Any]:
    """How good labels are that are read off one evaluation of the field; nothing of a model that
    was not made for it.
    """
    model = driver.model
    if not model.has_one_step:
        return {}
    logits = driver.collect(x, lambda some, _: model.logits(some, readout="one_step"))
    factors, confusion = judge(model, logits, labels)
    return {
        "examples": len(x),
        "error_percent": mean_of(factors, "error_percent"),
        "calibration_error": mean_of(factors, "calibration_error"),
        "factors": factors,
        "confusion": confusion,
        "reliability": reliabilities(model, logits, labels),
    }


def evaluate_within(
    driver: Driver[InfoCNF],
    x: Tensor,
    labels: Mapping[str, Tensor],
    *,
    budget: float = LARGEST_ERROR,
) -> Evaluation:
    """Metrics of all examples at the loosest tolerance that keeps log p within a budget, the
    largest mean numerical error in bits per dimension: on some of them compared with a solve at
    1e-6, and on all by the certificate, the mean change under a ten times tighter solve.
    """
    model = driver.model.eval()
    if not budget > 0:
        raise ValueError(f"budget must be positive, got {budget}")
    if any(block.solver.steps is not None for block in model.blocks):
        raise InputError("a method without error estimate has no tolerance: leave out --budget")
    some, mine = spread_over(x, labels, LOOK)
    prepared = driver.preparation(some.to(model.device), model.dtype)
    mine = {name: y.to(model.device) for name, y in mine.items()}

    def log_prob(tolerance: float) -> Tensor:
        return score(model, prepared, mine, Fixed(tolerance), 0.0)["log_prob"]

    exact = log_prob(REFERENCE)
    for tolerance in TOLERANCES:
        change = (log_prob(tolerance) - exact).abs().mean()
        if not float(change) / (model.dimensions * math.log(2.0)) <= budget:
            continue
        found = evaluate(driver, x, labels, tolerance=tolerance)
        if found.numerical_error_bits_per_dim <= budget:
            return found
    raise WorkError(
        f"no tolerance down to {TOLERANCES[-1]:.0e} has a numerical error within {budget:g} "
        "bits/dim: give a larger budget, or double precision"
    )


def in_short(found: Evaluation, budget: float) -> dict[str, Any]:
    """The metrics that say what a budget bought."""
    names = "tolerance bits_per_dim bits_per_dim_standard_error error_percent nfe_forward"
    kept = [*names.split(), "numerical_error_bits_per_dim", "numerical_error_largest", "seconds"]
    return {"budget": budget, **{name: getattr(found, name) for name in kept}}
