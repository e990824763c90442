"""Files that are written whole or not at all, and of which only regular ones are read."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from infocnf.errors import InputError, shown

__all__ = [
    "LARGEST_TEXT",
    "check_file",
    "digest_of",
    "spreadsheet_text",
    "to_csv",
    "write",
    "write_json",
]

FORMULAS = ("=", "+", "-", "@", "\t", "\r")
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
        raise InputError(f"{shown(str(path))} cannot be read ({why}): name another file") from None
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path} is a folder: name a file in it")
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is a pipe or a device, not a file: copy what it gives into one")
    if found.st_size > largest:
        raise InputError(
            f"{path} has {found.st_size:,} bytes, more than the {largest:,} that are read: split it"
        )


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


def spreadsheet_text(value: object) -> object:
    """A cell of a table that a spreadsheet will not take for a formula: text that begins like one,
    and is no number, has an apostrophe before it.

    >>> spreadsheet_text("=1+1"), spreadsheet_text("-1"), spreadsheet_text(-1.0)
    ("'=1+1", '-1', -1.0)
    """
    if not isinstance(value, str) or not value.startswith(FORMULAS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def to_csv(header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A table for people and spreadsheets."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    for row in (header, *rows):
        cells = (f"{cell:.12g}" if isinstance(cell, float) else cell for cell in row)
        table.writerow(map(spreadsheet_text, cells))
    return text.getvalue()


def digest_of(path: Path, algorithm: str = "sha256") -> str:
    """Digest of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()
