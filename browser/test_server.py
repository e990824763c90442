"""The server behind the page, asked directly: who is answered, and what stays afterwards."""

from __future__ import annotations

import http.client
import io
import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx
import pytest
from PIL import Image

API = "/gradio_api"
PATIENCE = 300.0  # seconds for a full queue on a slow machine
Server = tuple[str, Popen[bytes]]


def raw(address: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    """Status and text of an answer to a request whose path and headers nobody tidies."""
    netloc = address.removeprefix("http://")
    connection = http.client.HTTPConnection(netloc, timeout=30)
    content = None if body is None else json.dumps(body)
    given = {"Host": netloc, "Content-Type": "application/json", **headers}
    connection.request(method, path, content, given)
    answer = connection.getresponse()
    endless = answer.getheader("Content-Type", "").startswith("text/event-stream")
    return answer.status, "" if endless else answer.read().decode(errors="replace")


def number(address: str, action: str) -> int:
    """What Gradio calls an action."""
    actions = httpx.get(f"{address}/config").json()["dependencies"]
    return next(entry["id"] for entry in actions if entry["api_name"] == action)


def join(address: str, action: int, *given: Any) -> tuple[str, httpx.Response]:
    """A request in the queue: its session, and what the server said."""
    session = uuid.uuid4().hex
    asked = {"data": given, "fn_index": action, "session_hash": session}
    return session, httpx.post(f"{address}{API}/queue/join", json=asked, timeout=PATIENCE)


def result(address: str, session: str) -> dict[str, Any]:
    """What came of a session's request."""
    url = f"{address}{API}/queue/data?session_hash={session}"
    with httpx.stream("GET", url, timeout=PATIENCE) as stream:
        for line in stream.iter_lines():
            message = json.loads(line.removeprefix("data:")) if line else {}
            if message.get("msg") == "process_completed":
                return message
    raise AssertionError("no answer")


def upload(address: str, content: bytes) -> httpx.Response:
    """A file given to the page."""
    return httpx.post(f"{address}{API}/upload", files={"files": ("a.png", content)}, timeout=60)


def claim(path: str | Path) -> dict[str, Any]:
    """A file as Gradio's page names it."""
    return {"path": str(path), "meta": {"_type": "gradio.FileData"}}


def image(grey: int) -> bytes:
    """A PNG of the model's size."""
    content = io.BytesIO()
    Image.new("L", (8, 8), grey).save(content, "PNG")
    return content.getvalue()


def files(folder: Path) -> list[Path]:
    """All files in a folder and below."""
    return [path for path in folder.rglob("*") if path.is_file()]


CALLS = [
    ("GET", "/", None),
    ("GET", "/config", None),
    ("POST", f"{API}/queue/join", {"data": ["3", 1, 2], "fn_index": 4, "session_hash": "a"}),
    ("GET", f"{API}/queue/data?session_hash=a", None),
    ("GET", f"{API}/heartbeat/a", None),
    ("POST", f"{API}/call/walk", {"data": ["3", 1, 2]}),
    ("POST", f"{API}/upload", {}),
]


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_a_foreign_name_is_refused(address: str, method: str, path: str, body: Any) -> None:
    port = address.rpartition(":")[2]
    for host in ("evil.example", f"evil.example:{port}", f"localhost.evil.example:{port}"):
        assert raw(address, method, path, body, Host=host)[0] == 403


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_the_page_of_another_site_can_call_nothing(
    address: str, method: str, path: str, body: Any
) -> None:
    for origin in ("http://evil.example", "null", "http://localhost:3000"):
        assert raw(address, method, path, body, Origin=origin)[0] == 403
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    allowed = httpx.options(address + path, headers=asked).headers
    assert "access-control-allow-origin" not in allowed


def test_this_machine_is_answered_by_its_names(address: str) -> None:
    port = address.rpartition(":")[2]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
        assert raw(address, "GET", "/config", Host=host, Origin=f"http://{host}")[0] == 200


def test_the_page_listens_at_this_machine_only(address: str) -> None:
    port = int(address.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)


def test_no_file_of_the_machine_can_be_read(address: str) -> None:
    import infocnf

    given = upload(address, image(9)).json()[0]
    run = Path(infocnf.__file__).parent / "bundled" / "digits" / "config.toml"
    for path in ("/etc/passwd", run, Path("pyproject.toml").resolve(), "pyproject.toml", given):
        for way in (f"{API}/file=", f"{API}/file/", "/file=", "/file/", f"{API}/proxy=file://"):
            assert raw(address, "GET", f"{way}{path}")[0] in (403, 404)
    for way in ("/static/", "/assets/", "/svelte/", "/theme.css/", f"{API}/stream/"):
        for up in ("../" * 12, "..%2f" * 12, "%2e%2e/" * 12, "/"):
            assert "root:" not in raw(address, "GET", f"{way}{up}etc/passwd")[1]


def test_no_image_of_the_machine_is_taken_for_an_upload(address: str, tmp_path: Path) -> None:
    private = tmp_path / "private.png"
    private.write_bytes(image(9))
    inside = Path(upload(address, image(9)).json()[0])
    around = inside.parent / os.path.relpath(private, inside.parent)
    for path in (private, around):
        drawing = {"background": None, "layers": [claim(path)], "composite": None}
        for action, given in (("read_file", claim(path)), ("read_drawing", drawing)):
            session, _ = join(address, number(address, action), given)
            assert not result(address, session)["success"]


def test_an_upload_that_is_gone_is_asked_for_again(address: str) -> None:
    path = Path(upload(address, image(77)).json()[0])
    path.unlink()
    session, _ = join(address, number(address, "read_file"), claim(path))
    said = result(address, session)["output"]["data"][0]
    assert said == "**This file is gone: choose it again.**"


@pytest.mark.parametrize("size", [5_500_000, 7_000_000])
def test_a_file_that_is_too_large_is_refused(address: str, temporary: Path, size: int) -> None:
    before = files(temporary)
    try:
        assert upload(address, bytes(size)).status_code == 413
    except httpx.WriteError:  # refused by the length it announced, before all of it was sent
        assert size > 6_000_000
    assert files(temporary) == before


def test_a_full_queue_says_so_in_a_sentence(address: str) -> None:
    walk = number(address, "walk")
    with ThreadPoolExecutor(40) as clients:
        joined = list(clients.map(lambda i: join(address, walk, "3", i, i + 1), range(60)))
    refused = [answer for _, answer in joined if answer.status_code == 503]
    assert {answer.json()["detail"] for answer in refused} == {
        "The page is busy: try again in a moment."
    }
    with ThreadPoolExecutor(40) as clients:
        waited = [session for session, answer in joined if answer.status_code == 200]
        answers = list(clients.map(lambda session: result(address, session), waited))
    assert len(waited) + len(refused) == 60 and all(answer["success"] for answer in answers)
    assert (
        raw(address, "POST", f"{API}/run/walk", {"data": ["3", 1, 2]})[0] == 404
    )  # past the queue


def test_a_hundred_requests_are_answered_and_leave_nothing(
    address: str, server: Server, temporary: Path
) -> None:
    walk, read = number(address, "walk"), number(address, "read_file")

    def ask(i: int) -> bool:
        if i % 10:
            session, answer = join(address, walk, "3", i, i + 1)
        else:
            given = upload(address, image(i)).json()[0]
            session, answer = join(address, read, claim(given))
        answer.raise_for_status()
        said, *parts = result(address, session)["output"]["data"]
        return said == "" and parts[0] is not None

    def open_files() -> int:  # but for fonts, of which Matplotlib keeps some for each thread
        links = Path(f"/proc/{server[1].pid}/fd").iterdir()
        return sum(not os.path.realpath(link).endswith(".ttf") for link in links)

    with ThreadPoolExecutor(10) as clients:
        assert all(clients.map(ask, range(20)))
        time.sleep(2.0)
        opened, kept = open_files(), len(files(temporary))
        assert all(clients.map(ask, range(20, 120)))
        time.sleep(2.0)
    assert open_files() <= opened + 2
    assert len(files(temporary)) <= kept + 10  # the files given, and none of the answers'


def test_the_end_leaves_no_files(
    served: Callable[[Path], AbstractContextManager[Server]], tmp_path: Path
) -> None:
    with served(tmp_path) as (address, server):
        assert upload(address, image(3)).status_code == 200
        assert files(tmp_path)
        server.terminate()
        assert server.wait(20) == 0
    assert not files(tmp_path)
