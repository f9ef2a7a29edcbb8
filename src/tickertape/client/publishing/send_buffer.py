"""Send buffers: messages collected for the next frame, the fast append path, and frames in flight.

A signal handler may raise an exception between any two steps. Therefore collected messages change only by
single assignments and appends, and sequences are derived from them: no sequence is lost or repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tickertape.base.limits import batch_bytes_target, message_cost_bytes
from tickertape.batch.builders.builder import BatchBuilder
from tickertape.batch.encode import encode_bodies, lengths_in
from tickertape.batch.format import FLAG_DELTA, I8, Int32s
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.limits import topics_remembered_max

NO_OWNER: Final = 0
"""Placeholder owner: no thread has this identity."""


class FrameInFlight(NamedTuple):
    """A sent frame: first and last sequence (0 if unsequenced), message count, and the batch if stored."""

    first: int
    last: int
    messages: int
    batch: MessageBatch | None


@dataclass(eq=False, repr=False, slots=True)
class AppendRun:
    """Permission of one thread to append to `bodies` without a lock while the run is open.

    Only `owner` (a thread identity, or a number for an event loop) appends. It appends bodies of at most
    `body_bytes_max` bytes for `topic`, up to `count_max` bodies. After each append it checks whether the run
    is still open. If not, `taken` is the number of `bodies` that were sent. While it appends, a thread sets
    `owner` to `NO_OWNER` to exclude its own signal handlers.
    """

    owner: int
    topic: str
    bodies: list[bytes]
    base: int | None
    """Sequence of the first of `bodies`, or None for messages without sequences."""
    count_max: int
    body_bytes_max: int
    taken: int | None = None


CLOSED: Final = AppendRun(NO_OWNER, "", [], None, 0, -1)
"""Placeholder for the open run if none is open."""


@dataclass(eq=False, repr=False, slots=True)
class SendBuffer:
    """Messages collected for the next publish frame of persistent topics, or of non-persistent topics."""

    topic: str = ""
    """Topic of all `bodies`, or empty."""
    bodies: list[bytes] = field(default_factory=list)
    lengths: Int32s | None = None
    """Lengths of `bodies`, or None if a body was added since they were measured."""
    _builder: BatchBuilder | None = None
    """Holds all collected messages if they have several topics or labels. `bodies` is then unused."""
    run: AppendRun | None = None
    """The run that may append to `bodies`. `size` excludes its appended bodies until `close`."""
    size: int = 0
    """Cost of the collected messages, except those that a run appended."""
    base: int = 1
    """Sequence of the first collected message, or of the next one if the buffer is empty."""
    longest: int = 0
    """Decaying maximum of recent body lengths: the body limit of a run."""
    limit: int = batch_bytes_target
    """Cost that may be collected without a check of free space."""
    deletes: int = 0
    """Number of collected deletes of records, at least."""
    idle: bool = False
    """Connected, and the next message is sent at once."""
    sequenced: bool = False
    in_flight: dict[int, FrameInFlight] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of collected messages."""
        return len(self.bodies) if self._builder is None else self._builder.count

    @property
    def plain(self) -> bool:
        """Whether the buffer holds only bodies of one topic, and at least one."""
        return self._builder is None and bool(self.bodies)

    def add(
        self,
        topic: str,
        body: bytes,
        expiration_ms: int = 0,
        correlation_id: str = "",
        key: str = "",
        delta: bool = False,
    ) -> None:
        """Add a message. No run may be open. Raises as `BatchBuilder.add` and then leaves no change."""
        plain = not (expiration_ms or correlation_id or key or delta)
        if plain and self._builder is None and (topic == self.topic or not self.bodies):
            self.topic = topic
            self.lengths = None
            self.bodies.append(body)
            self.size += len(body) + message_cost_bytes
            return
        builder = self._builder
        if builder is None:
            builder = BatchBuilder()
            for earlier in self.bodies:
                builder.add(self.topic, earlier)
        try:
            builder.add(
                topic,
                body,
                expiration_ms=expiration_ms,
                correlation_id=correlation_id,
                key=key,
                flags=FLAG_DELTA * delta,
            )
        except BaseException:
            builder.repair()
            raise
        self._builder = builder
        self.size += len(body) + len(correlation_id) + len(key) + message_cost_bytes

    def add_some(self, batch: MessageBatch, chosen: npt.NDArray[np.bool_]) -> None:
        """Add the `chosen` messages of `batch`. No run may be open."""
        flags = batch.message_flags
        for at in map(int, np.flatnonzero(chosen)):
            body, correlation_id, key = batch.body(at), batch.correlation_id(at), batch.key(at)
            delta = flags is not None and bool(flags[at] & FLAG_DELTA)
            self.add(batch.topic(at), body, batch.expiration(at) or 0, correlation_id or "", key or "", delta)

    def open(self, owner: int, body_bytes: int) -> AppendRun:
        """Open a run for `owner`, which has just added a body of `body_bytes` bytes. May return `CLOSED`."""
        if self._builder is not None:
            return CLOSED
        longest = self.longest = max(body_bytes, self.longest - (self.longest >> 4))
        more = (min(self.limit, batch_bytes_target) - self.size) // (longest + message_cost_bytes)
        if more < 2:
            return CLOSED
        count = len(self.bodies)
        base = self.base if self.sequenced else None
        self.lengths = None
        run = self.run = AppendRun(owner, self.topic, self.bodies, base, count + more, longest)
        return run

    def close(self) -> None:
        """Close the run. One more append of its owner may follow, without effect."""
        run = self.run
        if run is None:
            return
        taken = run.taken
        if taken is None:
            taken = run.taken = len(run.bodies)
        self.bodies = run.bodies[:taken]
        self.lengths = lengths = lengths_in(self.bodies)
        self.size = int(lengths.sum(dtype=I8)) + message_cost_bytes * taken
        self.run = None

    def batch(self, publisher: int = 0) -> MessageBatch:
        """Return the collected messages as one batch. They stay in the buffer until `clear`."""
        first_sequence = self.base if self.sequenced else 0
        if self._builder is not None:
            return self._builder.build(publisher=publisher, first_sequence=first_sequence)
        encoded = encode_bodies(self.bodies, self.lengths)
        return encoded.batch(self.topic, publisher=publisher, first_sequence=first_sequence)

    def clear(self, base: int = 1) -> None:
        """Remove all collected messages. `base` is the sequence of the next message."""
        # `base` last: while it is old, a reader can see that the store already has these messages.
        self.lengths = None
        self.bodies = []
        self._builder = None
        self.size = 0
        self.deletes = 0
        self.base = base

    def drop_last(self) -> None:
        """Remove the last message. No run may be open."""
        if self._builder is None:
            self.lengths = None
            self.size -= len(self.bodies[-1]) + message_cost_bytes
            self.bodies = self.bodies[:-1]
            return
        batch, base, deletes = self.batch(), self.base, self.deletes
        self.clear(base)
        self.add_some(batch, np.arange(batch.count) < batch.count - 1)
        self.deletes = deletes

    def repair(self) -> None:
        """Restore consistency after an exception inside `add` or `clear`."""
        self.lengths = None
        if self._builder is not None:
            self._builder.repair()
            self.size = self._builder.body_bytes + message_cost_bytes * self._builder.count
        else:
            self.size = sum(map(len, self.bodies)) + message_cost_bytes * len(self.bodies)


Write = Callable[[int, bytes], bool]
"""Stores one message. Returns False, without effect, if the store must do more than write."""


class StoreAppend:
    """Fast path that appends messages of one topic directly to the store."""

    __slots__ = ("open", "publish", "topic")

    def __init__(self, buffer: SendBuffer, write: Write) -> None:
        self.topic = buffer.topic
        self.open = True
        bodies, base, limit = buffer.bodies, buffer.base, buffer.limit

        def publish(body: bytes) -> int | None:
            size = buffer.size + len(body) + message_cost_bytes
            if size >= limit or not self.open:
                return None
            sequence = base + len(bodies)
            if not write(sequence, body):
                return None
            bodies.append(body)
            buffer.size = size
            return sequence

        self.publish: Callable[[bytes], int | None] = publish
        """Publishes a body and returns its sequence. None, without effect, requests the normal path."""

    def close(self) -> None:
        """Stop appending: `publish` returns None from now on."""
        self.open = False


class SendBuffers:
    """The two send buffers of a client: persistent and non-persistent topics."""

    __slots__ = ("of_topic", "recorded", "unrecorded")

    def __init__(self) -> None:
        self.recorded = SendBuffer()
        self.unrecorded = SendBuffer()
        self.of_topic: dict[str, SendBuffer] = {}
        """Buffer of each published topic."""

    def remember(self, topic: str, *, recorded: bool) -> SendBuffer:
        """Return the buffer of a topic and cache it."""
        if len(self.of_topic) >= topics_remembered_max:
            self.of_topic.clear()
        buffer = self.of_topic[topic] = self.recorded if recorded else self.unrecorded
        return buffer

    def close(self) -> None:
        """Close the runs."""
        self.recorded.close()
        self.unrecorded.close()

    def connect(self) -> None:
        """Mark both buffers as idle for a new connection."""
        for buffer in (self.recorded, self.unrecorded):
            buffer.idle = True

    def disconnect(self) -> None:
        """Drop all frames in flight and all messages without a store. No run may be open."""
        self.of_topic.clear()
        for buffer in (self.recorded, self.unrecorded):
            buffer.idle = False
            buffer.in_flight.clear()
            if not buffer.sequenced:
                buffer.clear()

    def repair(self) -> None:
        """Repair both buffers (see `SendBuffer.repair`)."""
        self.recorded.repair()
        self.unrecorded.repair()

    @property
    def unsettled(self) -> bool:
        """Whether any message is collected, or sent and unanswered."""
        return any(buffer.count or buffer.in_flight for buffer in (self.recorded, self.unrecorded))

    def oldest_in_flight(self) -> int | None:
        """Return the first unanswered frame, or None if all are answered."""
        buffers = (self.recorded, self.unrecorded)
        return min((next(iter(buffer.in_flight)) for buffer in buffers if buffer.in_flight), default=None)
