"""Send buffers: messages gathered for the next frame, the fast append, and frames in flight.

An exception (a signal handler that raises) may come between any two steps: gathered messages change by single
assignments and appends, and sequences are counted from them, so that none is lost or repeated.
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
from tickertape.batch.format import I8, Int32s
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.limits import topics_remembered_max

NOBODY: Final = 0
"""No thread has this identity."""


class FrameInFlight(NamedTuple):
    """A frame that was sent: its sequences (0 when it has none), and its batch when a store keeps it."""

    first: int
    last: int
    messages: int
    batch: MessageBatch | None


@dataclass(eq=False, repr=False, slots=True)
class AppendRun:
    """A licence for one thread: append to `bodies` without a lock while the run is the open one.

    Only `owner` (a thread's identity, or what stands for an event loop) appends, and only bodies of at most
    `body_bytes_max` bytes to `topic` while there are fewer than `count_max`. Afterwards it looks whether the
    run is still open. When it is not, `taken` says how many of `bodies` were included in what was sent. While
    it appends, a thread sets `owner` to `NOBODY`: its own signal handlers must not come in between.
    """

    owner: int
    topic: str
    bodies: list[bytes]
    base: int | None
    """Sequence of the first of `bodies`; None where messages carry none."""
    count_max: int
    body_bytes_max: int
    taken: int | None = None


CLOSED: Final = AppendRun(NOBODY, "", [], None, 0, -1)
"""The open run while there is none."""


@dataclass(eq=False, repr=False, slots=True)
class SendBuffer:
    """One kind of publish frames: those of recorded topics, or those of unrecorded ones."""

    topic: str = ""
    """The topic of all of `bodies`; empty when there are none."""
    bodies: list[bytes] = field(default_factory=list)
    lengths: Int32s | None = None
    """Lengths of `bodies`, when they were measured and none was added since."""
    _builder: BatchBuilder | None = None
    """Holds everything gathered when that is more than bodies of one topic; `bodies` is not used then."""
    run: AppendRun | None = None
    """The run that may append to `bodies`; `size` lacks what it appended until `close`."""
    size: int = 0
    """Cost of what is gathered, but for what a run appended."""
    base: int = 1
    """Sequence of the first message gathered, or of the next one when there is none."""
    longest: int = 0
    """About the longest body of late: what a run allows."""
    limit: int = batch_bytes_target
    """Cost that may be gathered without a check for room."""
    idle: bool = False
    """Connected, and nothing is unanswered."""
    sequenced: bool = False
    in_flight: dict[int, FrameInFlight] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Messages gathered."""
        return len(self.bodies) if self._builder is None else self._builder.count

    @property
    def plain(self) -> bool:
        """Whether bodies of one topic are gathered, and nothing else."""
        return self._builder is None and bool(self.bodies)

    def add(
        self, topic: str, body: bytes, expiration_ms: int = 0, correlation_id: str = "", key: str = ""
    ) -> None:
        """Gather a message. No run is open. Raises what `BatchBuilder.add` raises; then nothing changed."""
        plain = not (expiration_ms or correlation_id or key)
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
            builder.add(topic, body, expiration_ms=expiration_ms, correlation_id=correlation_id, key=key)
        except BaseException:
            builder.repair()
            raise
        self._builder = builder
        self.size += len(body) + len(correlation_id) + len(key) + message_cost_bytes

    def add_some(self, batch: MessageBatch, chosen: npt.NDArray[np.bool_]) -> None:
        """Gather the messages of `batch` that are `chosen`. No run is open."""
        for at in map(int, np.flatnonzero(chosen)):
            body, correlation_id, key = batch.body(at), batch.correlation_id(at), batch.key(at)
            self.add(batch.topic(at), body, batch.expiration(at) or 0, correlation_id or "", key or "")

    def open(self, owner: int, body_bytes: int) -> AppendRun:
        """A run for the thread `owner`, which has just added a body of `body_bytes` bytes; or `CLOSED`."""
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
        """End the run, which is no longer found open. Its owner may append once more, in vain."""
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
        """Return the gathered messages as one batch; they stay gathered until `clear`."""
        first_sequence = self.base if self.sequenced else 0
        if self._builder is not None:
            return self._builder.build(publisher=publisher, first_sequence=first_sequence)
        encoded = encode_bodies(self.bodies, self.lengths)
        return encoded.batch(self.topic, publisher=publisher, first_sequence=first_sequence)

    def clear(self, base: int = 1) -> None:
        """Forget what is gathered; `base` is the sequence of the next message."""
        # `base` comes last: as long as it is old, whoever looks sees that the store has these messages.
        self.lengths = None
        self.bodies = []
        self._builder = None
        self.size = 0
        self.base = base

    def drop_last(self) -> None:
        """Forget the message that was gathered last. No run is open."""
        if self._builder is None:
            self.lengths = None
            self.size -= len(self.bodies[-1]) + message_cost_bytes
            self.bodies = self.bodies[:-1]
            return
        batch, base = self.batch(), self.base
        self.clear(base)
        self.add_some(batch, np.arange(batch.count) < batch.count - 1)

    def repair(self) -> None:
        """Put right what an exception in the middle of `add` or `clear` left behind."""
        self.lengths = None
        if self._builder is not None:
            self._builder.repair()
            self.size = self._builder.body_bytes + message_cost_bytes * self._builder.count
        else:
            self.size = sum(map(len, self.bodies)) + message_cost_bytes * len(self.bodies)


Write = Callable[[int, bytes], bool]
"""Keeps the message of a sequence; False where the store has to do more than write, and nothing was done."""


class StoreAppend:
    """More messages of one topic, each straight into the store."""

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
        """The sequence of the message; None where it has to go the long way, and nothing was done."""

    def close(self) -> None:
        """Append nothing more: `publish` gives None."""
        self.open = False


class SendBuffers:
    """Both send buffers of one client."""

    __slots__ = ("of_topic", "recorded", "unrecorded")

    def __init__(self) -> None:
        self.recorded = SendBuffer()
        self.unrecorded = SendBuffer()
        self.of_topic: dict[str, SendBuffer] = {}
        """The buffer of each topic that was published."""

    def remember(self, topic: str, *, recorded: bool) -> SendBuffer:
        """Return the buffer of a topic, which is known from now on."""
        if len(self.of_topic) >= topics_remembered_max:
            self.of_topic.clear()
        buffer = self.of_topic[topic] = self.recorded if recorded else self.unrecorded
        return buffer

    def close(self) -> None:
        """End the runs."""
        self.recorded.close()
        self.unrecorded.close()

    def connect(self) -> None:
        """A connection is ready: nothing was sent on it."""
        for buffer in (self.recorded, self.unrecorded):
            buffer.idle = True

    def disconnect(self) -> None:
        """Nothing that was sent will be answered, and what no store keeps is gone. No run is open."""
        self.of_topic.clear()
        for buffer in (self.recorded, self.unrecorded):
            buffer.idle = False
            buffer.in_flight.clear()
            if not buffer.sequenced:
                buffer.clear()

    def repair(self) -> None:
        """As `SendBuffer.repair`."""
        self.recorded.repair()
        self.unrecorded.repair()

    @property
    def unsettled(self) -> bool:
        """Whether anything is gathered, or was sent and has no answer."""
        return any(buffer.count or buffer.in_flight for buffer in (self.recorded, self.unrecorded))

    def oldest_in_flight(self) -> int | None:
        """The first frame that has no answer; None when all have one."""
        buffers = (self.recorded, self.unrecorded)
        return min((next(iter(buffer.in_flight)) for buffer in buffers if buffer.in_flight), default=None)
