"""Blocking client: the public class `tickertape.Client`, with its connection and publish calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from tickertape.base.errors import TickertapeError
from tickertape.client.api.driver import FailedWriteHandler, Step
from tickertape.client.api.frontend import ClientFrontend, DisconnectHandler
from tickertape.client.api.queue_calls import QueueCalls
from tickertape.client.api.read_calls import ReadCalls
from tickertape.client.api.sow_calls import SowCalls, SqlCalls
from tickertape.client.api.streams import NO_REQUEST
from tickertape.client.api.transactions import TransactionCalls
from tickertape.client.blocking.driver import ThreadDriver
from tickertape.client.blocking.receivers import ThreadReceiver
from tickertape.client.blocking.streams import MessageStream, SowResult
from tickertape.client.blocking.transactions import ClientTransaction
from tickertape.client.blocking.waiting import in_thread
from tickertape.client.bookmark_store.protocol import BookmarkStore
from tickertape.client.common.closing import ClosesItself
from tickertape.client.common.subscribe_arguments import extras
from tickertape.client.common.waiting import DEFAULT, Timeout
from tickertape.client.limits import client_timeout_seconds
from tickertape.client.publish_store.protocol import PublishStore
from tickertape.client.publishing.bulk import Chunk, chunks_from_arrow, chunks_of_messages
from tickertape.client.publishing.pending_deletes import DeleteResult
from tickertape.client.publishing.send_buffer import NO_OWNER
from tickertape.payload.bodies import encode
from tickertape.security.tls_options import TLS

if TYPE_CHECKING:
    import pyarrow as pa

    from tickertape.client.blocking.table_guard import ThreadTableGuard
    from tickertape.client.sql.query import SqlQuery


class Client(
    ReadCalls[MessageStream, None],
    SowCalls[SowResult, MessageStream, None],
    QueueCalls[None, DeleteResult | None],
    TransactionCalls[ClientTransaction],
    SqlCalls["pa.Table"],
    ClientFrontend,
    ClosesItself,
):
    """A blocking client: one connection to one server, for any number of threads.

    The client does not reconnect automatically. Call `connect` again, for example in the disconnect handler,
    or use `HAClient`. The client is a context manager that closes itself. It cannot be used in a forked
    child.

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
        publish_store: Store that keeps messages until they are persisted, such as `MemoryPublishStore`.
            Messages get sequence numbers, and the client resends unpersisted ones on its next connection.
            None (default): after a lost connection, the outcome of unanswered messages is unknown.
        bookmark_store: Store that records delivered and discarded messages of bookmark subscriptions
            (`MemoryBookmarkStore`, `LoggedBookmarkStore`, `RingBookmarkStore`). With a store,
            `MOST_RECENT` starts at the recovery point, and discarded messages are not redelivered. Close the
            store after the client. None (default): no store, and `MOST_RECENT` means `EPOCH`.
        timeout: Default timeout of all calls, in seconds or text (`"500ms"`). Default 10 seconds. None: wait
            as long as the connection lasts.
        connect: Connect and log on immediately (default True).

    Raises:
        BadName: The client name is invalid.
        BadOption: Another parameter is invalid.
        UsageError: `publish_store` or `bookmark_store` is not a store.
        StoreOwnerMismatch: A store belongs to another client name.
        StoreError: A store failed.
        Closed: A store is closed.
        Disconnected: No connection. `connect=True` can raise all errors of the method `connect`.
        Forked: Raised in a forked child by all calls that need the connection or a store, except `close`.

    Example:
        >>> with tt.Client("desk", uri) as client:
        ...     client.publish("orders", {"id": 1, "price": 12.5})
        ...     client.publish_flush()
        ...     for message in client.replay("orders"):
        ...         print(message.json())
        {'id': 1, 'price': 12.5}
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
        del uri, password, token  # Keep them out of tracebacks that show local variables.
        if connect:
            self.connect()

    # -- connection -------------------------------------------------------------------------------------

    def connect(self, *, timeout: Timeout = DEFAULT) -> None:
        """Connect and log on. Does nothing while the client is connected.

        The client resends messages of the publish store that the server does not have.

        Args:
            timeout: Longest wait in seconds or text (`"500ms"`). None: no timeout. Default: the timeout of
                the client.

        Raises:
            Disconnected: The server cannot be reached, or closed the connection.
            TlsFailed: The TLS handshake failed.
            NotTickertape: The peer is not a Tickertape server.
            TimedOut: No logon within `timeout`.
            AuthenticationFailed: The token or password is missing or wrong.
            NameInUse: Another user is connected with this client name, or another connection took over the
                name.
            PublisherCollision: Another client name has the same publisher id. Use another name.
            BadVersion: The server does not support the protocol version of the client.
            BadCommand: The sequence numbers of the publisher are used up, so that the client cannot send
                the messages of the publish store.
            PeerError: Another protocol error.
            Refused: The server refused the logon for another reason.
            TopicNotRecorded: The publish store has messages of a topic that is not persistent on this server.
            StoreError: The publish store failed.
            BadOption: The timeout is invalid, or a file of `tls` cannot be used.
            Closed: The client is closed.
            UsageError: The call is in a message handler, which runs on the receive thread.

        Example:
            >>> client = tt.Client("desk", uri, connect=False)
            >>> client.connect(timeout=5)
            >>> client.connected
            True
        """
        self._driver.connect(timeout)

    def close(self, *, timeout: Timeout = DEFAULT) -> None:
        """Send all published messages, wait until the server has received them, and disconnect.

        All later calls that need the server raise `Closed`. After the start of `close`, concurrent calls of
        `publish` also raise `Closed`. Errors during the close, and the number of messages without an
        answer, go to the exception listener, not to the caller. A publish store keeps messages that are not
        persisted. On the receive thread (in a handler) the call does not wait. In a forked child it does
        nothing.

        Args:
            timeout: Longest wait in seconds or text. After this time the call returns, even if a handler is
                still running. None: no timeout. Default: the timeout of the client.

        Raises:
            BadOption: The timeout is invalid. The client stays open.

        Example:
            >>> client = tt.Client("desk", uri)
            >>> client.publish("orders", {"id": 1})
            >>> client.close()
            >>> client.connected
            False
        """
        self._driver.close(timeout)

    def set_disconnect_handler(self, handler: DisconnectHandler | None) -> None:
        """Set the handler for lost connections. `close` does not call it.

        Args:
            handler: Called as `handler(client)` once per lost connection, on the thread that detected the
                loss, one call at a time. It may call `connect`. If another connection took over the client
                name, `connect` raises `NameInUse` in the handler, because the two clients would otherwise
                disconnect each other for ever. None: no handler (the default of a client).

        Example:
            >>> client.set_disconnect_handler(lambda client: client.connect())
        """
        self._driver.set_disconnect_handler(None if handler is None else partial(handler, self))

    def set_failed_write_handler(self, handler: FailedWriteHandler | None) -> None:
        """Set the handler for messages that the server rejected.

        Args:
            handler: Called as `handler(error, batch)` on the receive thread. `batch` is a `MessageBatch` of
                the rejected messages, or None without a publish store. A handler of None (the default of a
                client) means that `publish_flush` raises `PublishRejected`.

        Example:
            >>> rejected = []
            >>> client.set_failed_write_handler(lambda error, batch: rejected.append(error))
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
        """Publish one message. If the call raises one of the errors below, the message is not published.

        The call waits only if the publish store or the send buffer is full. If the connection is lost while
        the publish store is full, the call raises `Disconnected`. An HA client waits instead. A client with
        a disconnect handler waits too, if the call has a timeout. Call `publish_flush` to wait until messages
        are persisted.

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
            BadTopic: The topic name is invalid.
            BadMessage: `data` cannot be encoded. Or `correlation_id` or `sow_key` is longer than 4 KB, or not
                valid Unicode.
            MessageTooLarge: The body is larger than the limit of the server (default 16 MB), or than the
                publish store.
            BadOption: `expiration` or `timeout` is invalid.
            Disconnected: The client is not connected and cannot store the message: it has no publish store,
                the store is full, or the topic is not persistent.
            StoreFull: The publish store is full, and its `when_full` is `"raise"`. Or it is full in a call on
                the receive thread (in a handler).
            TimedOut: No free space within `timeout`.
            StoreError: The publish store failed.
            PublisherTakenOver: Another process has published under this client name.
            UsageError: `correlation_id` or `sow_key` is not text. Or the call is in a signal handler that
                interrupted another publish.
            Closed: The client is closed.

        Example:
            >>> client.publish("orders", {"id": 1}, sow_key="1", expiration="5m")
            >>> client.publish_flush()
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
            # A signal handler that publishes here must not append to this run. Without an owner, the run
            # sends it to the slow path, which closes the run. So `index` is always the index of this body.
            run.owner = NO_OWNER
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

    def delta_publish(
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

        All errors: see `publish`.

        Example:
            >>> client.publish("positions", {"id": 1, "qty": 5, "price": 12.5})
            >>> client.delta_publish("positions", {"id": 1, "qty": 6})
            >>> client.publish_flush()
            >>> [record.json() for record in client.sow("positions")][0]
            {'id': 1, 'qty': 6, 'price': 12.5}
        """
        body = data if type(data) is bytes else encode(data)
        driver = self._driver
        extra = extras(expiration, correlation_id, sow_key)
        publish = partial(driver.publish, topic, body, *extra, delta=True)
        return driver.publish_when_room(driver.seconds(timeout), publish)

    def publish_batch(
        self, topic: str, messages: Iterable[object], *, timeout: Timeout = DEFAULT
    ) -> int | None:
        """Publish many messages in batches.

        If the call raises, some of the messages may be published.

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

        All other errors: see `publish`.

        Example:
            >>> client.publish_batch("orders", ({"id": number} for number in range(1000)))
            >>> client.publish_flush()
        """
        return self._publish_chunks(
            topic, chunks_of_messages(topic, messages, lambda: self._publishing.chunk_bytes), timeout
        )

    def publish_arrow(
        self, topic: str, table: object, *, column: str | None = None, timeout: Timeout = DEFAULT
    ) -> int | None:
        """Publish each value of an Arrow column as one message, with unchanged bytes.

        If the call raises, some of the messages may be published.

        Args:
            topic: Name of the topic or queue.
            table: A table, record batch, reader, array or chunked array of pyarrow, or any object with an
                Arrow stream.
            column: Name of the column with the bodies (binary or string). None (default): `data`, or the only
                column. Other columns are not published.
            timeout: Longest single wait for free space, as in `publish_batch`.

        Returns:
            The sequence number of the last message. None if `table` has no rows, and whenever `publish`
            returns None.

        Raises:
            UsageError: The column does not exist, or `table` has no Arrow data.
            BadMessage: The column has an unsupported type, nulls or invalid offsets.

        All other errors: see `publish`.

        Example:
            >>> import pyarrow as pa
            >>> client.publish_arrow("orders", pa.table({"data": ['{"id": 1}', '{"id": 2}']}))
            >>> client.publish_flush()
        """
        return self._publish_chunks(
            topic, chunks_from_arrow(topic, table, column, lambda: self._publishing.chunk_bytes), timeout
        )

    def publish_flush(self, timeout: Timeout = DEFAULT, level: str = "persisted") -> None:
        """Wait until all messages sent on this connection are persisted, with or without a publish store.

        The call also waits until the acknowledgements of earlier `ack` calls are persisted, including
        acknowledgements that wait for free space in the publish store.

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
            StoreError: The publish store failed.
            PublisherTakenOver: Another process has published under this client name.
            BadOption: The timeout is invalid.
            Disconnected: The client is not connected, or the connection was lost.
            Closed: The client is closed.
            UsageError: `level` is invalid, or the call is on the receive thread (in a handler).

        Example:
            >>> client.publish("orders", {"id": 1})
            >>> client.publish_flush(timeout="5s")
        """
        self._driver.flush(timeout, level)

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

    def _over(self, done: object) -> MessageStream:  # noqa: ARG002 - already complete
        over = ThreadReceiver(NO_REQUEST, self._driver)
        over.end("complete", None)
        return MessageStream(over)

    def _table_guard(self) -> ThreadTableGuard:
        from tickertape.client.blocking.table_guard import ThreadTableGuard  # only tables need it

        return ThreadTableGuard(self._driver)

    def _run_query(self, make: Callable[[], SqlQuery], timeout: Timeout) -> pa.Table:
        with make() as query:
            for name, topic in query.topics.items():
                with self.sow(topic, timeout=timeout) as records:
                    query.add(name, records.to_arrow(query.columns))
            return in_thread(query.run, query.interrupt)
