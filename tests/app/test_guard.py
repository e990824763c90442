"""Who may speak to the page; browser/ asks the page itself."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from infocnf.app.guard import LARGEST_REQUEST, Guard, sweep

HERE = {"host": "127.0.0.1:7860"}


def answer(
    headers: dict[str, str], path: str = "/", *, listening: str = "127.0.0.1", kind: str = "http"
) -> int | str:
    """The status of an answer, or the kind of its message if it has none."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "passed", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "path": path, "headers": given}
    asyncio.run(Guard(app, listening)(scope, None, send))  # type: ignore[arg-type]
    if sent[0]["type"] == "http.response.start":
        words = json.loads(sent[1]["body"])["detail"]
        assert words.endswith(".") and ". " not in words, "not one sentence"
    return sent[0].get("status", sent[0]["type"])


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "127.0.0.1", "[::1]"])
def test_the_page_answers_to_the_names_of_this_machine(name: str) -> None:
    assert answer({"host": name}) == answer({"host": f"{name}:7860"}) == 200


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.evil.example", "192.168.1.9", "[::2]"])
def test_a_foreign_name_is_refused(name: str) -> None:
    assert answer({"host": name}) == answer({"host": f"{name}:7860"}) == 403
    assert answer({"host": name}, kind="websocket") == "websocket.close"
    assert answer({}) == 403


def test_a_page_told_where_to_listen_answers_to_that_name() -> None:
    assert answer({"host": "box.lan:7860"}, listening="box.lan") == 200
    assert answer({"host": "[fe80::1]:7860"}, listening="fe80::1") == 200
    for host in ("192.168.1.9:7860", "[fe80::1]:7860", socket.gethostname()):
        assert answer({"host": host}, listening="0.0.0.0") == 200
    assert answer({"host": "evil.example:7860"}, listening="0.0.0.0") == 403


def test_the_page_of_another_site_is_refused() -> None:
    assert answer({**HERE, "origin": "http://127.0.0.1:7860"}) == 200
    for origin in ("http://evil.example", "null", "", "http://127.0.0.1:3000", "http://localhost"):
        assert answer({**HERE, "origin": origin}) == 403
        assert answer({**HERE, "origin": origin}, kind="websocket") == "websocket.close"


@pytest.mark.parametrize("path", ["file=/etc/passwd", "file/etc/passwd", "proxy=http://a.example"])
def test_there_is_no_way_to_files(path: str) -> None:
    assert answer(HERE, f"/gradio_api/{path}") == 403


def test_a_request_is_no_longer_than_a_file() -> None:
    assert answer({**HERE, "content-length": str(LARGEST_REQUEST)}) == 200
    assert answer({**HERE, "content-length": str(LARGEST_REQUEST + 1)}) == 413
    assert answer({**HERE, "transfer-encoding": "chunked"}) == 411


def test_the_newest_uploads_are_kept_for_a_while(tmp_path: Path) -> None:
    for age in range(6):
        place = tmp_path / str(age)
        place.mkdir()
        (place / "image.png").touch()
        os.utime(place, (time.time() - 60 * age,) * 2)
    (tmp_path / "part").touch()  # of an upload that never ended
    os.utime(tmp_path / "part", (0, 0))
    sweep(tmp_path, kept=4, seconds=150)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]
    sweep(tmp_path, kept=1)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
