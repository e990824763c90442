"""The page of the package's model, served as ``infocnf demo`` does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

Server = tuple[str, subprocess.Popen[bytes]]


@contextmanager
def serve(temporary: Path) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"}
    server = subprocess.Popen(
        [sys.executable, "-m", "infocnf", "demo", "digits", "--port", str(port)],
        env={**os.environ, **quiet, "TMPDIR": str(temporary)},
    )
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(240):
            try:
                urllib.request.urlopen(url, timeout=1)
                break
            except OSError:
                assert server.poll() is None, "the page ended"
                time.sleep(0.5)
        yield url, server
    finally:
        server.terminate()
        server.wait(20)


@pytest.fixture(scope="session")
def served() -> Callable[[Path], AbstractContextManager[Server]]:
    """The page's address and process, with a folder for its temporary files."""
    return serve


@pytest.fixture(scope="session")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server has its temporary files."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="session")
def server(temporary: Path) -> Iterator[Server]:
    """The page that all tests share."""
    with serve(temporary) as found:
        yield found


@pytest.fixture(scope="session")
def address(server: Server) -> str:
    """Where the page is."""
    return server[0]
