"""Queue consumer on the Spark driver: prefetches messages and extends their leases.

Only `acknowledge` acknowledges messages. All others return to the queue when the connection or their lease
ends. Leases of prefetched messages and of the current micro-batch are extended, up to `lease_seconds_max`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from tickertape.base.errors import Disconnected, TickertapeError
from tickertape.base.limits import lease_seconds_max
from tickertape.batch import MessageBatch, slice_batch
from tickertape.spark.limits import source_bytes_max, source_lease_seconds
from tickertape.spark.queues.options import QueueSourceOptions
from tickertape.spark.source.task_reader import connect, log

if TYPE_CHECKING:
    from tickertape.client.blocking.log_client import LogClient
    from tickertape.client.blocking.streams import MessageStream

_EVERY_TOPIC: Final = ".*"
_AHEAD: Final = 2
"""Micro-batches of messages that are held: the current one and the next one."""


class HeldMessages(NamedTuple):
    """Messages leased to this consumer."""

    batch: MessageBatch
    since: float
    """Monotonic second of their arrival."""


class _Connection:
    """A connection with its subscription. `over` is set when it is no longer used."""

    def __init__(self, client: LogClient, stream: MessageStream) -> None:
        self.client = client
        self.stream = stream
        self.over = threading.Event()
        self.error: TickertapeError | None = None
        """Error that ended the subscription."""
        self.ended = False
        self.lease_seconds = 0.0
        """Duration of lease extensions. 0 if leases do not expire."""


class QueueConsumer:
    """A queue consumer that connects at its first use.

    `take`, `acknowledge`, `has_more` and `close` must be called by one thread."""

    def __init__(self, wanted: QueueSourceOptions) -> None:
        self._wanted = wanted
        self._client: LogClient | None = None
        self._connection: _Connection | None = None
        self._changed = threading.Condition()
        self._ahead: deque[HeldMessages] = deque()
        """Messages for later micro-batches, in delivery order."""
        self._ahead_bytes = 0
        self._under_way: list[HeldMessages] = []
        """Messages of the last `take`."""

    # -- for the reader -----------------------------------------------------------------------------------

    def take(self, wait_seconds: float = 0.0) -> list[MessageBatch]:
        """Return messages for a micro-batch, as many as the options allow. None if none arrive in
        `wait_seconds`.

        Raises `Disconnected` if no server answers, `NotAQueue` if the queue does not exist, and the error
        with which the server ended the subscription."""
        connection = self._subscribed()
        with self._changed:
            self._changed.wait_for(lambda: bool(self._ahead) or connection.ended, wait_seconds)
            if connection.ended:  # prefetched messages are back in the queue
                error = connection.error
                self._leave()
                if error is not None and not isinstance(error, Disconnected):
                    raise error
                return []  # the next call connects again
            self._under_way = self._split()
            self._changed.notify_all()
        return [held.batch for held in self._under_way]

    def acknowledge(self, batches: Sequence[MessageBatch]) -> None:
        """Acknowledge taken messages. Returns when the server has persisted the acknowledgement.

        Raises `Disconnected` if no server answers in time, `PublishRejected` if the server rejects it."""
        until = time.monotonic() + self._wanted.timeout_seconds
        while True:
            try:
                client = self._connected()
                for batch in batches:
                    client.ack(self._wanted.queue, batch)
                client.publish_flush(timeout=self._wanted.timeout_seconds)
                break
            except Disconnected:
                self._leave()
                if time.monotonic() >= until:
                    raise
        self._under_way = []

    def has_more(self) -> bool:
        """Return whether the queue has matching messages that no consumer holds. Raises as `take`."""
        wanted = self._wanted
        with self._connected().subscribe(wanted.queue, filter=wanted.filter, browse=True) as stream:
            return next(iter(stream.batches(timeout=wanted.timeout_seconds)), None) is not None

    def end_of_log(self) -> int:
        """Return the position after the last persisted message. Raises `Disconnected`."""
        return self._connected().locate(_EVERY_TOPIC, "0").end

    def position_of_oldest(self, batches: Sequence[MessageBatch]) -> int:
        """Return the position of the message that was accepted first. Raises `Disconnected`."""
        oldest = min(batches, key=lambda batch: int(batch.timestamps.min()))
        at = int(oldest.timestamps.argmin())
        bookmark = f"{oldest.publisher(at)}|{oldest.sequence(at)}|"
        return self._connected().locate(_EVERY_TOPIC, f"[{bookmark}:{bookmark}]").start

    def close(self) -> None:
        """Close the connection. Unacknowledged messages return to the queue."""
        self._leave()

    # -- connections --------------------------------------------------------------------------------------

    def _connected(self) -> LogClient:
        if self._client is None:
            seconds = self._wanted.timeout_seconds
            self._client, _ = connect(self._wanted.servers, seconds, seconds)
        return self._client

    def _subscribed(self) -> _Connection:
        if self._connection is None:
            wanted, client = self._wanted, self._connected()
            stream = client.subscribe(
                wanted.queue, filter=wanted.filter, max_backlog=_AHEAD * wanted.rows_max, timestamp=True
            )
            connection = self._connection = _Connection(client, stream)
            for work in (self._receive, self._keep):
                threading.Thread(
                    target=work, args=(connection,), name="tickertape-queue", daemon=True
                ).start()
        return self._connection

    def _leave(self) -> None:
        """Drop the connection and all prefetched messages."""
        connection, self._connection = self._connection, None
        client, self._client = self._client, None
        with self._changed:
            if connection is not None:
                connection.over.set()
            self._ahead.clear()
            self._ahead_bytes = 0
            self._changed.notify_all()
        if client is not None:
            client.close()

    def _receive(self, connection: _Connection) -> None:
        """Receive messages, so that their leases are extended even during a long micro-batch."""
        try:
            for batch in connection.stream.batches(timeout=None):
                self._arrived(connection, batch)
            connection.error = connection.stream.end_error
        except TickertapeError as error:
            connection.error = error
        finally:
            with self._changed:
                connection.ended = True
                self._changed.notify_all()

    def _arrived(self, connection: _Connection, batch: MessageBatch) -> None:
        expires = batch.lease_expires
        if expires is not None:
            left = (expires - datetime.now(UTC)).total_seconds()
            connection.lease_seconds = min(max(left, source_lease_seconds), lease_seconds_max)
            _extend(connection, self._wanted.queue, [batch])
        with self._changed:
            if self._connection is not connection:
                return
            self._ahead.append(HeldMessages(batch, time.monotonic()))
            self._ahead_bytes += batch.body_bytes
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ahead_bytes < source_bytes_max or connection.over.is_set())

    def _split(self) -> list[HeldMessages]:
        """Return messages from the front, as many as a micro-batch may have."""
        rows, size = self._wanted.rows_max, self._wanted.bytes_max
        taken: list[HeldMessages] = []
        while self._ahead and rows:
            held = self._ahead.popleft()
            count = min(held.batch.count, rows)
            if size is not None:
                ends = held.batch.offsets[1:]
                count = min(count, int(ends.searchsorted(size, "right")))
                if not count and not taken:
                    count = 1
            if count < held.batch.count:
                rest = slice_batch(held.batch, count, held.batch.count) if count else held.batch
                self._ahead.appendleft(held._replace(batch=rest))
            if not count:
                break
            held = held._replace(batch=slice_batch(held.batch, 0, count))
            taken.append(held)
            rows -= count
            self._ahead_bytes -= held.batch.body_bytes
            size = None if size is None else max(size - held.batch.body_bytes, 0)
        return taken

    # -- leases -------------------------------------------------------------------------------------------

    def _keep(self, connection: _Connection) -> None:
        while not connection.over.wait(source_lease_seconds / 3):
            self.extend_leases(time.monotonic())

    def extend_leases(self, now: float) -> int:
        """Extend the leases of all held messages at the monotonic second `now`. Return their number.

        Leases of messages held longer than the limit expire. If these were prefetched they are dropped, and
        processed after their redelivery."""
        connection = self._connection
        if connection is None or not connection.lease_seconds:
            return 0
        oldest = now - self._wanted.lease_seconds_max
        with self._changed:
            kept = deque(held for held in self._ahead if held.since > oldest)
            if len(kept) < len(self._ahead):
                self._ahead = kept
                self._ahead_bytes = sum(held.batch.body_bytes for held in kept)
                self._changed.notify_all()
            batches = [held.batch for held in (*self._under_way, *kept) if held.since > oldest]
        return _extend(connection, self._wanted.queue, batches)


def _extend(connection: _Connection, queue: str, batches: Sequence[MessageBatch]) -> int:
    if batches:
        option = f"lease_extension={max(connection.lease_seconds, 0.001):.3f}s"
        try:
            connection.client.ack(queue, list(batches), option)
        except TickertapeError as error:
            log.warning("Cannot extend the leases of queue %r: %s", queue, error)
            return 0
    return sum(batch.count for batch in batches)
