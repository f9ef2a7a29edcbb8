"""Owns the asyncio client: the public calls of `tickertape.AsyncClient` that publish and read.

Must never decide what the protocol says (`core.py`), nor carry out what it asks for (`loop_driver.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from tickertape.base.errors import Closed, Disconnected, StoreFull, TickertapeError, TimedOut
from tickertape.base.units import within
from tickertape.client.aio.handler_order import HandlerOrder
from tickertape.client.aio.streams import AsyncHandledStream, AsyncMessageStream
from tickertape.client.aio.transactions import AsyncTransactionCalls
from tickertape.client.api.command import Command, naming
from tickertape.client.api.frontend import FailedWriteHandler
from tickertape.client.api.queue_calls import QueueCalls
from tickertape.client.api.read_calls import ReadCalls
from tickertape.client.api.streams import NO_REQUEST
from tickertape.client.bookmark_store.protocol import BookmarkStore, bind, refuse_own_client
from tickertape.client.common.credentials import credentials_of, password_of
from tickertape.client.common.effects import DeliverShared
from tickertape.client.common.handlers import Handler
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.subscribe_arguments import extras
from tickertape.client.common.waiting import DEFAULT, Timeout, now
from tickertape.client.limits import client_timeout_seconds
from tickertape.client.publish_store.protocol import PublishStore
from tickertape.client.publishing.bulk import Chunk, chunks_from_arrow, chunks_of_messages
from tickertape.payload.bodies import encode
from tickertape.security.contexts import TLS
from tickertape.wire.commands import Resolve, Resolved

EVERY_TASK: Final = 1
"""Owner of the runs of an asyncio client: all that happens there happens on one thread."""


class AsyncClient(
    AsyncTransactionCalls,
    ReadCalls[
        Coroutine[Any, Any, AsyncMessageStream],
        Coroutine[Any, Any, tuple[str, int, int]],
        Coroutine[Any, Any, Resolved],
        Coroutine[Any, Any, None],
    ],
    QueueCalls[Coroutine[Any, Any, None]],
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

    def __init__(
        self,
        name: str,
        uri: str,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        tls: TLS | None = None,
        publish_store: PublishStore | None = None,
        bookmark_store: BookmarkStore | None = None,
        timeout: float | str | None = client_timeout_seconds,
    ) -> None:
        super().__init__(name, uri, user, password_of(password, token), timeout, credentials_of(tls, token))
        self._begin_settling()
        if bookmark_store is not None:
            self.set_bookmark_store(bookmark_store)
        if publish_store is not None:
            self._core.set_store(publish_store, now())
        self._order = HandlerOrder()

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
        if self._turn_due:
            await self._give_turn(self._seconds(timeout))
        if (
            expiration is not None
            or correlation_id is not None
            or sow_key is not None
            or timeout is not DEFAULT
        ):
            extra = extras(expiration, correlation_id, sow_key)
            publish = partial(self._publish, topic, body, *extra)
            return await self._publish_when_room(publish, self._seconds(timeout))
        # Nobody else runs meanwhile, so what is open stays open: no lock, no looking again.
        run = self._publishing.run
        bodies = run.bodies
        index = len(bodies)
        if index < run.count_max and len(body) <= run.body_bytes_max and topic == run.topic:
            bodies.append(body)
            return run.base if run.base is None else run.base + index
        try:
            sequence = self._publish(topic, body, owner=EVERY_TASK)
        except StoreFull:
            return await self._publish_when_room(partial(self._publish, topic, body), self._timeout)
        if self._waiting:
            self._drive()
            self._turn_due = True
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

    def unpersisted_count(self) -> int:
        """Messages of the publish store that are not known to be persisted; 0 without a store."""
        self._check_not_forked()
        return self._publishing.unpersisted_count()

    def set_publish_store(self, store: PublishStore | None) -> None:
        """Use `store` from now on. Raises `UsageError` while the present one still holds messages."""
        self._check_not_forked()
        self._core.set_store(store, now())
        self._drive()

    @property
    def bookmark_store(self) -> BookmarkStore | None:
        """What remembers bookmark subscriptions."""
        return self._core.subscriptions.store

    def set_bookmark_store(self, store: BookmarkStore | None) -> None:
        """Use `store` from now on. Raises `UsageError` while a bookmark subscription runs, and for a store
        whose adapter works through this client; `StoreOfAnother` for a file with the positions of another
        client name."""
        self._check_not_forked()
        if store is not None:
            refuse_own_client(store, self)
            bind(store, self.name)
        self._core.subscriptions.use_store(store)

    def set_failed_write_handler(self, handler: FailedWriteHandler | None) -> None:
        """Call `handler(error, batch)` for what the server refused; `batch` is None without a publish store.

        A function or a coroutine function; it runs in a task. None (default): `publish_flush` raises instead.
        """
        self._take_failed_write_handler(handler)

    # -- inside -----------------------------------------------------------------------------------------

    async def _give_turn(self, seconds: float | None) -> None:
        """Let the loop send and receive, and wait while the server takes no more."""
        self._check_usable()
        self._turn_due = False
        link = self._link
        if link is None or not link.congested:
            await asyncio.sleep(0)
        elif not await link.wait_room(seconds):
            self._turn_due = True
            raise TimedOut(f"the server took no more {within(seconds)}; the message was not published")

    async def _publish_chunks(self, topic: str, chunks: Iterator[Chunk], timeout: Timeout) -> int | None:
        sequence: int | None = None
        seconds = self._seconds(timeout)
        for chunk in chunks:
            await self._give_turn(seconds)
            publish = partial(self._publishing.publish_whole, topic, *chunk)
            sequence = await self._publish_when_room(publish, seconds)
        return sequence

    async def _publish_when_room(
        self, publish: Callable[[], int | None], seconds: float | None
    ) -> int | None:
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        while True:
            try:
                sequence = publish()
            except StoreFull as error:
                self._drive()
                store = self._publishing.store
                if store is None or store.when_full == "raise":
                    raise
                await self._wait_for_store(error, seconds, deadline)
            else:
                self._drive()
                self._turn_due = True
                return sequence

    async def _open(
        self,
        request: SubscribeRequest,
        timeout: Timeout,
        on_message: Handler | None,
        *,
        limited: bool = False,
    ) -> AsyncMessageStream:
        request = msgspec.structs.replace(request, handled=on_message is not None)
        sub_id = request.context.sub_id
        stream = self._stream(request, on_message, limited=limited)
        try:
            await self._call(
                lambda call: self._core.subscribe(call, request, stream), timeout, f"subscribe {sub_id}"
            )
        except BaseException as error:
            if isinstance(stream, AsyncHandledStream):
                stream.abandon()
            if isinstance(error, TimedOut | asyncio.CancelledError):
                self.leave(request)  # nobody holds the stream: it must not fill up
            raise
        if isinstance(stream, AsyncHandledStream):
            self._spawn(stream.hand_on())
        return stream

    def _stream(
        self, request: SubscribeRequest, on_message: Handler | None, *, limited: bool
    ) -> AsyncMessageStream:
        seconds = self._timeout
        if on_message is None:
            return AsyncMessageStream(request, self, limited=limited, client_seconds=seconds)
        return AsyncHandledStream(
            request, self, handler=on_message, handlers=self._handlers, client_seconds=seconds
        )

    async def _settle_call(self, step: Callable[[], None]) -> None:
        self._settle_now(step)

    def _choose(self, step: Callable[[], None]) -> None:
        self._check_not_forked()
        step()
        self._settle_now(self._core.acks.flush)

    def _settle_now(self, step: Callable[[], None]) -> None:
        self._check_not_forked()
        loop = self._loop
        if loop is not None and not self._is_here(loop):  # without a connection too: it may be lost just now
            try:
                loop.call_soon_threadsafe(self._settle_soon, step)
            except RuntimeError as error:
                raise Disconnected("the event loop of the connection has ended") from error
            return
        try:
            step()
        finally:
            self._drive()
        self._arm_sooner()

    def _settle_soon(self, step: Callable[[], None]) -> None:
        """On the event loop: a thread said something of messages of queues."""
        try:
            self._settle_now(step)
        except TickertapeError as error:
            self._handlers.tell(error)

    async def _resolve(self, asked: Resolve, timeout: Timeout) -> tuple[str, int, int]:
        answer = await self._locate(asked, timeout)
        return answer.journal, answer.start, answer.end

    async def _locate(self, asked: Resolve, timeout: Timeout) -> Resolved:
        answer = await self._call(
            lambda call: self._core.resolve(call, asked), timeout, f"resolve {asked.topic}"
        )
        assert isinstance(answer, Resolved)
        return answer

    async def _name(self, command: str, sub_ids: tuple[str, ...], timeout: Timeout) -> None:
        begin = self._naming(command)
        await self._call(lambda call: begin(call, sub_ids), timeout, command)

    def leave(self, request: SubscribeRequest) -> None:
        """Internal: nobody reads the stream of this subscription."""
        # It may have ended meanwhile, and a lost connection has ended it.
        with suppress(Disconnected, Closed):
            self._core.leave(request)
            self._drive()

    def _hand_all(self, effect: DeliverShared) -> None:
        together = []
        for sink, share, rows in effect.parts:
            if isinstance(sink, AsyncHandledStream) and not sink.free:
                sink.push_share(share)
                together.append((sink, rows))
            else:
                sink.push(share)
        if together:
            self._order.put(together)

    def _joined(self, sinks: Sequence[object]) -> None:
        handled = [sink for sink in sinks if isinstance(sink, AsyncHandledStream) and sink.running]
        if len(handled) < 2:
            return
        if self._order.over:
            self._order = HandlerOrder()
            self._order.over = False
            self._spawn(self._order.hand_on())
        self._order.join([sink for sink in handled if sink.free])

    async def _execute(
        self, command: Command, timeout: Timeout, handler: Handler | None
    ) -> AsyncMessageStream:
        named = naming(command, self._core.subscriptions)
        if named is not None:
            await self._name(*named, timeout)
        elif command.command == "subscribe":
            request, limited = self._asked_for(command)
            return await self._open(request, timeout, handler, limited=limited)
        elif command.command == "publish":
            await self.publish(
                command.topic,
                command.data,
                expiration=command.expiration,
                correlation_id=command.correlation_id,
                sow_key=command.sow_key,
                timeout=timeout,
            )
        else:
            await self.publish_flush(timeout, command.level or "persisted")
        over = AsyncMessageStream(NO_REQUEST, self)
        over.end("complete", None)
        return over
