"""Files from the network: cached, checked by their digest, and resumed where they broke off."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infocnf.errors import InputError, WorkError
from infocnf.files import digest_of

__all__ = ["cache_folder", "cached", "fetch"]


def cache_folder() -> Path:
    """Where downloads are kept: ``$INFOCNF_DATA``, or the user's cache."""
    if "INFOCNF_DATA" in os.environ:
        return Path(os.environ["INFOCNF_DATA"])
    import pooch

    return Path(pooch.os_cache("infocnf"))


def cached(name: str, file: str, md5: str) -> bool:
    """Whether a file of a data set was fetched and is whole."""
    path = cache_folder() / name / file
    return path.is_file() and digest_of(path, "md5") == md5


def fetch(address: str, name: str, file: str, md5: str, progress: bool = False) -> Path:
    """The file of an address, downloaded once into the cache.

    Arguments:
        address: Where it is.
        name: Name of the data set, which is the folder in the cache.
        file: Name of the file.
        md5: Its digest.
        progress: Whether to draw a bar.
    """
    import pooch

    folder = cache_folder() / name
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{file}.part"
    try:
        found = pooch.retrieve(
            address, f"md5:{md5}", fname=file, path=folder, downloader=Resuming(part, progress)
        )
    except ValueError:
        part.unlink(missing_ok=True)
        raise InputError(
            f"{address} is not the file it should be (its MD5 is not {md5}): try again later, "
            "or use --data-dir with files you have"
        ) from None
    except OSError as error:
        raise WorkError(
            f"{address} cannot be fetched ({type(error).__name__}): check the network and run the "
            "command again, it continues where it broke off"
        ) from None
    part.unlink(missing_ok=True)
    return Path(found)


class Resuming:
    """A downloader for pooch that continues an unfinished file.

    Arguments:
        part: Where the file waits until it is whole.
        progress: Whether to draw a bar.
    """

    def __init__(self, part: Path, progress: bool) -> None:
        self.part, self.progress = part, progress

    def __call__(self, address: str, output: str, caller: object) -> None:
        """Download what is missing, then hand the whole to pooch, which checks its digest."""
        import requests

        have = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        with requests.get(address, headers=headers, stream=True, timeout=30) as answer:
            if answer.status_code != 416:  # 416: nothing is left to send
                answer.raise_for_status()
                self.receive(answer, have if answer.status_code == 206 else 0)
        Path(output).write_bytes(self.part.read_bytes())

    def receive(self, answer: Any, have: int) -> None:  # noqa: ANN401
        """Append what the server sends to what is there; from the start where it sends all."""
        total = have + int(answer.headers.get("Content-Length", 0))
        with (
            self.part.open("ab" if have else "wb") as stream,
            bar(self.progress, self.part.stem, total) as shown,
        ):
            shown(have)
            for chunk in answer.iter_content(1 << 16):
                stream.write(chunk)
                shown(len(chunk))


@contextmanager
def bar(wanted: bool, name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar that is told of bytes, or nothing."""
    if not wanted:
        yield lambda count: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns) as bars:
        task = bars.add_task(name, total=total or None)
        yield lambda count: bars.advance(task, count)
