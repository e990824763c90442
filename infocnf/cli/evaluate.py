"""``infocnf evaluate``: the whole test set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infocnf.cli.solving import BatchSize, ExactTrace, Tolerance, check_solving
from infocnf.errors import InputError, WorkError

if TYPE_CHECKING:
    from infocnf.models import InfoCNF
    from infocnf.training import Run

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
    limit: Annotated[
        int | None,
        typer.Option(help="Examples whose likelihood is evaluated, spread over the set."),
    ] = None,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    outliers: Annotated[
        bool,
        typer.Option("--outliers", help="Also tell how well strange examples are recognised."),
    ] = False,
) -> None:
    """Evaluate a model on its test set: error, likelihood and its numerical error, cost.

    Every example counts, solved at 1e-5 and again ten times tighter: the difference is the
    numerical error that is reported. Beside it stands what an error of 0.001 bits/dim costs, at the
    loosest tolerance that keeps within it. Writes evaluation.json into the run directory.
    """
    chosen = [tolerance is not None, learned_tolerances, budget is not None]
    if sum(chosen) > 1:
        raise InputError(
            "--tolerance, --learned-tolerances and --budget contradict each other: choose one"
        )
    check_solving(tolerance, batch_size)
    check_amounts(budget, limit)

    from infocnf import evaluation
    from infocnf.cli.console import console, counting
    from infocnf.cli.series import evaluate_run, refuse
    from infocnf.data.dataset import PARTS, spread_over
    from infocnf.evaluation.budget import in_short
    from infocnf.files import write_json
    from infocnf.ode import SolveError
    from infocnf.training import Run

    if part not in PARTS:
        raise InputError(f"--part must be one of {', '.join(PARTS)}, got {part!r}")
    opened = Run.open(run, writing=True)
    if opened.is_series:
        refuse(
            budget=budget,
            learned_tolerances=learned_tolerances,
            exact_trace=exact_trace,
            outliers=outliers,
        )
        evaluate_run(opened, part, tolerance, batch_size, limit)
        return
    config, model = opened.config.evaluation, opened.model(exact_trace)
    everything = opened.data().examples(part)
    size = batch_size or config.batch_size
    x, labels = spread_over(*everything, limit or config.limit)
    given = (model, opened.preparation, x, labels)
    one_step = evaluation.read_in_one_step(model, opened.preparation, *everything, size)
    if budget is None:
        with counting("evaluating", len(x)) as progress:
            found = evaluation.evaluate(
                *given,
                tolerance=None if learned_tolerances else tolerance or config.tolerance,
                batch_size=size,
                progress=progress,
            )
    allowed, within = budget, {}
    adaptive = all(block.solver["steps"] is None for block in model.flow.blocks)
    if adaptive and not any(chosen) and not exact_trace:
        allowed = config.budget or None
    if allowed is not None:
        try:
            with counting(f"within {allowed:g} bits/dim", len(x)) as progress:
                cheapest = evaluation.evaluate_within(
                    *given, budget=allowed, batch_size=size, progress=progress
                )
            within = in_short(cheapest, allowed)
            found = cheapest if budget is not None else found
        except (WorkError, SolveError) as error:
            if budget is not None:
                raise
            console.print(str(error))  # nobody asked for it: the evaluation stands
    found = replace(found, one_step=one_step, within_budget=within)
    if outliers:
        found = replace(found, outliers=strangers(opened, model, size, limit))
    name = "evaluation" if part == "test" else f"evaluation-{part}"
    name += "-learned-tolerances" if learned_tolerances else ""
    write_json(run / f"{name}.json", {**found.to_dict(), "model_sha256": opened.model_digest})
    console.print(table(found))
    console.print(f"written: {run / name}.json")


def strangers(
    run: Run, model: InfoCNF, size: int, limit: int | None
) -> dict[str, dict[str, float]]:
    """How well each score tells strange examples from the test set."""
    from infocnf.cli.console import counting
    from infocnf.evaluation.outliers import outlier_table, strange_examples

    data, count = run.data(), min(limit or 500, 500)
    kinds = len(strange_examples(data.examples("test")[0][:1], data.raw.levels))
    with counting("strange examples", (kinds + 2) * count) as progress:
        return outlier_table(
            model, run.preparation, data, count=count, batch_size=size, progress=progress
        )


def check_amounts(budget: float | None, limit: int | None) -> None:
    """Refuse what cannot be spent."""
    if budget is not None and not budget > 0:
        raise InputError(f"--budget must be positive, got {budget}")
    if limit is not None and limit < 1:
        raise InputError(f"--limit must be at least 1, got {limit}")


def table(found: object) -> str:
    """The figures for people."""
    from infocnf.evaluation import Evaluation
    from infocnf.evaluation.certificate import LARGEST_ERROR

    assert isinstance(found, Evaluation)
    lines = [f"{found.examples:,} examples"]
    once = found.one_step.get("error_percent")
    if found.error_percent is not None:
        how = "" if once is None else "  (through the flow)"
        errors = [f"error               {found.error_percent:.2f} %{how}"]
        if once is not None:
            count = found.one_step["examples"]
            errors.append(f"error               {once:.2f} %  (in one step, {count:,} examples)")
        lines += errors if found.read == "flow" else errors[::-1]
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
        f"NFE                 {found.nfe_forward:.1f} per example",
    ]
    if found.within_budget and found.within_budget["tolerance"] != found.tolerance:
        cheap = found.within_budget
        lines.append(
            f"within {cheap['budget']:g} bits/dim  tolerance {cheap['tolerance']:.0e}: "
            f"NFE {cheap['nfe_forward']:.1f}, bits/dim {cheap['bits_per_dim']:.4f}"
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
            f"the numerical error exceeds {LARGEST_ERROR:g} bits/dim: use a tighter --tolerance"
        )
    return "\n".join(lines)
