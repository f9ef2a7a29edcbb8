"""Progress and questions on standard error.

Without a terminal nothing is printed, and the library that draws is not imported.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

import click

Advance = Callable[[float], object]
"""Called with how many more bytes, or seconds, are done."""

_SHOW_SECONDS: Final = 0.05


@contextlib.contextmanager
def progress(what: str, total: float | None, *, timed: bool = False) -> Iterator[Advance]:
    """Show progress of `what` in bytes, or `timed` in seconds, of `total` if known."""
    if not sys.stderr.isatty():
        yield _nothing
        return
    import rich.progress as shown
    from rich.console import Console

    columns = [shown.TextColumn("{task.description}"), shown.BarColumn()]
    if timed:
        columns += [shown.TimeRemainingColumn()]
    else:
        columns += [shown.TaskProgressColumn(), shown.DownloadColumn()]
        columns += [shown.TransferSpeedColumn(), shown.TimeElapsedColumn()]
    with shown.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        done, shown_at = 0.0, 0.0

        def advance(more: float) -> None:
            nonlocal done, shown_at
            done += more
            now = time.monotonic()
            if now >= shown_at + _SHOW_SECONDS:  # drawing costs more than publishing a message
                shown_at = now
                bar.update(task, completed=done)

        yield advance
        bar.update(task, completed=done)


def remark(text: str) -> None:
    """Print a remark for a person at the terminal; scripts do not see it."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def confirmed(question: str) -> bool | None:
    """Ask `question` at the terminal and return the answer; None without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return click.confirm(question, err=True)


def _nothing(more: float) -> None:
    """Progress that is not shown."""
