"""The manifest of a run, what a check of it finds and restores, and who may write into it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infocnf.cli.app import run as command
from infocnf.errors import InputError
from infocnf.runs import Run
from infocnf.runs.directory import hold
from infocnf.runs.manifest import MANIFEST, seal, verify
from infocnf.training import begin, resume
from tests.runs.tiny import rows, tiny


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = begin(tiny("training.epochs=1"), tmp_path_factory.mktemp("manifest") / "run").folder
    assert command(["evaluate", str(folder), "--limit", "4"]) == 0
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def states(folder: Path) -> dict[str, str]:
    return {finding.name: finding.state for finding in verify(Run.open(folder))}


def test_every_file_of_a_run_is_in_its_manifest(run: Path) -> None:
    assert set(states(run).values()) == {"ok"}
    content = json.loads((run / MANIFEST).read_text())
    assert content["command"] and content["versions"]["torch"]
    for name in ("config.toml", "evaluation.json", "model/model.safetensors"):
        assert content["files"][name]["bytes"] == (run / name).stat().st_size
    assert not (run / ".lock").exists() and not (run / ".holder").exists()


def test_files_that_differ_from_the_manifest_are_found(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flipped = bytearray((run / "model" / "model.safetensors").read_bytes())
    flipped[-1] ^= 1
    (run / "model" / "model.safetensors").write_bytes(flipped)
    (run / "metrics.csv").unlink()
    (run / "checkpoints" / "last.ckpt").write_bytes(b"cut")
    found = {name: state for name, state in states(run).items() if state != "ok"}
    assert found == {
        "model/model.safetensors": "damaged",
        "metrics.csv": "missing",
        "checkpoints/last.ckpt": "damaged",
    }
    assert command(["check", str(run)]) == 1
    shown = capsys.readouterr()
    assert "goes on from previous.ckpt" in shown.out and "restores it from" in shown.out
    assert "3 of" in shown.err and "damaged or missing" in shown.err


def test_a_file_that_was_written_before_a_kill_is_newer_not_damaged(run: Path) -> None:
    content = (run / "evaluation.json").read_text()
    (run / "evaluation.json").write_text(content.replace("\n", " "))
    assert states(run)["evaluation.json"] == "newer"
    (run / "evaluation.json").write_text(content[:100])
    assert states(run)["evaluation.json"] == "damaged"
    seal(run)
    assert states(run)["evaluation.json"] == "ok"  # as it is now


def test_resuming_restores_the_model_and_the_metrics(run: Path) -> None:
    before = {name: (run / "model" / name).read_bytes() for name in os.listdir(run / "model")}
    table = rows(run)
    (run / "model" / "model.safetensors").write_bytes(b"")
    (run / "metrics.csv").unlink()
    resume(run)
    assert {n: (run / "model" / n).read_bytes() for n in os.listdir(run / "model")} == before
    assert rows(run) == table


HOLDER = """
import sys, time
from pathlib import Path
from infocnf.runs.directory import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_two_processes_do_not_write_into_one_run(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    before = (run / "config.toml").read_bytes()
    try:
        for words in (["--resume"], ["digits-likelihood", "--overwrite"]):
            capsys.readouterr()
            assert command(["train", *words, "--out", str(run)]) == 2
            assert f"in use by process {other.pid} on" in capsys.readouterr().err
        assert command(["evaluate", str(run), "--limit", "4"]) == 0  # written whole, or not at all
    finally:
        other.kill()
        other.wait()
    assert (run / "config.toml").read_bytes() == before
    resume(run)  # a killed process holds nothing
    with hold(run), pytest.raises(InputError, match="in use by"), hold(run):
        pass


def test_a_model_that_is_being_replaced_is_read_whole(run: Path) -> None:
    import threading

    from infocnf import load

    weights = run / "model" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + b"\0")

    def mend() -> None:
        time.sleep(0.15)
        weights.write_bytes(content)

    thread = threading.Thread(target=mend)
    thread.start()
    assert load(run) is not None
    thread.join()
