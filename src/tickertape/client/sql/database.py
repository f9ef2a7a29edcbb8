"""In-memory DuckDB database for one statement, without files, network and extensions.

duckdb is the optional package of the extra `sql`. It is imported with the first database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from tickertape.base.errors import BadOption, BadQuery

if TYPE_CHECKING:
    import pyarrow as pa

INSTALL: Final = "pip install 'tickertape[sql]'"

_CLOSED: Final[dict[str, str | bool | int | float | list[str]]] = {
    "enable_external_access": False,  # files, network, ATTACH, COPY, extensions, Python variables
    "temp_directory": "",  # the default is .tmp in the working directory
}
_KIND: Final = re.compile(r"\A[A-Z][A-Za-z ]* Error: ")
"""Name of the kind of an error, before the text of DuckDB."""
_PLACE: Final = re.compile(r"^LINE \d+: ", re.MULTILINE)
"""Start of the excerpt in the text of DuckDB."""


class Database:
    """A database of registered Arrow tables. It is a context manager that closes itself.

    `memory_bytes` limits the memory of DuckDB, without the registered tables. Raises `BadOption` if duckdb is
    not installed.
    """

    def __init__(self, memory_bytes: int) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise BadOption(f"Cannot run SQL: it needs DuckDB ({error}). Run: {INSTALL}") from error
        self._duckdb = duckdb
        config = {**_CLOSED, "memory_limit": f"{memory_bytes}B"}
        with self._errors():
            self._connection = duckdb.connect(":memory:", config=config)
            for setting in ("TimeZone = 'UTC'", "lock_configuration = true"):
                self._connection.execute(f"set {setting}").fetchall()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    def value(self, sql: str, argument: str) -> Any:
        """Return the only value of the statement `sql`, which has one parameter."""
        with self._errors():
            return self._connection.execute(sql, [argument]).fetchall()[0][0]

    def register(self, name: str, table: pa.Table) -> None:
        """Make `table` available as `name`, without a copy."""
        with self._errors():
            self._connection.register(name, table)

    def run(self, sql: str, cure: str) -> pa.Table:
        """Return the result of a SELECT. Raises `BadQuery`, which ends with `cure`, for errors of DuckDB."""
        with self._errors(cure):
            try:
                relation = self._connection.sql(sql)
            except self._duckdb.Error:
                self._connection.execute(sql)  # fails too, and only this error has the place in the statement
                raise
            return relation.to_arrow_table()

    def interrupt(self) -> None:
        """End a running statement from another thread."""
        self._connection.interrupt()

    @contextmanager
    def _errors(self, cure: str = "Correct the statement.") -> Iterator[None]:
        """Raise `BadQuery` for errors of DuckDB."""
        try:
            yield
        except self._duckdb.OutOfMemoryException as error:
            cause = _KIND.sub("", str(error)).partition("\n")[0].rstrip(".")
            raise BadQuery(f"Cannot run SQL: {cause}. Use a larger memory_limit, or fewer rows.") from error
        except self._duckdb.Error as error:
            raise BadQuery(_error_text(error, cure)) from error


def _error_text(error: Exception, cure: str) -> str:
    """Return the text of DuckDB in one line with `cure`, and its excerpt and caret if it has them."""
    text = _KIND.sub("", str(error))
    place = _PLACE.search(text)
    cause = " ".join(text[: place.start() if place else None].split()).rstrip(".!")
    refused = f"Cannot run SQL: {cause}. {cure}"
    if place is None:
        return refused
    excerpt, _, carets = text[place.end() :].partition("\n")
    column = carets.find("^") - (place.end() - place.start())
    return refused if column < 0 else f"{refused}\n{excerpt}\n{' ' * column}^"


def marked(text: str, sql: str, position: str) -> str:
    """Return `text`, and the line of `sql` at the character `position` with a caret."""
    if not position.isdecimal() or int(position) > len(sql):
        return text
    start = sql.rfind("\n", 0, int(position)) + 1
    return f"{text}\n{sql[start:].partition(chr(10))[0]}\n{' ' * (int(position) - start)}^"
