"""Files that are written whole or not at all, and of which only regular ones are read."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

from infocnf.errors import InputError

__all__ = ["LARGEST_TEXT", "check_file", "digest_of", "write", "write_json"]

LARGEST = 64 * 2**30  # bytes of a file of data
LARGEST_TEXT = 64 * 2**20  # and of one that describes something


def check_file(path: Path, largest: int = LARGEST) -> None:
    """Refuse what is no regular file, which could be read for ever, and what cannot be meant; a
    file that is not there is for its reader to tell.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{shortened(path)} cannot be read ({why}): name another file") from None
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path} is a folder: name a file in it")
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is a pipe or a device, not a file: copy what it gives into one")
    if found.st_size > largest:
        raise InputError(
            f"{path} has {found.st_size:,} bytes, more than the {largest:,} that are read: split it"
        )


def shortened(path: Path) -> str:
    """A path for a message, however long it is."""
    text = repr(str(path))[1:-1]
    return text if len(text) <= 200 else f"{text[:100]}...{text[-60:]}"


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
