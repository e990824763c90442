"""The terminal: lines for a person, and bars over long work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["adding_up", "console", "counting"]

console = Console(highlight=False, soft_wrap=True, markup=False)


@contextmanager
def counting(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar over a number of examples."""
    columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task(text, total=total)
        yield lambda count: bars.advance(task, count)


@contextmanager
def adding_up(title: str, total: int) -> Iterator[Callable[[str, int, int], None]]:
    """Progress of many things at once: a bar over all of them, or a line for each that is done."""
    done: dict[str, int] = {}
    with counting(title, total) as advance:

        def told(name: str, now: int, of: int) -> None:
            before = done.get(name, 0)
            done[name] = max(now, before)
            advance(done[name] - before)
            if not console.is_terminal and now == of > before:
                console.print(f"{name}: {of} epochs; {sum(done.values())} of {total} in all")

        yield told
