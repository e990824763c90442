"""What may be in a run directory, so that nothing else in it is ever touched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from infocnf.errors import InputError
from infocnf.training.checkpoints import BEST, DAMAGED, LAST, PREVIOUS
from infocnf.training.settings import parse_config, read_tables

__all__ = ["claim", "remove_drafts"]

BEGUN = ("splits.npz", "data.json", "environment.json", "config.toml")  # in the order of writing
FILES = re.compile(
    r"(splits\.npz|(data|environment|evaluation[a-z-]*)\.json|config\.toml|metrics\.csv|"
    r"samples\.(png|csv)|report\.html|hparams\.yaml|events\.out\.tfevents\..*)"
)
INNER = {
    "checkpoints": re.compile("|".join(map(re.escape, (LAST, PREVIOUS, BEST, DAMAGED)))),
    "model": re.compile(r"config\.json|model\.safetensors"),
}


def claim(folder: Path, overwrite: bool) -> None:
    """Make the directory; what is there is removed only where it is a run, and nothing else."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: choose another --out")
    try:
        if folder.is_dir() and any(folder.iterdir()):
            if not overwrite:
                raise InputError(
                    f"{folder} exists: continue it with --resume, replace it with --overwrite, "
                    "or choose another --out"
                )
            check_run(folder)
            for path in contents(folder):
                path.unlink()
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be used ({error.strerror}): choose another --out"
        ) from None


def check_run(folder: Path) -> None:
    """Refuse a directory that is not a run, or holds something that is not of one."""
    known = set(contents(folder))
    inner = {folder / name for name in INNER}
    for path in (*folder.iterdir(), *(p for name in INNER for p in (folder / name).glob("*"))):
        if path not in known and not (path in inner and path.is_dir() and not path.is_symlink()):
            raise InputError(
                f"{folder} holds {str(path.relative_to(folder))!r}, which is not of a run: it will "
                "not be overwritten"
            )
    config = folder / "config.toml"
    if config.is_file():
        parse_config(read_tables(str(config)), str(config))
    elif not {path.name for path in known if not draft_of(path.name)} <= set(BEGUN):
        raise InputError(f"{folder} is not a run directory: it will not be overwritten")


def contents(folder: Path) -> Iterator[Path]:
    """The files of a run, and what a kill left half written."""
    places = [(folder, FILES), *((folder / name, names) for name, names in INNER.items())]
    for place, names in places:
        for path in place.iterdir() if place.is_dir() else ():
            if path.is_file() and names.fullmatch(draft_of(path.name) or path.name):
                yield path


def draft_of(name: str) -> str | None:
    """The file that a draft was to become; None for other names."""
    found = re.fullmatch(r"\.(.+)\.\d+", name)
    return found.group(1) if found else None


def remove_drafts(folder: Path) -> None:
    """Remove what a kill left half written."""
    for path in contents(folder):
        if draft_of(path.name):
            path.unlink()
