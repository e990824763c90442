"""Killed at any write, out of space, one process of several gone: what was saved is whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infocnf.errors import InputError
from infocnf.runs import Run, checkpoints
from infocnf.runs.manifest import verify
from infocnf.training import begin, resume
from tests.runs.tiny import TINY, equal, last, rows, same_state, tiny

SAME = ("config.toml", "data.json", "splits.npz", "model/config.json", "model/model.safetensors")
EVERY = 1 if "FUZZ" in os.environ else 29  # moments; 29 meets all kinds of writes in turn


def test_a_run_killed_at_any_write_ends_with_the_same_files(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "tests.training.kills", str(tmp_path), str(EVERY)],
        check=True,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    whole, killed = tmp_path / "whole", sorted((tmp_path / "killed").iterdir())
    expected = {
        name: checkpoints.read(whole / "checkpoints" / f"{name}.ckpt")
        for name in ("last", "previous", "best")
    }
    assert len(killed) >= 4 and expected["best"]["epoch"] < expected["last"]["epoch"]
    for folder in killed:
        for name, state in expected.items():
            assert equal(checkpoints.read(folder / "checkpoints" / f"{name}.ckpt"), state), folder
        assert all((folder / n).read_bytes() == (whole / n).read_bytes() for n in SAME), folder
        assert rows(folder) == rows(whole) and not list(folder.rglob(".*")), folder
        assert all(finding.state in ("ok", "newer") for finding in verify(Run.open(folder)))


LIMITED = """
import resource, sys
from pathlib import Path
from infocnf.cli.app import run
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.exit(run(sys.argv[2:]))
"""


def test_a_full_disk_is_said_and_what_was_saved_is_kept(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: writes fail in their middle."""
    folder = begin(tiny("training.epochs=2"), tmp_path / "run").folder
    shutil.copytree(folder, tmp_path / "other")
    expected = last(resume(tmp_path / "other", ["training.epochs=3"]).folder)
    before = {p: p.read_bytes() for p in (folder / "checkpoints").iterdir()}
    limit = (folder / "checkpoints" / "last.ckpt").stat().st_size // 2
    words = ["train", "--resume", "--out", str(folder), "--set", "training.epochs=3"]
    failed = subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), *words], capture_output=True, text=True
    )
    lines = [line for line in failed.stderr.splitlines() if line.startswith("infocnf:")]
    assert failed.returncode == 1 and len(lines) == 1 and "Traceback" not in failed.stderr
    assert "File too large" in lines[0] and "what was finished before is kept" in lines[0]
    kept = checkpoints.latest(folder / "checkpoints").read_bytes()
    assert kept == before[folder / "checkpoints" / "last.ckpt"]
    resume(folder, ["training.epochs=3"])
    assert same_state(last(folder), expected)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(InputError, match="cannot be used"):
        begin(tiny(), tmp_path / "locked" / "run")


def test_too_little_memory_is_said(tmp_path: Path) -> None:
    code = "import torch" + LIMITED.replace("RLIMIT_FSIZE", "RLIMIT_AS")
    settings = ["--set", "model.hidden=[16384,16384]", "--set", "training.epochs=1"]
    words = ["train", "digits-likelihood", *settings, "--out", str(tmp_path / "run")]
    failed = subprocess.run(
        [sys.executable, "-c", code, str(3 * 2**30), *words], capture_output=True, text=True
    )
    assert failed.returncode in (1, 2) and "Traceback" not in failed.stderr
    assert "memory" in failed.stderr.splitlines()[-1]


@pytest.mark.parametrize("launcher", ["built-in", "torchrun"])
def test_the_others_end_when_a_process_is_killed(launcher: str, tmp_path: Path) -> None:
    """And the run resumes to the weights of one that nobody disturbed."""
    settings = ("training.epochs=30", "trainer.devices=2")
    words = ["train", "digits-likelihood", "--out", str(tmp_path / "run")]
    for key, value in (s.split("=", 1) for s in (*TINY, *settings)):
        words += ["--set", f"{key}={value}"]
    start = ["-m", "infocnf"]
    if launcher == "torchrun":
        start = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python"]
        words = [sys.executable, "-m", "infocnf", *words]
    process = subprocess.Popen(
        [sys.executable, *start, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    table = tmp_path / "run" / "metrics.csv"
    waited = time.monotonic()
    while not (table.exists() and len(table.read_text().splitlines()) > 3):
        assert process.poll() is None and time.monotonic() - waited < 120
        time.sleep(0.05)
    family = descendants(process.pid)
    victim = max(pid for pid in family if b"LOCAL_RANK=1" in environment_of(pid))
    os.kill(victim, signal.SIGKILL)
    process.wait(60)
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in family):
        assert time.monotonic() < deadline, "a process lives on"
        time.sleep(0.2)
    assert process.returncode != 0 and len(rows(tmp_path / "run")) < 30
    resume(tmp_path / "run", ["trainer.devices=1"])
    assert len(rows(tmp_path / "run")) == 30


def descendants(pid: int) -> list[int]:
    """A process and all that it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in descendants(int(child)))]


def environment_of(pid: int) -> bytes:
    """The variables of a process."""
    return Path(f"/proc/{pid}/environ").read_bytes()


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
