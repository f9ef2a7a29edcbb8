"""Asyncio client: connection and publishing calls of `tickertape.AsyncClient`; it inherits the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

from tickertape.base.errors import StoreFull
from tickertape.client.aio.driver import AsyncioDriver
from tickertape.client.aio.streams import AsyncMessageStream
from tickertape.client.aio.transactions import AsyncClientTransaction
from tickertape.client.api.command import Command
from tickertape.client.api.driver import FailedWriteHandler, Step
from tickertape.client.api.frontend import ClientFrontend, DisconnectHandler
from tickertape.client.api.queue_calls import QueueCalls
from tickertape.client.api.read_calls import ReadCalls
from tickertape.client.api.streams import NO_REQUEST
from tickertape.client.api.transactions import TransactionCalls
from tickertape.client.common.handlers import Handler
from tickertape.client.common.subscribe_arguments import extras
from tickertape.client.common.waiting import DEFAULT, Timeout
from tickertape.client.publishing.bulk import Chunk, chunks_from_arrow, chunks_of_messages
from tickertape.payload.bodies import encode
from tickertape.wire.commands import Resolve, Resolved

T = TypeVar("T")
Call: TypeAlias = Coroutine[Any, Any, T]
EVERY_TASK: Final = 1
"""Owner of the runs of an asyncio client: all that happens there happens on one thread."""


class AsyncClient(
    ReadCalls[Call[AsyncMessageStream], Call[tuple[str, int, int]], Call[Resolved], Call[None]],
    QueueCalls[Call[None]],
    TransactionCalls[AsyncClientTransaction],
    ClientFrontend,
):
    """A connection to one server for asyncio, on its own loop or on uvloop; the names are those of `Client`.

    `name`: the client name; the same name gives the same publisher id on every run and instance.
    `uri`: `tls://host:port`, `tcp://host:port` (with `user:password@` if need be) or `unix:///path`.
    `user`, `password`: the logon's; they win over those in the URI. A server without tokens checks neither:
    the user only keeps another one from taking over the client name. `token`: a token of the server, instead
    of a password; it does not go to another machine but with TLS. `tls`: certificates for a `tls://` address
    (`TLS`); None (default): those that the system trusts.
    `publish_store`: keeps what is not yet persisted (`MemoryPublishStore`); messages then carry sequences
    and are sent again on reconnection. None (default): what is in flight when a connection is lost has an
    unknown outcome.
    `bookmark_store`: remembers what bookmark subscriptions were delivered and which messages were discarded
    (`MemoryBookmarkStore`, `LoggedBookmarkStore`, `RingBookmarkStore`), for MOST_RECENT and to keep back what
    was discarded. Close it after the client.
    `timeout`: seconds or text (`"500ms"`), default 10: for every call that is not given its own; None = wait
    as long as the connection lasts.

    `async with` connects, logs on, and closes at the end; `connect` does it by hand. Calls that may wait are
    awaited. Any of them may be cancelled: the client stays usable, and the answer to an abandoned call is
    dropped. It belongs to the event loop on which it connected, and does not reconnect by itself: await
    `connect` again, from the disconnect handler for instance. A forked child cannot use it: every call but
    `close` raises `Forked`. Raises `BadName`, `BadOption`.
    """

    _driver: AsyncioDriver
    _driver_type: type[Any] = AsyncioDriver
    _transaction_type = AsyncClientTransaction

    # -- connection -------------------------------------------------------------------------------------

    async def connect(self, *, timeout: Timeout = DEFAULT) -> None:
        """Connect and log on; nothing happens when the client is connected.

        `timeout` in seconds or text, None = wait for ever. What the publish store holds and the server lacks
        is sent again. Raises `Disconnected` (nobody answers), `TimedOut`, `Closed`, and what the server
        refuses the logon with: `Refused`, `NameInUse`, `BadVersion`, ...
        """
        await self._driver.connect(timeout)

    async def close(self, *, timeout: Timeout = DEFAULT) -> None:
        """Send what was published, wait until the server has it, and disconnect. Further calls raise
        `Closed`.

        `publish` raises it from the beginning on, in other tasks too.
        `timeout` bounds the waiting, in seconds or text; handlers that still run then are cancelled, and one
        that goes on all the same is left to itself. Never raises but when it is cancelled, and then it is
        closed all the same: the exception listener is told what went wrong, and how many messages have no
        answer. A publish store keeps what is not persisted. In a forked child nothing happens.
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
        """Call `handler(client)` once for each connection that is lost, not for `close`.

        A function or a coroutine function; it runs in a task of its own, may await `connect`, and losses are
        handled one after the other. When another process took over the client name, `connect` raises
        `NameInUse` there: the two would throw each other out for ever.
        """
        self._driver.set_disconnect_handler(None if handler is None else partial(handler, self))

    def set_failed_write_handler(self, handler: FailedWriteHandler | None) -> None:
        """Call `handler(error, batch)` for what the server refused; `batch` is None without a publish store.

        A function or a coroutine function; it runs in a task. None (default): `publish_flush` raises instead.
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
        """Publish one message: bytes as they are, str as UTF-8, anything else as JSON.

        `expiration`: the message's life, in seconds or text (`"5m"`). `correlation_id`, `sow_key`: handed on.
        Returns the sequence it gave the message, or None without a publish store or where the topic is not
        recorded. It lets other tasks run after what it sent, and waits for the network only when a bound is
        reached, as long as `timeout` (seconds or text); through a lost connection too when there is a
        disconnect handler, which may connect again, and a `timeout`. Raises `BadTopic`, `BadMessage`,
        `MessageTooLarge`, `Disconnected` (without a publish store, or with a full one), `StoreFull`,
        `TimedOut`, `Closed`, `PublisherTakenOver`; when it raises, or is cancelled, the message is not
        published.
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
        # Nobody else runs meanwhile, so what is open stays open: no lock, no looking again.
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

    async def publish_batch(
        self, topic: str, messages: Iterable[object], *, timeout: Timeout = DEFAULT
    ) -> int | None:
        """Publish many messages, each as `publish` does, in batches; returns the sequence of the last, or
        None.

        `timeout`: how long it waits at a time when there is no room, in seconds or text. Raises what
        `publish` raises; messages before the one that raised may have been published.
        """
        return await self._publish_chunks(
            topic, chunks_of_messages(topic, messages, lambda: self._publishing.chunk_bytes), timeout
        )

    async def publish_arrow(
        self, topic: str, table: object, *, column: str | None = None, timeout: Timeout = DEFAULT
    ) -> int | None:
        """Publish each value of an Arrow column as a message, its bytes as they lie; returns the sequence of
        the last, or None.

        `table`: a table, record batch or reader of pyarrow, an array or chunked array, or anything that hands
        out an Arrow stream. `column`: the one with the bodies, binary or string; by default `data`, or the
        only one. Other columns are not published. `timeout` as in `publish_batch`. Raises `UsageError` where
        there is no such column, `BadMessage` for other types, for nulls and for invalid offsets, and what
        `publish` raises; messages before may have been published.
        """
        return await self._publish_chunks(
            topic, chunks_from_arrow(topic, table, column, lambda: self._publishing.chunk_bytes), timeout
        )

    async def publish_flush(self, timeout: Timeout = DEFAULT, level: str = "persisted") -> None:
        """Wait until everything sent on this connection is persisted, with or without a publish store.

        `level="processed"`: until the server has it. `timeout` in seconds or text, None = as long as the
        connection lasts. A settlement that has no room in the publish store is waited for. Raises `TimedOut`
        (the store is as it was), `Disconnected`, `Closed`, `PublisherTakenOver` (another process published
        under this name), and, unless there is a failed-write handler, `PublishRejected` when the server
        refused messages since the last flush.
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

    async def _resolve(self, asked: Resolve, timeout: Timeout) -> tuple[str, int, int]:
        answer = await self._locate(asked, timeout)
        return answer.journal, answer.start, answer.end

    async def _locate(self, asked: Resolve, timeout: Timeout) -> Resolved:
        core = self._driver.core
        answer = await self._driver.call(
            lambda call: core.resolve(call, asked), timeout, f"resolve {asked.topic}"
        )
        assert isinstance(answer, Resolved)
        return answer

    async def _execute(
        self, command: Command, timeout: Timeout, handler: Handler | None
    ) -> AsyncMessageStream:
        return await super()._execute(command, timeout, handler)

    async def _over(self, done: Awaitable[object]) -> AsyncMessageStream:
        await done
        over = AsyncMessageStream(NO_REQUEST, self._driver)
        over.end("complete", None)
        return over
