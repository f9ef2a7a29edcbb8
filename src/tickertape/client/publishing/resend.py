"""Resend window: sends the publish store again on a new connection, in order and bounded.

Invariant: a message that was accepted as recorded is never sent unsequenced, and nothing is sent past it:
with a later sequence persisted, the server would drop it as a duplicate and acknowledge it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Generator, Iterator
from operator import attrgetter
from typing import Final, TypeAlias

import numpy as np

from tickertape.base.errors import TopicNotRecorded
from tickertape.batch.derive import select
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.limits import republish_bytes_max
from tickertape.client.publish_store.protocol import PublishStore, Stored
from tickertape.client.publishing.send_buffer import SendBuffers
from tickertape.client.publishing.server_topics import Flags, ServerTopics

AFTER_RESEND: Final = -1
"""Stands for the last frame of the backlog, whose number is not known before it is sent."""


Resent: TypeAlias = tuple[Stored, Flags | None]
"""A batch to be sent with its sequences, or the messages of one to be sent without."""
ResendSteps: TypeAlias = Generator[Resent, int, bool]
"""Batches to be sent, each answered by the number of its frame."""


class ResendWindow:
    """The batches of `store` in order: those it held at the beginning, then what it was given meanwhile."""

    def __init__(self, store: PublishStore) -> None:
        self._store = store
        self._pieces: Iterator[Stored] = iter(store.held())
        self._through = 0
        """Up to here everything was given out or is settled."""
        self._frames: deque[tuple[int, int]] = deque()
        self._bytes = 0

    def room(self, oldest: int | None) -> bool:
        """Whether more may be sent; `oldest` is the first frame without an answer, None when all have one."""
        frames = self._frames
        while frames and (oldest is None or frames[0][0] < oldest):
            self._bytes -= frames.popleft()[1]
        return self._bytes < republish_bytes_max

    def take(self) -> Stored | None:
        """The next batch; None when the store holds no more. Raises `StoreError` where it cannot be read."""
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
        """The batch that was taken went out, as frames up to `frame`."""
        self._frames.append((frame, nbytes))
        self._bytes += nbytes

    def discarded(self, sequence: int) -> None:
        """The store let go of everything up to `sequence`, perhaps of more than was sent here."""
        if sequence > self._through:
            self._through = sequence
            self._pieces = iter(())


class StoreResend:
    """The resend window of one connection at a time."""

    def __init__(self, buffers: SendBuffers, server_topics: ServerTopics) -> None:
        self._buffers = buffers
        self._server_topics = server_topics
        self._store: PublishStore | None = None
        self._window: ResendWindow | None = None
        self.refused: TopicNotRecorded | None = None
        """Why the last connection could not take what the store holds; None once one could."""
        self._moved: Counter[str] = Counter()
        """Messages that left the store unsequenced since the last report, by topic."""

    @property
    def active(self) -> bool:
        """Whether something has to be sent again before anything else of recorded topics."""
        return self._window is not None

    def begin(self, store: PublishStore) -> None:
        """A new connection, or a new store: everything that `store` holds is to be sent."""
        self._store = store
        self._window = ResendWindow(store)

    def stop(self) -> None:
        """Stop: there is no connection, or nothing to be sent."""
        self._window = None

    def use_other_store(self) -> None:
        """The client has another store: what the last connection could not take is not in it."""
        self.refused = None

    def discarded(self, sequence: int) -> None:
        """The store let go of everything up to `sequence`."""
        if self._window is not None:
            self._window.discarded(sequence)

    def steps(self) -> ResendSteps:
        """Yield as many batches as may be on their way; returns whether that was the last of them.

        Raises `TopicNotRecorded`, and `StoreError` where the store cannot be read: the connection has to end.
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
                frame = yield stored, None
            else:
                frame = yield from self._split(stored, apart)
            window.sent(frame, stored.batch.nbytes)
        return False

    def take_moved(self) -> TopicNotRecorded | None:
        """Return the report of messages that left the store unsequenced since the last call, if any."""
        if not self._moved:
            return None
        moved, self._moved = self._moved, Counter()
        topic, *others = moved
        more = f" and {len(others)} other topic(s)" if others else ""
        return TopicNotRecorded(
            f"Cannot record {moved.total()} message(s) for topic {topic!r}{more}: they were published before "
            "the first logon, and the server does not record the topic. They were sent unrecorded and left "
            "the publish store. Record the topic on the server, if you need such messages in its log"
        )

    def _split(self, stored: Stored, apart: Flags) -> Generator[Resent, int, int]:
        # Stored while it was not known what the server records: only recorded topics carry sequences.
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
            frame = yield Stored(int(sequences[0]), int(sequences[-1]), rest), None
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
            f"Cannot send the messages of the publish store: the server does not record topic {topic!r}, and "
            f"messages were accepted for it as recorded. The store keeps all {count} message(s). Record the "
            "topic on that server, connect to one that does, or publish what held() has through a fresh store"
        )
