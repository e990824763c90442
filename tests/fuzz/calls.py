"""How a fuzzed call must end, and how many of them are tried."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from infocnf.cli.app import run as command

NAME = re.compile(r"\b[A-Z]\w*(Error|Exception|Exit|Interrupt)\b|Traceback")


def fuzzed(examples: int) -> Callable[[Any], Any]:
    """So many examples, the same ones each time; in ``make fuzz`` FUZZ times as many, and new."""
    times = int(os.environ.get("FUZZ", "0"))
    return settings(
        max_examples=examples * max(times, 1),
        derandomize=not times,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def answer(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    """The exit code of a call, which has answered a person in a line, whatever it was."""
    capsys.readouterr()
    code = command(arguments)
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.startswith("infocnf:")]
    assert code in (0, 1, 2), (arguments, code)
    assert not NAME.search(said), (arguments, said)
    assert len(lines) == bool(code) and all(len(line) < 1000 for line in lines), (arguments, said)
    return code
