"""Owns the blocking client: the public calls of `tickertape.Client` that publish and read, and their waiting.

Must never decide what the protocol says (`core.py`), nor carry out what it asks for (`thread_driver.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from threading import get_ident

import msgspec

from tickertape.base.errors import Disconnected, TickertapeError, TimedOut
from tickertape.client.api.command import Command, naming
from tickertape.client.api.frontend import FailedWriteHandler
from tickertape.client.api.read_calls import ReadCalls
from tickertape.client.api.streams import NO_REQUEST
from tickertape.client.blocking.driver_steps import QueueSteps
from tickertape.client.blocking.streams import HandledPart, HandledStream, MessageStream, push_all
from tickertape.client.blocking.transactions import TransactionCalls
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
from tickertape.client.publishing.send_buffer import NOBODY
from tickertape.payload.bodies import encode
from tickertape.security.contexts import TLS
from tickertape.wire.commands import Resolve, Resolved


class Client(TransactionCalls, QueueSteps, ReadCalls[MessageStream, tuple[str, int, int], Resolved, None]):
    """A connection to one server that blocks its callers; any number of threads may use it.

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
    `connect`: connect and log on at once (default True).

    It does not reconnect by itself: call `connect` again, from the disconnect handler for instance. As a
    context manager it closes itself. A forked child cannot use it: every call but `close` raises `Forked`.
    Raises `BadName`, `BadOption`, and what `connect` raises.
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
        connect: bool = True,
    ) -> None:
        super().__init__(name, uri, user, password_of(password, token), timeout, credentials_of(tls, token))
        self._begin_settling()
        if bookmark_store is not None:
            self.set_bookmark_store(bookmark_store)
        if publish_store is not None:
            self._core.set_store(publish_store, now())
        del uri, password, token  # not to be in a traceback that shows local variables
        if connect:
            self.connect()

    # -- publishing -------------------------------------------------------------------------------------

    def publish(
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
        recorded. It never waits for the network unless a bound is reached, and then as long as `timeout`
        (seconds or text); through a lost connection too when there is a disconnect handler, which may connect
        again, and a `timeout`.
        Raises `BadTopic`, `BadMessage`, `MessageTooLarge`, `Disconnected` (without a publish store, or with
        a full one), `StoreFull`, `TimedOut`, `Closed`, `PublisherTakenOver`; the message is then not
        published.
        """
        body = data if type(data) is bytes else encode(data)
        if (
            expiration is not None
            or correlation_id is not None
            or sow_key is not None
            or timeout is not DEFAULT
        ):
            extra = extras(expiration, correlation_id, sow_key)
            return self._publish_when_room(self._seconds(timeout), self._publish, topic, body, *extra)
        publishing = self._publishing
        run = publishing.run
        if len(body) <= run.body_bytes_max and topic == run.topic and (owner := run.owner) == get_ident():
            # A signal handler that publishes here must not append too: nobody's run sends it the long way,
            # which closes the run. So `index` is where this body comes to lie, whenever a handler runs.
            run.owner = NOBODY
            bodies = run.bodies
            index = len(bodies)
            if index < run.count_max:
                bodies.append(body)
                run.owner = owner
                if publishing.run is run:
                    base = run.base
                    return None if base is None else base + index
                return self._publish_when_room(self._timeout, publishing.publish_again, run, index, body)
            run.owner = owner
        kept = publishing.kept
        if kept is not None and topic == kept.topic and not self._owns_lock():
            try:
                self._lock.acquire()
                sequence = kept.publish(body)
                self._lock.release()
            except BaseException as error:
                self._give_back(self._link, refused=isinstance(error, TickertapeError))
                raise
            if sequence is not None:
                return sequence
        return self._publish_when_room(self._timeout, self._publish, topic, body, 0, "", "", get_ident())

    def publish_batch(
        self, topic: str, messages: Iterable[object], *, timeout: Timeout = DEFAULT
    ) -> int | None:
        """Publish many messages, each as `publish` does, in batches; returns the sequence of the last, or
        None.

        `timeout`: how long it waits at a time when there is no room, in seconds or text. Raises what
        `publish` raises; messages before the one that raised may have been published.
        """
        return self._publish_chunks(
            topic, chunks_of_messages(topic, messages, lambda: self._publishing.chunk_bytes), timeout
        )

    def publish_arrow(
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
        return self._publish_chunks(
            topic, chunks_from_arrow(topic, table, column, lambda: self._publishing.chunk_bytes), timeout
        )

    def unpersisted_count(self) -> int:
        """Messages of the publish store that are not known to be persisted; 0 without a store."""
        with self._lock:
            return self._publishing.unpersisted_count()

    def set_publish_store(self, store: PublishStore | None) -> None:
        """Use `store` from now on. Raises `UsageError` while the present one still holds messages."""
        with self._lock:
            self._core.set_store(store, now())
            link, later = self._link, self._sends()
        self._carry_out(link, later)

    @property
    def bookmark_store(self) -> BookmarkStore | None:
        """What remembers bookmark subscriptions."""
        return self._core.subscriptions.store

    def set_bookmark_store(self, store: BookmarkStore | None) -> None:
        """Use `store` from now on. Raises `UsageError` while a bookmark subscription runs, and for a store
        whose adapter works through this client; `StoreOfAnother` for a file with the positions of another
        client name."""
        if store is not None:
            refuse_own_client(store, self)
            bind(store, self.name)
        with self._lock:
            self._core.subscriptions.use_store(store)

    def set_failed_write_handler(self, handler: FailedWriteHandler | None) -> None:
        """Call `handler(error, batch)` for what the server refused; `batch` is None without a publish store.

        It runs on the receive thread. None (default): `publish_flush` raises instead.
        """
        with self._lock:
            self._take_failed_write_handler(handler)

    # -- inside -----------------------------------------------------------------------------------------

    def _publish_chunks(self, topic: str, chunks: Iterator[Chunk], timeout: Timeout) -> int | None:
        sequence: int | None = None
        seconds = self._seconds(timeout)
        for chunk in chunks:
            sequence = self._publish_when_room(seconds, self._publishing.publish_whole, topic, *chunk)
        return sequence

    def _open(
        self,
        request: SubscribeRequest,
        timeout: Timeout,
        on_message: Handler | None,
        *,
        limited: bool = False,
    ) -> MessageStream:
        request = msgspec.structs.replace(request, handled=on_message is not None)
        sub_id = request.context.sub_id
        seconds = self._timeout
        if on_message is None:
            stream = MessageStream(request, self, limited=limited, client_seconds=seconds)
        else:
            stream = HandledStream(
                request, self, handler=on_message, handlers=self._handlers, client_seconds=seconds
            )
        try:
            self._call(
                lambda call: self._core.subscribe(call, request, stream), timeout, f"subscribe {sub_id}"
            )
        except TimedOut:
            self.leave(request)  # nobody holds the stream: it must not fill up
            raise
        return stream

    def _resolve(self, asked: Resolve, timeout: Timeout) -> tuple[str, int, int]:
        answer = self._locate(asked, timeout)
        return answer.journal, answer.start, answer.end

    def _locate(self, asked: Resolve, timeout: Timeout) -> Resolved:
        answer = self._call(lambda call: self._core.resolve(call, asked), timeout, "resolve")
        assert isinstance(answer, Resolved)
        return answer

    def _name(self, command: str, sub_ids: tuple[str, ...], timeout: Timeout) -> None:
        begin = self._naming(command)
        if self._on_receive_thread():
            self._post(lambda call: begin(call, sub_ids))
        else:
            self._call(lambda call: begin(call, sub_ids), timeout, command)

    def leave(self, request: SubscribeRequest) -> None:
        """Internal: nobody reads the stream of this subscription."""
        # It may have ended meanwhile, and a lost connection has ended it.
        with suppress(Disconnected):
            self._post(lambda _: self._core.leave(request))

    def _hand_all(self, effect: DeliverShared) -> None:
        handled: list[HandledPart] = []
        for sink, share, rows in effect.parts:
            if type(sink) is HandledStream:
                handled.append((sink, share, rows))
            else:
                sink.push(share)
        if handled:
            push_all(effect.shared.bodies(), handled, self._handlers.caught)
            takings = [(sink.request, share.cost) for sink, share, _ in handled]
            with self._lock:
                self._core.consumed_all(takings)
                link, later = self._link, self._sends()
            self._carry_out(link, later)

    def _joined(self, sinks: Sequence[object]) -> None:
        """All handlers run on the receive thread, in the order in which messages come."""

    def _execute(self, command: Command, timeout: Timeout, handler: Handler | None) -> MessageStream:
        named = naming(command, self._core.subscriptions)
        if named is not None:
            self._name(*named, timeout)
        elif command.command == "subscribe":
            request, limited = self._asked_for(command)
            return self._open(request, timeout, handler, limited=limited)
        elif command.command == "publish":
            self.publish(
                command.topic,
                command.data,
                expiration=command.expiration,
                correlation_id=command.correlation_id,
                sow_key=command.sow_key,
                timeout=timeout,
            )
        else:
            self.publish_flush(timeout, command.level or "persisted")
        over = MessageStream(NO_REQUEST, self)
        over.end("complete", None)
        return over
