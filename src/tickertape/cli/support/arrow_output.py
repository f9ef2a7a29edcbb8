"""Output of Arrow tables: an aligned table, JSON lines, CSV, or an Arrow stream.

pyarrow is imported by the caller, which has a table.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from tickertape.cli.support.json_lines import message_output
from tickertape.cli.support.tables import echo_table, safe

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS: Final = 10_000
"""Rows that are converted at once."""
_encode: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=str).encode


def check_output(output: str) -> None:
    """Raise `click.UsageError` for binary output to a terminal."""
    if output == "arrow" and sys.stdout.isatty():
        raise click.UsageError("Arrow output is binary. Redirect it to a file, such as > result.arrow.")


def print_table(table: pa.Table, output: str, limit: int | None = None) -> None:
    """Print at most `limit` rows as `output`: `text`, `json`, `csv` or `arrow`."""
    table = table if limit is None else table.slice(0, limit)
    if output == "arrow":
        _print_arrow(table)
    elif output == "json":
        names = _distinct(table.column_names)
        for rows in _rows(table):
            lines = [_encode(dict(zip(names, row, strict=True))) for row in rows]
            _write(b"\n".join([*lines, b""]))
    elif output == "csv":
        _write_csv([table.column_names])
        for rows in _rows(table):
            _write_csv([_cell(value, "") for value in row] for row in rows)
    else:
        _print_text(table)


def _print_arrow(table: pa.Table) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as stream:
        stream.write_table(table)


def _print_text(table: pa.Table) -> None:
    import pyarrow as pa

    columns = [safe(name) for name in table.column_names]
    right = [pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
             for kind in table.schema.types]  # fmt: skip
    cells = [[safe(_cell(value, "NULL")) for value in row] for rows in _rows(table) for row in rows]
    echo_table(columns, cells, right=right)


def _rows(table: pa.Table) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows, some thousands at a time."""
    for batch in table.to_batches(max_chunksize=_ROWS):
        yield list(zip(*map(_values, batch.columns), strict=True))


def _values(column: pa.Array) -> list[Any]:
    import pyarrow as pa

    if getattr(column.type, "unit", "") == "ns":  # Python's times do not have nanoseconds
        column = column.cast(pa.string())
    return list(column.to_pylist())


def _cell(value: Any, null: str) -> str:
    """Return a value as text. Nested values are JSON."""
    if value is None:
        return null
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float | Decimal):
        return str(value)
    text = _encode(value).decode()
    return text.strip('"') if isinstance(value, datetime | date | time) else text


def _distinct(names: list[str]) -> list[str]:
    """Return `names` with a number after each repeated name, because a JSON object has a name once."""
    distinct: dict[str, None] = {}
    for name in names:
        number, unique = 0, name
        while unique in distinct:
            number += 1
            unique = f"{name}_{number}"
        distinct[unique] = None
    return list(distinct)


def _write_csv(rows: Any) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    _write(text.getvalue().encode("utf-8", "backslashreplace"))


def _write(data: bytes) -> None:
    out = message_output()
    out.write(data)
    out.flush()
