"""Settings, arguments and data that nobody would write, and some that somebody did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infocnf.errors import WorkError
from infocnf.runs.config import Config
from infocnf.runs.parsing import keys
from infocnf.training import begin
from tests.fuzz.calls import answer, fuzzed
from tests.runs.tiny import tiny

LONG, DEEP = "9" * 5000, "[" * 3000 + "]" * 3000
NASTY = (
    *(
        "",
        " ",
        "nan",
        "-inf",
        "1e999",
        "-1",
        "0",
        "1e-400",
        "2.5",
        "none",
        "true",
        "[]",
        "{}",
        "='",
    ),
    *("a\0b", "x" * 5000, "../../..", "/", "/dev/zero", "\u0663", "\ud800", "\udcff", "=1+1"),
    *("<script>", "\u202e", "a\nb", LONG, f"0x{LONG}", DEEP, "{a={b={c=[1]}}}", "[[[]]]", "1_000"),
)
values = st.sampled_from(NASTY) | st.text(max_size=20) | st.floats().map(str)


@fuzzed(150)
@given(st.sampled_from([*keys(Config), "tolerance.name", "tolerance.x", "tolerance", ""]), values)
@example("tolerance.name", "[]")
@example("training.epochs", f"0x{LONG}")
def test_settings(capsys: pytest.CaptureFixture[str], key: str, value: str) -> None:
    answer(["train", "digits", "--show", "--set", f"{key}={value}"], capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = begin(tiny("training.epochs=1"), tmp_path_factory.mktemp("calls") / "run").folder
    np.savez(folder.parent / "x.npz", x=np.zeros((2, 8, 8), np.uint8))
    return folder


CALLS = (
    "evaluate {run} --limit {0}",
    "evaluate {run} --limit 2 --tolerance {0}",
    "evaluate {run} --limit 2 --error {0}",
    "evaluate {run} --part {0}",
    "evaluate {0}",
    "sample {run} -n 2 -o {0} --overwrite",
    "sample {run} -n 2 --label {0} -o {home}/a.png --overwrite",
    "sample {run} -n 2 --temperature {0} -o {home}/a.png --overwrite",
    "sample {run} -n 2 --seed {0} -o {home}/a.png --overwrite",
    "predict {run} {0}",
    "predict {run} {home}/x.npz -o {0}",
    "predict {0} {home}/x.npz",
    "report {0}",
    "check {0}",
    "train {0} --show",
    "train --data {0}",
    "train --data-dir {0} mnist",
    "train digits --resume --out {0}",
    "train --set {0}",
    "data fetch {0}",
    "{0}",
    "--import {0}",
)


@fuzzed(100)
@given(st.sampled_from(CALLS), values)
@example("train --data {0}", "a\0b")
@example("--import {0}", "../../..")
@example("predict {run} {0}", "x" * 5000)
def test_arguments(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
    call: str,
    value: str,
) -> None:
    if value in ("", "digits", "mnist") or (call == "{0}" and value.startswith("-")):
        return  # what these mean is known
    home = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setattr("infocnf.training.fit.launch", enough)
        words = call.split()
        answer([word.format(value, run=run, home=run.parent) for word in words], capsys)


def enough(*_: object) -> None:
    """Takes the place of the beginning of a training."""
    raise WorkError("enough")


cells = st.sampled_from(
    ["1", "2.5", "-3e300", "5e-320", "1e308", "nan", "inf", "", "word", "=1+1", "9" * 400, "1e-200"]
)


@fuzzed(60)
@given(st.lists(st.tuples(cells, cells, st.sampled_from("ab"), cells), min_size=0, max_size=25))
def test_tables(
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, ...]],
) -> None:
    home = tmp_path_factory.getbasetemp()
    lines = [",".join(row) for row in [("u", "v", "kind", "w"), *rows]]
    (home / "fuzz.csv").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("infocnf.training.fit.launch", enough)
        words = ["train", "--data", str(home / "fuzz.csv"), "--set", "data.label=kind"]
        answer([*words, "--out", str(home / "out")], capsys)


KINDS = {
    "binary labels": pd.DataFrame({"x": np.arange(40.0), "label": [b"a", b"\xff"] * 20}),
    "lists": pd.DataFrame({"x": [[1.0]] * 40, "label": ["a", "b"] * 20}),
    "tables": pd.DataFrame({"x": [{"a": 1}] * 40, "label": ["a", "b"] * 20}),
    "times": pd.DataFrame({"x": pd.date_range("2020", periods=40), "label": ["a", "b"] * 20}),
    "enormous": pd.DataFrame({"x": np.geomspace(1e250, 1e308, 40), "label": ["a", "b"] * 20}),
    "denormal": pd.DataFrame({"x": np.arange(40) * 5e-324, "label": ["a", "b"] * 20}),
    "one row": pd.DataFrame({"x": [1.0], "label": ["a"]}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_parquet_files(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    KINDS[kind].to_parquet(tmp_path / "own.parquet")
    monkeypatch.setattr("infocnf.training.fit.launch", enough)
    words = ["train", "--data", str(tmp_path / "own.parquet"), "--out", str(tmp_path / "out")]
    assert answer([*words, "--set", "data.label=label"], capsys) == 2


@fuzzed(80)
@given(st.binary(max_size=400), st.sampled_from(["csv", "npz", "parquet", "png", "toml", "json"]))
def test_files_of_any_bytes(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
    content: bytes,
    suffix: str,
) -> None:
    path = tmp_path_factory.getbasetemp() / f"any.{suffix}"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("infocnf.training.fit.launch", enough)
        if suffix == "toml":
            answer(["train", str(path), "--show"], capsys)
        else:
            out = str(path.parent / "out")
            answer(["train", "--data", str(path), "--out", out], capsys)
            answer(["predict", str(run), str(path)], capsys)


@pytest.mark.parametrize("bases", [25, 2000])
def test_a_chain_of_bases_ends(
    bases: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(bases):
        base = json.dumps(str(tmp_path / f"{i + 1}.toml") if i + 1 < bases else "digits")
        (tmp_path / f"{i}.toml").write_text(f"base = {base}")
    assert answer(["train", str(tmp_path / "0.toml"), "--show"], capsys) == 2
