"""Conflater: delivers the last message of each key and interval, with the bookmark of the first.

Intervals follow the recorded timeline. A message with timestamp t opens an interval for its key. Messages
with timestamps before t + interval replace it. Messages are released in the order of their first bookmarks.

Invariants:
- Everything before a delivered bookmark has been delivered.
- The result does not depend on the batch boundaries of the stream.
- At most `bytes_max` are held beside the current message. A held message does not keep its batch alive.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from sys import getsizeof
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from tickertape.base.interfaces import Buffer
from tickertape.base.limits import batch_bytes_target
from tickertape.batch import MessageBatch
from tickertape.batch.builders.rows import PlainRow, batch_from_rows
from tickertape.batch.format import CORRELATION_IDS, EXPIRATIONS, HEADERS, I8, KEYS, Int64s
from tickertape.engine.limits import (
    conflation_entry_bytes,
    conflation_held_bytes_max,
    conflation_key_bytes_max,
)
from tickertape.engine.log_reads.selection import Selection

_WHOLE: Final = "the whole topic"
_NOTHING: Final = (0, b"", 0, b"", b"", b"")
_ROW_BYTES: Final = 64
"""Approximate overhead of a message in a batch, without body and labels."""


class ConflatedMessage(NamedTuple):
    """Messages whose interval has ended, with the bookmarks of the first messages of their intervals."""

    batch: MessageBatch
    positions: Int64s
    """Positions of the first messages, ascending."""
    stamps: Int64s
    """Recorded times of the first messages. They do not decrease, but the timestamps of the batch may."""


_Content: TypeAlias = tuple[int, Buffer, int, bytes, bytes, bytes]
"""Fields that a newer message replaces: timestamp, body, expiration, correlation id, key and headers."""


class _HeldMessage:
    """The open interval of one key."""

    # fmt: off
    __slots__ = (
        "at", "content", "key", "key_bytes", "opened", "position", "publisher", "sequence", "size", "topic",
    )
    # fmt: on

    def __init__(self, key: Hashable, key_bytes: int, source: _HeldBatch, index: int, opened: int) -> None:
        batch = source.batch
        self.key = key
        self.key_bytes = key_bytes
        self.position = source.positions[index]
        self.publisher = batch.publisher(index)
        self.sequence = batch.sequence(index)
        self.opened = opened
        self.topic = batch.topic(index)
        self.at = index
        """Index of the last message in the current batch. -1 if `content` contains it."""
        self.content: _Content = _NOTHING
        self.size = 0


class _HeldBatch:
    """The batch that is being examined."""

    def __init__(self, selection: Selection, batch: MessageBatch) -> None:
        self.batch = batch
        self.positions: Sequence[int] = (
            range(selection.end - batch.count, selection.end)
            if selection.positions is None
            else selection.positions.tolist()
        )
        sizes = batch.offsets
        for labels in (batch.correlation_ids, batch.keys, batch.headers):
            if labels is not None:
                sizes = sizes + labels.offsets
        self.ends: list[int] = sizes.tolist()
        """Total size of bodies, labels and headers before each message."""
        self._plain = not batch.columns & (EXPIRATIONS | CORRELATION_IDS | KEYS | HEADERS)

    def content(self, index: int) -> _Content:
        """Return the content of message `index`. Its body is a view of the batch."""
        batch = self.batch
        if self._plain:
            body = batch.bodies[self.ends[index] : self.ends[index + 1]]
            return batch.timestamp(index), body, 0, b"", b"", b""
        body = batch.bodies[batch.offsets[index] : batch.offsets[index + 1]]
        correlation_id, key = batch.correlation_id(index) or "", batch.key(index) or ""
        expiration = batch.expiration(index) or 0
        headers = b""
        if batch.headers is not None:
            begin, end = batch.headers.offsets[index : index + 2].tolist()
            headers = bytes(batch.headers.text[begin:end])
        return batch.timestamp(index), body, expiration, correlation_id.encode(), key.encode(), headers


class Conflater:
    """Open intervals of one subscription. Log times are microseconds since 1970 UTC."""

    def __init__(self, interval_micros: int, bytes_max: int = conflation_held_bytes_max) -> None:
        self.interval_micros = interval_micros
        self.bytes_max = bytes_max
        self.held_bytes = 0
        """Memory of held messages, as counted against `bytes_max`."""
        self.released_early = 0
        """Messages released before the end of their interval, to free memory."""
        self._held: dict[Hashable, _HeldMessage] = {}
        self._queue: deque[_HeldMessage] = deque()
        """The same intervals in the order of their first messages. All intervals have the same length, so
        they end in this order."""
        self._touched: list[_HeldMessage] = []
        self._source: _HeldBatch | None = None
        self._rows: list[PlainRow] = []
        self._firsts: list[tuple[int, int]] = []
        self._topic: str | None = None
        self._several_topics = False

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def held_position(self) -> int | None:
        """Position of the oldest first message that is still held, or None. A client must not resume after
        it."""
        return self._queue[0].position if self._queue else None

    def next_time(self) -> int | None:
        """Return the log time at which the next interval ends, or None."""
        return self._queue[0].opened + self.interval_micros if self._queue else None

    # -- inputs: each returns ended intervals, in batches of about `batch_bytes_target`
    # ------------------------

    def add(
        self,
        selection: Selection,
        keys: Sequence[Hashable | None] | None = None,
        low: int = 0,
        high: int | None = None,
        time: int | None = None,
    ) -> list[ConflatedMessage]:
        """Consider the messages `[low, high)` of `selection`. They follow all earlier messages.

        `keys` has a key for each message of the batch, at most `conflation_key_bytes_max` in memory. A
        message with the key None is never replaced. Without `keys` the topic is the key. Keys of different
        topics differ. With `time`, all messages count as received at that time, regardless of their
        timestamps.
        """
        batch = selection.batch
        high = selection.count if high is None else high
        if batch is None or low >= high:
            return []
        names = self._names(batch, keys, low, high)
        source = self._source = _HeldBatch(selection, batch)
        stamps: list[int] = [time] * (high - low) if time is not None else batch.timestamps[low:high].tolist()
        at = low
        while at < high:
            stamp = stamps[at - low]
            self._release_until(stamp)
            oldest = self._queue[0].opened if self._queue else stamp
            stop = low + bisect_left(stamps, oldest + self.interval_micros, at - low)
            stop = self._bounded(source, at, max(stop, at + 1))
            self._consider(source, names[at - low : stop - low] if names else None, at, stop, stamps, low)
            self._release_above(self.bytes_max)
            at = stop
        results = self._results()
        for held in self._touched:
            if held.at >= 0:
                timestamp, body, expiration_ms, correlation_id, key, headers = source.content(held.at)
                held.content = timestamp, bytes(body), expiration_ms, correlation_id, key, headers
                held.at = -1
        self._touched = []
        self._source = None
        return results

    def advance(self, time: int, messages_max: int | None = None) -> list[ConflatedMessage]:
        """End intervals up to log time `time`: everything earlier has been considered.

        At most `messages_max` messages are released. More remain while `next_time` is at or below `time`."""
        self._release_until(time, messages_max)
        return self._results()

    def flush(self, messages_max: int | None = None) -> list[ConflatedMessage]:
        """Release everything, or the oldest `messages_max` messages, before the end of their intervals. Used
        before `completed` and at shutdown."""
        least = 0 if messages_max is None else max(len(self._queue) - messages_max, 0)
        while len(self._queue) > least:
            self._release()
        return self._results()

    def shrink(self, bytes_max: int) -> list[ConflatedMessage]:
        """Release the oldest messages until at most `bytes_max` are held."""
        self._release_above(bytes_max)
        return self._results()

    # -- intervals ------------------------------------------------------------------------------------------

    def _bounded(self, source: _HeldBatch, at: int, stop: int) -> int:
        """Reduce `stop` so that no message must be released early before it.

        Otherwise the result would depend on the batch boundaries."""
        room = self.bytes_max - self.held_bytes
        while stop > at + 1:
            count = stop - at
            if (
                source.ends[stop]
                - source.ends[at]
                + count * (conflation_entry_bytes + conflation_key_bytes_max)
                <= room
            ):
                break
            stop = at + count // 2
        return stop

    def _consider(
        self,
        source: _HeldBatch,
        names: list[Hashable] | None,
        at: int,
        stop: int,
        stamps: list[int],
        low: int,
    ) -> None:
        """Consider the messages `[at, stop)`, between which no interval ends. `stamps` start at message
        `low`."""
        last: dict[Hashable, int]
        first: dict[Hashable, int]
        if names is None:
            last, first = {_WHOLE: stop - 1}, {_WHOLE: at}
        elif len(names) == 1:
            last = first = {names[0]: at}
        else:
            last = dict(zip(names, range(at, stop), strict=True))  # in order of first appearance
            first = last
            if len(last) < stop - at:
                first = dict(zip(reversed(names), range(stop - 1, at - 1, -1), strict=True))
        ends, touched, find = source.ends, self._touched, self._held.get
        grown = 0
        for key, index in last.items():
            held = find(key)
            if held is None:
                begin = first[key]
                held = self._held[key] = _HeldMessage(
                    key, self._memory(key), source, begin, stamps[begin - low]
                )
                self._queue.append(held)
                touched.append(held)
                grown += conflation_entry_bytes + held.key_bytes
            elif held.at < 0:
                touched.append(held)
            size = ends[index + 1] - ends[index]
            grown += size - held.size
            held.size = size
            held.at = index
        self.held_bytes += grown

    def _names(
        self, batch: MessageBatch, keys: Sequence[Hashable | None] | None, low: int, high: int
    ) -> list[Hashable] | None:
        """Return the identities of the messages `[low, high)`. None if all have the same identity."""
        if self._topic is None:
            self._topic = batch.topics[0]
        if not self._several_topics and batch.topics != (self._topic,):
            self._tell_topics_apart()
        names: list[Hashable] | None = None
        if keys is not None:
            names = [object() if key is None else key for key in keys[low:high]]
        if self._several_topics:
            topics = [batch.topic(index) for index in range(low, high)]
            names = list(zip(topics, names or [_WHOLE] * len(topics), strict=True))
        return names

    def _tell_topics_apart(self) -> None:
        """Include the topic in the identity of messages from now on."""
        self._several_topics = True
        for held in self._queue:
            held.key = (held.topic, held.key)
        self._held = {held.key: held for held in self._queue}

    def _memory(self, name: Hashable) -> int:
        """Return the memory of a key: a value, or a tuple of values."""
        key = name[1] if self._several_topics and isinstance(name, tuple) else name
        return getsizeof(key) + (sum(map(getsizeof, key)) if isinstance(key, tuple) else 0)

    # -- releases -------------------------------------------------------------------------------------------

    def _release_until(self, time: int, messages_max: int | None = None) -> None:
        opened_before = time - self.interval_micros
        least = 0 if messages_max is None else max(len(self._queue) - messages_max, 0)
        while len(self._queue) > least and self._queue[0].opened <= opened_before:
            self._release()

    def _release_above(self, bytes_max: int) -> None:
        while self.held_bytes > bytes_max and self._queue:
            self.released_early += 1
            self._release()

    def _release(self) -> None:
        """Release the oldest message."""
        held = self._queue.popleft()
        del self._held[held.key]
        self.held_bytes -= conflation_entry_bytes + held.key_bytes + held.size
        source = self._source
        content = held.content if source is None or held.at < 0 else source.content(held.at)
        timestamp, body, expiration_ms, correlation_id, key, headers = content
        self._rows.append(
            (
                held.publisher,
                held.sequence,
                timestamp,
                held.topic,
                body,
                expiration_ms,
                correlation_id,
                key,
                headers,
            )
        )
        self._firsts.append((held.position, held.opened))
        held.at = -1

    def _results(self) -> list[ConflatedMessage]:
        rows, firsts = self._rows, self._firsts
        if not rows:
            return []
        self._rows, self._firsts = [], []
        results = []
        for low, high in _cuts(rows):
            positions, stamps = np.array(firsts[low:high], I8).T.copy()
            results.append(ConflatedMessage(batch_from_rows(rows[low:high]), positions, stamps))
        return results


def _cuts(rows: list[PlainRow]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of `rows` that become batches."""
    low = size = 0
    for index, (*_, body, _, correlation_id, key, headers) in enumerate(rows):
        own = len(body) + len(correlation_id) + len(key) + len(headers) + _ROW_BYTES
        if size + own > batch_bytes_target and index > low:
            yield low, index
            low, size = index, 0
        size += own
    yield low, len(rows)
