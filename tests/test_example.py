"""The example of the library without the command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


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
