"""Progress and questions on standard error.

Without a terminal nothing is printed, and the progress library is not imported.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

import click

Advance = Callable[[float], object]
"""Callback with the number of additional bytes, or seconds, that are done."""

_SHOW_SECONDS: Final = 0.05


@contextlib.contextmanager
def progress(what: str, total: float | None, *, timed: bool = False) -> Iterator[Advance]:
    """Show progress of an operation in bytes, or with `timed` in seconds. `total` may be unknown."""
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
            if now >= shown_at + _SHOW_SECONDS:  # drawing is slower than publishing a message
                shown_at = now
                bar.update(task, completed=done)

        yield advance
        bar.update(task, completed=done)


def remark(text: str) -> None:
    """Print a remark on a terminal. Scripts do not see it."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def confirmed(question: str) -> bool | None:
    """Ask `question` on the terminal and return the answer. None without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return click.confirm(question, err=True)


def _nothing(more: float) -> None:
    """Ignore progress without a terminal."""
