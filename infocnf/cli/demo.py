"""``infocnf demo``: a page to play with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infocnf.errors import InputError

__all__ = ["demo"]


def demo(
    run: Annotated[
        Path, typer.Argument(help="Run directory of a model of images.  [default: digits]")
    ] = Path("digits"),
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
    from infocnf.app.actions import Player
    from infocnf.training import Run

    serve(Player(Run.open(run), tolerance), host, port)
