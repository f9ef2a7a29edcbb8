"""Owns what only a person at a terminal sees: progress of long work, on standard error.

Must never print anything, or import what draws it, when standard error is no terminal.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Advance = Callable[[int], object]
"""Called with how much more is done."""


@contextlib.contextmanager
def progress(what: str, total: int | None, *, unit: str = "bytes") -> Iterator[Advance]:
    """Show how far `what` is, of `total` (None: nobody knows), in `bytes` or another `unit` by its name."""
    if not sys.stderr.isatty():
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    done = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        done,
        TextColumn("" if unit == "bytes" else unit),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.advance(task, more)


def remark(text: str) -> None:
    """Tell a person at the terminal something that a script need not know."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def _nothing(more: int) -> None:
    """Progress that nobody sees."""
