"""Files that appear whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

__all__ = ["digest_of", "write", "write_json"]


def write(path: Path, content: bytes) -> None:
    """Replace a file at once."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Replace a file by a value as JSON for people to read."""
    write(path, (json.dumps(value, indent=2) + "\n").encode())


def digest_of(path: Path, algorithm: str = "sha256") -> str:
    """Digest of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()
