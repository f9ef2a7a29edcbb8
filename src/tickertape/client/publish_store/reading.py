"""Owns turning the records of a publish store into batches again.

Must never check what was checked when the store was opened, nor copy a batch that lies there whole.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from tickertape.base.errors import StoreCorrupt, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.batch.builder import BatchBuilder
from tickertape.batch.message_batch import MessageBatch
from tickertape.batch.select import slice_batch
from tickertape.client.publish_store.format import (
    BATCH,
    EXPIRATION,
    HEADER_BYTES,
    LABELLED,
    MESSAGE,
    RECORD_BYTES,
    REPLACED,
    Record,
    look,
)
from tickertape.client.publish_store.unpersisted import UnpersistedEntry

_MESSAGES: Final = frozenset({MESSAGE, LABELLED})
_WRONG: Final = (TickertapeError, ValueError, struct.error)
"""What bytes make that were whole when the store was opened."""

Segments = Callable[[int], tuple[Buffer, int]]
"""Bytes of a segment, and where its records end; by number."""


def read_entry(entry: UnpersistedEntry, segments: Segments, publisher: int) -> MessageBatch:
    """The batch of an entry: messages `first` to `last` of what lies at its place.

    Raises `StoreCorrupt` when the file was changed meanwhile.
    """
    data, _ = segments(entry.number)
    record = look(data, entry.at)
    if record is not None and record.kind in (BATCH, REPLACED):
        try:
            return _part(entry, record, data)
        except _WRONG as error:
            raise _changed(entry) from error
    builder = BatchBuilder()
    for source, message in _messages(entry, segments):
        try:
            _add(builder, source, message)
        except _WRONG as error:
            raise _changed(entry) from error
    if not builder.count:
        raise _changed(entry)
    return builder.build(publisher=publisher)


def _part(entry: UnpersistedEntry, record: Record, data: Buffer) -> MessageBatch:
    """What an entry has of a batch that lies there."""
    begin = entry.at + RECORD_BYTES
    batch = MessageBatch.parse(memoryview(data)[begin : begin + record.length].toreadonly())
    if record.kind == REPLACED and entry.first == record.first and entry.last == record.last:
        return batch
    low, high = np.searchsorted(
        batch.sequences, np.array((entry.first, entry.last + 1), np.uint64), side="left"
    )
    return slice_batch(batch, int(low), int(high))


def _messages(entry: UnpersistedEntry, segments: Segments) -> Iterator[tuple[Buffer, Record]]:
    number, at = entry.number, entry.at
    data, end = segments(number)
    while True:
        if at >= end:
            number, at = number + 1, HEADER_BYTES
            data, end = segments(number)
            continue
        record = look(data, at)
        if record is None:
            raise _changed(entry)
        at = record.end
        if record.kind in _MESSAGES and record.first >= entry.first:
            if record.first <= entry.last:
                yield data, record
            if record.first >= entry.last:
                return


def _add(builder: BatchBuilder, data: Buffer, record: Record) -> None:
    view = memoryview(data)
    at = record.at + RECORD_BYTES
    stop = at + record.length
    expiration = 0
    if record.kind == LABELLED:
        expiration = EXPIRATION.unpack_from(view, at)[0]
        at += EXPIRATION.size
    texts = []
    for size in (record.topic_bytes, record.correlation_bytes, record.key_bytes):
        texts.append(bytes(view[at : at + size]).decode())
        at += size
    topic, correlation_id, key = texts
    builder.add(
        topic,
        bytes(view[at:stop]),
        expiration_ms=expiration,
        correlation_id=correlation_id,
        key=key,
        sequence=record.first,
    )


def _changed(entry: UnpersistedEntry) -> StoreCorrupt:
    return StoreCorrupt(
        f"segment {entry.number} of the publish store was changed while it was in use, at offset {entry.at}: "
        "restore the store from a copy",
        offset=entry.at,
    )
