"""Every file of a run, damaged in every way: commands answer in a line."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infocnf.cli.app import run as command
from infocnf.training import begin
from tests.fuzz.calls import answer, fuzzed
from tests.runs.tiny import tiny

FILES = (
    "config.toml",
    "data.json",
    "environment.json",
    "evaluation.json",
    "metrics.csv",
    "splits.npz",
    "model/config.json",
    "model/model.safetensors",
    "checkpoints/last.ckpt",
    "checkpoints/best.ckpt",
)
DEEP = {".json": '{"a":' * 5000 + "1" + "}" * 5000, ".toml": "a = " + "[" * 5000 + "]" * 5000}
WRONG = {".json": '{"shape": null, "classes": 3, "architecture": []}', ".toml": "model = 3\n"}
DAMAGES = ("missing", "empty", "cut", "flipped", "folder", "nested", "other", "digits")
COMMANDS = (
    ("evaluate", "--limit", "4"),
    ("sample", "-n", "4", "-o", "{home}/drawn.png", "--overwrite"),
    ("predict", "{home}/x.npz"),
    ("report",),
    ("train", "--resume", "--out"),
)


def spoil(path: Path, damage: str, place: float) -> None:
    """Damage a file; ``place`` says where in it."""
    content, at = path.read_bytes(), int(place * (path.stat().st_size - 1))
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes(
            {
                "empty": b"",
                "cut": content[:at],
                "flipped": content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :],
                "nested": DEEP.get(path.suffix, "(" * 5000).encode(),
                "other": WRONG.get(path.suffix, "other\n1,2\n").encode(),
                "digits": content.replace(b"1", b"1" * 5000, 1),
            }[damage]
        )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all its files."""
    home = tmp_path_factory.mktemp("damage")
    begin(tiny("training.epochs=1"), home / "whole")
    assert command(["evaluate", str(home / "whole"), "--limit", "8"]) == 0
    np.savez(home / "x.npz", x=np.zeros((2, 8, 8), np.uint8))
    return home / "whole"


@fuzzed(25)
@given(
    st.sampled_from(FILES),
    st.sampled_from(DAMAGES),
    st.sampled_from(COMMANDS),
    st.floats(0.0, 1.0, exclude_max=True),
)
@example("evaluation.json", "other", COMMANDS[2], 0.0)
@example("metrics.csv", "flipped", COMMANDS[3], 0.0)
@example("data.json", "nested", COMMANDS[0], 0.0)
def test_a_damaged_run_is_answered_in_a_line(
    whole: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    damage: str,
    words: tuple[str, ...],
    place: float,
) -> None:
    run = whole.parent / "damaged"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(whole, run)
    spoil(run / name, damage, place)
    first, *rest = (word.format(home=whole.parent) for word in words)
    answer([first, *([*rest, str(run)] if first == "train" else [str(run), *rest])], capsys)


KEYS = {
    "data.json": ("shape", "classes", "columns", "levels", "sha256", "preparation", "name"),
    "environment.json": ("begun", "command", "machine", "python", "versions"),
    "evaluation.json": ("bits_per_dim", "nfe_forward", "numerical_error_bits_per_dim", "examples"),
}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("value", [None, ..., [], "text"])
def test_a_key_that_is_missing_or_of_another_kind_is_named(
    name: str, value: object, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    shutil.copytree(whole, tmp_path / "run")
    content = json.loads((whole / name).read_text())
    for key in KEYS[name]:
        if isinstance(content[key], type(value)):
            continue
        changed = {k: v for k, v in content.items() if k != key}
        if value is not ...:
            changed[key] = value
        (tmp_path / "run" / name).write_text(json.dumps(changed))
        capsys.readouterr()
        assert command(["report", str(tmp_path / "run")]) == 2
        said = capsys.readouterr().err
        expected = f"{name} has no {key!r}" if value is ... else f"{name}: {key}"
        assert expected in said and "restore it, or make it again" in said
