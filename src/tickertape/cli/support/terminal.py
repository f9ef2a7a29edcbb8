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

Advance = Callable[[int], object]
"""Called with how many more bytes are done."""

_SHOW_SECONDS: Final = 0.05


@contextlib.contextmanager
def progress(what: str, total_bytes: int | None) -> Iterator[Advance]:
    """Show progress of `what` in bytes, of `total_bytes` if known."""
    if not sys.stderr.isatty():
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total_bytes)
        done, shown_at = 0, 0.0

        def advance(more: int) -> None:
            nonlocal done, shown_at
            done += more
            now = time.monotonic()
            if now >= shown_at + _SHOW_SECONDS:  # drawing costs more than publishing a message
                shown_at = now
                bar.update(task, completed=done)

        yield advance
        bar.update(task, completed=done)


@contextlib.contextmanager
def timed_progress(what: str, total_seconds: float) -> Iterator[Callable[[float], object]]:
    """Show how much of `total_seconds` is over. Yields a function to call with the seconds that passed."""
    if not sys.stderr.isatty():
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total_seconds)
        done, shown_at = 0.0, 0.0

        def advance(more: float) -> None:
            nonlocal done, shown_at
            done += more
            now = time.monotonic()
            if now >= shown_at + _SHOW_SECONDS:
                shown_at = now
                bar.update(task, completed=done)

        yield advance


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
