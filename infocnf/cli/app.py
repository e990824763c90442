"""All commands, and how errors reach a person: one line that names the value and the remedy."""

from __future__ import annotations

import errno
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from infocnf.cli.evaluate import evaluate
from infocnf.cli.predict import predict
from infocnf.cli.reproduce import reproduce
from infocnf.cli.sample import sample
from infocnf.cli.train import train
from infocnf.errors import InputError, StoppedError, WorkError, cut, is_leader, shown

__all__ = ["app", "run"]

LONGEST = 800  # characters of an error
LARGE_DIGITS = Path("runs") / "mnist"  # what the page shows where it is there

app = typer.Typer(
    help="Conditional continuous normalizing flows: one model that classifies, gives an exact "
    "likelihood, draws samples of a chosen class and scores anomalies.",
    epilog="First steps: 'infocnf train', then 'infocnf evaluate runs/digits', "
    "'infocnf sample runs/digits', 'infocnf report runs/digits'.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


# typer carries its own copy of click: its base of usage errors is an ancestor of a public class
ClickError = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", help="Import a module first: one with tolerance policies."),
    ] = None,
) -> None:
    """Options of all commands."""
    for module in modules or ():
        from infocnf.tolerances.policies import import_from_here

        try:
            import_from_here(module)
        except (ImportError, TypeError, ValueError) as error:
            raise InputError(f"--import {shown(module)} cannot be imported: {error}") from None
    if version:
        from infocnf import __version__

        print(f"infocnf {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def run(arguments: list[str]) -> int:
    """Run a command; the exit code."""
    debug = "--debug" in arguments
    rest = [argument for argument in arguments if argument != "--debug"]
    try:
        for word in rest:
            check_text(word)
        return int(app(rest, prog_name="infocnf", standalone_mode=False) or 0)
    except ModuleNotFoundError:
        raise  # an extra that is not installed: main says which
    except Exception as error:
        code = exit_code(error)
        if debug:
            raise
        if not is_leader() and isinstance(error, StoppedError):
            return 0  # Lightning would take another code for a crash
        if is_leader():
            said = cut(f"{one_line(error)}{value_given(error, rest)}", LONGEST)
            print(f"infocnf: {said}", file=sys.stderr)
        return code


def check_text(word: str) -> None:
    """Refuse an argument whose bytes are no text, which could not be shown or written."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise InputError(f"{shown(word)} is no text in UTF-8: rename it") from None


def exit_code(error: Exception) -> int:
    """2 for what the user can mend, 1 for work that failed."""
    if isinstance(error, ClickError):
        return int(getattr(error, "exit_code", 2))
    return 2 if isinstance(error, InputError) or is_path(error) else 1


def is_path(error: Exception) -> bool:
    """Whether a name was given that no file can have, or that may not be used."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENAMETOOLONG, errno.EACCES, errno.ENOTDIR, errno.ELOOP)
    return isinstance(error, ValueError) and "null byte" in str(error)


def one_line(error: Exception) -> str:
    """What went wrong, in one line."""
    text = getattr(error, "format_message", lambda: str(error))()
    line = " ".join(text.split())
    if (
        isinstance(error, (InputError, WorkError, ClickError))
        or type(error).__name__ == "SolveError"
    ):
        return line
    if isinstance(error, OSError) and error.strerror:
        name = f" ({shown(str(error.filename))})" if error.filename else ""
        return f"{error.strerror}{name}: what was finished before is kept; mend it and try again"
    if is_path(error):
        return "a name holds a null byte, which no file can have: name another file"
    if isinstance(error, MemoryError) or "allocate memory" in line:
        return "out of memory: lower batch sizes or the size of the model; what was saved is kept"
    return f"{type(error).__name__}: {line or 'no reason given'} (--debug shows where)"


def value_given(error: Exception, arguments: list[str]) -> str:
    """The value of an option that could not be understood, which typer leaves out."""
    for option in getattr(getattr(error, "param", None), "opts", []):
        if option in arguments[:-1]:
            return f", got {arguments[arguments.index(option) + 1]!r}"
    return ""


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


def demo(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="Run directory of a model of images.  [default: runs/mnist, which 'infocnf train "
            "mnist' makes; digits where that is not there]",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 lets others in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; another one where it is taken.")] = 7860,
    tolerance: Annotated[float, typer.Option(help="Tolerance of the solver.")] = 1e-4,
) -> None:
    """Open a page to draw on: classes, likelihood, samples, the same image with another label.

    It runs on this machine and needs no network. It needs the extra demo: pip install
    'infocnf[demo]'.
    """
    if not 0 < tolerance < 1:
        raise InputError(f"--tolerance must be between 0 and 1, got {tolerance:g}")
    if not 1 <= port <= 65535:
        raise InputError(f"--port must be from 1 to 65535, got {port}")
    try:
        from infocnf.app.page import serve
    except ModuleNotFoundError as error:
        if error.name != "gradio":
            raise
        raise InputError("the page needs Gradio: pip install 'infocnf[demo]'") from None
    from infocnf.app.actions import DemoSession
    from infocnf.runs import Run

    trained = (LARGE_DIGITS / "model" / "config.json").is_file()
    run = run or (LARGE_DIGITS if trained else Path("digits"))
    serve(DemoSession(Run.open(run), tolerance), host, port)


def report(run: Annotated[Path, typer.Argument(help="Run directory.")]) -> None:
    """Write report.html: metrics, curves, samples, mistakes, counterfactuals, configuration.

    The file needs no other and no network. Evaluate first to have the test metrics in it.
    """
    from infocnf.cli.options import console
    from infocnf.reports import write_report
    from infocnf.runs import Run
    from infocnf.runs.manifest import seal_if_free

    written = write_report(Run.open(run, writing=True))
    seal_if_free(run)
    console.print(f"written: {written}")


def check(run: Annotated[Path, typer.Argument(help="Run directory.")]) -> None:
    """Check a run: which of its files are damaged or missing, and what restores them.

    Files are compared with manifest.json, which every command renews, and with what they know of
    themselves. Exit code 1 where something is damaged or missing.
    """
    from infocnf.cli.options import console
    from infocnf.runs import Run
    from infocnf.runs.manifest import verify

    found = verify(Run.open(run))
    for finding in found:
        told = f": {finding.remedy}" if finding.remedy else ""
        console.print(f"{finding.state:<8} {finding.name}{told}")
    lost = [finding for finding in found if finding.state in ("damaged", "missing")]
    if lost:
        raise WorkError(f"{run}: {len(lost)} of {len(found)} files are damaged or missing")
    console.print(f"{len(found)} files, all whole")


def bench(
    context: typer.Context,
) -> None:
    """Measure speed, memory and error against torchdiffeq, torchode, zuko and diffrax.

    The benchmarks are in the repository, not in the package: 'make bench' there runs them all, and
    arguments after 'infocnf bench' are those of 'python -m benchmarks'.
    """
    try:
        main = import_module("benchmarks.__main__").main
    except ModuleNotFoundError:
        raise InputError(
            "the benchmarks are in the repository: clone it, and run 'make bench' there"
        ) from None
    main(context.args)


for command in (train, evaluate, sample, predict, report, check, demo, reproduce):
    app.command()(command)
app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(bench)
app.add_typer(data, name="data")
