r"""How well a latent ODE fits series, goes on beyond them and reads their labels.

The root mean square error is taken over series, channels, times and draws of the hidden state
:math:`z \sim q(z \mid x)`; against the truth without noise where it is known, else against the
observations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from infocnf.data import Preparation
from infocnf.evaluation.certificate import more_steps
from infocnf.evaluation.density import judge, mean_of
from infocnf.models import LatentODE, Real
from infocnf.objectives import variational_objective
from infocnf.ode.streams import NOISE, combine_seeds, draw_normal

__all__ = ["SeriesEvaluation", "evaluate_series"]


@dataclass(frozen=True)
class SeriesEvaluation:
    """The figures of a set of series.

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
        confusion: By categorical factor: rows are true classes, columns answers.
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


@torch.no_grad()
def evaluate_series(
    model: LatentODE,
    preparation: Preparation,
    x: Tensor,
    labels: Mapping[str, Tensor],
    truth: Tensor | None = None,
    *,
    draws: int = 10,
    tolerance: float = 1e-4,
    batch_size: int = 500,
    progress: Callable[[int], None] = lambda count: None,
) -> SeriesEvaluation:
    """Figures of all series.

    Arguments:
        model: The model, in evaluation mode.
        preparation: How series become what the model reads.
        x: Series as read.
        labels: Their labels by factor.
        truth: The truth at the times of the series and others, ``(series, times, 1 + channels)``.
        draws: Draws of the hidden state of each series.
        tolerance: Tolerance of the solves.
        batch_size: Series solved at a time.
        progress: Told of the number of series after each batch.
    """
    started = perf_counter()
    model.eval()
    squares: dict[str, list[Tensor]] = {}  # sums and counts of each series, batch by batch
    elbo, evaluations, change = [], [], []
    answers: dict[str, list[Tensor]] = {name: [] for name in model.code.heads}
    for begin in range(0, len(x), batch_size):
        part = slice(begin, begin + batch_size)
        series = preparation(x[part].to(model.device), model.dtype)
        mine = {name: y[part].to(model.device) for name, y in labels.items() if name in answers}
        known = x[part] if truth is None else truth[part]
        known = known.to(model.device, torch.float64)
        times = (known[..., 0] - x[part][:, :1, 0].to(known)) / preparation.scale[0]
        last = series[..., 0].nan_to_num(nan=-torch.inf).amax(1, keepdim=True)
        slack = 1e-6 * last
        where = {
            "before": times < -slack,
            "fit": (times >= -slack) & (times <= last + slack),
            "after": times > last + slack,
        }
        seeds = combine_seeds(0, torch.arange(begin, begin + len(series))).to(model.device)
        at = times[0] if bool((times == times[:1]).all()) else times
        posterior = model.encode(series)
        for draw in range(-1, draws):
            noise = draw_normal(combine_seeds(draw, seeds), posterior.mean, NOISE)
            z = posterior.mean if draw < 0 else posterior.draw(noise)
            values, _ = model.decode(model.code.merge(*model.split(z)), at, tolerance=tolerance)
            rest = (preparation.restore(values) - known[..., 1:]).square()
            for name, chosen in where.items():
                chosen = chosen.unsqueeze(2) & rest.isfinite()
                key = f"{name} mean" if draw < 0 else name
                sums = torch.stack([rest.where(chosen, 0.0).sum((1, 2)), chosen.sum((1, 2))], 1)
                pieces = squares.setdefault(key, [])
                if draw > 0:
                    pieces[-1] = pieces[-1] + sums
                else:
                    pieces.append(sums)
        objective = variational_objective(
            model,
            series,
            mine,
            log_scale=preparation.log_scales.to(series),
            tolerance=tolerance,
            seeds=seeds,
        )
        elbo.append(objective.elbo.double())
        evaluations.append(objective.stats.forward.double().expand(len(series)))
        window = series[..., 0]
        start = model.code.merge(*model.split(posterior.mean))
        one, _ = model.decode(start, window, tolerance=tolerance)
        with more_steps(model):
            two, _ = model.decode(start, window, tolerance=tolerance / 10.0)
        change.append(
            (preparation.restore(one) - preparation.restore(two)).square().nanmean((1, 2))
        )
        for name, answer in model.code.answers(model.split(posterior.mean)[0]).items():
            answers[name].append(answer)
        progress(len(series))

    figures, errors = {}, {}
    for name, pieces in squares.items():
        total = torch.cat(pieces)
        if total[:, 1].sum() == 0:
            continue
        figures[name], errors[name] = root(total)
    factors, confusion = judge(model, {n: torch.cat(a) for n, a in answers.items()}, labels)
    for name, factor in model.factors.items():
        if isinstance(factor, Real) and name in factors:
            guess = labels[name].double() - factor.mean
            factors[name]["rmse_of_the_mean"] = float(guess.square().mean().sqrt())
    names = {"fit": "rmse_fit", "after": "rmse_after", "before": "rmse_before"}
    return SeriesEvaluation(
        examples=len(x),
        tolerance=tolerance,
        draws=draws,
        rmse_fit=figures["fit"],
        rmse_after=figures.get("after"),
        rmse_before=figures.get("before"),
        rmse_mean_state={names[n]: figures[f"{n} mean"] for n in names if f"{n} mean" in figures},
        standard_error={names[n]: errors[n] for n in names if n in errors},
        truth=truth is not None,
        elbo=float(torch.cat(elbo).mean()),
        error_percent=mean_of(factors, "error_percent"),
        nfe_forward=float(torch.cat(evaluations).mean()),
        numerical_error=float(torch.cat(change).mean().sqrt()),
        calibration_error=mean_of(factors, "calibration_error"),
        seconds=perf_counter() - started,
        factors=factors,
        confusion=confusion,
    )


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
