r"""Every example of a test set: likelihood given its label and averaged over labels, its numerical
error, the label read off, and what the solver took.

Examples are solved each with its own steps and fixed noise, so that how they are batched changes
nothing but rounding (and tolerances that are learned per batch). The numerical error of a
likelihood is the bound of its :mod:`certificate <infocnf.models.certificate>`, in all and in parts:
solver, quadrature, trace, rounding. :func:`score_within` spends what it takes to have that bound
below a target for every example.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from infocnf.data import spread_over
from infocnf.errors import InputError, WorkError
from infocnf.evaluation.calibration import judge, mean_of, reliabilities
from infocnf.evaluation.driver import Columns, Driver, quiet, take
from infocnf.models import InfoCNF
from infocnf.models.certificate import Certificate
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
    "score_within",
]

LARGEST_ERROR = 1e-3  # bits per dimension up to which a likelihood is reported without a warning
TOLERANCES = tuple(10.0 ** (-0.5 * i) for i in range(2, 12))
"""Tolerances that are tried for a budget, from loose to tight."""
LOOK = 100  # examples on which tolerances are tried before all are solved
ROUNDS = 8  # of spending more for an error, each at least ten times tighter
QUANTILES = 101


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a test set.

    Arguments:
        examples: Number of examples, all of which count.
        tolerance: Tolerance of the solves; per block for a policy.
        trace: ``exact``, or ``estimated`` where any block's trace is.
        error_percent: Wrong classes, read through the flow; None without a categorical label.
        bits_per_dim: Of the examples given their labels.
        bits_per_dim_marginal: Averaged over the labels.
        bits_per_dim_standard_error: Of the mean, over examples and the noise of their traces.
        numerical_error_bits_per_dim: Mean bound on the error of an example's likelihood.
        numerical_error_largest: The largest such bound, in bits per dimension.
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
        numerical_error: The mean bound and its parts by name, in nats.
        products_forward: Products with Jacobians per example, for the traces.
        above_target: Of an error that was asked for: it, and how many examples exceed it.
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
    numerical_error: dict[str, float] = field(default_factory=dict)
    products_forward: float = 0.0
    above_target: dict[str, float] = field(default_factory=dict)
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
    model: InfoCNF,
    x: Tensor,
    labels: Mapping[str, Tensor],
    policy: Policy,
    log_scale: float,
    *,
    error: bool = False,
    effort: float = 1.0,
) -> Columns:
    """Columns of prepared examples: ``log_prob`` given the labels, ``marginal`` over them, both in
    double precision so that averages do not round; ``evaluations`` and ``tolerances`` ``(batch,
    blocks)``, ``products``; ``distance`` of the supervised code from those of labels; and logits of
    each factor.

    With ``error`` also the bounds of ``log_prob``, ``error total`` and its parts, and ``error
    marginal``. ``effort`` is how much more than usual is spent on traces; 0 is enough for averages.
    """
    code = model.encode(x, tolerance=policy, effort=effort)
    assert code.stats is not None
    solves = code.stats.solves
    evaluations = [solve.solution.stats.forward.expand(len(x)) for solve in solves]
    tolerances = [
        torch.as_tensor(solve.choice.tolerance, dtype=torch.float64).expand(len(x))
        for solve in solves
    ]
    columns = {
        "log_prob": model.code_log_prob(code, labels).double() - log_scale,
        "marginal": model.code_log_prob(code, {}).double() - log_scale,
        "evaluations": torch.stack(evaluations, 1),
        "products": code.stats.products.expand(len(x)),
        "tolerances": torch.stack(tolerances, 1),
        "distance": model.code.distance(code.supervised).double(),
        **{f"logits {name}": part for name, part in model.code.logits(code.supervised).items()},
    }
    if error:
        certificate = Certificate(model, x, code)
        bounds = certificate.error(labels)
        columns |= {f"error {name}": part.double() for name, part in bounds.parts().items()}
        marginal = certificate.error({}) if labels else bounds
        columns["error marginal"] = marginal.total.double()
    return columns


def score_within(
    model: InfoCNF,
    x: Tensor,
    labels: Mapping[str, Tensor],
    policy: Policy,
    log_scale: float,
    target: float,
) -> Columns:
    """The same with every example's error bound below a target in nats, where that can be had: what
    errs too much is solved again, tighter, with more probes or in double precision, by what its
    error is made of. What all attempts took is added up.
    """
    found = score(model, x, labels, policy, log_scale, error=True)
    factor, effort, precise = 1.0, 1.0, model
    for _ in range(ROUNDS):
        rows = torch.nonzero(~(found["error total"] <= target))[:, 0]
        if not len(rows):
            break
        worst = {n: float(v[rows].max()) for n, v in found.items() if n.startswith("error ")}
        if worst["error solver"] + worst["error quadrature"] > target / 2.0:
            factor *= 0.1
        if worst["error trace"] > target / 4.0:
            effort *= max((4.0 * worst["error trace"] / target) ** 2, 2.0)
        if worst["error rounding"] > target / 4.0 and precise is model:
            precise = deepcopy(model).double()
        some = {name: y[rows] for name, y in labels.items()}
        tighter = Tighter(policy, factor)
        again = score(
            precise, x[rows].to(precise.dtype), some, tighter, log_scale, error=True, effort=effort
        )
        for name, column in found.items():
            mine = again[name].to(column.dtype)
            spent = name in ("evaluations", "products")
            column[rows] = column[rows] + mine if spent else mine
    return found


def logits_of(columns: Columns) -> dict[str, Tensor]:
    """Logits by factor, among the columns of :func:`score`."""
    prefix = "logits "
    return {n.removeprefix(prefix): v for n, v in columns.items() if n.startswith(prefix)}


def score_all(
    driver: Driver[InfoCNF],
    x: Tensor,
    tolerance: float | None,
    log_scale: float,
    **options: Any,  # noqa: ANN401
) -> Columns:
    """Scores of examples as read, without their labels; NaN, and no evaluations, for those that
    cannot be solved. Options as of :func:`score`.
    """
    model = driver.model
    policy = model.policy_for(tolerance)
    found = driver.collect(
        x, lambda some, rows: score(model, some, {}, policy, log_scale, **options), partial=True
    )
    if found:
        return found
    nothing, count = torch.full((len(x),), math.nan, dtype=torch.float64), len(model.blocks)
    heads = {
        n: nothing.new_full((len(x), h.factor.outputs), math.nan)
        for n, h in model.code.heads.items()
    }
    return {
        **dict.fromkeys(("log_prob", "marginal", "distance", "error marginal"), nothing),
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
    target: float | None = None,
) -> Evaluation:
    """Metrics of all examples.

    Arguments:
        driver: How examples go through the model.
        x: Examples as read.
        labels: Their labels by factor.
        tolerance: Tolerance of the solves; the model's own when None.
        target: Error in nats that no example is to exceed.
    """
    model, preparation = driver.model.eval(), driver.preparation
    started, policy = perf_counter(), model.policy_for(tolerance)

    def measure(some: Tensor, rows: Tensor) -> Columns:
        mine = take(labels, rows, model.device)
        if target is not None:
            return score_within(model, some, mine, policy, preparation.log_scale, target)
        return score(model, some, mine, policy, preparation.log_scale, error=True)

    found = driver.collect(x, measure)
    conditional, marginal = (
        bits_per_dim(found[name], model.dimensions, preparation.levels)
        for name in ("log_prob", "marginal")
    )
    error = found["error total"] / (model.dimensions * math.log(2.0))
    parts = {n.removeprefix("error "): v for n, v in found.items() if n.startswith("error ")}
    parts.pop("marginal")
    logits = logits_of(found)
    factors, confusion = judge(model, logits, labels)
    evaluations = found["evaluations"].double()
    return Evaluation(
        examples=len(x),
        tolerance=float(policy.tolerance)
        if isinstance(policy, Fixed) and not isinstance(tolerance, Policy)
        else found["tolerances"].mean(0).tolist(),
        trace="estimated" if bool((found["error trace"] > 0).any()) else "exact",
        error_percent=mean_of(factors, "error_percent"),
        bits_per_dim=float(conditional.mean()),
        bits_per_dim_marginal=float(marginal.mean()),
        bits_per_dim_standard_error=float(conditional.std() / len(conditional) ** 0.5)
        if len(conditional) > 1
        else float("nan"),
        numerical_error_bits_per_dim=float(error.mean()),
        numerical_error_largest=float(error.max()),
        nfe_forward=float(evaluations.sum(1).mean()),
        products_forward=float(found["products"].double().mean()),
        numerical_error={name: float(part.mean()) for name, part in parts.items()},
        above_target={}
        if target is None
        else {"target": target, "examples": int((found["error total"] > target).sum())},
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
    """Metrics of all examples at the loosest tolerance whose mean error bound, without the noise of
    estimated traces, is within a budget in bits per dimension, on some of them and then on all.
    """
    model = driver.model.eval()
    if not budget > 0:
        raise ValueError(f"budget must be positive, got {budget}")
    if any(block.solver.steps is not None for block in model.blocks):
        raise InputError("a method without error estimate has no tolerance: leave out --budget")
    some, mine = spread_over(x, labels, LOOK)
    few = replace(driver, progress=quiet)
    for tolerance in TOLERANCES:
        if not without_trace(evaluate(few, some, mine, tolerance=tolerance)) <= budget:
            continue
        found = evaluate(driver, x, labels, tolerance=tolerance)
        if without_trace(found) <= budget:
            return found
    raise WorkError(
        f"no tolerance down to {TOLERANCES[-1]:.0e} has a numerical error within {budget:g} "
        "bits/dim: give a larger budget, or double precision"
    )


def without_trace(found: Evaluation) -> float:
    """Mean error bound in bits per dimension, but for what no tolerance changes."""
    nats = found.numerical_error["total"] - found.numerical_error["trace"]
    return found.numerical_error_bits_per_dim * nats / max(found.numerical_error["total"], 1e-300)
