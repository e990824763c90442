"""Who may speak to the page, and what stays of what they send.

Listening at 127.0.0.1 keeps other machines out, but not the other pages in this machine's browser:
a foreign one may send requests here, and by giving its own name this machine's address ("DNS
rebinding") it may even read the answers. What tells such requests from the page's own is the name
they were addressed to and the page they come from, which a browser lets no page forge.
"""

from __future__ import annotations

import ipaddress
import json
import shutil
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["LARGEST_REQUEST", "Guard", "Refusal", "sweep"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

LARGEST_REQUEST = 6_000_000  # bytes: the largest file, and what is wrapped around it
EVERYWHERE = ("0.0.0.0", "::")
FILES = ("/file=", "/file/", "/proxy=")  # Gradio's ways to files, of which the page needs none


@dataclass(frozen=True)
class Refusal:
    """An ASGI application that says no.

    Arguments:
        status: Status of the answer.
        words: Why, in a sentence; where Gradio's clients look for it.
    """

    status: int
    words: str

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": self.words})
            return
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        body = json.dumps({"detail": self.words}).encode()
        await send({"type": "http.response.body", "body": body})


class Guard:
    """A layer of an ASGI application that refuses what its own page never sends.

    Arguments:
        app: The application.
        host: Where it listens. It answers to this name and to localhost; where it listens
            everywhere, to this machine's name and to all addresses, which nobody can rebind.
    """

    def __init__(self, app: Application, host: str) -> None:
        self.app, self.everywhere = app, host in EVERYWHERE
        self.names = {"localhost", "127.0.0.1", "::1", host.strip("[]").lower()}
        if self.everywhere:
            self.names.add(socket.gethostname().lower())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        refusal = self.refusal(scope) if scope["type"] in ("http", "websocket") else None
        await (refusal or self.app)(scope, receive, send)

    def refusal(self, scope: Message) -> Refusal | None:
        """What is wrong with a request; None if it may pass."""
        headers = {name: value.decode("latin-1").lower() for name, value in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        length = headers.get(b"content-length", "0")
        if not self.answers_to(name_of(host)):
            return Refusal(403, "This page does not answer to that name: open it at localhost.")
        if origin is not None and origin.partition("://")[2] != host:
            return Refusal(403, "The page of another site may not use this one.")
        if any(way in scope["path"] for way in FILES):
            return Refusal(403, "This page gives out no files.")
        if b"transfer-encoding" in headers or not length.isdigit():
            return Refusal(411, "A request must say how long it is.")
        if int(length) > LARGEST_REQUEST:
            return Refusal(413, f"A request may have at most {LARGEST_REQUEST // 10**6} MB.")
        return None

    def answers_to(self, name: str) -> bool:
        """Whether the page goes by this name."""
        return name in self.names or (self.everywhere and is_address(name))


def name_of(host: str) -> str:
    """The name in a Host header, without its port.

    >>> name_of("localhost:7860"), name_of("[::1]:7860")
    ('localhost', '::1')
    """
    return host.rpartition("]")[0].removeprefix("[") or host.partition(":")[0]


def is_address(name: str) -> bool:
    """Whether this is a number, which no name server can point elsewhere."""
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False


def sweep(folder: Path, kept: int = 100, seconds: float = 600.0) -> None:
    """Delete uploads but the newest, and those of long ago.

    They cannot go as soon as they were read: the same file sent twice has one place, and the second
    request may still be waiting. The newest outnumber all that a full queue waits with, which is
    three for each drawing.
    """
    uploads = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # an upload that just got its name
            uploads.append((path.stat().st_mtime, path))
    uploads.sort(reverse=True)
    for place, (changed, path) in enumerate(uploads):
        if place >= kept or time.time() - changed > seconds:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
