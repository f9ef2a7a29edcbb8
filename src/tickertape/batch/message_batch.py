"""The columnar message batch (docs/formats/batch.md), and the message as a view of one of its rows.

A batch is immutable, and its bodies are not copied for access. Columns that validation does not need are
computed at their first use and cached. A message copies only its body and looks up other values in the batch.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tickertape.base.checksum import crc32c
from tickertape.base.errors import CorruptBatch, UsageError
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import message_cost_bytes
from tickertape.batch.format import (
    CORRELATION_IDS,
    HEADER_BYTES,
    HEADERS,
    I1,
    I4,
    I8,
    KEYS,
    LENGTH,
    PADDING,
    RUN,
    RUN_BYTES,
    RUN_DTYPE,
    RUN_LATE,
    SEQUENCES,
    U8,
    Bytes8,
    Int32s,
    Int64s,
    Labels,
    Places,
    Run,
    Runs,
    UInt64s,
    check,
    lengths_of,
    numbered,
    read_only,
    run_crc,
)
from tickertape.batch.lazy_attribute import Lazy
from tickertape.batch.queue_lease import extension_ms
from tickertape.payload.bodies import decode

if TYPE_CHECKING:
    import pyarrow as pa

    from tickertape.batch.delivery_context import DeliveryContext
    from tickertape.batch.queue_lease import Action, Lease

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_frombuffer: Final = np.frombuffer


class MessageBatch:
    """Immutable table of messages. `len(batch)` is the number of messages. Iteration yields `Message`s.

    `parse` creates a batch from bytes. `tickertape.batch` has functions that build and merge batches, and
    select messages of a batch. Attributes such as `sequences` are read-only numpy arrays. Message indices are
    0 to `count - 1`. A run is a group of consecutive messages of one publisher with one timestamp and one
    checksum.
    """

    count: int
    """Number of messages, at least 1."""
    run_count: int
    """Number of runs: consecutive messages of one publisher with one timestamp."""
    head_bytes: int
    """Size of header and columns in bytes."""
    body_bytes: int
    """Size of all bodies in bytes."""
    nbytes: int
    """Encoded size in bytes, padding included."""
    columns: int
    """Bit set of the present optional columns."""
    has_sequences: bool
    """Whether the batch has a sequence column. Without it, the sequences of each run are consecutive."""
    topics: tuple[str, ...]
    """Distinct topics of the messages."""
    context: DeliveryContext | None
    """Subscription that delivered the batch, or None. The client sets it. Slices and selections keep it."""
    positions: UInt64s | None = None
    """Log positions of the messages in the reads of Spark, otherwise None. Slices do not keep them."""

    def __init__(
        self,
        count: int,
        run_count: int,
        head_bytes: int,
        body_bytes: int,
        columns: int,
        topics: tuple[str, ...],
        places: Places,
    ) -> None:
        """Internal. Use `parse` or the functions of this package."""
        self.count = count
        self.run_count = run_count
        self.head_bytes = head_bytes
        self.body_bytes = body_bytes
        self.nbytes = (head_bytes + body_bytes + 7) & ~7
        self.columns = columns
        self.has_sequences = columns & SEQUENCES != 0
        self.topics = topics
        self.context = None
        self._places = places

    @staticmethod
    def parse(buffer: Buffer) -> MessageBatch:
        """Parse the batch that fills `buffer`. The result consists of views on the buffer.

        A buffer whose address is not a multiple of 8 is copied. The call validates the structure, but not the
        checksums (see `verify`). The buffer must not change while the batch exists. Raises `BadBatch`.
        """
        source, count, run_count, head_bytes, body_bytes, columns, topics, places = check(buffer)
        batch = MessageBatch(count, run_count, head_bytes, body_bytes, columns, topics, places)
        batch._source = batch._table = source
        batch.bodies = source[head_bytes : head_bytes + body_bytes]
        return batch

    # -- the encoding ---------------------------------------------------------------------------------

    _source: memoryview | None = None
    """The whole encoding, if it is one piece of memory."""

    _table: bytes | memoryview
    """Encoding from the header and the columns on: all of it, or only its head."""
    bodies: memoryview
    """All bodies, exactly `body_bytes`."""

    @property
    def head(self) -> bytes | memoryview:
        """Header and columns: the first `head_bytes` of the encoding."""
        return self._table if self._source is None else self._source[: self.head_bytes]

    def buffers(self) -> list[Buffer]:
        """Return the encoded batch as consecutive buffers. Bodies are not copied."""
        if self._source is not None:
            return [self._source]
        padding = self.nbytes - self.head_bytes - self.body_bytes
        return [self._table, self.bodies, PADDING[padding]] if padding else [self._table, self.bodies]

    def encode(self) -> bytes:
        """Return the encoded batch as one `bytes` object."""
        return b"".join(self.buffers())

    def crc(self) -> int:
        """Return the CRC32C of the encoded batch, as in wire frames and in the log."""
        if self._source is not None:
            return crc32c(self._source[self.head_bytes :], self.head_crc)
        crc = crc32c(self.bodies, self.head_crc)
        padding = self.nbytes - self.head_bytes - self.body_bytes
        return crc32c(PADDING[padding], crc) if padding else crc

    @Lazy
    def head_crc(self) -> int:
        """CRC32C of the head."""
        return crc32c(self._table if self._source is None else self._source[: self.head_bytes])

    def verify(self) -> None:
        """Verify the checksum of every run (see `run`).

        Raises `CorruptBatch` with the first run that does not match.
        """
        bodies = self.bodies
        if self.count == 1:
            if crc32c(bodies, crc32c(LENGTH.pack(self.body_bytes))) != self.first_run.crc:
                self._corrupt(0)
            return
        lengths = lengths_of(self.offsets)
        if self.run_count == 1:
            if run_crc(lengths.data, bodies) != self.first_run.crc:
                self._corrupt(0)
            return
        length_bytes = lengths.tobytes()
        starts = self.run_starts
        edges = self.offsets[starts].tolist()
        at = starts.tolist()
        crcs = self.runs["crc"].tolist()
        for i, crc in enumerate(crcs):
            if (
                crc32c(bodies[edges[i] : edges[i + 1]], crc32c(length_bytes[4 * at[i] : 4 * at[i + 1]]))
                != crc
            ):
                self._corrupt(i)

    def _corrupt(self, i: int) -> None:
        run = self.run(i)
        raise CorruptBatch(
            f"Corrupt batch: run {i} of {self.run_count} (publisher {run.publisher}, "
            f"first sequence {run.first_sequence}, {run.message_count} messages) "
            f"does not match its checksum {run.crc:#010x}. Read again."
        )

    @Lazy
    def cost(self) -> int:
        """Flow-control cost in bytes: bodies, correlation ids, keys and headers, and `message_cost_bytes` per
        message."""
        cost = self.body_bytes + message_cost_bytes * self.count
        if self.columns & (CORRELATION_IDS | KEYS | HEADERS):
            places = self._places
            for at in (places.correlation_ids, places.keys, places.headers):
                if at:  # the last offset of the column
                    cost += LENGTH.unpack_from(self._table, at + 4 * self.count)[0]
        return cost

    # -- columns ----------------------------------------------------------------------------------------

    def run(self, i: int) -> Run:
        """Return run `i` (from 0): consecutive messages of one publisher, with one timestamp and checksum."""
        if i == 0:
            return self.first_run
        return Run._make(RUN.unpack_from(self._table, HEADER_BYTES + RUN_BYTES * i))

    @Lazy
    def first_run(self) -> Run:
        """Run 0 (see `run`)."""
        return Run._make(RUN.unpack_from(self._table, HEADER_BYTES))

    @Lazy
    def last_run(self) -> Run:
        """The last run (see `run`)."""
        return self.run(self.run_count - 1)

    @Lazy
    def runs(self) -> Runs:
        """All runs (see `run`) as a numpy table: publisher, first_sequence, timestamp, count, crc, flags,
        origin."""
        return _frombuffer(self._table, RUN_DTYPE, self.run_count, HEADER_BYTES)

    @Lazy
    def run_starts(self) -> Int64s:
        """Index of the first message of each run, followed by `count`."""
        starts = np.zeros(self.run_count + 1, I8)
        self.runs["count"].cumsum(dtype=I8, out=starts[1:])
        return read_only(starts)

    @Lazy
    def offsets(self) -> Int32s:
        """n + 1 offsets: body i is `bodies[offsets[i]:offsets[i + 1]]`."""
        return _frombuffer(self._table, I4, self.count + 1, HEADER_BYTES + RUN_BYTES * self.run_count)

    @Lazy
    def topic_index(self) -> Int32s | None:
        """Index into `topics` of each message, or None for a single topic."""
        at = self._places.topic_index
        return _frombuffer(self._table, I4, self.count, at) if at else None

    @Lazy
    def sequences(self) -> UInt64s:
        """Sequence number of each message."""
        at = self._places.sequences
        if at:
            return _frombuffer(self._table, U8, self.count, at)
        if self.run_count > 1:
            return read_only(numbered(self.runs))
        sequences = np.arange(self.count, dtype=U8)
        sequences += np.uint64(self.first_run.first_sequence)
        return read_only(sequences)

    @Lazy
    def publishers(self) -> UInt64s:
        """Publisher id of each message."""
        if self.run_count > 1:
            return read_only(np.repeat(self.runs["publisher"], self.runs["count"]))
        publishers = np.empty(self.count, U8)
        publishers.fill(self.first_run.publisher)
        return read_only(publishers)

    @Lazy
    def timestamps(self) -> Int64s:
        """Microseconds since 1970 UTC when the server accepted each message, 0 before that."""
        if self.run_count > 1:
            return read_only(np.repeat(self.runs["timestamp"], self.runs["count"]))
        timestamps = np.empty(self.count, I8)
        timestamps.fill(self.first_run.timestamp)
        return read_only(timestamps)

    @Lazy
    def expirations(self) -> Int64s | None:
        """Lifetime of each message in milliseconds (0 = none), or None without that column."""
        at = self._places.expirations
        return _frombuffer(self._table, I8, self.count, at) if at else None

    @Lazy
    def kinds(self) -> Bytes8 | None:
        """Kind of each message in the log (0 message, 1 control record, 2 restated). None: all are messages.

        Subscriptions get only messages."""
        at = self._places.kinds
        return _frombuffer(self._table, I1, self.count, at) if at else None

    @Lazy
    def correlation_ids(self) -> Labels | None:
        """Encoded column of correlation ids."""
        return self._labels(self._places.correlation_ids)

    @Lazy
    def keys(self) -> Labels | None:
        """Encoded column of message keys."""
        return self._labels(self._places.keys)

    @Lazy
    def message_flags(self) -> Bytes8 | None:
        """Flags of each message in the log (1 superseded, 2 delta), or None if no message has any.

        No server writes them yet, and subscriptions do not get them."""
        at = self._places.message_flags
        return _frombuffer(self._table, I1, self.count, at) if at else None

    @Lazy
    def order_stamps(self) -> Int64s | None:
        """Order stamp of each run, or None if they are the timestamps of the runs."""
        at = self._places.order_stamps
        return _frombuffer(self._table, I8, self.run_count, at) if at else None

    @Lazy
    def headers(self) -> Labels | None:
        """Encoded column of headers. Their contents are not validated."""
        return self._labels(self._places.headers)

    def _labels(self, at: int) -> Labels | None:
        if not at:
            return None
        offsets = _frombuffer(self._table, I4, self.count + 1, at)
        begin = at + 4 * (self.count + 1)
        return Labels(offsets, memoryview(self._table)[begin : begin + int(offsets[-1])])

    # -- messages ---------------------------------------------------------------------------------------

    def discard(self) -> int:
        """Discard all messages (see `Message.discard`). Return the number of newly discarded ones."""
        context = self.context
        if context is None or context.store is None:
            return 0
        publishers = self.first_run.publisher if self.run_count == 1 else self.publishers
        return context.store.discard_all(context.sub_id, publishers, self.sequences)

    @property
    def queue(self) -> str | None:
        """Name of the queue, or None. `topic(i)` is the topic to which a message was published, not the
        queue."""
        lease = None if self.context is None else self.context.lease
        return None if lease is None else lease.queue

    @property
    def lease_expires(self) -> datetime | None:
        """End of the lease (a `datetime` in UTC), equal for all messages (see `Message.lease_expires`)."""
        lease = None if self.context is None else self.context.lease
        return None if lease is None else lease.expires

    def ack(self) -> None:
        """Acknowledge all messages together (see `Message.ack`)."""
        _lease_of(self, "acknowledge").settle("ack", marks_of(self))

    def cancel(self) -> None:
        """Return all messages to their queue (see `Message.cancel`)."""
        _lease_of(self, "cancel").settle("cancel", marks_of(self))

    def expire(self) -> None:
        """Reject all messages (see `Message.expire`)."""
        _lease_of(self, "expire").settle("expire", marks_of(self))

    def __copy__(self) -> MessageBatch:
        return self  # immutable

    def __deepcopy__(self, _: object) -> MessageBatch:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        from tickertape.batch.pickling import reduced_batch

        return reduced_batch(self)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Message]:
        return map(Message, self.bodies_list(), repeat(self), range(self.count))

    def __repr__(self) -> str:
        topics = self.topics[0] if len(self.topics) == 1 else f"{len(self.topics)} topics"
        return f"<MessageBatch {self.count} messages, {self.run_count} runs, {self.body_bytes} B, {topics}>"

    def bodies_list(self) -> list[bytes]:
        """Return all bodies as `bytes` objects, in order."""
        return bodies_between(self, 0, self.count)

    def body(self, i: int) -> bytes:
        """Return the body of message `i`. Raises `IndexError` for an index outside the batch."""
        if not 0 <= i < self.count:
            raise IndexError(f"Invalid message index {i}. Use 0 to {self.count - 1}.")
        return bytes(self.bodies[self.offsets[i] : self.offsets[i + 1]])

    def topic(self, i: int) -> str:
        """Return the topic of message `i`."""
        topics = self.topics
        return topics[0] if len(topics) == 1 else topics[self._topic_numbers[i]]

    def publisher(self, i: int) -> int:
        """Return the publisher id of message `i` as a Python integer."""
        return self._publisher_numbers[i]

    def sequence(self, i: int) -> int:
        """Return the sequence number of message `i` as a Python integer."""
        return self._sequence_numbers[i]

    def timestamp(self, i: int) -> int:
        """Return the timestamp of message `i` in microseconds since 1970 UTC, as a Python integer."""
        return self._timestamp_numbers[i]

    def late(self, i: int) -> bool:
        """Return whether message `i` was stored after later messages of its publisher."""
        if self.run_count == 1:
            return bool(self.first_run.flags & RUN_LATE)
        ends = self.runs["count"].cumsum()
        return bool(int(self.runs["flags"][int(ends.searchsorted(i, side="right"))]) & RUN_LATE)

    def bookmark(self, i: int) -> str:
        """Return the bookmark of message `i`: `publisher|sequence|`."""
        return f"{self._publisher_numbers[i]}|{self._sequence_numbers[i]}|"

    def correlation_id(self, i: int) -> str | None:
        """Return the correlation id of message `i`, or None."""
        return _label(self.correlation_ids, i)

    def key(self, i: int) -> str | None:
        """Return the message key of message `i`, or None."""
        return _label(self.keys, i)

    def expiration(self, i: int) -> int | None:
        """Return the lifetime of message `i` in milliseconds as a Python integer, or None."""
        return self._expiration_numbers[i] or None

    # Access to an element of a numpy array costs ten times as much as to one of a list, and callers of one
    # element usually need all.

    @Lazy
    def _topic_numbers(self) -> Sequence[int]:
        numbers: list[int] = _frombuffer(self._table, I4, self.count, self._places.topic_index).tolist()
        return numbers

    @Lazy
    def _publisher_numbers(self) -> Sequence[int]:
        return [self.first_run.publisher] * self.count if self.run_count == 1 else self.publishers.tolist()

    @Lazy
    def _timestamp_numbers(self) -> Sequence[int]:
        return [self.first_run.timestamp] * self.count if self.run_count == 1 else self.timestamps.tolist()

    @Lazy
    def _sequence_numbers(self) -> Sequence[int]:
        if self.run_count == 1 and not self._places.sequences:
            first = self.first_run.first_sequence
            return range(first, first + self.count)
        numbers: list[int] = self.sequences.tolist()
        return numbers

    @Lazy
    def _expiration_numbers(self) -> Sequence[int]:
        return [0] * self.count if self.expirations is None else self.expirations.tolist()

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return the messages as an Arrow record batch. It references the bodies without a copy.

        Args:
            columns: Names of the columns, in order. Default: `topic` (dictionary of strings), `publisher` and
                `sequence` (uint64), `timestamp` (microseconds, UTC) and `data` (binary). Other columns:
                `expiration_ms` (int64), `correlation_id` and `sow_key` (string), which are null for messages
                without the value, and `kind` (uint8, 1 = control record).

        Raises:
            UsageError: A column is unknown.
        """
        from tickertape.batch.arrow import to_arrow

        return to_arrow(self, columns)


class Message(msgspec.Struct, frozen=True, eq=False):
    """One message. `data` is its body as bytes. All other values are looked up in its batch.

    Messages compare by identity. A message keeps its whole batch in memory: keep only `data` to save memory.
    A pickled copy has a batch of only this message. You can read the values of the copy, but not discard or
    acknowledge it (`UsageError`).

    Example:
        >>> with client.subscribe("orders") as stream:
        ...     client.publish("orders", {"id": 1}, sow_key="1")
        ...     message = stream.get(timeout=5)
        >>> message.topic, message.sow_key, message.data
        ('orders', '1', b'{"id":1}')
    """

    data: bytes
    """The body, as it was published."""
    batch: MessageBatch
    """The batch that contains the message."""
    index: int
    """Index of the message in its batch."""

    @property
    def topic(self) -> str:
        """Topic of the message, or the queue's name for a message from a queue."""
        batch = self.batch
        context = batch.context
        if context is not None and context.lease is not None:
            return context.lease.queue
        return batch.topic(self.index)

    @property
    def underlying_topic(self) -> str:
        """Topic to which the message was published, also for a message from a queue."""
        return self.batch.topic(self.index)

    @property
    def command(self) -> str:
        """Name of the command that delivered the message.

        `publish`: a published message. `sow`: a record of a query. `group_begin`, `group_end`: the start and
        the end of the result of a query, with an empty body.
        """
        context = self.batch.context
        return "publish" if context is None else context.command

    @property
    def sub_id(self) -> str | None:
        """Id of the subscription that delivered the message, or None."""
        context = self.batch.context
        return None if context is None else context.sub_id

    @property
    def query_id(self) -> str | None:
        """Id of the query. None unless `command` is `sow`, `group_begin` or `group_end`."""
        context = self.batch.context
        return None if context is None or context.command == "publish" else context.sub_id

    @property
    def bookmark(self) -> str | None:
        """Bookmark (`publisher|sequence|`) of a message from a bookmark subscription, a queue or a query,
        otherwise None. Messages of non-persistent topics have none.

        A record has the bookmark of the message that last changed the record. Messages with the `command`
        `group_begin` or `group_end` have the bookmark of the last message before the log position of the
        query result.
        """
        context = self.batch.context
        if context is None or not (context.with_bookmark or context.lease is not None):
            return None
        return self.batch.bookmark(self.index) if self.sequence else None

    @property
    def timestamp(self) -> datetime | None:
        """Time when the server accepted the message (a `datetime` in UTC).

        None if the subscription did not request timestamps (`timestamp=True`), and for messages of
        non-persistent topics.
        """
        context = self.batch.context
        if context is None or not context.with_timestamp or not self.batch.timestamp(self.index):
            return None
        return _EPOCH + timedelta(microseconds=self.batch.timestamp(self.index))

    @property
    def publisher(self) -> str:
        """Publisher id, a decimal number as text."""
        return str(self.batch.publisher(self.index))

    @property
    def late(self) -> bool:
        """Whether the server stored the message after later messages of its publisher.

        Servers that replicate deliver such messages after a failover of the publisher.
        """
        return self.batch.late(self.index)

    @property
    def sequence(self) -> int:
        """Sequence number of the message among the messages of its publisher."""
        return self.batch.sequence(self.index)

    @property
    def correlation_id(self) -> str | None:
        """Correlation id set by the publisher, or None."""
        return self.batch.correlation_id(self.index)

    @property
    def sow_key(self) -> str | None:
        """Message key set by the publisher, or None.

        In results of `Client.sow` and `Client.sow_and_subscribe`, it is the key of the record. It is None
        if `select` omits a key field. If the keys come from fields of the body, the client computes the key
        at each access, always with the same result.
        """
        return sow_key_of(self.batch, self.index)

    @property
    def expiration(self) -> int | None:
        """Lifetime of the queue message or record in milliseconds, set by the publisher, or None. It starts
        when the server accepts the message."""
        return self.batch.expiration(self.index)

    def discard(self) -> bool:
        """Discard the message, so that the bookmark store prevents its redelivery.

        Return False if the message was already discarded, or if no bookmark store tracks its subscription.
        Raises the errors of the store (`StoreFailed`, `Closed`).
        """
        batch, index = self.batch, self.index
        context = batch.context
        if context is None or (store := context.store) is None:
            return False
        return store.discard(context.sub_id, batch._publisher_numbers[index], batch._sequence_numbers[index])

    # -- queue messages ---------------------------------------------------------------------------------

    @property
    def lease_expires(self) -> datetime | None:
        """Time when the lease ends (a `datetime` in UTC), as granted at the delivery.

        `extend` does not change it. None for a lease without an end, for an at-most-once queue, and for a
        message that is not from a queue.
        """
        return self.batch.lease_expires

    def ack(self) -> None:
        """Acknowledge the message as processed, so that it leaves its queue.

        Any thread and any handler may call this. The call does not wait for an answer, and a second call has
        no effect. By default, the client sends each acknowledgement at once. With an `ack_batch_size` above
        1, it collects acknowledgements and sends them together.

        A publish store keeps and resends acknowledgements like published messages. Without a publish store,
        an acknowledgement can be lost with the connection. The server then redelivers the message.

        Raises:
            UsageError: The message is not from a queue, or was only browsed.
            Disconnected: The connection is lost, and the client has no publish store.
            StoreError: The publish store failed.
            Closed: The client is closed.
            PublisherTakenOver: Another process has published under this client name.
        """
        batch = self.batch
        context = batch.context
        lease = None if context is None else context.lease
        if lease is None:
            lease = _lease_of(batch, "acknowledge")
        index = self.index
        lease.ack(batch._publisher_numbers[index], batch._sequence_numbers[index])

    def cancel(self) -> None:
        """Return the message to its queue for redelivery to any consumer.

        The client sends the request at once. If the message has reached a limit of the queue (`max_cancels`,
        `max_deliveries` or `expiration`), the queue expires it instead. No effect in an at-most-once queue.
        Raises the errors of `ack`.
        """
        self._settle("cancel")

    def expire(self) -> None:
        """Reject the message: the server removes it from its queue, and publishes it to the dead-letter topic
        if the queue has one.

        The client sends the request at once. No effect in an at-most-once queue. Raises the errors of `ack`.
        """
        self._settle("expire")

    def extend(self, seconds: float | str) -> None:
        """Set the end of the lease to `seconds` from now. This extends or shortens the lease.

        The client sends the request at once. No effect in an at-most-once queue, or on a lease without end.

        Args:
            seconds: Remaining time of the lease in seconds or text (`"60s"`): more than 0, at most 366 days.

        Raises:
            BadOption: `seconds` is invalid.

        All other errors: see `ack`.
        """
        self._settle("extend", extension_ms(seconds))

    def _settle(self, action: Action, extend_ms: int = 0) -> None:
        batch, index = self.batch, self.index
        mark = (batch.publisher(index), batch.sequence(index))
        _lease_of(batch, action).settle(action, (mark,), extend_ms)

    def json(self) -> Any:
        """Return the body decoded as JSON. Raises `BadMessage` for a body that is not JSON."""
        return decode(self.data)

    def __copy__(self) -> Message:
        return self  # immutable

    def __deepcopy__(self, _: object) -> Message:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        from tickertape.batch.pickling import reduced_message

        return reduced_message(self)

    def __repr__(self) -> str:
        return f"<Message {self.topic} {self.batch.bookmark(self.index)} {len(self.data)} bytes>"


def _lease_of(batch: MessageBatch, what: str) -> Lease:
    """Return the lease on the messages of `batch`. Raises `UsageError` if they are not from a queue."""
    context = batch.context
    lease = None if context is None else context.lease
    if lease is None:
        topic = batch.topic(0)
        if context is None:
            raise UsageError(
                f"Cannot {what}: the message of topic {topic!r} is not from a queue. Subscribe to a queue."
            )
        raise UsageError(
            f"Cannot {what}: subscription {context.sub_id!r} on topic {topic!r} is not a queue subscription. "
            "Subscribe to a queue, or use discard() for a bookmark subscription."
        )
    return lease


def cost_between(batch: MessageBatch, low: int, high: int) -> int:
    """Return the flow-control cost of the messages `[low, high)` of a batch in bytes."""
    cost = int(batch.offsets[high]) - int(batch.offsets[low]) + message_cost_bytes * (high - low)
    if batch.columns & (CORRELATION_IDS | KEYS | HEADERS):
        for labels in (batch.correlation_ids, batch.keys, batch.headers):
            if labels is not None:
                cost += int(labels.offsets[high]) - int(labels.offsets[low])
    return cost


def bodies_between(batch: MessageBatch, low: int, high: int) -> list[bytes]:
    """Return the bodies of the messages `[low, high)` of a batch, at least one, as `bytes` objects."""
    if batch.count == 1:
        return [bytes(batch.bodies)]
    offsets = batch.offsets[low : high + 1]
    bodies: memoryview = memoryview(batch.bodies)[int(offsets[0]) : int(offsets[-1])]
    if high - low == 1:
        return [bytes(bodies)]
    lengths = lengths_of(offsets)
    size = int(lengths[0])
    if size and size * (high - low) == len(bodies) and (lengths == size).all():
        alike: list[bytes] = _frombuffer(bodies, f"V{size}").tolist()
        return alike
    return list(map(io.BytesIO(bodies).read, lengths.tolist()))


def sow_key_of(batch: MessageBatch, i: int) -> str | None:
    """Return the key of message `i`, or the generated key of its record, or None without one."""
    key = batch.key(i)
    if key is None and (context := batch.context) is not None and (keys := context.sow_keys) is not None:
        return keys.key(batch.topic(i), batch.body(i))
    return key


def marks_of(batch: MessageBatch) -> list[tuple[int, int]]:
    """Return publisher and sequence of each message of a batch."""
    if batch.run_count == 1:
        return list(zip(repeat(batch.first_run.publisher), batch.sequences.tolist(), strict=False))
    return list(zip(batch.publishers.tolist(), batch.sequences.tolist(), strict=True))


def _label(labels: Labels | None, i: int) -> str | None:
    if labels is None:
        return None
    text = labels.text[labels.offsets[i] : labels.offsets[i + 1]]
    return str(text, "utf-8") if text else None
