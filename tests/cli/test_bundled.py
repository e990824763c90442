"""The model that comes with the package."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import infocnf
from infocnf import InfoCNF
from infocnf.cli.app import run
from infocnf.models.pretrained import bundled
from infocnf.runs import Run


def test_it_reads_digits_it_has_not_seen() -> None:
    model = infocnf.load("digits")
    assert isinstance(model, InfoCNF)
    own = Run.open("digits")
    x, labels = own.data().examples("test")
    found = model.predict(own.preparation(x, model.dtype), readout="one_step")
    assert isinstance(found, torch.Tensor)
    assert (found != labels["label"]).float().mean() < 0.02


def test_predict_and_sample_work_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    x, labels = Run.open("digits").data().examples("test")
    for i in range(3):
        pixels = (x[i, 0].numpy().astype(float) * 255 / 16).round().astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    assert run(["predict", "digits", str(tmp_path), "--tolerance", "1e-2"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["label"] for row in table] == [str(int(y)) for y in labels["label"][:3]]
    assert all(0.0 <= float(row["percentile"]) <= 100.0 for row in table)
    Image.open(tmp_path / "1.png").resize((32, 40)).save(tmp_path / "larger.png")
    files = [str(tmp_path / name) for name in ("0.png", "larger.png")]
    assert run(["predict", "digits", *files, "--tolerance", "1e-2"]) == 0
    names = [row["example"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert names == files
    (tmp_path / "larger.png").unlink()
    assert run(["sample", "digits", "-n", "10"]) == 0
    assert Image.open(tmp_path / "samples.png").size[0] > 50
    assert run(["sample", "digits", "-n", "10"]) == 2  # what is there stays


HIDING = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hide())

from infocnf.cli import main

main({arguments})
"""


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["predict", "digits", "3.png", "--tolerance", "1e-2"], 0, "3.png,3,"),
        (["sample", "digits", "-n", "10"], 0, "written: samples.png"),
        (["train"], 2, "lightning_fabric is not installed: pip install 'infocnf[all]'"),
        (["demo"], 2, "pip install 'infocnf[demo]'"),
    ],
)
def test_it_needs_no_extras(arguments: list[str], code: int, says: str, tmp_path: Path) -> None:
    wanted = tomllib.loads((Path(__file__).parent.parent.parent / "pyproject.toml").read_text())[
        "project"
    ]
    extras = {
        re.split(r"[^\w-]", line)[0].lower()
        for lines in wanted["optional-dependencies"].values()
        for line in lines
    } - {"infocnf"}
    hidden = {
        module
        for module, packages in packages_distributions().items()
        if extras & {package.lower() for package in packages}
    }
    assert {"lightning_fabric", "pandas", "sklearn", "scipy"} < hidden
    own = Run.open("digits").data()
    x, labels = own.examples("test")
    first = int((labels["label"] == 3).nonzero()[0])
    Image.fromarray((x[first, 0].numpy() * 15).astype(np.uint8)).save(tmp_path / "3.png")
    done = subprocess.run(
        [sys.executable, "-c", HIDING.format(hidden=hidden, arguments=arguments)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == code, done.stderr
    assert says in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["evaluate"], ["report"], ["train", "--resume", "--out"]])
def test_it_stays_as_it_is(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*command, "digits"]) == 2
    (tmp_path / "digits").mkdir()  # the user's own goes first
    assert bundled("digits") is None and bundled("runs/digits") is None and bundled("other") is None
