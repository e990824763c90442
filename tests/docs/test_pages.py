"""The examples of the README and the pages run as they stand, and what they claim is asserted."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from infocnf.cli.app import run
from infocnf.tolerances import POLICIES

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.stem)
def test_the_code_of_a_page_does_what_it_claims(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    before = dict(POLICIES)
    module = ModuleType("page")  # a module that can be found: compilers look names up there
    monkeypatch.setitem(sys.modules, "page", module)
    try:
        for block in blocks(page):
            exec(compile(block, str(page), "exec"), module.__dict__)
    finally:
        for added in set(POLICIES) - set(before):
            del POLICIES[added]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_code_asserts_what_it_claims(page: Path) -> None:
    for block in blocks(page):
        assert any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(block))), block


def test_matching_in_ones_own_loop_is_short() -> None:
    loop = blocks(ROOT / "docs" / "loop.md")[0].split("held_out")[0]
    assert len([line for line in loop.splitlines() if line.strip()]) < 25


COMMANDS = ["command", "tolerances", "matching", "series", "index", "own-data", "evaluation"]


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}.md" for name in COMMANDS)])
def test_the_commands_of_the_pages_exist(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"^    infocnf (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    assert len(lines) > 3
    for line in lines:
        arguments = shlex.split(line, comments=True)
        assert run([*arguments, "--help"]) == 0, line
        if arguments[0] == "train" and "--data" not in arguments and "own.toml" not in arguments:
            assert run([a for a in arguments if a != "--resume"] + ["--show"]) == 0, line
