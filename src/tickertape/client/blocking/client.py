"""Blocking client: the calls of `tickertape.Client`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from threading import get_ident
from typing import Any

from tickertape.base.errors import TickertapeError
from tickertape.batch import MessageBatch
from tickertape.client.api.driver import FailedWriteHandler, Step
from tickertape.client.api.frontend import ClientFrontend, DisconnectHandler
from tickertape.client.api.queue_calls import QueueCalls
from tickertape.client.api.read_calls import ReadCalls
from tickertape.client.api.streams import NO_REQUEST
from tickertape.client.api.transactions import TransactionCalls
from tickertape.client.blocking.driver import ThreadDriver
from tickertape.client.blocking.streams import MessageStream
from tickertape.client.blocking.transactions import ClientTransaction
from tickertape.client.bookmark_store.protocol import BookmarkStore
from tickertape.client.common.closing import ClosesItself
from tickertape.client.common.subscribe_arguments import extras
from tickertape.client.common.waiting import DEFAULT, Timeout
from tickertape.client.limits import client_timeout_seconds
from tickertape.client.protocol.transactions import ConnectionPin, Make
from tickertape.client.publish_store.protocol import PublishStore
from tickertape.client.publishing.bulk import Chunk, chunks_from_arrow, chunks_of_messages
from tickertape.client.publishing.send_buffer import NOBODY
from tickertape.payload.bodies import encode
from tickertape.security.contexts import TLS
from tickertape.wire.commands import Resolve, Resolved


class Client(
    ReadCalls[MessageStream, tuple[str, int, int], Resolved, None],
    QueueCalls[None],
    TransactionCalls[ClientTransaction],
    ClientFrontend,
    ClosesItself,
):
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

    _driver: ThreadDriver
    _driver_type: type[Any] = ThreadDriver
    _transaction_type = ClientTransaction

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
        super().__init__(
            name,
            uri,
            user=user,
            password=password,
            token=token,
            tls=tls,
            publish_store=publish_store,
            bookmark_store=bookmark_store,
            timeout=timeout,
        )
        del uri, password, token  # not to be in a traceback that shows local variables
        if connect:
            self.connect()

    # -- connection -------------------------------------------------------------------------------------

    def connect(self, *, timeout: Timeout = DEFAULT) -> None:
        """Connect and log on; nothing happens when the client is connected.

        `timeout` in seconds, None = wait for ever. What the publish store holds and the server lacks is
        sent again. Raises `Disconnected` (nobody answers), `TimedOut`, `Closed`, and what the server
        refuses the logon with:
        `Refused`, `NameInUse`, `BadVersion`, ...
        """
        self._driver.connect(timeout)

    def close(self, *, timeout: Timeout = DEFAULT) -> None:
        """Send what was published, wait until the server has it, and disconnect. Further calls raise
        `Closed`; calls of `publish` on other threads do from the beginning on.

        `timeout` bounds the waiting, in seconds: a handler that still runs then ends by itself. Never raises:
        the exception listener is told what went wrong, and how many messages have no answer. A publish store
        keeps what is not persisted. In a forked child nothing happens.
        """
        self._driver.close(timeout)

    def set_disconnect_handler(self, handler: DisconnectHandler | None) -> None:
        """Call `handler(client)` once for each connection that is lost, not for `close`.

        It runs on the thread that found the loss and may call `connect`; losses are handled one after the
        other. When another process took over the client name, `connect` raises `NameInUse` there: the two
        would throw each other out for ever.
        """
        self._driver.set_disconnect_handler(None if handler is None else partial(handler, self))

    def set_failed_write_handler(self, handler: FailedWriteHandler | None) -> None:
        """Call `handler(error, batch)` for what the server refused; `batch` is None without a publish store.

        It runs on the receive thread. None (default): `publish_flush` raises instead.
        """
        with self._driver.lock:
            self._driver.set_failed_write_handler(handler)

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
            driver = self._driver
            return driver.publish_when_room(driver.seconds(timeout), driver.publish, topic, body, *extra)
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
                driver = self._driver
                return driver.publish_when_room(driver.timeout, publishing.publish_again, run, index, body)
            run.owner = owner
        driver, kept = self._driver, publishing.kept
        if kept is not None and topic == kept.topic and not driver.owns_lock():
            try:
                driver.lock.acquire()
                sequence = kept.publish(body)
                driver.lock.release()
            except BaseException as error:
                driver.give_back(driver.connection, refused=isinstance(error, TickertapeError))
                raise
            if sequence is not None:
                return sequence
        return driver.publish_when_room(driver.timeout, driver.publish, topic, body, 0, "", "", get_ident())

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

    def publish_flush(self, timeout: Timeout = DEFAULT, level: str = "persisted") -> None:
        """Wait until everything sent on this connection is persisted, with or without a publish store.

        `level="processed"`: until the server has it. `timeout` in seconds, None = as long as the connection
        lasts. A settlement that has no room in the publish store is waited for. Raises `TimedOut` (the store
        is as it was), `Disconnected`, `Closed`, `PublisherTakenOver` (another process published under this
        name), and, unless there is a failed-write handler, `PublishRejected` when the server refused messages
        since the last flush.
        """
        self._driver.flush(timeout, level)

    def ask(
        self, make: Make, batch: MessageBatch | None, timeout: Timeout, same: ConnectionPin | None = None
    ) -> object:
        """Internal: send a command of a transaction and wait for its answer; see `ThreadDriver.ask`."""
        return self._driver.ask(make, batch, timeout, same)

    # -- inside -----------------------------------------------------------------------------------------

    def _publish_chunks(self, topic: str, chunks: Iterator[Chunk], timeout: Timeout) -> int | None:
        sequence: int | None = None
        driver = self._driver
        seconds = driver.seconds(timeout)
        for chunk in chunks:
            sequence = driver.publish_when_room(seconds, self._publishing.publish_whole, topic, *chunk)
        return sequence

    def _settle_call(self, step: Step) -> None:
        self._driver.settle_now(step)

    def _resolve(self, asked: Resolve, timeout: Timeout) -> tuple[str, int, int]:
        answer = self._locate(asked, timeout)
        return answer.journal, answer.start, answer.end

    def _locate(self, asked: Resolve, timeout: Timeout) -> Resolved:
        core = self._driver.core
        answer = self._driver.call(lambda call: core.resolve(call, asked), timeout, "resolve")
        assert isinstance(answer, Resolved)
        return answer

    def _over(self, done: object) -> MessageStream:  # noqa: ARG002 - it was waited for
        over = MessageStream(NO_REQUEST, self._driver)
        over.end("complete", None)
        return over
