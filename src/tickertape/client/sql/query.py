"""A SQL statement over SOW topics: its topics, and its result from their records."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Self

from tickertape.base.errors import BadOption
from tickertape.base.text_format import did_you_mean, shown, wrong_type
from tickertape.base.units import parse_size
from tickertape.client.limits import sql_memory_bytes_default
from tickertape.client.sql.columns import columns_of
from tickertape.client.sql.database import Database
from tickertape.client.sql.statement import tables_of

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

METADATA: Final = {
    "_sow_key": ("sow_key",),
    "_topic": ("topic",),
    "_bookmark": ("publisher", "sequence"),
    "_timestamp": ("timestamp",),
    "_correlation_id": ("correlation_id",),
}
"""Columns of a record besides its fields, and their columns of `MessageBatch.to_arrow`.

A table has only those that the statement names, so that `select *` has the fields of the bodies. Each costs
time: the client computes the keys."""

SOURCES: Final = ("data", *dict.fromkeys(source for sources in METADATA.values() for source in sources))
"""All columns of `MessageBatch.to_arrow` that records need."""

Types = Mapping[str, Mapping[str, "pa.DataType"]]
"""Arrow types by column, for tables whose types are not inferred."""


class SqlQuery:
    """A statement, and the database in which it runs. It is a context manager that closes itself.

    Raises `BadQuery` for a statement that is not a single SELECT, and `BadOption` for other arguments.
    """

    def __init__(
        self,
        sql: str,
        tables: Mapping[str, str] | None = None,
        types: Types | None = None,
        memory_limit: int | str = sql_memory_bytes_default,
    ) -> None:
        if not isinstance(sql, str):
            raise BadOption(wrong_type("sql", sql, "the text of a SELECT"))
        self._sql = sql
        self._types = types or {}
        self._empty: list[str] = []
        self._database = Database(parse_size(memory_limit))
        names = tables_of(sql, self._database)
        tables = tables or {}
        _check_tables("types", self._types, names)
        _check_tables("topic", tables, names)
        self.topics: Final[dict[str, str]] = {name: tables.get(name, name) for name in names}
        """SOW topic of each table."""
        self._metadata = [name for name in METADATA if re.search(rf"\b{name}\b", sql, re.IGNORECASE)]
        sources = {source for name in self._metadata for source in METADATA[name]}
        self.columns: Final = ("data", *sorted(sources | {"topic"}))
        """Columns of the records for `add`, by their names in `MessageBatch.to_arrow`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._database.__exit__(kind, error, traceback)

    def add(self, name: str, records: pa.Table) -> None:
        """Add the records of the table `name`, with at least the columns `columns`."""
        if not records.num_rows and name not in self._types:
            self._empty.append(name)
        table = table_of_records(name, records, self._metadata, self._types.get(name))
        self._database.register(name, table)

    def run(self) -> pa.Table:
        """Return the result, after `add` for all tables."""
        cure = "Correct the statement."
        if self._empty:
            cure += f" {shown(self._empty[0])} has no records, so its columns are unknown."
        return self._database.run(self._sql, cure)

    def interrupt(self) -> None:
        """End `run` from another thread."""
        self._database.interrupt()


def _check_tables(what: str, by_table: Iterable[str], names: Collection[str]) -> None:
    """Raise `BadOption` if a table of `by_table`, which has their `what`, is not in the statement."""
    for name in by_table:
        if name not in names:
            raise BadOption(
                f"Cannot use the {what} of {shown(name)}: the statement has no such table."
                f"{did_you_mean(name, names)} Use the table names of the statement."
            )


def table_of_records(
    name: str,
    records: pa.Table,
    metadata: Collection[str] = (),
    types: Mapping[str, pa.DataType] | None = None,
) -> pa.Table:
    """Return typed columns of the fields of records, then those of `metadata` that are not fields.

    A table without fields has `_topic`, because a table of DuckDB needs a column. `name` is the table, for
    error texts.
    """
    import pyarrow as pa

    columns = columns_of(name, records.column("data").to_pylist(), types)
    for column in metadata if columns or metadata else ("_topic",):
        if column not in columns:
            columns[column] = _metadata_of(records, column)
    return pa.table(columns)


def _metadata_of(records: pa.Table, column: str) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = [records.column(source) for source in METADATA[column]]
    if column == "_bookmark":
        return pc.binary_join_element_wise(*(part.cast(pa.string()) for part in parts), "", "|")
    return parts[0].cast(pa.string()) if column == "_topic" else parts[0]
