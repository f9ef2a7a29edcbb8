"""Table: a read-only dict that follows the records of a topic. Base of the tables of both clients.

A refresh replaces the subscription, so its result comes like the one of a new connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import (
    Coroutine,
    Generator,
    ItemsView,
    Iterator,
    KeysView,
    Mapping,
    ValuesView,
)
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, TypeAlias

import msgspec

from tickertape.base.errors import (
    BadOption,
    BadTopic,
    Disconnected,
    NotReady,
    StreamEnded,
    SubscriptionExists,
    TickertapeError,
    TimedOut,
    UsageError,
)
from tickertape.base.units import within
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.api.sow_calls import SowCalls, table_parts
from tickertape.client.api.table_guard import Done, SendQuery, TableGuard, TableSteps, WaitUntil
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.effects import Waiter
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.waiting import DEFAULT, Timeout, seconds_of
from tickertape.client.limits import table_records_default
from tickertape.client.sow.query_arguments import make_query
from tickertape.client.sow.table import TableKey, TableState

_NO_RECORDS: Final = "its records did not arrive"
"""Cause of a timeout."""


class TableFeed:
    """Sink of a table: one query, and the messages after its result. Each connection repeats the query."""

    def __init__(self, table: Table[Any], request: SubscribeRequest) -> None:
        self._table = table
        self.request = request
        self.complete = False
        """Whether it has received a complete result."""
        self._begun = False

    def ask(self, call: Waiter) -> None:
        """Send the query. Raises the errors of `ClientProtocol.subscribe`."""
        self._table._ask(self, call)

    def push(self, batch: MessageBatch) -> None:
        """Apply a delivered batch."""
        self._table._push(self, batch)

    def snapshot_begun(self, as_of: str, position: int | None) -> None:
        """Start a result."""
        del as_of, position
        self._table._begin_result(restarted=self._begun)
        self._begun = True

    def snapshot_ended(self, as_of: str, matches: int, topic_matches: int, records: int) -> None:
        """Replace the records by those of the result."""
        del matches, topic_matches
        self._table._end_result(self, as_of, records)

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """End the table, unless a refresh replaces this feed."""
        self._table._end_feed(self, reason, error)

    def started(self, after: str, found: bool) -> None:
        """Do nothing: the subscription has no start point."""

    def caught_up(self) -> None:
        """Do nothing: `snapshot_ended` precedes it."""

    def noticed(self, bookmark: str) -> None:
        """Do nothing: the table never continues from a bookmark."""

    def again(self) -> None:
        """Do nothing: messages are applied at once."""


Awaited: TypeAlias = Coroutine[Any, Any, None]
"""The calls of the table of an asyncio client."""


class Table(Mapping[TableKey, Message], Generic[Done]):
    """A read-only dict that follows a SOW topic: the key of each record, and its last message.

    `tt.Table(client, topic)` queries all records, and then applies each new message. The key is the
    `sow_key` of the message, or the tuple of topic and `sow_key` if `topic` is a pattern.

    The table of a blocking client has its records when the call returns. Any number of threads may read it.
    The table of an asyncio client has its records after `async with` or `await`, and belongs to the event
    loop of the client. Await `wait`, `wait_snapshot`, `refresh` and `close` there. The examples show the
    blocking table. A table is a context manager that closes itself.

    A table is never partly filled: a complete result replaces all records in one step. After a reconnect, an
    HA client repeats the query, so records that were removed during the outage are not in the new result.
    Until this result is complete, the table keeps the earlier records.

    **This version does not report removed records at once.** A record that was deleted, has expired or no
    longer matches `filter` remains until the next `refresh` or reconnect. Later versions will remove it at
    once.

    The table holds all records in memory, and during a refresh or reconnect also the records of the new
    result. If the subscription ends with an error, all reads and waits raise this error.

    Args:
        client: The client, which must be connected. Only an HA client continues after a lost connection.
        topic: Name of a SOW topic, or a pattern for all SOW topics whose names match it: `"^positions"`.
        filter: Only records and messages whose content matches this expression: `"/qty > 0"`.
        max_records: Largest number of records, 1 or more. Above it the table ends with `LimitReached`.
            Default 1,000,000.
        timestamp: Show the time at which the server accepted each message (default False).
        timeout: Longest wait for all records, in seconds or text (`"30s"`). None: as long as the connection
            lasts. Default: the timeout of the client.

    Raises:
        BadTopic: The topic has no SOW, no SOW topic matches the pattern, or the name or pattern is invalid.
        BadFilter: The filter is invalid.
        BadOption: `max_records` or `timeout` is invalid.
        LimitReached: The topic has more than `max_records` matching records.
        TimedOut: The records did not arrive within `timeout`.
        Disconnected: The client is not connected, or the connection was lost.
        Closed: The client is closed.
        UsageError: `client` is not a client. Or a blocking client was called on its receive thread (in a
            handler).
        Forked: Raised in a forked child process by all calls except `close`.

    All other errors: see `Client.sow_and_subscribe`. With an asyncio client, `async with` and `await` raise
    the errors of the server.

    Example:
        >>> client.publish_batch("positions", [{"id": 1, "qty": 5}, {"id": 2, "qty": 7}])
        >>> client.publish_flush()
        >>> with tt.Table(client, "positions", "/qty > 0") as table:
        ...     first = table.changed()
        ...     client.publish("positions", {"id": 1, "qty": 6})
        ...     table.wait(timeout=5)
        ...     sorted(message.json()["qty"] for message in table.values())
        [6, 7]
    """

    def __init__(
        self,
        client: SowCalls[Any, Any, Done],
        topic: str,
        filter: str | None = None,
        *,
        max_records: int = table_records_default,
        timestamp: bool = False,
        timeout: Timeout = DEFAULT,
    ) -> None:
        guard, self._driver = table_parts(client)
        if type(max_records) is not int or max_records < 1:
            raise BadOption(f"Invalid max_records {max_records!r}. Use a number of records, 1 or more.")
        request = make_query(
            topic, self._driver.new_sub_id(), follow=True, renewed=True, filter=filter, timestamp=timestamp
        )
        self._guard: TableGuard[Done] = guard
        self._topic, self._state = topic, TableState(topic, max_records)
        self._feed = TableFeed(self, msgspec.structs.replace(request, handled=True))
        self._successors: deque[TableFeed] = deque()
        """The feeds of refreshes, in order. The first one is next when the current feed has ended."""
        self._timeout = timeout
        self._asked = False
        forks.register(self, type(self)._refuse)
        if guard.opens_at_once:
            self._open()

    def __repr__(self) -> str:
        state = self._state
        end = ", closed" if state.closed else "" if state.error is None else ", ended"
        return f"<Table of {self._topic!r}, {len(state.by_key):,} records{end}>"

    # Tables compare by identity, like messages.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    # -- reads ------------------------------------------------------------------------------------------

    def __getitem__(self, key: TableKey) -> Message:
        return self._by_key[key]

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def __iter__(self) -> Iterator[TableKey]:
        return iter(self.copy())

    def keys(self) -> KeysView[TableKey]:
        """Return a snapshot of all keys.

        Example:
            >>> with tt.Table(client, "positions") as table:
            ...     list(table.keys())
            []
        """
        return self.copy().keys()

    def values(self) -> ValuesView[Message]:
        """Return a snapshot of all messages.

        Example:
            >>> client.publish("positions", {"id": 1, "qty": 5})
            >>> client.publish_flush()
            >>> with tt.Table(client, "positions") as table:
            ...     [message.json()["qty"] for message in table.values()]
            [5]
        """
        return self.copy().values()

    def items(self) -> ItemsView[TableKey, Message]:
        """Return a snapshot of all keys and messages.

        Example:
            >>> client.publish("positions", {"id": 1, "qty": 5})
            >>> client.publish_flush()
            >>> with tt.Table(client, "positions") as table:
            ...     [(key == message.sow_key, message.json()) for key, message in table.items()]
            [(True, {'id': 1, 'qty': 5})]
        """
        return self.copy().items()

    def copy(self) -> dict[TableKey, Message]:
        """Return a snapshot of the records, as a dict.

        Raises:
            Disconnected: The connection was lost, and the client does not reconnect. Any other error that
                ended the table is raised too, here and by all other reads.
            StreamEnded: `unsubscribe` of the client ended the subscription. After `close` of the table,
                `copy` still returns its last records.

        Example:
            >>> table = tt.Table(client, "positions")
            >>> table.copy()
            {}
        """
        return self._guard.locked(self._copied)

    def changed(self) -> set[TableKey]:
        """Return the keys whose records were added, updated or removed since the last call.

        The first call returns all keys. A record that was added and removed between two calls is not
        reported.

        All errors: see `copy`.

        Example:
            >>> client.publish("positions", {"id": 1})
            >>> client.publish_flush()
            >>> with tt.Table(client, "positions") as table:
            ...     len(table.changed()), len(table.changed())
            (1, 0)
        """
        return self._guard.locked(self._take_changed)

    @property
    def as_of(self) -> str | None:
        """Bookmark of the newest message in the log, of any topic, at the time of the last complete result.

        The result has the records as they were right after this message. The table also has all later
        changes of its records. EPOCH if the log had no message. None before the first result is complete.
        """
        return self._state.as_of

    @property
    def restarts(self) -> int:
        """Number of times that an HA client repeated the query after a reconnect."""
        return self._state.restarts

    # -- calls that wait --------------------------------------------------------------------------------

    def wait(self, timeout: float | str | None = None) -> Done:
        """Wait until records have changed since the last call of `changed`. Before any call of it: since
        the first result.

        Args:
            timeout: Longest wait in seconds or text (`"500ms"`). None (default): no timeout.

        Raises:
            TimedOut: No change within `timeout`. The table remains usable.
            StreamEnded: The table is closed, or its subscription was ended.
            Disconnected: The connection was lost, and the client does not reconnect. Any other error that
                ended the table is raised too.
            BadOption: The timeout is invalid.
            UsageError: The call is on the receive thread (in a handler).

        Example:
            >>> with tt.Table(client, "positions") as table:
            ...     client.publish("positions", {"id": 1, "qty": 5})
            ...     table.wait(timeout=5)
            ...     len(table)
            1
        """
        return self._perform(self._changing(), seconds_of(timeout), "no record changed")

    def wait_snapshot(self, timeout: Timeout = DEFAULT) -> Done:
        """Wait until the result of the query is complete, for example after a reconnect.

        Args:
            timeout: Longest wait in seconds or text. None: no timeout. Default: the timeout of the client.

        Raises:
            TimedOut: The result is not complete within `timeout`.

        All other errors: see `wait`.

        Example:
            >>> with tt.Table(client, "positions") as table:
            ...     table.wait_snapshot()
        """
        return self._perform(self._completing(), self._driver.seconds(timeout), _NO_RECORDS)

    def refresh(self, timeout: Timeout = DEFAULT) -> Done:
        """Query the records again, and wait for the result, which replaces all records.

        Afterwards the table has exactly the records of the new result, without deleted and expired ones.
        Until the result is complete, the table keeps the earlier records and applies no messages.

        Args:
            timeout: Longest wait in seconds or text. None: no timeout. Default: the timeout of the client.

        Raises:
            TimedOut: The result is not complete within `timeout`. The refresh continues, and replaces the
                records later.
            QueryTooSlow: The server ended the query, because the unread results of all queries need too much
                memory. This also ends the table.

        All other errors: see `wait`.

        Example:
            >>> client.publish("positions", {"id": 1, "qty": 5})
            >>> client.publish_flush()
            >>> with tt.Table(client, "positions") as table:
            ...     deleted = client.sow_delete("positions", filter="/id = 1")
            ...     table.refresh()
            ...     len(table)
            0
        """
        return self._perform(self._refreshing(), self._driver.seconds(timeout), _NO_RECORDS)

    def close(self) -> Done:
        """End the subscription. The records remain readable, and do not change. A second call has no effect.

        Example:
            >>> table = tt.Table(client, "positions")
            >>> table.close()
        """
        return self._perform(self._closing(), None, "")

    def __enter__(self: Table[None]) -> Table[None]:
        if not self._guard.opens_at_once:
            raise UsageError(
                f"Cannot use the table of {self._topic!r} with `with`: its client is an asyncio client. "
                "Use `async with`."
            )
        return self

    def __exit__(
        self: Table[None],
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __await__(self: Table[Awaited]) -> Generator[Any, None, Table[Awaited]]:
        if self._guard.opens_at_once:
            raise UsageError(
                f"Cannot await the table of {self._topic!r}: its client is a blocking client. Use `with`."
            )
        yield from self._open().__await__()
        return self

    async def __aenter__(self: Table[Awaited]) -> Table[Awaited]:
        return await self

    async def __aexit__(
        self: Table[Awaited],
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # -- inside -----------------------------------------------------------------------------------------

    def _open(self) -> Done:
        """Wait for the records. The first call sends the query."""
        asked, self._asked = self._asked, True
        steps = self._completing() if asked else self._opening()
        return self._perform(steps, self._driver.seconds(self._timeout), _NO_RECORDS)

    def _perform(self, steps: TableSteps, seconds: float | None, missing: str) -> Done:
        """Perform the steps of a call. `missing` is the cause of a `TimedOut`."""

        def late(seconds: float | None) -> TimedOut:
            return TimedOut(
                f"Cannot wait for the table of {self._topic!r}: {missing} {within(seconds)}. "
                "Pass a longer timeout."
            )

        return self._guard.perform(steps, seconds, late)

    @property
    def _by_key(self) -> dict[TableKey, Message]:
        self._check_readable()
        return self._state.by_key

    def _copied(self) -> dict[TableKey, Message]:
        return self._by_key.copy()

    def _take_changed(self) -> set[TableKey]:
        self._check_readable()
        return self._state.take_changed()

    def _check_readable(self) -> None:
        if self._state.error is not None:
            raise self._state.error
        if self._state.as_of is None:
            raise self._not_open()

    def _check_asked(self) -> None:
        if not self._asked:
            raise self._not_open()

    def _not_open(self) -> UsageError:
        return UsageError(
            f"Cannot use the table of {self._topic!r}: it is not open. Use `async with`, or await the table."
        )

    def _refuse(self) -> None:
        """Refuse every call except `close`: this process is a forked child."""
        self._state.fail(forks.forked_error())
        self._guard.refuse()

    def _leave(self) -> None:
        for feed in (*reversed(self._successors), self._feed):
            self._driver.leave(feed.request)

    def _shut(self) -> None:
        with self._guard.lock:
            self._state.close()
            self._guard.wake()
        self._leave()

    def _check(self) -> None:
        """Raise if the table is over."""
        if self._state.error is not None:
            raise self._state.error
        if self._state.closed:
            raise StreamEnded(
                f"Cannot wait for the table of {self._topic!r}: it is closed. Create a new table."
            )

    def _ended_early(self, reason: str) -> TickertapeError:
        if reason == "complete":
            return BadTopic(
                f"Cannot make a table of {self._topic!r}: no SOW topic of this server matches the pattern. "
                "Use the names of SOW topics in the pattern."
            )
        return StreamEnded(
            f"Cannot read the table of {self._topic!r}: its subscription has ended ({reason}). "
            "Create a new table."
        )

    # -- steps of calls ---------------------------------------------------------------------------------

    def _settled(self) -> bool:
        """Return whether all records are there, or the table is over."""
        return self._state.complete or self._state.over

    def _opening(self) -> TableSteps:
        """Send the query, and wait for its result."""
        try:
            yield SendQuery(self._feed.ask)
            yield from self._completing()
        except BaseException:
            self._shut()
            raise

    def _closing(self) -> TableSteps:
        """End the subscription."""
        if not self._state.over:  # in a forked child it is over
            self._shut()
        yield from ()

    def _completing(self) -> TableSteps:
        """Wait for a complete result."""
        self._check_asked()
        yield WaitUntil(self._settled)
        self._check()

    def _changing(self) -> TableSteps:
        """Wait for a changed key."""
        self._check_asked()
        yield WaitUntil(lambda: self._state.is_changed or self._state.over)
        self._check()

    def _refreshing(self) -> TableSteps:
        """Query again, and wait for the result. Results that were requested before do not count."""
        state = self._state
        accepted: TableFeed | None = None
        while accepted is None:
            yield from self._completing()
            results, others = state.results, tuple(self._successors)
            feed = TableFeed(self, _replacing(self._feed.request))
            try:
                yield SendQuery(feed.ask)
                accepted = feed
            except (SubscriptionExists, NotReady, Disconnected):
                # Another result follows, for example on the next connection of an HA client. Its position
                # may be before this call. Or the server refuses the query of another refresh.
                yield WaitUntil(partial(self._may_ask_again, results, others))
        yield WaitUntil(lambda: state.over or feed.complete)
        self._check()

    def _may_ask_again(self, results: int, others: tuple[TableFeed, ...]) -> bool:
        """Return whether a result has started or the query of another refresh was answered since then."""
        return self._state.over or self._state.results > results or tuple(self._successors) != others

    # -- input of the feeds -----------------------------------------------------------------------------

    def _ask(self, feed: TableFeed, call: Waiter) -> None:
        self._driver.core.subscribe(call, feed.request, feed)
        if feed is not self._feed:
            self._successors.append(feed)

    def _push(self, feed: TableFeed, batch: MessageBatch) -> None:
        failed = False
        with self._guard.lock:
            if not self._state.over:
                try:
                    self._state.take(batch)
                except TickertapeError as error:
                    self._state.fail(error)
                    failed = True
                self._guard.wake()
        if failed:
            self._leave()
        elif batch.cost:
            self._driver.consumed(feed.request, batch.cost)

    def _begin_result(self, *, restarted: bool) -> None:
        with self._guard.lock:
            if not self._state.over:
                self._state.begin(restarted=restarted)
                self._guard.wake()

    def _end_result(self, feed: TableFeed, as_of: str, records: int) -> None:
        with self._guard.lock:
            if not self._state.over:
                self._state.end(as_of, records)
                feed.complete = True
                self._guard.wake()

    def _end_feed(self, feed: TableFeed, reason: str, error: TickertapeError | None) -> None:
        with self._guard.lock:
            if feed in self._successors:
                self._successors.remove(feed)  # the server refused it
            elif reason == "replaced" and self._successors:
                self._feed = self._successors.popleft()
            else:
                self._state.fail(error or self._ended_early(reason))
            self._guard.wake()


def _replacing(request: SubscribeRequest) -> SubscribeRequest:
    """Return the request that replaces the subscription of a table by a new one."""
    if request.replace:
        return msgspec.structs.replace(request)
    options = f"{request.options},replace" if request.options else "replace"
    return msgspec.structs.replace(request, options=options, replace=True)
