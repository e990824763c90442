"""All commands, and how errors reach a person: one line that names the value and the remedy."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from infocnf.cli.bench import bench
from infocnf.cli.data import data
from infocnf.cli.demo import demo
from infocnf.cli.evaluate import evaluate
from infocnf.cli.predict import predict
from infocnf.cli.report import report
from infocnf.cli.reproduce import reproduce
from infocnf.cli.sample import sample
from infocnf.cli.train import train
from infocnf.errors import InputError, StoppedError, WorkError
from infocnf.processes import is_leader

__all__ = ["app", "run"]

app = typer.Typer(
    help="Conditional continuous normalizing flows: one model that classifies, gives an exact "
    "likelihood, draws samples of a chosen class and scores anomalies.",
    epilog="First steps: 'infocnf train', then 'infocnf evaluate runs/digits', "
    "'infocnf sample runs/digits', 'infocnf report runs/digits'.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (train, evaluate, sample, predict, report, demo, reproduce, bench):
    app.command()(command)
app.add_typer(data, name="data")

# typer carries its own copy of click: its base of usage errors is an ancestor of a public class
ClickError = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of all commands."""
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
            print(f"infocnf: {one_line(error)}{value_given(error, rest)}", file=sys.stderr)
        return code


def exit_code(error: Exception) -> int:
    """2 for what the user can mend, 1 for work that failed."""
    if isinstance(error, ClickError):
        return int(getattr(error, "exit_code", 2))
    return 2 if isinstance(error, InputError) else 1


def one_line(error: Exception) -> str:
    """What went wrong, in one line."""
    text = getattr(error, "format_message", lambda: str(error))()
    line = " ".join(text.split())
    if (
        isinstance(error, (InputError, WorkError, ClickError))
        or type(error).__name__ == "SolveError"
    ):
        return line
    return f"{type(error).__name__}: {line or 'no reason given'} (--debug shows where)"


def value_given(error: Exception, arguments: list[str]) -> str:
    """The value of an option that could not be understood, which typer leaves out."""
    for option in getattr(getattr(error, "param", None), "opts", []):
        if option in arguments[:-1]:
            return f", got {arguments[arguments.index(option) + 1]!r}"
    return ""
