"""Where a command may write, found out before it works."""

from __future__ import annotations

import os
from pathlib import Path

from infocnf.errors import InputError

__all__ = ["check_output"]


def check_output(path: Path | None, overwrite: bool, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse a file that cannot be written or would replace one unasked."""
    if path is None:
        return
    if suffixes and path.suffix not in suffixes:
        raise InputError(f"-o must end in {' or '.join(suffixes)}, got {path}")
    if path.is_dir():
        raise InputError(f"-o {path} is a folder: name a file")
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists: replace it with --overwrite, or choose another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"-o {path} cannot be written ({error.strerror})") from None
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"-o {path} cannot be written: its folder is read-only")
