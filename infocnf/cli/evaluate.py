"""``infocnf evaluate``: the whole test set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infocnf.cli.solving import BatchSize, ExactTrace, Tolerance, check_solving
from infocnf.errors import InputError

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
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
) -> None:
    """Evaluate a model on its test set: error, likelihood and its numerical error, cost.

    Every example counts, solved at 1e-5 and again ten times tighter: the difference is the
    numerical error that is reported. Writes evaluation.json into the run directory.
    """
    if tolerance is not None and learned_tolerances:
        raise InputError("--tolerance and --learned-tolerances contradict each other: choose one")
    check_solving(tolerance, batch_size)

    from infocnf import evaluation
    from infocnf.cli.progress import console, counting
    from infocnf.data.dataset import PARTS
    from infocnf.files import write_json
    from infocnf.training import Run

    if part not in PARTS:
        raise InputError(f"--part must be one of {', '.join(PARTS)}, got {part!r}")
    opened = Run.open(run)
    config, model = opened.config.evaluation, opened.model(exact_trace)
    x, labels = opened.data().examples(part)
    with counting("evaluating", len(x)) as progress:
        found = evaluation.evaluate(
            model,
            opened.preparation,
            x,
            labels,
            tolerance=None if learned_tolerances else tolerance or config.tolerance,
            batch_size=batch_size or config.batch_size,
            progress=progress,
        )
    name = "evaluation" if part == "test" else f"evaluation-{part}"
    name += "-learned-tolerances" if learned_tolerances else ""
    write_json(run / f"{name}.json", {**found.to_dict(), "model_sha256": opened.model_digest})
    console.print(table(found))
    console.print(f"written: {run / name}.json")


def table(found: object) -> str:
    """The figures for people."""
    from infocnf.evaluation import Evaluation
    from infocnf.evaluation.certificate import LARGEST_ERROR

    assert isinstance(found, Evaluation)
    lines = [f"{found.examples:,} examples"]
    if found.error_percent is not None:
        lines.append(f"error               {found.error_percent:.2f} %")
    for name, values in found.factors.items():
        if "rmse" in values:
            lines.append(f"rmse of {name:<12}{values['rmse']:.4g}")
    lines += [
        f"bits/dim            {found.bits_per_dim:.4f} "
        f"(+- {found.bits_per_dim_standard_error:.4f} standard error)",
        f"bits/dim, marginal  {found.bits_per_dim_marginal:.4f}",
        f"numerical error     {found.numerical_error_bits_per_dim:.1e} bits/dim "
        f"(largest {found.numerical_error_largest:.1e})",
        f"NFE                 {found.nfe_forward:.1f} per example",
    ]
    if found.calibration_error is not None:
        lines.append(f"calibration error   {found.calibration_error:.4f}")
    if found.numerical_error_bits_per_dim > LARGEST_ERROR:
        lines.append(
            f"the numerical error exceeds {LARGEST_ERROR:g} bits/dim: use a tighter --tolerance"
        )
    return "\n".join(lines)
