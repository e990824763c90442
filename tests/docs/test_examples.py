"""The example of the library without the command."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent


def test_the_one_dimensional_example_learns_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "density.png"
    command = [
        sys.executable,
        "examples/density_1d.py",
        "--iterations",
        "40",
        "--out",
        str(picture),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)

    assert picture.read_bytes().startswith(b"\x89PNG")
    ours, best = map(
        float, re.search(r"numbers: ([\d.]+) nats \(true density: ([\d.]+)", done.stdout).groups()
    )
    area = float(re.search(r"1e-5: ([\d.]+)", done.stdout).group(1))
    assert best < ours < best + 0.3
    assert abs(area - 1.0) < 1e-3


@pytest.mark.parametrize("name", ["digits", "series", "table"])
def test_short_examples_do_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text().splitlines()) < 80
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(path))["main"]()
    if name == "digits":
        assert found["wrong, %"] < 3.0 and found["area under ROC, upside down"] > 0.8
        assert (tmp_path / "outputs" / "digits.png").read_bytes().startswith(b"\x89PNG")
    elif name == "series":
        assert found["wrong speeds, %"] < 15.0
        assert found["rmse beyond the end"] < 0.7 * found["rmse of standing still"]
    else:
        assert found["test error, %"] < 8.0 and found["area under ROC of mixed rows"] > 0.75
