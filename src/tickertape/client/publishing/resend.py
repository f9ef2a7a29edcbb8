"""Resend window: resends the publish store on a new connection, in order and with bounded memory.

Invariant: a message that was accepted as persistent is never sent without its sequence, and no later message
is sent before it. If a later sequence was persisted, the server would drop it as a duplicate and acknowledge
it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Generator, Iterator
from itertools import pairwise
from operator import attrgetter
from typing import Final, TypeAlias

import numpy as np

from tickertape.base.errors import TopicNotRecorded
from tickertape.base.limits import sow_deltas_per_frame_max, sow_searches_per_frame_max
from tickertape.batch import slice_batch
from tickertape.batch.derive import select
from tickertape.batch.format import FLAG_DELTA, I8
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.limits import republish_bytes_max
from tickertape.client.publish_store.protocol import PublishStore, Stored
from tickertape.client.publishing.send_buffer import SendBuffers
from tickertape.client.publishing.server_topics import Flags, ServerTopics
from tickertape.wire.sow_command import SOW_TOPIC

AFTER_RESEND: Final = -1
"""Placeholder for the last frame of the backlog, whose number is unknown before it is sent."""


Resent: TypeAlias = tuple[Stored, Flags | None]
"""A batch to send with its sequences (flags None), or the flagged messages to send without sequences."""
ResendSteps: TypeAlias = Generator[Resent, int, bool]
"""Batches to send. The caller sends back the number of each frame."""


class ResendWindow:
    """Batches of `store` in order: first the stored ones, then those added meanwhile."""

    def __init__(self, store: PublishStore) -> None:
        self._store = store
        self._pieces: Iterator[Stored] = iter(store.held())
        self._through = 0
        """Sequence up to which every message was returned by `take` or is settled."""
        self._frames: deque[tuple[int, int]] = deque()
        self._bytes = 0

    def room(self, oldest: int | None) -> bool:
        """Return whether more may be sent. `oldest` is the first unanswered frame, or None."""
        frames = self._frames
        while frames and (oldest is None or frames[0][0] < oldest):
            self._bytes -= frames.popleft()[1]
        return self._bytes < republish_bytes_max

    def take(self) -> Stored | None:
        """Return the next batch, or None at the end of the store. Raises `StoreError` if it is unreadable."""
        piece = next(self._pieces, None)
        if piece is None:
            held = self._store.held()
            more = bisect_right(held, self._through, key=attrgetter("last"))
            self._pieces = iter(held[more:])
            piece = next(self._pieces, None)
        if piece is not None:
            self._through = piece.last
        return piece

    def sent(self, frame: int, nbytes: int) -> None:
        """Record that the last batch of `take` was sent, in frames up to `frame`."""
        self._frames.append((frame, nbytes))
        self._bytes += nbytes

    def discarded(self, sequence: int) -> None:
        """Skip messages up to `sequence`, which the store discarded. They may be unsent."""
        if sequence > self._through:
            self._through = sequence
            self._pieces = iter(())


class StoreResend:
    """The resend window of the current connection."""

    def __init__(self, buffers: SendBuffers, server_topics: ServerTopics) -> None:
        self._buffers = buffers
        self._server_topics = server_topics
        self._store: PublishStore | None = None
        self._window: ResendWindow | None = None
        self.refused: TopicNotRecorded | None = None
        """Error of the last connection if its server cannot persist the stored messages, else None."""
        self._moved: Counter[str] = Counter()
        """Messages by topic that left the store without sequences since the last report."""

    @property
    def active(self) -> bool:
        """Whether messages must be resent before new messages of persistent topics."""
        return self._window is not None

    def begin(self, store: PublishStore) -> None:
        """Start resending all messages of `store`, for a new connection or a new store."""
        self._store = store
        self._window = ResendWindow(store)

    def stop(self) -> None:
        """Stop resending."""
        self._window = None

    def use_other_store(self) -> None:
        """Reset `refused` for a new store."""
        self.refused = None

    def discarded(self, sequence: int) -> None:
        """Skip messages up to `sequence`, which the store discarded."""
        if self._window is not None:
            self._window.discarded(sequence)

    def steps(self) -> ResendSteps:
        """Yield as many batches as the window allows. Return whether the backlog is completely sent.

        Raises `TopicNotRecorded`, and `StoreError` if the store is unreadable: the connection must end.
        """
        window = self._window
        assert window is not None
        while window.room(self._buffers.oldest_in_flight()):
            stored = window.take()
            if stored is None:
                self._window = self.refused = None
                return True
            apart = self._server_topics.unrecorded(stored.batch)
            if apart is None:
                for part in _frames_of(stored):
                    frame = yield part, None
            else:
                frame = yield from self._split(stored, apart)
            window.sent(frame, stored.batch.nbytes)
        return False

    def take_moved(self) -> TopicNotRecorded | None:
        """Return an error for messages that left the store without sequences since the last call, or None."""
        if not self._moved:
            return None
        moved, self._moved = self._moved, Counter()
        topic, *others = moved
        more = f" and {len(others)} other topic(s)" if others else ""
        return TopicNotRecorded(
            f"Cannot persist {moved.total()} message(s) for topic {topic!r}{more}: they were published "
            "before the first logon, and the topic is not persistent on this server. They were sent and left "
            "the publish store. Make the topic persistent if you need such messages in the log."
        )

    def _split(self, stored: Stored, apart: Flags) -> Generator[Resent, int, int]:
        # Stored before the server's persistent topics were known: only persistent topics carry sequences.
        first, last, batch = stored
        topic = self._server_topics.promised(batch, apart)
        if topic is not None:
            self._window = None
            self.refused = self._cannot_send(topic)
            raise self.refused
        assert self._store is not None
        rest = None if apart.all() else select(batch, ~apart)
        self._store.replace(first, last, rest)
        self._count_moved(batch, apart)
        frame = yield stored, apart
        if rest is not None:
            sequences = rest.sequences
            for part in _frames_of(Stored(int(sequences[0]), int(sequences[-1]), rest)):
                frame = yield part, None
        return frame

    def _count_moved(self, batch: MessageBatch, apart: Flags) -> None:
        if batch.topic_index is None:
            self._moved[batch.topics[0]] += batch.count
            return
        for i, count in enumerate(np.bincount(batch.topic_index[apart], minlength=len(batch.topics))):
            if count:
                self._moved[batch.topics[i]] += int(count)

    def _cannot_send(self, topic: str) -> TopicNotRecorded:
        assert self._store is not None
        count = self._store.unpersisted_count()
        return TopicNotRecorded(
            f"Cannot send the messages of the publish store: topic {topic!r} is not persistent on this "
            f"server, and messages were accepted for it as persistent. The store keeps all {count} "
            "message(s). Make the topic persistent on that server, connect to a server on which it is "
            "persistent, or publish the batches that held() of this store returns through a "
            "fresh store."
        )


def _frames_of(stored: Stored) -> Iterator[Stored]:
    """Yield a batch in parts, each with as many deletes of records and deltas as a server accepts in a frame.

    A file store may have joined the batches of several frames."""
    batch = stored.batch
    flags, topics = batch.message_flags, batch.topic_index
    if flags is None and SOW_TOPIC not in batch.topics:
        yield stored
        return
    work = np.zeros(batch.count, I8)
    if flags is not None:
        work += flags & FLAG_DELTA != 0
    if SOW_TOPIC in batch.topics:
        deletes = True if topics is None else topics == batch.topics.index(SOW_TOPIC)
        work += np.multiply(deletes, sow_deltas_per_frame_max // sow_searches_per_frame_max)
    part = (np.maximum(work.cumsum(), 1) - 1) // sow_deltas_per_frame_max
    edges = [0, *(np.flatnonzero(part[1:] != part[:-1]) + 1).tolist(), batch.count]
    sequences = batch.sequences
    for low, high in pairwise(edges):
        yield Stored(int(sequences[low]), int(sequences[high - 1]), slice_batch(batch, low, high))
