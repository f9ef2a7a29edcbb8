"""Output of the demo: headings, facts, tables and, on a terminal, progress."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

PLAIN_WIDTH: Final = 110

Update = Callable[[int], object]
"""Callback with the amount that is done."""


class Screen:
    """Standard output. Without a terminal it prints plain lines, without colours and progress."""

    def __init__(self) -> None:
        is_terminal = sys.stdout.isatty()
        self._console = Console(highlight=False, soft_wrap=True, width=None if is_terminal else PLAIN_WIDTH)
        self._began = time.monotonic()
        self._step = 0

    def heading(self, text: str) -> None:
        """Print the heading of the next step."""
        self._step += 1
        seconds = time.monotonic() - self._began
        self._console.print(f"\n[bold cyan]{self._step}. {text}[/]  [dim]({seconds:.0f} s)[/]")

    def fact(self, text: str) -> None:
        """Print a fact."""
        self._console.print(f"   {text}", markup=False)

    def passed(self, text: str) -> None:
        """Print a passed check."""
        self._console.print("   [bold green]ok[/] ", end="")
        self._console.print(text, markup=False)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table. The first column is left-aligned, the others right-aligned."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for i, column in enumerate(columns):
            table.add_column(column, justify="right" if i else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        with self._console.capture() as captured:
            self._console.print(table)
        for line in captured.get().rstrip().splitlines():
            self._console.out(f"   {line.rstrip()}", highlight=False)

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Show an activity during the block, on a terminal only."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(what):
            yield

    @contextlib.contextmanager
    def progress(self, what: str, total: int) -> Iterator[Update]:
        """Show a progress bar during the block, on a terminal only."""
        if not self._console.is_terminal:
            yield _unseen
            return
        columns = (
            TextColumn("   {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)


def _unseen(done: int) -> None:
    """Ignore progress without a terminal."""


def count(number: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: `1 flight`, `2 flights`, `336,776 flights`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
