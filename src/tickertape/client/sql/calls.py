"""Call `query` of both clients: SQL over the records of SOW topics.

The blocking client returns the result, the asyncio client a coroutine with the same result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from tickertape.client.common.waiting import DEFAULT, Timeout
from tickertape.client.limits import sql_memory_bytes_default

if TYPE_CHECKING:
    from tickertape.client.sql.query import SqlQuery, Types

Answer = TypeVar("Answer")
"""An Arrow table, or an awaitable of one."""


class SqlCalls(ABC, Generic[Answer]):
    """The call `query` of `Client` and `AsyncClient`. On `AsyncClient`, await it."""

    def query(
        self,
        sql: str,
        tables: Mapping[str, str] | None = None,
        *,
        types: Types | None = None,
        memory_limit: int | str = sql_memory_bytes_default,
        timeout: Timeout = DEFAULT,
    ) -> Answer:
        """Run a SELECT over the records of SOW topics, with DuckDB in this process.

        Each table of the statement is a SOW topic. The client queries all records of each topic as of one
        position of the log, each topic at its own. Then DuckDB runs the statement in memory, without access
        to files, to the network and to Python variables. This prevents mistakes. It does not make a statement
        of an untrusted user safe.

        The columns of a table are the fields of its JSON bodies, with types inferred from all their values.
        Integers are `BIGINT`, or `DECIMAL(38)` beyond 64 bits, and with floats `DOUBLE`. Objects are
        structs, arrays are lists, and values of different kinds are their JSON as text. A statement can
        also name `_sow_key`, `_topic`, `_bookmark` and `_timestamp`.

        It requires the extra `sql`: `pip install 'tickertape[sql]'`.

        Args:
            sql: One SELECT. Put quotes around the name of a topic that is not a SQL name:
                `'SELECT * FROM "positions/eu"'`.
            tables: SOW topic of a table, for other names: `{"p": "positions/eu"}`. Default: the topic with
                the name of the table.
            types: Arrow types of columns, by table: `{"positions": {"qty": pyarrow.float64()}}`. Such a table
                has exactly these columns. Default: types are inferred, and a topic without records has no
                columns.
            memory_limit: Memory of DuckDB, in bytes or text (`"4GB"`), without the records. Default 1 GB.
            timeout: Longest wait for each batch of records, in seconds or text. It does not limit the time of
                DuckDB. Default: the timeout of the client.

        Returns:
            The result.

        Raises:
            BadQuery: The statement is not one SELECT, has a mistake, or needs more than `memory_limit`. Or a
                topic has more than 1,024 fields, or values that do not have the types of `types`.
            BadTopic: A table is not a SOW topic.
            BadMessage: The body of a record is not JSON.
            BadOption: DuckDB is not installed, or an argument is invalid.

        All other errors: see `sow`.

        Example:
            >>> client.publish_batch("positions", [{"id": 1, "qty": 5}, {"id": 2, "qty": 7}])
            >>> client.publish_flush()
            >>> client.query("SELECT count(*) AS n, avg(qty) AS mean FROM positions").to_pylist()
            [{'n': 2, 'mean': 6.0}]
        """
        from tickertape.client.sql.query import SqlQuery  # only this call needs it

        return self._run_query(SqlQuery(sql, tables, types, memory_limit), timeout)

    @abstractmethod
    def _run_query(self, query: SqlQuery, timeout: Timeout) -> Answer:
        """Fetch the records of all topics, and run the query."""
