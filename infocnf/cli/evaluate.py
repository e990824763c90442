"""``infocnf evaluate``: the whole test set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infocnf.cli.options import BatchSize, ExactTrace, Tolerance, check_solving
from infocnf.errors import InputError

if TYPE_CHECKING:
    from infocnf.evaluation import Driver
    from infocnf.models import InfoCNF
    from infocnf.runs import Run
    from infocnf.tolerances import Policy

__all__ = ["evaluate"]


def evaluate(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    tolerance: Tolerance = None,
    batch_size: BatchSize = None,
    learned_tolerances: Annotated[
        bool,
        typer.Option(
            "--learned-tolerances",
            help="Solve at the tolerances of the model's policy. Learned per batch, they depend on "
            "--batch-size.",
        ),
    ] = False,
    exact_trace: ExactTrace = False,
    budget: Annotated[
        float | None,
        typer.Option(
            help="Instead of a tolerance: numerical error in bits/dim that is acceptable. The "
            "loosest tolerance within it is found and used.",
        ),
    ] = None,
    error: Annotated[
        float | None,
        typer.Option(
            help="Numerical error in nats that no example is to exceed: what errs more is solved "
            "again, tighter, with more probes or in double precision.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(help="Examples whose likelihood is evaluated, spread over the set."),
    ] = None,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    outliers: Annotated[
        bool,
        typer.Option("--outliers", help="Also tell how well outliers are recognised."),
    ] = False,
) -> None:
    """Evaluate a model on its test set: error, likelihood and its numerical error, cost.

    Every example counts, and every likelihood has a bound on its numerical error: of the solver,
    the quadrature of the trace, the probes of an estimated trace, and rounding. Writes
    evaluation.json into the run directory.
    """
    chosen = [tolerance is not None, learned_tolerances, budget is not None]
    if sum(chosen) > 1 or (budget is not None and error is not None):
        raise InputError(
            "--tolerance, --learned-tolerances and --budget contradict each other, and so do "
            "--budget and --error: choose one"
        )
    check_solving(tolerance, batch_size)
    check_limits(budget, error, limit)

    from infocnf.cli.options import console
    from infocnf.data.dataset import PARTS
    from infocnf.files import write_json
    from infocnf.runs import Run
    from infocnf.runs.manifest import seal_if_free

    if part not in PARTS:
        raise InputError(f"--part must be one of {', '.join(PARTS)}, got {part!r}")
    opened = Run.open(run, writing=True)
    if opened.is_series:
        refuse(
            budget=budget,
            error=error,
            learned_tolerances=learned_tolerances,
            exact_trace=exact_trace,
            outliers=outliers,
        )
        found, lines = evaluate_series_run(opened, part, tolerance, batch_size, limit)
    else:
        model = opened.model(exact_trace)
        found, lines = evaluate_flow(
            opened,
            model,
            part,
            tolerance=model.policy if learned_tolerances else tolerance,
            batch_size=batch_size,
            budget=budget,
            error=error,
            limit=limit,
            outliers=outliers,
        )
    name = "evaluation" if part == "test" else f"evaluation-{part}"
    name += "-learned-tolerances" if learned_tolerances else ""
    write_json(run / f"{name}.json", {**found, "model_sha256": opened.model_digest})
    seal_if_free(run)
    console.print(lines)
    console.print(f"written: {run / name}.json")


def refuse(**given: object) -> None:
    """Refuse options that have no meaning for series."""
    for name, value in given.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} is for flows of images and rows: leave it out for series")


def evaluate_flow(
    run: Run,
    model: InfoCNF,
    part: str,
    *,
    tolerance: float | Policy | None,
    batch_size: int | None,
    budget: float | None,
    error: float | None,
    limit: int | None,
    outliers: bool,
) -> tuple[dict[str, Any], str]:
    """Metrics of a flow as plain values, and for people."""
    from infocnf import evaluation
    from infocnf.cli.options import counting
    from infocnf.data import spread_over
    from infocnf.evaluation import Driver

    config, everything = run.config.evaluation, run.data().examples(part)
    size = batch_size or config.batch_size
    x, labels = spread_over(*everything, limit or config.limit)
    driver = Driver(model, run.preparation, size)
    one_step = evaluation.one_step_metrics(driver, *everything)
    with counting("evaluating", len(x)) as progress:
        own = replace(driver, progress=progress)
        if budget is None:
            chosen = tolerance or config.tolerance
            found = evaluation.evaluate(own, x, labels, tolerance=chosen, target=error)
        else:
            found = evaluation.evaluate_within(own, x, labels, budget=budget)
    found = replace(found, one_step=one_step)
    if outliers:
        found = replace(found, outliers=outlier_areas(run, driver, limit))
    return found.to_dict(), table(found)


def evaluate_series_run(
    run: Run, part: str, tolerance: float | None, batch_size: int | None, limit: int | None
) -> tuple[dict[str, Any], str]:
    """Fit, extrapolation and labels of series as plain values, and for people."""
    from infocnf.cli.options import counting
    from infocnf.data import spread_over
    from infocnf.evaluation import Driver
    from infocnf.evaluation.series import evaluate_series

    config, model, data = run.config, run.latent_ode(), run.data()
    x, labels = data.examples(part)
    truth = data.truth(part)
    more = {} if truth is None else {"truth": truth}
    x, chosen = spread_over(x, {**labels, **more}, limit or config.evaluation.limit)
    truth = chosen.pop("truth", None)
    with counting("evaluating", len(x)) as progress:
        size = batch_size or config.evaluation.batch_size
        found = evaluate_series(
            Driver(model, run.preparation, size, progress),
            x,
            chosen,
            truth,
            draws=config.series.draws,
            tolerance=tolerance or config.evaluation.tolerance,
        ).to_dict()
    return found, series_table(found)


def outlier_areas(
    run: Run, driver: Driver[InfoCNF], limit: int | None
) -> dict[str, dict[str, float]]:
    """How well each score tells outliers from the test set."""
    from infocnf.cli.options import counting
    from infocnf.evaluation.outliers import make_outliers, outlier_table

    data, count = run.data(), min(limit or 500, 500)
    kinds = len(make_outliers(data.examples("test")[0][:1], data.raw.levels))
    with counting("outliers", (kinds + 2) * count) as progress:
        return outlier_table(replace(driver, progress=progress), data, count=count)


def check_limits(budget: float | None, error: float | None, limit: int | None) -> None:
    """Refuse what cannot be spent."""
    for name, value in (("budget", budget), ("error", error)):
        if value is not None and not value > 0:
            raise InputError(f"--{name} must be positive, got {value}")
    if limit is not None and limit < 1:
        raise InputError(f"--limit must be at least 1, got {limit}")


def table(found: object) -> str:
    """The metrics for people."""
    from infocnf.evaluation import Evaluation
    from infocnf.evaluation.likelihood import LARGEST_ERROR

    assert isinstance(found, Evaluation)
    lines = [f"{found.examples:,} examples"]
    once = found.one_step.get("error_percent")
    if found.error_percent is not None:
        how = "" if once is None else "  (through the flow)"
        errors = [f"error               {found.error_percent:.2f} %{how}"]
        if once is not None:
            count = found.one_step["examples"]
            errors.append(f"error               {once:.2f} %  (in one step, {count:,} examples)")
        lines += errors if found.readout == "flow" else errors[::-1]
    for name, values in found.factors.items():
        if "rmse" in values:
            again = found.one_step.get("factors", {}).get(name)
            once = "" if again is None else f"  ({again['rmse']:.4g} in one step)"
            lines.append(f"rmse of {name:<12}{values['rmse']:.4g}{once}")
    lines += [
        f"bits/dim            {found.bits_per_dim:.4f} "
        f"(+- {found.bits_per_dim_standard_error:.4f} standard error)",
        f"bits/dim, marginal  {found.bits_per_dim_marginal:.4f}",
        f"numerical error     {found.numerical_error_bits_per_dim:.1e} bits/dim "
        f"(largest {found.numerical_error_largest:.1e})",
        "in nats             "
        + ", ".join(f"{name} {value:.1e}" for name, value in found.numerical_error.items()),
        f"NFE                 {found.nfe_forward:.1f} per example, "
        f"{found.products_forward:.0f} products with Jacobians",
    ]
    if found.above_target.get("examples"):
        lines.append(
            f"{found.above_target['examples']:,} examples exceed an error of "
            f"{found.above_target['target']:g} nats whatever was spent"
        )
    if found.calibration_error is not None:
        again = found.one_step.get("calibration_error")
        once = "" if again is None else f"  ({again:.4f} in one step)"
        lines.append(f"calibration error   {found.calibration_error:.4f}{once}")
    for kind, areas in found.outliers.items():
        told = "  ".join(f"{name} {area:.2f}" for name, area in areas.items())
        lines.append(f"AUROC of {kind:<18} {told}")
    if found.numerical_error_bits_per_dim > LARGEST_ERROR:
        lines.append(
            f"the numerical error exceeds {LARGEST_ERROR:g} bits/dim: use a tighter --tolerance, "
            "or --exact-trace where the trace is what errs"
        )
    return "\n".join(lines)


def series_table(found: dict[str, Any]) -> str:
    """The metrics of series for people."""
    against = "the truth" if found["truth"] else "the observations"
    lines = [f"{found['examples']:,} series, {found['draws']} draws of each hidden state"]
    for key, what in (
        ("rmse_fit", "within the window"),
        ("rmse_after", "after it"),
        ("rmse_before", "before it"),
    ):
        if found[key] is not None:
            error = found["standard_error"][key]
            spread = "" if error is None else f" (+- {error:.4f})"
            lines.append(f"rmse {what:<19} {found[key]:.4f}{spread}, against {against}")
    lines.append(f"ELBO                     {found['elbo']:.2f} nats per series")
    if found["error_percent"] is not None:
        lines.append(f"error                    {found['error_percent']:.2f} %")
    for name, values in found["factors"].items():
        if "rmse" in values:
            guess = values["rmse_of_the_mean"]
            lines.append(
                f"rmse of {name:<16} {values['rmse']:.4g} (guessing the mean: {guess:.4g})"
            )
    lines.append(f"numerical error          {found['numerical_error']:.1e} (rmse of the fit)")
    lines.append(f"NFE                      {found['nfe_forward']:.1f} per series")
    return "\n".join(lines)
