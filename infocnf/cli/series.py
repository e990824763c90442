"""What the commands do with a run of series."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from infocnf.errors import InputError

if TYPE_CHECKING:
    from infocnf.training import Run

__all__ = ["evaluate_run", "predict_run", "refuse", "sample_run"]


def refuse(**given: object) -> None:
    """Refuse options that have no meaning for series."""
    for name, value in given.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} is for flows of images and rows: leave it out for series")


def evaluate_run(
    run: Run, part: str, tolerance: float | None, batch_size: int | None, limit: int | None
) -> None:
    """Fit, extrapolation and labels of a part; writes ``evaluation.json``."""
    import torch

    from infocnf.cli.console import console, counting
    from infocnf.evaluation.trajectories import evaluate_series
    from infocnf.files import write_json

    config, model, data = run.config, run.latent_ode(), run.data()
    x, labels = data.examples(part)
    truth = data.truth(part)
    number = min(limit or config.evaluation.limit or len(x), len(x))
    most = torch.linspace(0, len(x) - 1, number, dtype=torch.float64).long()
    with counting("evaluating", len(x[most])) as progress:
        found = evaluate_series(
            model,
            run.preparation,
            x[most],
            {name: y[most] for name, y in labels.items()},
            None if truth is None else truth[most],
            draws=config.series.draws,
            tolerance=tolerance or config.evaluation.tolerance,
            batch_size=batch_size or config.evaluation.batch_size,
            progress=progress,
        )
    name = "evaluation" if part == "test" else f"evaluation-{part}"
    values = {**found.to_dict(), "model_sha256": run.model_digest}
    write_json(run.folder / f"{name}.json", values)
    console.print(table(values))
    console.print(f"written: {run.folder / name}.json")


def table(found: dict[str, Any]) -> str:
    """The figures for people."""
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


def sample_run(
    run: Run,
    number: int,
    label: str | None,
    out: Path | None,
    temperature: float,
    seed: int,
) -> None:
    """Draw series without noise, over the time of a typical one, as a picture or a table."""
    import csv
    import io

    import numpy as np
    import torch

    from infocnf.cli.console import console
    from infocnf.cli.sample import index_of
    from infocnf.files import write
    from infocnf.reports.samples import main_factor
    from infocnf.reports.series import draw_drawn

    model, preparation = run.latent_ode(), run.preparation
    name = main_factor(model)
    classes = run.facts["classes"].get(name, []) if name else []
    chosen = index_of(label, classes)
    labels = None
    if name is not None:
        turn = torch.arange(number) % len(classes)
        labels = {name: turn if chosen is None else torch.full((number,), chosen)}
    times = torch.linspace(0.0, float(run.facts["span"]), 100, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    found = model.sample(
        number, times / preparation.scale[0], labels, temperature, generator=generator
    )
    values = preparation.restore(found).numpy()
    words = [classes[int(i)] for i in labels[name]] if labels and name else []
    columns = run.facts["columns"]
    path = out or run.folder / "samples.png"
    if path.suffix == ".png":
        content = draw_drawn(times.numpy(), values, words, columns)
    elif path.suffix == ".npz":
        buffer = io.BytesIO()
        named = {"y": np.array(words)} if words else {}
        np.savez_compressed(buffer, x=values, times=times.numpy(), **named)  # type: ignore[arg-type]
        content = buffer.getvalue()
    else:
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        own = run.config.data.series or "series"
        lines.writerow([own, *columns, *([name] if words else [])])
        for i, series in enumerate(values):
            for t, row in zip(times.tolist(), series, strict=True):
                numbers = [f"{value:.9g}" for value in (t, *row)]
                lines.writerow([i, *numbers, *words[i : i + 1]])
        content = text.getvalue().encode()
    write(path, content)
    console.print(f"written: {path}")


def predict_run(run: Run, source: Path, tolerance: float | None, batch_size: int | None) -> Any:  # noqa: ANN401
    """Columns of predictions for new series: labels, and a lower bound of log p(x), averaged over
    draws of the hidden state.
    """
    import torch

    from infocnf.data.series import read_new_series
    from infocnf.evaluation.predictions import answer_columns
    from infocnf.objectives import variational_objective
    from infocnf.ode import SolveError
    from infocnf.ode.streams import combine_seeds, sample_seeds

    config, model, preparation = run.config, run.latent_ode(), run.preparation
    own = config.data
    labels = [own.label] if isinstance(own.label, str) else own.label
    names, raw = read_new_series(source, run.facts["columns"], own.series, own.time, labels)
    size, draws = batch_size or config.evaluation.batch_size, config.series.draws
    elbo = torch.full((len(raw),), torch.nan, dtype=torch.float64)
    evaluations = torch.zeros(len(raw), dtype=torch.int64)
    answers: dict[str, list[torch.Tensor]] = {name: [] for name in model.code.heads}
    with torch.no_grad():
        for begin in range(0, len(raw), size):
            series = preparation(torch.from_numpy(raw[begin : begin + size]), model.dtype)
            for name, answer in (model.answers(series) if answers else {}).items():
                answers[name].append(answer)
            kept = torch.arange(len(series))
            while len(kept):  # a series that cannot be solved has no bound
                seeds = sample_seeds(series[kept].nan_to_num())
                try:
                    found = [
                        variational_objective(
                            model,
                            series[kept],
                            log_scale=preparation.log_scales.to(series),
                            tolerance=tolerance or config.evaluation.tolerance,
                            seeds=combine_seeds(draw, seeds),
                        )
                        for draw in range(draws)
                    ]
                except SolveError as error:
                    kept = kept[error.solution.done]
                    continue
                elbo[begin + kept] = torch.stack([f.elbo.double() for f in found]).mean(0)
                evaluations[begin + kept] = torch.stack([f.stats.forward for f in found]).sum(0)
                break
    columns: dict[str, list[object]] = {"example": list(names)}
    for name, parts in answers.items():
        known = run.facts["classes"].get(name, [])
        columns.update(answer_columns(model, name, torch.cat(parts), known))
    columns["log_likelihood"] = elbo.tolist()
    columns["nfe"] = evaluations.tolist()
    return columns
