"""Digests: sums of the messages of a log, by publisher and bucket of sequences.

A sum does not depend on the order of the messages, so logs with different orders have equal sums. A digest
covers the topic, body, key, correlation id, headers and expiration of a message, but no time and no origin.

Invariant: equal messages have equal digests in each log and in each process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

import numpy as np

from tickertape.base.checksum import crc32c
from tickertape.batch import KIND_CONTROL, KIND_MESSAGE, MessageBatch
from tickertape.batch.format import I8, U8, Int64s, Labels, UInt64s
from tickertape.journal.reading.log_view import LogPart

BUCKET_BITS: Final = 16
"""Sequences of a bucket, as a power of 2."""
_FIRST: Final = np.uint64(0x9E3779B97F4A7C15)
_SECOND: Final = np.uint64(0xBF58476D1CE4E5B9)
_THIRD: Final = np.uint64(0x94D049BB133111EB)


class MessageSelection(Protocol):
    """Selects the messages that all compared logs should have."""

    def takes_topic(self, topic: str) -> bool:
        """Return whether messages of a topic are compared."""
        ...

    def takes_record(self, topic: str, body: bytes) -> bool:
        """Return whether a control record on a topic is compared. Raises `JournalCorrupt`."""
        ...


class MessageRows(NamedTuple):
    """Selected messages of a part of a log, one row each."""

    publishers: UInt64s
    sequences: UInt64s
    digests: UInt64s
    positions: Int64s

    def taken(self, at: Int64s) -> MessageRows:
        """Return some rows."""
        return MessageRows(self.publishers[at], self.sequences[at], self.digests[at], self.positions[at])


class Bucket(NamedTuple):
    """A range of 65,536 sequences of a publisher."""

    publisher: int
    number: int


class BucketSum(NamedTuple):
    """Number of the messages of a bucket, and the sum of their digests."""

    messages: int
    digests: int


def message_rows(part: LogPart, selection: MessageSelection) -> MessageRows | None:
    """Return the selected messages of a part. None without any."""
    batch = part.batch
    rows = _selected(batch, selection)
    if not len(rows):
        return None
    return MessageRows(
        batch.publishers[rows], batch.sequences[rows], _digests(batch, rows), part.positions_of(rows)
    )


def buckets_of(rows: MessageRows) -> Iterator[tuple[Bucket, Int64s]]:
    """Yield the buckets of rows, and the rows of each."""
    numbers = rows.sequences >> np.uint64(BUCKET_BITS)
    order = np.lexsort((numbers, rows.publishers))
    publishers, numbers = rows.publishers[order], numbers[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (publishers[1:] != publishers[:-1]) | (numbers[1:] != numbers[:-1])
    starts = new.nonzero()[0]
    ends = np.append(starts, len(order))[1:]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield Bucket(int(publishers[start]), int(numbers[start])), order[start:end].astype(I8)


class BucketSums:
    """Sums of all buckets of a log."""

    def __init__(self) -> None:
        self._sums: dict[Bucket, BucketSum] = {}
        self.messages = 0

    def add(self, rows: MessageRows) -> None:
        """Add messages."""
        self.messages += len(rows.sequences)
        for bucket, own in buckets_of(rows):
            count, digests = self._sums.get(bucket, (0, 0))
            total = digests + int(rows.digests[own].sum(dtype=U8))
            self._sums[bucket] = BucketSum(count + len(own), total & 0xFFFFFFFFFFFFFFFF)

    @property
    def publishers(self) -> int:
        """Number of publishers."""
        return len({bucket.publisher for bucket in self._sums})

    def differing(self, other: BucketSums) -> dict[Bucket, int]:
        """Return the buckets whose sums differ, ascending, and the number of their messages in both logs."""
        nothing = BucketSum(0, 0)
        found = {
            bucket: self._sums.get(bucket, nothing).messages + other._sums.get(bucket, nothing).messages
            for bucket in self._sums.keys() | other._sums.keys()
            if self._sums.get(bucket) != other._sums.get(bucket)
        }
        return dict(sorted(found.items()))


def _selected(batch: MessageBatch, selection: MessageSelection) -> Int64s:
    """Return the selected messages of a batch, ascending."""
    topics = [selection.takes_topic(topic) for topic in batch.topics]
    taken = np.array(topics, np.bool_)
    mask = np.full(batch.count, topics[0]) if batch.topic_index is None else taken[batch.topic_index]
    if batch.kinds is not None:
        mask &= batch.kinds == KIND_MESSAGE
        for row in (batch.kinds == KIND_CONTROL).nonzero()[0].tolist():
            mask[row] = selection.takes_record(batch.topic(row), bytes(batch.body(row)))
    return mask.nonzero()[0].astype(I8)


def _digests(batch: MessageBatch, rows: Int64s) -> UInt64s:
    """Return the digests of messages."""
    seeds = [crc32c(topic.encode()) for topic in batch.topics]
    of_topic = [0] * len(rows) if batch.topic_index is None else batch.topic_index[rows].tolist()
    offsets, bodies = batch.offsets, batch.bodies
    starts, ends = offsets[rows].tolist(), offsets[rows + 1].tolist()
    checks = [
        crc32c(bodies[start:end], seeds[topic])
        for start, end, topic in zip(starts, ends, of_topic, strict=True)
    ]
    found = _mixed(batch.sequences[rows], np.array(checks, U8))
    for number, labels in enumerate((batch.keys, batch.correlation_ids, batch.headers), 1):
        if labels is not None:
            found = _with_labels(found, labels, rows, number)
    if batch.expirations is not None:
        expirations = batch.expirations[rows].astype(U8)
        found = np.where(expirations > 0, _mixed(found, expirations), found)
    return found


def _with_labels(digests: UInt64s, labels: Labels, rows: Int64s, number: int) -> UInt64s:
    """Mix texts of a column into digests. Missing and empty texts are equal, and change nothing."""
    text, offsets = memoryview(labels.text), labels.offsets
    starts, ends = offsets[rows].tolist(), offsets[rows + 1].tolist()
    checks = np.array([crc32c(text[start:end]) for start, end in zip(starts, ends, strict=True)], U8)
    present = offsets[rows + 1] > offsets[rows]
    return np.where(present, _mixed(digests, checks | np.uint64(number << 32)), digests)


def _mixed(values: UInt64s, more: UInt64s) -> UInt64s:
    """Return a 64-bit mix of two columns, in which each bit changes about half of the bits (SplitMix64)."""
    mixed: UInt64s = (values * _FIRST) ^ (more + _FIRST)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _SECOND
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _THIRD
    return mixed ^ (mixed >> np.uint64(31))
