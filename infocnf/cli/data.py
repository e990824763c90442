"""``infocnf data``: which data sets there are, and getting them."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["data"]

data = typer.Typer(
    help="List the data sets, and fetch those that are not in the package.",
    rich_markup_mode=None,
)


@data.command("list")
def show() -> None:
    """List the data sets and whether they are here."""
    from infocnf.data.catalogue import CATALOGUE, is_ready

    for name, entry in CATALOGUE.items():
        state = f"infocnf data fetch {name}" if entry.files else f"--data-dir with {name}.npz"
        state = "ready" if is_ready(name) else state
        note = f" ({entry.note})" if entry.note else ""
        print(f"{name:<16} {entry.title}{note}: {state}")
    print(f"{'your own':<16} infocnf train --data PATH: class folders, .npz, .csv, .parquet")


@data.command()
def fetch(name: Annotated[str, typer.Argument(help="Name of the data set.")]) -> None:
    """Download a data set into the cache ($INFOCNF_DATA, or the user's); broken off, it resumes."""
    from infocnf.data.catalogue import entry_of, fetch_entry

    if entry_of(name).make is not None:
        print(f"{name} needs no download")
        return
    for path in fetch_entry(name, progress=True):
        print(path)
