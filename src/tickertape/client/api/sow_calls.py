"""Query calls of both clients: the records of a SOW topic, its messages, and SQL over records.

The blocking client returns the result, the asyncio client a coroutine with the same result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tickertape.base.errors import UsageError
from tickertape.base.text_format import wrong_type
from tickertape.client.api.driver import ClientDriver
from tickertape.client.common.handlers import Handler
from tickertape.client.common.subscribe_arguments import StartPoint
from tickertape.client.common.waiting import DEFAULT, Timeout
from tickertape.client.limits import sql_memory_bytes_default
from tickertape.client.sow.query_arguments import make_query

if TYPE_CHECKING:
    from tickertape.client.api.table_guard import TableGuard
    from tickertape.client.sql.query import SqlQuery, Types

Found = TypeVar("Found")
"""A result, or an awaitable of a result."""
Opened = TypeVar("Opened")
"""A stream, or an awaitable of a stream."""
Done = TypeVar("Done")
"""None, or an awaitable of None."""
Answer = TypeVar("Answer")
"""An Arrow table, or an awaitable of one."""


class SowCalls(ABC, Generic[Found, Opened, Done]):
    """The query calls of `Client` and `AsyncClient`. On `AsyncClient`, await each call."""

    _driver: ClientDriver

    def sow(
        self,
        topic: str,
        filter: str | None = None,
        *,
        keys: Sequence[str] | None = None,
        order_by: str | None = None,
        top_n: int | None = None,
        skip_n: int | None = None,
        batch_size: int = 0,
        bookmark: StartPoint | None = None,
        query_id: str | None = None,
        timestamp: bool = False,
        options: str | None = None,
        depth: int | str | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Found:
        """Query the records of a topic with a state of the world (SOW): the last message of each key.

        The result has the records as of one position of the log. It reflects all messages that were persisted
        before the call, and no changes after that position. The call returns when the server has chosen the
        position.

        The records of a queue are its available messages. The query consumes none of them.

        Args:
            topic: Name of a SOW topic or queue, or a pattern for all that match it: `"^positions/"`. With
                `keys`, a pattern covers SOW topics only.
            filter: Only records whose content matches this expression: `"/price > 10"`.
            keys: Only records with one of these keys (`Message.sow_key`). None (default): all.
            order_by: Fields to sort by: `"/price DESC, /symbol"`. `DESC` reverses the order, and `TEXT`
                compares all values as text. Default: the order of the messages in the log.
            top_n: Largest number of records in the result. None (default): no limit.
            skip_n: Number of records to skip at the start of the result. It requires `top_n`. Default 0.
            batch_size: Number of records per frame. 0 (default): the choice of the server.
            bookmark: Not supported in this version, which keeps no history of records.
            query_id: Id of the query, for `unsubscribe`. None (default): a generated id.
            timestamp: Show the time at which the server accepted the message of each record (default False).
            options: Options as one string, such as `"top_n=10,timestamp,select=[-/,+/price]"`. Do not pass
                an option that is also given as a keyword argument.
            depth: Flow-control credit, in bytes or text (`"2MB"`). It limits the memory for unread records.
                Default 2 MB.
            timeout: Longest wait for the position, and for each batch of records, in seconds or text. None:
                as long as the connection lasts. Default: the timeout of the client.

        Returns:
            The result. It can be read only once.

        Raises:
            BadTopic: The topic is neither a SOW topic nor a queue, or its name or pattern is invalid.
            BadFilter: The filter is invalid.
            BadOrderBy: `order_by` is invalid.
            BadOption: An argument or option is invalid, conflicts with another, or does not apply. Or `keys`
                are given for a queue.
            BadCommand: `keys` has more than 100,000 keys, or needs more than 224 KiB.
            NotBuilt: `bookmark` is given, or this version of the server does not support the query.
            QueryTooSlow: The server ended the query, because the unread results of all queries need too much
                memory.
            LimitReached: The queue messages need more than 512 MiB in the server.
            JournalCorrupt: The queue has stopped because the log is damaged.
            SubscriptionExists: `query_id` is the id of a running query or subscription.
            NotReady: The server is shutting down.
            TimedOut: No position within `timeout`.
            Disconnected: The client is not connected, or the connection was lost.
            Closed: The client is closed.
            UsageError: `keys` is empty or not a list of text. Or a blocking client was called on its receive
                thread (in a handler).

        Example:
            >>> client.publish_batch("positions", [{"id": 1, "qty": 5}, {"id": 2, "qty": 7}, {"id": 1}])
            >>> client.publish_flush()
            >>> [message.json() for message in client.sow("positions")]
            [{'id': 2, 'qty': 7}, {'id': 1}]
        """
        request = make_query(
            topic,
            self._sub_id(query_id),
            follow=False,
            filter=filter,
            keys=keys,
            order_by=order_by,
            top_n=top_n,
            skip_n=skip_n,
            batch_size=batch_size,
            bookmark=bookmark,
            timestamp=timestamp,
            options=options,
            depth=depth,
        )
        found: Found = self._driver.open_stream(request, timeout, None)
        return found

    def sow_and_subscribe(
        self,
        topic: str,
        filter: str | None = None,
        *,
        sub_id: str | None = None,
        order_by: str | None = None,
        top_n: int | None = None,
        skip_n: int | None = None,
        batch_size: int = 0,
        on_message: Handler | None = None,
        timestamp: bool = False,
        groups: bool = False,
        options: str | None = None,
        depth: int | str | None = None,
        timeout: Timeout = DEFAULT,
    ) -> Opened:
        """Query the records of a topic, then continue with its new messages, without a gap or a duplicate.

        The stream returns the records as of one position of the log (`command` is `sow`), then all matching
        messages after this position (`command` is `publish`). `MessageStream.wait_snapshot` waits for the
        records. The server keeps no messages in memory for a slow reader: it reads them from the log.

        This version does not report that a record was deleted, has expired, or no longer matches `filter`.

        A bookmark store records the messages after the result, as in `bookmark_subscribe`. At the start of
        the result, the store forgets earlier messages of `sub_id`.

        Args:
            topic: Name of a SOW topic, or a pattern for all SOW topics that match it.
            filter: Only records and messages whose content matches this expression.
            sub_id: Id of the subscription, and its name in the bookmark store. None (default): a generated
                id.
            order_by: Order of the records, as in `sow`.
            top_n: Largest number of records. It does not limit the messages after them.
            skip_n: Number of records to skip, as in `sow`.
            batch_size: Number of records per frame, as in `sow`.
            on_message: Handler for records and messages, as in `subscribe`. It also gets messages with the
                commands `group_begin` and `group_end` and an empty body, around the records. None (default):
                read the returned stream.
            timestamp: Show the time at which the server accepted each message (default False).
            groups: Whether the stream also returns messages `group_begin` and `group_end` (default False).
            options: Options as one string, as in `sow`. `"replace"` replaces the running subscription
                `sub_id`.
            depth: Flow-control credit, in bytes or text. Default 2 MB.
            timeout: Longest wait for the start of the result, in seconds or text. None: as long as the
                connection lasts. Default: the timeout of the client.

        Returns:
            The stream of records and messages.

        Raises:
            StoreError: The bookmark store failed or has no space (`BookmarkStoreFull`).

        All other errors: see `sow`.

        Example:
            >>> client.publish("positions", {"id": 1, "qty": 5})
            >>> client.publish_flush()
            >>> with client.sow_and_subscribe("positions") as stream:
            ...     client.publish("positions", {"id": 1, "qty": 6})
            ...     messages = [stream.get(timeout=5) for _ in range(2)]
            >>> [(message.command, message.json()["qty"]) for message in messages]
            [('sow', 5), ('publish', 6)]
        """
        request = make_query(
            topic,
            self._sub_id(sub_id),
            follow=True,
            filter=filter,
            order_by=order_by,
            top_n=top_n,
            skip_n=skip_n,
            batch_size=batch_size,
            timestamp=timestamp,
            groups=groups,
            options=options,
            depth=depth,
        )
        opened: Opened = self._driver.open_stream(request, timeout, on_message)
        return opened

    @abstractmethod
    def _sub_id(self, sub_id: str | None) -> str:
        """Return the given id, or a generated one."""

    @abstractmethod
    def _table_guard(self) -> TableGuard[Done]:
        """Return a guard for a new table."""


def table_parts(client: SowCalls[Any, Any, Done]) -> tuple[TableGuard[Done], ClientDriver]:
    """Return a guard for a new table of a client, and its driver. Raises `UsageError`."""
    if not isinstance(client, SowCalls):
        raise UsageError(wrong_type("client", client, "a client"))
    return client._table_guard(), client._driver


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

        Each table of the statement is a SOW topic. The client queries the topics one after the other. Each
        result is as of one position of the log. The positions can differ, so a join can combine records of
        different times. Then DuckDB runs the statement in memory, without access to files, the network or
        Python variables. This prevents mistakes, but does not make the statement of an untrusted user safe.

        The columns of a table are the fields of its JSON bodies, with types inferred from all their values.
        A column of integers has the type `BIGINT`, or `DECIMAL(38)` if a value exceeds 64 bits. A column of
        integers and floats has the type `DOUBLE`. Objects are structs, and arrays are lists. A column with
        values of different kinds has the JSON text of each value. A statement can also use the columns
        `_sow_key`, `_topic`, `_bookmark`, `_timestamp` and `_correlation_id`.

        The call requires the extra `sql`: `pip install 'tickertape[sql]'`.

        Args:
            sql: One SELECT. Put quotes around the name of a topic that is not a SQL name:
                `'SELECT * FROM "positions/eu"'`.
            tables: SOW topics by table name, for tables whose names differ from their topics:
                `{"p": "positions/eu"}`. Default: the name of the table is the topic.
            types: Arrow types of columns, by table: `{"positions": {"qty": pyarrow.float64()}}`. Such a table
                has exactly these columns. Default: types are inferred, and a topic without records has no
                columns.
            memory_limit: Memory of DuckDB, in bytes or text (`"4GB"`). Memory of the records does not count.
                Default 1 GB.
            timeout: Longest wait for each batch of records, in seconds or text. The running time of DuckDB
                has no limit. Default: the timeout of the client.

        Returns:
            The result.

        Raises:
            BadQuery: The statement is not one SELECT, has a mistake, or needs more than `memory_limit`. Or a
                topic has more than 1,024 fields, or values that do not have the types of `types`.
            BadTopic: A table is not a SOW topic.
            BadMessage: The body of a record is not JSON.
            BadOption: DuckDB is not installed, or an argument is invalid, such as a table that is not in the
                statement.

        All other errors: see `sow`.

        Example:
            >>> client.publish_batch("positions", [{"id": 1, "qty": 5}, {"id": 2, "qty": 7}])
            >>> client.publish_flush()
            >>> client.query("SELECT count(*) AS n, avg(qty) AS mean FROM positions").to_pylist()
            [{'n': 2, 'mean': 6.0}]
        """
        from tickertape.client.sql.query import SqlQuery  # only this call needs it

        return self._run_query(partial(SqlQuery, sql, tables, types, memory_limit), timeout)

    @abstractmethod
    def _run_query(self, make: Callable[[], SqlQuery], timeout: Timeout) -> Answer:
        """Make the query, fetch the records of all its topics, and run it."""
