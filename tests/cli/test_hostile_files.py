"""What is no file, names that look like formulas: answered in a line, before any work."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from infocnf.cli.app import run as command
from infocnf.errors import InputError
from infocnf.files import check_file
from infocnf.reports.figures import confusion, grid, scatter
from infocnf.reports.samples import Grid
from infocnf.reports.series import plot_series

NAMES = ("x^{", r"$\undefined$", r"$\frac$", "<script>", "a\nb", "\u202eright", "$", '"quoted"', "")


@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet", "toml", "png"])
def test_pipes_and_devices_are_refused_and_not_waited_for(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, link = tmp_path / f"pipe.{suffix}", tmp_path / f"link.{suffix}"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    for path in (pipe, link):
        if suffix == "png":
            call = ["predict", "digits", str(path)]
        elif suffix == "toml":
            call = ["train", str(path)]
        else:
            call = ["train", "--data", str(path)]
        out = ["--out", str(tmp_path / "run")] if call[0] == "train" else []
        assert command([*call, *out]) == 2
        said = capsys.readouterr().err
        assert "pipe or a device" in said and len(said.strip().splitlines()) == 1


def test_files_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    with large.open("wb") as stream:
        stream.truncate(2**40)  # takes no space
    for path, reason in (
        (large, "1,099,511,627,776 bytes"),
        (tmp_path, "is a folder"),
        (tmp_path / ("n" * 5000), "cannot be read"),
        (Path("a\0b"), "cannot be read"),
    ):
        with pytest.raises(InputError, match=reason) as refused:
            check_file(path)
        assert len(str(refused.value)) < 500
    check_file(tmp_path / "missing.csv")  # for its reader to tell


def test_names_are_data_in_every_plot() -> None:
    points = np.random.default_rng(0).normal(size=(len(NAMES), 2))
    images = torch.rand(len(NAMES), len(NAMES), 1, 4, 4)
    series = np.random.default_rng(0).normal(size=(len(NAMES), 5, 3))
    for picture in (
        confusion(np.eye(len(NAMES), dtype=int).tolist(), NAMES),
        scatter({r"$\title$": (points, NAMES)}, NAMES[1:3]),
        grid(Grid(images, list(NAMES), list(NAMES))),
        plot_series(series, NAMES, ["t", *NAMES[1:3]]),
    ):
        assert picture.startswith(b"\x89PNG")
