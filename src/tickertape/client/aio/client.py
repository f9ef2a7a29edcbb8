"""Asyncio client: the public class `tickertape.AsyncClient`, with its connection and publish calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

from tickertape.base.errors import StoreFull
from tickertape.client.aio.driver import AsyncioDriver
from tickertape.client.aio.receivers import AsyncReceiver
from tickertape.client.aio.streams import AsyncMessageStream, AsyncSowResult
from tickertape.client.aio.transactions import AsyncClientTransaction
from tickertape.client.aio.waiting import in_thread
from tickertape.client.api.command import Command
from tickertape.client.api.driver import FailedWriteHandler, Step
from tickertape.client.api.frontend import ClientFrontend, DisconnectHandler
from tickertape.client.api.queue_calls import QueueCalls
from tickertape.client.api.read_calls import ReadCalls
from tickertape.client.api.sow_calls import SowCalls, SqlCalls
from tickertape.client.api.streams import NO_REQUEST
from tickertape.client.api.transactions import TransactionCalls
from tickertape.client.common.handlers import Handler
from tickertape.client.common.subscribe_arguments import extras
from tickertape.client.common.waiting import DEFAULT, Timeout
from tickertape.client.publishing.bulk import Chunk, chunks_from_arrow, chunks_of_messages
from tickertape.client.publishing.pending_deletes import DeleteResult
from tickertape.payload.bodies import encode

if TYPE_CHECKING:
    import pyarrow as pa

    from tickertape.client.aio.table_guard import AsyncioTableGuard
    from tickertape.client.sql.query import SqlQuery

T = TypeVar("T")
Call: TypeAlias = Coroutine[Any, Any, T]
EVERY_TASK: Final = 1
"""Owner of the runs of an asyncio client, which uses one thread only."""


class AsyncClient(
    ReadCalls[Call[AsyncMessageStream], Call[None]],
    SowCalls[Call[AsyncSowResult], Call[AsyncMessageStream], Call[None]],
    QueueCalls[Call[None], Call[DeleteResult | None]],
    TransactionCalls[AsyncClientTransaction],
    SqlCalls[Call["pa.Table"]],
    ClientFrontend,
):
    """An asyncio client: one connection to one server, on the asyncio event loop or uvloop.

    It has the methods of `Client`. Await all of them, except `transaction`, `unpersisted_count` and the
    methods that set, add or remove a handler, listener, store or option. The examples of shared methods show
    the blocking `Client`. A call can be cancelled at any time: the client stays usable, and the answer to
    the cancelled call is dropped. The exception is `close`: it closes the client also when it is cancelled.

    `async with` connects the client, and closes it at the end of the block. Or await `connect` and `close`.
    The client belongs to the event loop on which it connected. It does not reconnect automatically. Await
    `connect` again, for example in the disconnect handler, or use `AsyncHAClient`. It cannot be used in a
    forked child.

    Args:
        name: The client name. It determines the publisher id. With a publish store, a name has the same id on
            every server. Without one, the id also depends on the instance name of the server.
        uri: Address of the server: `tcp://host:port`, `tls://host:port` or `unix:///path`. Credentials
            are optional: `tls://user:password@host:port`.
        user: User of the logon. Overrides the user in `uri`. A server without tokens accepts any user. The
            server refuses the logon while another user is connected with this client name.
        password: Password of the logon. Overrides the password in `uri`.
        token: Access token of the server, instead of a password. The client sends it to another machine only
            with TLS.
        tls: Certificates for a `tls://` address. None (default): the trusted CAs of the system.
        publish_store: Store that keeps messages until they are persisted. See `Client`. None (default): none.
        bookmark_store: Store that records delivered and discarded messages of bookmark subscriptions. See
            `Client`. None (default): none.
        timeout: Default timeout of all calls, in seconds or text (`"500ms"`). Default 10 seconds. None: wait
            as long as the connection lasts.

    Raises:
        BadName: The client name is invalid.
        BadOption: Another parameter is invalid.
        UsageError: `publish_store` or `bookmark_store` is not a store.
        StoreOwnerMismatch: A store belongs to another client name.
        StoreError: A store failed.
        Closed: A store is closed.
        Forked: Raised in a forked child by all calls that need the connection or a store, except `close`.

    Example:
        >>> async with tt.AsyncClient("desk", uri) as client:
        ...     await client.publish("orders", {"id": 1, "price": 12.5})
        ...     await client.publish_flush()
        ...     async for message in await client.replay("orders"):
        ...         print(message.json())
        {'id': 1, 'price': 12.5}
    """

    _driver: AsyncioDriver
    _driver_type: type[Any] = AsyncioDriver
    _transaction_type = AsyncClientTransaction

    # -- connection -------------------------------------------------------------------------------------

    async def connect(self, *, timeout: Timeout = DEFAULT) -> None:
        """Connect and log on. Does nothing while the client is connected. See `Client.connect`.

        Args:
            timeout: Longest wait in seconds or text (`"500ms"`). None: no timeout. Default: the timeout of
                the client.

        Raises:
            UsageError: The client is connected on another event loop, which is still running.

        All other errors: see `Client.connect`.

        Example:
            >>> client = tt.AsyncClient("desk", uri)
            >>> await client.connect(timeout=5)
            >>> client.connected
            True
        """
        await self._driver.connect(timeout)

    async def close(self, *, timeout: Timeout = DEFAULT) -> None:
        """Send all published messages, wait until the server has received them, and disconnect.

        All later calls that need the server raise `Closed`. After the start of `close`, concurrent calls of
        `publish` also raise `Closed`. A cancelled `close` closes the client too. Errors during the close,
        and the number of messages without an answer, go to the exception listener, not to the caller. A
        publish store keeps messages that are not persisted. In a forked child the call does nothing.

        Args:
            timeout: Longest wait in seconds or text. `close` cancels handlers that run longer. None: no
                timeout. Default: the timeout of the client.

        Raises:
            BadOption: The timeout is invalid. The client stays open.

        Example:
            >>> await client.publish("orders", {"id": 1})
            >>> await client.close()
            >>> client.connected
            False
        """
        await self._driver.close(timeout)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def set_disconnect_handler(self, handler: DisconnectHandler | None) -> None:
        """Set the handler for lost connections. `close` does not call it.

        Args:
            handler: A function or coroutine function, called as `handler(client)` once per lost connection,
                in its own task, one call at a time. The client awaits its result. The handler may call
                `connect`. If another connection took over the client name, `connect` raises `NameInUse` in
                the handler, because the two clients would otherwise disconnect each other for ever. None:
                no handler (the default of a client).

        Example:
            >>> client.set_disconnect_handler(lambda client: client.connect())
        """
        self._driver.set_disconnect_handler(None if handler is None else partial(handler, self))

    def set_failed_write_handler(self, handler: FailedWriteHandler | None) -> None:
        """Set the handler for messages that the server rejected.

        Args:
            handler: A function or coroutine function, called as `handler(error, batch)` in a task. `batch` is
                a `MessageBatch` of the rejected messages, or None without a publish store. A handler of None
                (the default of a client) means that `publish_flush` raises `PublishRejected`.

        Example:
            >>> rejected = []
            >>> client.set_failed_write_handler(lambda error, batch: rejected.append(error))
        """
        self._driver.set_failed_write_handler(handler)

    # -- publishing -------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        data: object,
        *,
        expiration: float | str | None = None,
        correlation_id: str | None = None,
        sow_key: str | None = None,
        timeout: Timeout = DEFAULT,
    ) -> int | None:
        """Publish one message. If the call raises or is cancelled, the message is not published.

        If the previous publish sent a frame, the call first yields to other tasks. It waits only if the
        publish store or the send buffer is full. If the connection is lost while the publish store is full,
        the call raises `Disconnected`. An HA client waits instead. A client with a disconnect handler waits
        too, if the call has a timeout.

        Args:
            topic: Name of the topic or queue.
            data: The body: bytes unchanged, str as UTF-8, any other object as JSON.
            expiration: Lifetime of the message in a queue, or of its record in a SOW topic whose
                configuration has `expiration`, in seconds or text (`"5m"`). Other topics ignore it. 0: the
                message does not expire. None (default): as the queue or SOW topic defines.
            correlation_id: Text that subscribers receive with the message.
            sow_key: Message key that subscribers receive with the message. Required for a SOW topic with
                explicit keys.
            timeout: Longest wait for free space, in seconds or text. None: as long as the connection lasts.
                Default: the timeout of the client.

        Returns:
            The sequence number of the message. None without a publish store, and for a topic that is not
            persistent.

        Raises:
            BadMessage: `data`, `correlation_id` or `sow_key` cannot be encoded.

        All other errors: see `Client.publish`.

        Example:
            >>> await client.publish("orders", {"id": 1}, sow_key="1", expiration="5m")
            >>> await client.publish_flush()
        """
        body = data if type(data) is bytes else encode(data)
        driver = self._driver
        if driver.turn_due:
            await driver.give_turn(driver.seconds(timeout))
        if (
            expiration is not None
            or correlation_id is not None
            or sow_key is not None
            or timeout is not DEFAULT
        ):
            extra = extras(expiration, correlation_id, sow_key)
            publish = partial(driver.publish, topic, body, *extra)
            return await driver.publish_when_room(publish, driver.seconds(timeout))
        # No other task runs here, so the run stays open: no lock, no second check.
        run = self._publishing.run
        bodies = run.bodies
        index = len(bodies)
        if index < run.count_max and len(body) <= run.body_bytes_max and topic == run.topic:
            bodies.append(body)
            return run.base if run.base is None else run.base + index
        try:
            sequence = driver.publish(topic, body, owner=EVERY_TASK)
        except StoreFull:
            return await driver.publish_when_room(partial(driver.publish, topic, body), driver.timeout)
        if driver.effects:
            driver.drive_turn()
        return sequence

    async def delta_publish(
        self,
        topic: str,
        data: object,
        *,
        expiration: float | str | None = None,
        correlation_id: str | None = None,
        sow_key: str | None = None,
        timeout: Timeout = DEFAULT,
    ) -> int | None:
        """Publish one message. The server merges its fields into the record with the same key.

        The message must have the key of the record: the key fields in the body, or `sow_key` on a SOW topic
        with explicit keys. Objects are merged by name at every depth, and all other values, arrays too, are
        replaced. A delta cannot remove a field. The server merges a delta only once, also if the client
        resends it. It stores and delivers the merged message.

        The call acts as `publish` in three cases: the key has no record, the topic is not a SOW topic, or the
        message type of the topic does not support deltas. The server rejects the delta if the merged message
        is too large, and reports it like a rejected publish (see `set_failed_write_handler`).

        Args:
            topic: Name of the SOW topic.
            data: The fields to change, given as in `publish`.
            expiration: As in `publish`. The lifetime of the record starts again.
            correlation_id: As in `publish`.
            sow_key: Key of the record, for a SOW topic with explicit keys.
            timeout: As in `publish`.

        Returns:
            The sequence number of the message, as in `publish`.

        All errors: see `Client.publish`.

        Example:
            >>> await client.publish("positions", {"id": 1, "qty": 5, "price": 12.5})
            >>> await client.delta_publish("positions", {"id": 1, "qty": 6})
            >>> await client.publish_flush()
            >>> [record.json() async for record in await client.sow("positions")][0]
            {'id': 1, 'qty': 6, 'price': 12.5}
        """
        body = data if type(data) is bytes else encode(data)
        driver = self._driver
        if driver.turn_due:
            await driver.give_turn(driver.seconds(timeout))
        extra = extras(expiration, correlation_id, sow_key)
        publish = partial(driver.publish, topic, body, *extra, delta=True)
        return await driver.publish_when_room(publish, driver.seconds(timeout))

    async def publish_batch(
        self, topic: str, messages: Iterable[object], *, timeout: Timeout = DEFAULT
    ) -> int | None:
        """Publish many messages in batches. See `Client.publish_batch`.

        If the call raises or is cancelled, some of the messages may be published.

        Args:
            topic: Name of the topic or queue.
            messages: The bodies, each as `data` of `publish`.
            timeout: Longest single wait for free space in the publish store or the send buffer, in seconds or
                text. None: as long as the connection lasts. Default: the timeout of the client.

        Returns:
            The sequence number of the last message. None if `messages` is empty, and whenever `publish`
            returns None.

        Raises:
            UsageError: `messages` is not iterable.
            BadMessage: One of the messages cannot be encoded.

        All other errors: see `Client.publish`.

        Example:
            >>> await client.publish_batch("orders", [{"id": number} for number in range(1000)])
            >>> await client.publish_flush()
        """
        return await self._publish_chunks(
            topic, chunks_of_messages(topic, messages, lambda: self._publishing.chunk_bytes), timeout
        )

    async def publish_arrow(
        self, topic: str, table: object, *, column: str | None = None, timeout: Timeout = DEFAULT
    ) -> int | None:
        """Publish each value of an Arrow column as one message. See `Client.publish_arrow`.

        If the call raises or is cancelled, some of the messages may be published.

        Args:
            topic: Name of the topic or queue.
            table: A table, record batch, reader, array or chunked array of pyarrow, or any object with an
                Arrow stream.
            column: Name of the column with the bodies (binary or string). None (default): `data`, or the only
                column.
            timeout: Longest single wait for free space, as in `publish_batch`.

        Returns:
            The sequence number of the last message. None if `table` has no rows, and whenever `publish`
            returns None.

        Raises:
            UsageError: The column does not exist, or `table` has no Arrow data.
            BadMessage: The column has an unsupported type, nulls or invalid offsets.

        All other errors: see `Client.publish`.

        Example:
            >>> import pyarrow as pa
            >>> await client.publish_arrow("orders", pa.table({"data": ['{"id": 1}', '{"id": 2}']}))
            >>> await client.publish_flush()
        """
        return await self._publish_chunks(
            topic, chunks_from_arrow(topic, table, column, lambda: self._publishing.chunk_bytes), timeout
        )

    async def publish_flush(self, timeout: Timeout = DEFAULT, level: str = "persisted") -> None:
        """Wait until all messages sent on this connection are persisted. See `Client.publish_flush`.

        Args:
            timeout: Longest wait in seconds or text. None: as long as the connection lasts. Default: the
                timeout of the client.
            level: `"persisted"` (default): synced to the disk of the server. `"processed"`: received by the
                server.

        Raises:
            PublishRejected: The server rejected messages since the last flush, and the client has no
                failed-write handler.
            TimedOut: Not complete within `timeout`. The publish store keeps the messages that are not
                persisted.

        All other errors: see `Client.publish_flush`.

        Example:
            >>> await client.publish("orders", {"id": 1})
            >>> await client.publish_flush(timeout="5s")
        """
        await self._driver.flush(timeout, level)

    # -- inside -----------------------------------------------------------------------------------------

    async def _publish_chunks(self, topic: str, chunks: Iterator[Chunk], timeout: Timeout) -> int | None:
        sequence: int | None = None
        driver = self._driver
        seconds = driver.seconds(timeout)
        for chunk in chunks:
            await driver.give_turn(seconds)
            publish = partial(self._publishing.publish_whole, topic, *chunk)
            sequence = await driver.publish_when_room(publish, seconds)
        return sequence

    async def _settle_call(self, step: Step) -> None:
        self._driver.settle_now(step)

    async def _execute(
        self, command: Command, timeout: Timeout, handler: Handler | None
    ) -> AsyncMessageStream:
        return await super()._execute(command, timeout, handler)

    async def _over(self, done: Awaitable[object]) -> AsyncMessageStream:
        await done
        over = AsyncReceiver(NO_REQUEST, self._driver)
        over.end("complete", None)
        return AsyncMessageStream(over)

    def _table_guard(self) -> AsyncioTableGuard:
        from tickertape.client.aio.table_guard import AsyncioTableGuard  # only tables need it

        return AsyncioTableGuard(self._driver)

    async def _run_query(self, make: Callable[[], SqlQuery], timeout: Timeout) -> pa.Table:
        with await in_thread(make, lambda: None) as query:  # imports DuckDB
            for name, topic in query.topics.items():
                async with await self.sow(topic, timeout=timeout) as records:
                    table = await records.to_arrow(query.columns)
                await in_thread(partial(query.add, name, table), query.interrupt)
            return await in_thread(query.run, query.interrupt)
