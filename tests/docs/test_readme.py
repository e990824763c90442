"""The examples of the README run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from infocnf.cli.app import run
from infocnf.tolerances import POLICIES

README = Path(__file__).parent.parent.parent / "README.md"


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


PAGES = sorted((README.parent / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    before = dict(POLICIES)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
    for added in set(POLICIES) - set(before):
        del POLICIES[added]


COMMANDS = ["command", "tolerances", "matching", "series", "index", "own-data", "evaluation"]


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}.md" for name in COMMANDS)])
def test_the_commands_of_the_pages_exist(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"^    infocnf (.*)$", (README.parent / page).read_text(), re.MULTILINE)
    assert len(lines) > 3
    for line in lines:
        arguments = shlex.split(line, comments=True)
        assert run([*arguments, "--help"]) == 0, line
        if arguments[0] == "train" and "--data" not in arguments and "own.toml" not in arguments:
            assert run([a for a in arguments if a != "--resume"] + ["--show"]) == 0, line
