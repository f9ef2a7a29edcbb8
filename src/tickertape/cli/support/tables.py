"""Aligned text tables. External text is escaped, so it cannot control the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

_CELL_CHARACTERS_MAX: Final = 60


def safe(text: str) -> str:
    """Return `text` with unprintable characters escaped, cut to the width of a cell."""
    if len(text) > _CELL_CHARACTERS_MAX:
        text = text[: _CELL_CHARACTERS_MAX - 3] + "..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def safe_whole(text: str) -> str:
    """Return `text` with unprintable characters escaped, in full length."""
    return "".join(safe(text[i : i + 50]) for i in range(0, len(text), 50))


def number(value: int | float | None) -> str:
    """Return a count with separators, or a small rate with four digits. `-` for None."""
    if value is None:
        return "-"
    if isinstance(value, float) and value < 100:
        return f"{value:.4g}"
    return f"{value:,.0f}"


def counted(count: int, noun: str) -> str:
    """Return `count` with separators and `noun`, in the plural unless `count` is 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def echo_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Print a table. The first `left` columns are left-aligned, the others right-aligned."""
    table = [columns, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    for row in table:
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())
