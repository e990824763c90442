"""``infocnf reproduce``: the paper's tables and figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infocnf.errors import InputError

if TYPE_CHECKING:
    from infocnf.experiments.declaration import Experiment, Scale

__all__ = ["reproduce"]

EXAMPLES = """\b
Examples:
  infocnf reproduce density-1d
  infocnf reproduce all --data-dir ~/mnist       some hours on two cores; Ctrl-C, and go on later
  infocnf reproduce all --scale paper --dry-run  what the paper's own sizes would cost
"""


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="all, density-1d, small-batch, large-batch, tolerances, batch-size, marginal, "
            "small-vs-large, partition, unconditional, large-batch-methods, bigger, mnist, spirals"
        ),
    ],
    scale: Annotated[
        str, typer.Option(help="laptop; paper: its data, sizes and epochs, for graphics cards.")
    ] = "laptop",
    out: Annotated[Path, typer.Option(help="Where tables and figures go.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Where runs are kept and found again.")] = Path(
        "runs/reproduce"
    ),
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Folder with mnist.npz or the published files."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="Runs at a time, each on one core.  [default: all]", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every run and what it would cost, and exit.")
    ] = False,
) -> None:
    """Reproduce a result of the paper. It can be stopped and given again at any time."""
    from infocnf.experiments import experiments_of
    from infocnf.experiments.scales import scale_of

    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs must be at least 1, got {jobs}")
    chosen, size = experiments_of(name), scale_of(scale)
    if dry_run:
        forecast_all(chosen, size)
        return
    check_data(chosen, size, data_dir)
    work(chosen, size, out, runs, data_dir, jobs or os.cpu_count() or 1)


def work(
    experiments: list[Experiment],
    scale: Scale,
    out: Path,
    runs: Path,
    data_dir: Path | None,
    jobs: int,
) -> None:
    """Train what is missing and publish, with a bar over everything."""
    from infocnf.cli.options import adding_up, console
    from infocnf.cli.train import as_toml
    from infocnf.experiments.runner import ExperimentRunner, epochs_in_all, reproduce

    given = () if data_dir is None else (f"data.directory={as_toml(str(data_dir))}",)
    with adding_up("training", epochs_in_all(experiments, scale)) as told:
        runner = ExperimentRunner(runs, given, jobs, told)
        reproduce(
            experiments,
            scale,
            runner,
            out,
            lambda experiment, folder: console.print(f"{experiment.name}: {folder / 'table.md'}"),
        )


def check_data(experiments: list[Experiment], scale: Scale, data_dir: Path | None) -> None:
    """Refuse before anything is trained where data is missing."""
    from infocnf.data import load_data
    from infocnf.runs import read_config

    for base in {arm.base for experiment in experiments for arm in experiment.arms}:
        load_data(read_config(scale.bases[base].preset).data.name, directory=data_dir)


def forecast_all(experiments: list[Experiment], scale: Scale) -> None:
    """Print what every run would take; runs that several results share are counted once."""
    from infocnf.cli.options import console
    from infocnf.experiments.forecast import forecast
    from infocnf.experiments.runner import identity

    seen: set[str] = set()
    total = 0.0
    for experiment in experiments:
        console.print(f"\n{experiment.name}: {experiment.title}")
        for arm in experiment.arms:
            recipe = arm.recipe(scale, scale.seeds[0], 1e-4 if arm.matches else None)
            label = f"  {arm.name:<36} {len(scale.seeds)} seeds"
            name = identity(recipe)
            if name in seen and not arm.matches:  # a tolerance that is still to be learned
                console.print(f"{label}  (as above)")
                continue
            seen.add(name)
            found = forecast(recipe)
            cost = "" if found.hours is None else f"  {found.hours:,.0f} GPU-hours each"
            total += (found.hours or 0.0) * len(scale.seeds)
            console.print(
                f"{label}  {found.parameters:>9,} parameters  {found.steps:>7,} steps  "
                f"{found.evaluations:>4.0f} evaluations{cost}"
            )
    console.print("\nEvaluations are those of the first iteration, measured with 2 examples.")
    if total:
        console.print(
            f"{total:,.0f} GPU-hours in all, at the reference's seconds per evaluation. In the "
            "reference's logs evaluations grow in training, by 1.3 to 1.9 times."
        )


reproduce.__doc__ = f"{reproduce.__doc__}\n\n{EXAMPLES}"
