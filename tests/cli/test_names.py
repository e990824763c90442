"""Names of classes, columns and files are data: in pages, plots, tables and the names of files."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from infocnf.cli.app import run as command

NAMES = ("<script>alert(1)</script>", "=1+1", '"quoted", x^{', "\u202eright $\\frac$")
QUICK = ("training.stages=['likelihood']", "training.epochs=1", "training.min_steps=1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose columns and classes have such names, trained for a step."""
    home = tmp_path_factory.mktemp("names")
    rng = np.random.default_rng(0)
    with (home / "own.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow([NAMES[1], NAMES[2], NAMES[0]])
        for i in range(80):
            table.writerow([*rng.normal(size=2), NAMES[i % len(NAMES)]])
    words = ["train", "own", "--data", str(home / "own.csv"), "--out", str(home / "run")]
    for setting in (f"data.label={NAMES[0]}", "tolerance=1e-2", "model.hidden=[4]", *QUICK):
        words += ["--set", setting]
    assert command([*words, "--set", "model.architecture=flat", "--set", "model.separation=0"]) == 0
    assert command(["evaluate", str(home / "run")]) == 0
    return home / "run"


def test_a_report_shows_names_as_text(run: Path) -> None:
    assert command(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert "<script" not in page


def test_tables_hold_no_formulas(run: Path, tmp_path: Path) -> None:
    assert command(["sample", str(run), "-n", "8", "-o", str(tmp_path / "drawn.csv")]) == 0
    assert (
        command(["predict", str(run), str(run.parent / "own.csv"), "-o", f"{tmp_path}/p.csv"]) == 0
    )
    for name in ("drawn.csv", "p.csv"):
        with (tmp_path / name).open(newline="") as stream:
            cells = [cell for row in csv.reader(stream) for cell in row]
        assert any(cell == "'=1+1" or "=1+1" in cell for cell in cells)
        for cell in cells:
            assert not re.match(r"[=+@\t\r]|-(?![\d.inf])", cell), cell


def test_files_and_classes_of_such_names_are_drawn_and_predicted(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["sample", str(run), "-n", "8", "-o", str(tmp_path / "$\\frac$.png")]) == 0
    assert (tmp_path / "$\\frac$.png").read_bytes().startswith(b"\x89PNG")
    name = tmp_path / "=cmd '<b>.png"
    Image.new("L", (8, 8)).save(name)
    capsys.readouterr()
    assert command(["predict", "digits", str(name)]) == 0
    assert "=cmd '<b>.png" in capsys.readouterr().out
