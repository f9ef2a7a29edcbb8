"""Queue copy: the available messages of one queue at one time, as records of a query.

Invariants:
- The copy has messages that were available at its start, also those that are consumed meanwhile.
- Until the copy is over, `oldest_needed` keeps its messages in the log.
- All copies of a query together have at most `queue_query_bytes_max`. Above it the query ends.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from pyroaring import BitMap64

from tickertape.base.errors import LimitReached
from tickertape.batch import MessageBatch
from tickertape.batch.format import I4, I8, Int64s
from tickertape.engine.limits import (
    queue_frame_messages_max,
    queue_query_block_bytes,
    queue_query_bytes_max,
)
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.queues.message_reader import Fetched, MessageReader
from tickertape.engine.queues.state.records import array_of
from tickertape.engine.sow.query.record_copy import FoundRecords
from tickertape.engine.sow.query.record_topics import topic_key
from tickertape.engine.sow.state.blocks import BlockPin, BodyBlocks, Views
from tickertape.engine.sow.state.labels import labels_of
from tickertape.engine.sow.state.records import PublisherNumbers, PublisherTable, RecordRows

_NUMBER: Final = np.dtype("<u4")


class CopyMemory:
    """Memory of the messages that one query copies from queues."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.publishers = PublisherTable()
        """Publishers of all messages."""

    def count(self, nbytes: int) -> None:
        """Count more memory. Raises `LimitReached`."""
        self.nbytes += nbytes
        if self.nbytes > queue_query_bytes_max:
            raise LimitReached(
                "Cannot finish the query: its queue messages need more than "
                f"{queue_query_bytes_max:,} bytes of memory (queue_query_bytes_max). Use a filter, or top_n "
                "without order_by."
            )


class QueueCopy:
    """Copy of the messages `available` of one queue that pass a filter. It has blocks for their bodies.

    With a `limit` it has only that number of the first ones, and counts the others. Call `start`, then `step`
    until `over`. While `waiting`, a step does nothing. Then take the messages from `pieces`. `close` may be
    called at any time.
    """

    def __init__(
        self,
        available: BitMap64,
        reader: MessageReader,
        content: ContentFilter | None,
        memory: CopyMemory,
        limit: int | None = None,
    ) -> None:
        self._left = available
        """Messages to read."""
        self.record_count = len(self._left)
        """Available messages."""
        self.uncopied = 0
        """Selected messages beyond the limit."""
        self._limit = limit
        self._content = content if content is not None and content.filter is not None else None
        self._constants = None if self._content is None else self._content.constants()
        if self._content is None and limit is not None and limit < self.record_count:
            self.uncopied = self.record_count - limit
            self._left = self._left[:limit] if limit else BitMap64()
        self._reader = reader
        self._fetched: Fetched | None = None
        self._low = 0
        """First message of `_fetched` that is not copied."""
        self.publishers = memory.publishers
        self._memory = memory
        self._blocks = BodyBlocks(queue_query_block_bytes)
        self._with_keys = False
        self._keys: dict[str, bytes] = {}
        self._copied = 0
        """Messages in `pieces`."""
        self.nbytes = 0
        """Memory of the copied messages."""
        self.pin: BlockPin | None = None
        """Pin of the bodies. None without messages."""
        self.pieces: list[FoundRecords] = []
        """Messages, when the copy is over."""

    def start(self, with_keys: bool) -> QueueCopy:
        """Start the copy of messages, with or without keys (`topic_key`)."""
        self._with_keys = with_keys
        return self

    @property
    def over(self) -> bool:
        """Whether all messages are in `pieces`."""
        return not (self._left or self._fetched)

    @property
    def waiting(self) -> bool:
        """Whether it waits for a read of the log, so that a step does nothing."""
        return self._reader.waiting

    @property
    def oldest_needed(self) -> int | None:
        """Position from which it still needs the log, or None."""
        return int(self._left.min()) if self._left else None

    def close(self) -> list[Any]:
        """End the copy and forget its messages. Further calls have no effect.

        Returns its memory, for `ResultMemory.discard`."""
        self._reader.stop()
        self._left, self._fetched = BitMap64(), None
        memory: list[Any] = [*self.pieces]
        self.pieces, self.nbytes = [], 0
        if self.pin is not None:
            self.pin.release()
        return memory + self._blocks.clear()

    def step(self) -> None:
        """Execute one bounded step.

        Raises `LimitReached`, and `JournalCorrupt` and other errors of a read."""
        if self.over:
            return
        fetched = self._fetched or self._fetch()
        if fetched is None:
            return
        batch, low = fetched.batch, self._low
        high, content = batch.count, self._content
        if content is not None:
            high = content.piece_end(batch, low)
        rows = np.arange(low, high)
        if content is not None:
            rows = content.matching_rows(batch, rows, self._constants)
        if self._limit is not None:
            kept = rows[: max(self._limit - self._copied, 0)]
            self.uncopied += len(rows) - len(kept)
            rows = kept
        if len(rows):
            self._add(batch, fetched.positions, rows)
        self._low = high
        self._fetched = fetched if high < batch.count else None
        if self._fetched is None and not self._left:
            self._reader.stop()

    def _fetch(self) -> Fetched | None:
        """Return the next messages, or None while they are being read."""
        fetched = self._reader.get(array_of(self._left[:queue_frame_messages_max]))
        if self._reader.failure is not None:
            raise self._reader.failure
        if fetched is not None:
            self._left -= BitMap64(fetched.positions)
            self._low = 0
        return fetched

    def _add(self, batch: MessageBatch, positions: Int64s, rows: Int64s) -> None:
        """Copy some messages of a batch, at least one."""
        views = self._store(batch, rows)
        columns = RecordRows(
            views,
            positions[rows],
            batch.timestamps[rows],
            self._publishers(batch, rows),
            batch.sequences[rows],
            labels=labels_of(batch, rows),
        )
        piece = FoundRecords(columns, self._topic_keys(batch, rows) if self._with_keys else [])
        self.pieces.append(piece)
        self._copied += len(rows)
        self._count(piece.nbytes)

    def _store(self, batch: MessageBatch, rows: Int64s) -> Views:
        """Store the bodies of some messages, and return their views."""
        blocks = self._blocks
        before = blocks.used_bytes
        starts, ends = batch.offsets[rows].astype(I8), batch.offsets[rows + 1].astype(I8)
        views = blocks.append_some(batch.bodies, starts, ends)
        if self.pin is None:
            self.pin = blocks.pin(views)
        else:
            self.pin.extend(views)
        self._count(blocks.used_bytes - before)
        return views

    def _publishers(self, batch: MessageBatch, rows: Int64s) -> PublisherNumbers:
        number = self.publishers.number
        ids, indices = np.unique(batch.publishers[rows], return_inverse=True)
        return np.array([number(publisher) for publisher in ids.tolist()], _NUMBER)[indices]

    def _topic_keys(self, batch: MessageBatch, rows: Int64s) -> list[bytes]:
        """Return the keys of messages, one object for each topic."""
        index = np.zeros(len(rows), I4) if batch.topic_index is None else batch.topic_index[rows]
        keys = {}
        for at in np.unique(index).tolist():
            topic = batch.topics[at]
            keys[at] = self._keys.setdefault(topic, topic_key(topic))
        return [keys[at] for at in index.tolist()]

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._memory.count(nbytes)
