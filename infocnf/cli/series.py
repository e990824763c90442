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
    from infocnf.cli.progress import console, counting
    from infocnf.evaluation.trajectories import evaluate_series
    from infocnf.files import write_json

    config, model, data = run.config, run.latent_ode(), run.data()
    x, labels = data.examples(part)
    truth = data.truth(part)
    most = slice(0, limit or config.evaluation.limit or len(x))
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
            lines.append(f"rmse {what:<19} {found[key]:.4f} (+- {error:.4f}), against {against}")
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
    import numpy as np
    import torch

    from infocnf.cli.progress import console
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
    x, _ = run.data().examples("train")
    span = float((x[..., 0].nan_to_num(nan=-torch.inf).amax(1) - x[:, 0, 0]).double().median())
    times = torch.linspace(0.0, span, 100, dtype=torch.float64)
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
        import io

        buffer = io.BytesIO()
        named = {"y": np.array(words)} if words else {}
        np.savez_compressed(buffer, x=values, times=times.numpy(), **named)  # type: ignore[arg-type]
        content = buffer.getvalue()
    else:
        header = ["series", *columns, *([name] if words and name else [])]
        lines = [",".join(header)]
        for i, series in enumerate(values):
            tail = [words[i]] if words else []
            for t, row in zip(times.tolist(), series, strict=True):
                lines.append(",".join([str(i), f"{t:.9g}", *(f"{v:.9g}" for v in row), *tail]))
        content = ("\n".join(lines) + "\n").encode()
    write(path, content)
    console.print(f"written: {path}")


def predict_run(run: Run, source: Path, tolerance: float | None, batch_size: int | None) -> Any:  # noqa: ANN401
    """Columns of predictions for new series: labels, and a lower bound of log p(x)."""
    import torch

    from infocnf.data.series import read_new_series
    from infocnf.evaluation.predictions import answer_columns
    from infocnf.objectives import variational_objective

    config, model, preparation = run.config, run.latent_ode(), run.preparation
    own = config.data
    labels = [own.label] if isinstance(own.label, str) else own.label
    names, raw = read_new_series(source, run.facts["columns"], own.series, own.time, labels)
    columns: dict[str, list[object]] = {"example": list(names)}
    elbo, evaluations = [], []
    answers: dict[str, list[torch.Tensor]] = {name: [] for name in model.code.heads}
    size = batch_size or config.evaluation.batch_size
    with torch.no_grad():
        for begin in range(0, len(raw), size):
            series = preparation(torch.from_numpy(raw[begin : begin + size]), model.dtype)
            for name, answer in (model.answers(series) if answers else {}).items():
                answers[name].append(answer)
            found = variational_objective(
                model,
                series,
                log_scale=preparation.log_scales.to(series),
                tolerance=tolerance or config.evaluation.tolerance,
            )
            elbo.append(found.elbo)
            evaluations.append(found.stats.forward.expand(len(series)))
    for name, parts in answers.items():
        known = run.facts["classes"].get(name, [])
        columns.update(answer_columns(model, name, torch.cat(parts), known))
    columns["log_likelihood"] = torch.cat(elbo).double().tolist()
    columns["nfe"] = torch.cat(evaluations).tolist()
    return columns
