"""``infocnf train``: from data to a run directory."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from infocnf.errors import InputError

__all__ = ["train"]

log = logging.getLogger("infocnf")
EXAMPLES = """\b
Examples:
  infocnf train                                   the digits, three minutes
  infocnf train digits --set matching.epochs=20   any setting of --show
  infocnf train --data shapes/                    a folder with a sub-folder of images per class
  infocnf train --data flowers/ --set data.size=32   the same of photographs of all sizes
  infocnf train --data iris.csv --set data.label=species
  infocnf train mnist --data-dir ~/mnist
  infocnf train --data steps.csv --set data.series=id --set data.time=day
  infocnf train --out runs/digits --resume        after Ctrl-C or a crash
"""


def train(
    preset: Annotated[
        str | None,
        typer.Argument(
            help="digits, digits-matching, digits-likelihood, digits-ccnf, digits-cnf, "
            "mnist, fashion_mnist, cifar10, paper-mnist, paper-cifar10-small-batch, "
            "paper-cifar10-large-batch, paper-cifar10-2x, density-1d, spirals, spirals-baseline, "
            "japanese-vowels; for --data images, own (rows), series; or a file.toml.  "
            "[default: digits, or by what --data is]",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; --show lists them all."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory.  [default: runs/PRESET]", show_default=False)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Your own data: folder of class folders, .npz, .csv or .parquet."
        ),
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Folder with the files of the preset's data set."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that is in --out.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the resolved configuration and exit.")
    ] = False,
) -> None:
    """Train a model. It can be stopped (Ctrl-C) and resumed at any time, to the same weights."""
    from infocnf.runs.parsing import explain, read_config

    if resume and overwrite:
        raise InputError("--resume and --overwrite contradict each other: choose one")
    for name, value in (("PRESET", preset), ("--data", data), ("--data-dir", data_dir)):
        if value is not None and not value.strip():
            raise InputError(f"{name} is empty: give a name, or leave it out")
    given = list(settings or [])
    if data is not None:
        given.insert(0, f"data.path={as_toml(data)}")
    if data_dir is not None:
        given.insert(0, f"data.directory={as_toml(data_dir)}")
    source = preset or ("digits" if data is None else preset_for(data, given))
    folder = out or Path("runs") / (Path(data).stem if data else Path(source).stem)
    if show:
        print(explain(read_config(source, given)), end="")
        return
    if resume:
        if preset is not None and out is not None:
            raise InputError("--resume continues what is in --out: leave out the preset")
        go_on(folder, given)
    else:
        start(source, given, folder, overwrite)


def preset_for(data: str, settings: list[str]) -> str:
    """The preset for data of one's own, by what it is."""
    from infocnf.data import kind_of

    named = {key.strip() for key, _, _ in (setting.partition("=") for setting in settings)}
    column = "series" if "data.series" in named else None
    kind = kind_of(Path(data).expanduser(), column)
    return {"images": "images", "series": "series", "rows": "own"}[kind]


def as_toml(path: str) -> str:
    """A path as a TOML string."""
    import json

    return json.dumps(str(Path(path).expanduser().absolute()), ensure_ascii=False)


def start(source: str, settings: list[str], folder: Path, overwrite: bool) -> None:
    """Train from the beginning."""
    from infocnf.cli.progress import Display, announce
    from infocnf.runs.parsing import idle_settings, read_config
    from infocnf.training import begin

    config = read_config(source, settings)
    with announce(folder):
        for key in idle_settings(config, settings):
            stages = ", ".join(config.training.stages)
            log.warning("%s has no effect on this run, whose stages are: %s", key, stages)
        begin(config, folder, overwrite=overwrite, observer=Display())


def go_on(folder: Path, settings: list[str]) -> None:
    """Continue a run."""
    from infocnf.cli.progress import Display, announce
    from infocnf.training import resume

    with announce(folder):
        resume(folder, settings, observer=Display())


train.__doc__ = f"{train.__doc__}\n\n{EXAMPLES}"
