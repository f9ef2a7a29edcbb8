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


def echo_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int = 1,
    right: Sequence[bool] | None = None,
) -> None:
    """Print a table. The first `left` columns are left-aligned, the others right-aligned.

    `right` selects the right-aligned columns instead.
    """
    table = [columns, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    aligned = [i >= left for i in range(len(columns))] if right is None else right
    for row in table:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, aligned, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())
