"""The examples of the README run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from infocnf.cli.app import run

README = Path(__file__).parent.parent / "README.md"


def test_the_examples_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 2

    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    flow, x, y = names["flow"], names["x"], names["y"]
    assert (flow.predict(x) == y).double().mean() > 0.9  # type: ignore[attr-defined, operator]


@pytest.mark.parametrize("name", ["tolerances", "series"])
def test_the_loop_of_a_page_runs(name: str) -> None:
    torch.set_default_dtype(torch.float32)
    page = README.parent / "docs" / f"{name}.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(compile(block, str(page), "exec"), {})


@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/command.md", "docs/tolerances.md", "docs/matching.md", "docs/series.md"],
)
def test_the_commands_of_the_pages_exist(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"^    infocnf (.*)$", (README.parent / page).read_text(), re.MULTILINE)
    assert len(lines) > 3
    for line in lines:
        arguments = shlex.split(line, comments=True)
        assert run([*arguments, "--help"]) == 0, line
        if arguments[0] == "train" and "--data" not in arguments and "own.toml" not in arguments:
            assert run([a for a in arguments if a != "--resume"] + ["--show"]) == 0, line
