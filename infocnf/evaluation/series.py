r"""How well a latent ODE fits series, goes on beyond them and reads their labels.

The root mean square error is taken over series, channels, times and draws of the hidden state
:math:`z \sim q(z \mid x)`; against the truth without noise where it is known, else against the
observations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from infocnf.evaluation.calibration import judge, mean_of
from infocnf.evaluation.driver import Columns, Driver, quiet, take
from infocnf.evaluation.likelihood import Tighter, logits_of
from infocnf.evaluation.predictions import Predictions, label_columns
from infocnf.models import LatentODE, Real
from infocnf.models.latent_ode import Posterior
from infocnf.objectives import variational_objective
from infocnf.random import Stream, combine_seeds, draw_normal, sample_seeds
from infocnf.tolerances import Policy

__all__ = ["SeriesEvaluation", "evaluate_series", "predict_series"]


@dataclass(frozen=True)
class SeriesEvaluation:
    """The metrics of a set of series.

    Arguments:
        examples: Number of series.
        tolerance: Tolerance of the solves.
        draws: Draws of the hidden state of each series.
        rmse_fit: Within the window that was observed.
        rmse_after: Beyond its end; None where nothing is known of that.
        rmse_before: Before its beginning.
        rmse_mean_state: The three from the mean of the hidden state instead of draws.
        standard_error: Of the three, over series.
        truth: Whether errors are against the truth without noise.
        elbo: Lower bound of log p(x | y) in nats, with one draw.
        error_percent: Wrong classes; None without a categorical label.
        nfe_forward: Field evaluations per series for its own window.
        numerical_error: Root mean square change of the fit under a ten times tighter solve.
        calibration_error: Expected calibration error.
        seconds: Time it took.
        factors: By factor: error and calibration; or the root of the mean squared error, and that
            of guessing the mean of the training part.
        confusion: By categorical factor: rows are true classes, columns predictions.
    """

    examples: int
    tolerance: float
    draws: int
    rmse_fit: float
    rmse_after: float | None
    rmse_before: float | None
    rmse_mean_state: dict[str, float]
    standard_error: dict[str, float | None]
    truth: bool
    elbo: float
    error_percent: float | None
    nfe_forward: float
    numerical_error: float
    calibration_error: float | None
    seconds: float
    factors: dict[str, dict[str, float]] = field(default_factory=dict)
    confusion: dict[str, list[list[int]]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def evaluate_series(
    driver: Driver[LatentODE],
    x: Tensor,
    labels: Mapping[str, Tensor],
    truth: Tensor | None = None,
    *,
    draws: int = 10,
    tolerance: float | None = None,
) -> SeriesEvaluation:
    """Metrics of all series.

    Arguments:
        driver: How series go through the model.
        x: Series as read.
        labels: Their labels by factor.
        truth: The truth at the times of the series and others, ``(series, times, 1 + channels)``.
        draws: Draws of the hidden state of each series.
        tolerance: Tolerance of the solves; the model's own when None.
    """
    model, preparation = driver.model.eval(), driver.preparation
    started, known = perf_counter(), x if truth is None else truth
    policy = model.policy_for(tolerance)
    tight = Tighter(policy)

    def measure(series: Tensor, rows: Tensor) -> Columns:
        mine = take({n: y for n, y in labels.items() if n in model.code.heads}, rows, model.device)
        seeds = combine_seeds(0, rows).to(model.device)
        posterior = model.encode(series)
        errors = squared_errors(
            driver, series, posterior, x[rows], known[rows], seeds, draws, policy
        )
        objective = variational_objective(
            model,
            series,
            mine,
            log_scale=preparation.log_scales.to(series),
            tolerance=policy,
            seeds=seeds,
        )
        start = model.code.merge(*model.split(posterior.mean))
        one, two = (model.decode(start, series[..., 0], tolerance=p)[0] for p in (policy, tight))
        change = (preparation.restore(one) - preparation.restore(two)).square()
        logits = model.code.logits(model.split(posterior.mean)[0])
        return {
            **errors,
            "elbo": objective.elbo.double(),
            "evaluations": objective.stats.forward.double().expand(len(series)),
            "tolerances": torch.as_tensor(
                objective.stats.solves[0].choice.tolerance, dtype=torch.float64
            ).expand(len(series)),
            "change": change.nanmean((1, 2)),
            **{f"logits {name}": part for name, part in logits.items()},
        }

    found = driver.collect(x, measure)
    metrics, errors = {}, {}
    for name in ("before", "fit", "after"):
        for key in (name, f"{name} mean"):
            if found[key][:, 1].sum() > 0:
                metrics[key], errors[key] = root(found[key])
    factors, confusion = judge(model, logits_of(found), labels)
    for name, factor in model.factors.items():
        if isinstance(factor, Real) and name in factors:
            guess = labels[name].double() - factor.mean
            factors[name]["rmse_of_the_mean"] = float(guess.square().mean().sqrt())
    names = {"fit": "rmse_fit", "after": "rmse_after", "before": "rmse_before"}
    return SeriesEvaluation(
        examples=len(x),
        tolerance=float(found["tolerances"].mean()),
        draws=draws,
        rmse_fit=metrics["fit"],
        rmse_after=metrics.get("after"),
        rmse_before=metrics.get("before"),
        rmse_mean_state={names[n]: metrics[f"{n} mean"] for n in names if f"{n} mean" in metrics},
        standard_error={names[n]: errors[n] for n in names if n in errors},
        truth=truth is not None,
        elbo=float(found["elbo"].mean()),
        error_percent=mean_of(factors, "error_percent"),
        nfe_forward=float(found["evaluations"].mean()),
        numerical_error=float(found["change"].mean().sqrt()),
        calibration_error=mean_of(factors, "calibration_error"),
        seconds=perf_counter() - started,
        factors=factors,
        confusion=confusion,
    )


def squared_errors(
    driver: Driver[LatentODE],
    series: Tensor,
    posterior: Posterior,
    raw: Tensor,
    known: Tensor,
    seeds: Tensor,
    draws: int,
    policy: Policy,
) -> Columns:
    """Sums of squared errors and their number ``(batch, 2)``, ``before``, within (``fit``) and
    ``after`` the window, over draws of the hidden state, and from its ``mean``.
    """
    model, preparation = driver.model, driver.preparation
    known = known.to(model.device, torch.float64)
    times = (known[..., 0] - raw[:, :1, 0].to(known)) / preparation.scale[0]
    last = series[..., 0].nan_to_num(nan=-torch.inf).amax(1, keepdim=True)
    slack = 1e-6 * last
    where = {
        "before": times < -slack,
        "fit": (times >= -slack) & (times <= last + slack),
        "after": times > last + slack,
    }
    at = times[0] if bool((times == times[:1]).all()) else times
    found: Columns = {}
    for draw in range(-1, draws):
        noise = draw_normal(combine_seeds(draw, seeds), posterior.mean, Stream.NOISE)
        z = posterior.mean if draw < 0 else posterior.draw(noise)
        values, _ = model.decode(model.code.merge(*model.split(z)), at, tolerance=policy)
        rest = (preparation.restore(values) - known[..., 1:]).square()
        for name, chosen in where.items():
            chosen = chosen.unsqueeze(2) & rest.isfinite()
            sums = torch.stack([rest.where(chosen, 0.0).sum((1, 2)), chosen.sum((1, 2))], 1)
            key = f"{name} mean" if draw < 0 else name
            found[key] = found[key] + sums if key in found else sums
    return found


def predict_series(
    driver: Driver[LatentODE],
    x: Tensor,
    classes: Mapping[str, Sequence[str]],
    *,
    draws: int = 10,
    tolerance: float | None = None,
) -> Predictions:
    """Labels of new series, and a lower bound of log p(x), averaged over draws of the hidden state;
    arguments as of :func:`evaluate_series`.
    """
    model, preparation = driver.model, driver.preparation

    def bound(series: Tensor, rows: Tensor) -> Columns:
        seeds = sample_seeds(series.nan_to_num())
        found = [
            variational_objective(
                model,
                series,
                log_scale=preparation.log_scales.to(series),
                tolerance=tolerance,
                seeds=combine_seeds(draw, seeds),
            )
            for draw in range(draws)
        ]
        return {
            "elbo": torch.stack([f.elbo.double() for f in found]).mean(0),
            "nfe": torch.stack([f.stats.forward for f in found]).sum(0),
        }

    found = driver.collect(x, bound, partial=True)
    quietly = replace(driver, progress=quiet)
    labels = quietly.collect(x, lambda some, _: model.logits(some)) if model.code.heads else {}
    columns: dict[str, list[object]] = {}
    for name, logits in labels.items():
        columns.update(label_columns(model, name, logits, classes.get(name, ())))
    elbo = found.get("elbo", torch.full((len(x),), torch.nan, dtype=torch.float64))
    columns["log_likelihood"] = elbo.tolist()
    columns["nfe"] = found.get("nfe", torch.zeros(len(x), dtype=torch.int64)).tolist()
    return Predictions(columns, unsolved=int((~elbo.isfinite()).sum()))


def root(sums: Tensor) -> tuple[float, float | None]:
    """Root of the mean square, and its standard error over series, of sums and counts ``(series,
    2)``; None for a single series.
    """
    squares, counts = sums.double()[sums[:, 1] > 0].unbind(1)
    mean, count = float(squares.sum() / counts.sum()), len(squares)
    if count < 2 or not mean:
        return mean**0.5, None
    rest = (squares - mean * counts) / counts.mean()
    return mean**0.5, float(rest.std()) / count**0.5 / (2.0 * mean**0.5)
