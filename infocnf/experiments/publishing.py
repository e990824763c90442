"""What an experiment leaves behind: ``table.md``, ``table.csv``, pictures, ``results.json`` and the
commands.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from infocnf.experiments.analysis import Results
from infocnf.experiments.declaration import Arm
from infocnf.files import write, write_json
from infocnf.reports.figures import png

__all__ = ["markdown", "publish"]

PROTOCOLS = (
    "*Ours* is the model that the validation split chose, on the test set; *least* is the paper's "
    "protocol, the minimum over epochs of the test set's figure. Evaluations (NFE) are per "
    "iteration of training, over all blocks: forward, and forward and backward, which is the "
    "paper's count. "
    "± is the standard deviation over seeds."
)


def publish(results: Results, folder: Path) -> None:
    """Write everything into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "table.md", page(results).encode())
    write(folder / "table.csv", table_csv(results).encode())
    for name, figure in results.experiment.draw(results).items():
        write(folder / f"{name}.png", png(figure))
        write(folder / f"{name}.svg", svg(figure))
    write(folder / "commands.txt", commands(results).encode())
    write_json(folder / "results.json", results.plain())


def page(results: Results) -> str:
    """The table with what one must know to read it."""
    own = results.experiment
    seeds = ", ".join(map(str, results.scale.seeds))
    both = any(column.key.startswith("least") for column in own.table(results.scale))
    notes = [f"Scale {results.scale.name}, seeds {seeds}.", PROTOCOLS * both, own.caption]
    text = " ".join(note for note in notes if note)
    return f"# {own.title}\n\n{own.claim}\n\n{markdown(results)}\n\n{text}\n"


def markdown(results: Results) -> str:
    """The table: a column for each figure, the paper's number beside ours where it has one."""
    own, columns = results.experiment, results.experiment.table(results.scale)
    printed = {c.key for c in columns for arm in own.arms if c.key in said(arm)}
    heads = ["arm"]
    for column in columns:
        heads += [column.title, *(["the paper"] if column.key in printed else [])]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for arm in own.arms:
        cells = [arm.name]
        for column in columns:
            found = results.of(arm.name, column.key)
            cells.append("" if found is None else found.text(column.form))
            if column.key in printed:
                cells.append(said(arm).get(column.key, ""))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def said(arm: Arm) -> dict[str, str]:
    """The paper's numbers, with the reference's own where they differ."""
    logs = {key: f" (logs: {value})" for key, value in arm.reference.items()}
    return {key: value + logs.get(key, "") for key, value in arm.paper.items()}


def table_csv(results: Results) -> str:
    """One line for each metric of each arm."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["arm", "figure", "mean", "spread", "seeds", "paper", "reference"])
    for arm in results.experiment.arms:
        for column in results.experiment.table(results.scale):
            found = results.of(arm.name, column.key)
            numbers = ("", "", 0) if found is None else (found.mean, found.spread, found.count)
            other = (arm.paper.get(column.key, ""), arm.reference.get(column.key, ""))
            table.writerow([arm.name, column.key, *numbers, *other])
    return text.getvalue()


def commands(results: Results) -> str:
    """How to make each run alone, and all of it again."""
    lines = [f"infocnf reproduce {results.experiment.name} --scale {results.scale.name}", ""]
    for arm, runs in results.runs.items():
        lines.append(f"# {arm}")
        for result in runs:
            folder = f"runs/{result.folder.name}"
            lines += [result.recipe.command(folder), f"infocnf evaluate {folder}"]
    return "\n".join(lines) + "\n"


def svg(figure: Figure) -> bytes:
    """A figure as SVG, the same bytes each time."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "infocnf", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", facecolor="white", metadata={"Date": None})
    return buffer.getvalue()
