"""SOW topic: one state of the world, the readers of its keys, and its counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from tickertape.batch import MessageBatch
from tickertape.batch.format import I8, Int64s
from tickertape.engine.matching.filter_context import FilterContext
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.accepted_row import AcceptedRow
from tickertape.engine.sow.state.expiry import due_times
from tickertape.engine.sow.state.fold import StateFold
from tickertape.engine.sow.state.keys import ExplicitKeys, KeyColumn, KeyReader
from tickertape.filter.batch_filter import bodies_of, rows_by_type

_TOPIC_OF: Final[Callable[[bytes], list[Any]]] = msgspec.msgpack.Decoder(list[Any]).decode
"""Function that returns the topic and the values of a key of a SOW over a pattern."""


class RowKeys(NamedTuple):
    """Keys of some messages of a batch."""

    rows: Int64s
    """Indices of the messages with a key, ascending."""
    keys: list[bytes]
    bad: dict[int, str]
    """Indices of messages without a valid key, and the reason."""


class StateTopic:
    """One SOW topic. `secret` is the secret of the process for hashes of keys."""

    def __init__(self, definition: SowDefinition, filter_context: FilterContext, secret: bytes) -> None:
        self.definition = definition
        self.name = definition.name
        life = definition.expiration
        self.fold = StateFold(secret, expires=life is not None, life_ms=life if isinstance(life, int) else 0)
        self.incomplete_because = ""
        """Why the state does not include all messages of the topic, or empty."""
        self.refused = 0
        """Messages that the intake refused, because they had no valid key."""
        self._patterned = definition.pattern is not None
        self._type_of = filter_context.type_of
        self._readers: dict[str, KeyReader] = {}
        self._explicit = ExplicitKeys(topic_in_key=self._patterned)

    def set_incomplete(self, reason: str) -> None:
        """Note that the state does not include all messages."""
        self.incomplete_because = reason

    def read_keys(self, batch: MessageBatch, rows: Int64s) -> RowKeys:
        """Read the keys of the messages `rows` (ascending, at least one) of a batch, all of this state."""
        topics = [batch.topic(row) for row in rows.tolist()] if self._patterned else None
        if not self.definition.key:
            labels = [_label(batch, row) for row in rows.tolist()]
            return _without_bad(rows, self._explicit.read(labels, topics))
        parts = [
            _without_bad(some, self._reader(kind).read(bodies_of(batch, some), _some(topics, rows, some)))
            for kind, some in rows_by_type(self._type_of, batch, rows)
        ]
        if len(parts) == 1:
            return parts[0]
        joined = np.concatenate([part.rows for part in parts])
        keys = [key for part in parts for key in part.keys]
        order = np.argsort(joined)
        bad = {row: reason for part in parts for row, reason in part.bad.items()}
        return RowKeys(joined[order], [keys[at] for at in order.tolist()], bad)

    def recorded(self, keys: Sequence[bytes]) -> list[AcceptedRow | None]:
        """Return the folded record of each key, or None without one."""
        table = self.fold.records
        slots = self.fold.keys.find(keys)
        rows = table.rows(np.maximum(slots, 0))
        publishers = table.publisher_ids(rows.publishers).tolist()
        columns = zip(
            slots.tolist(), publishers, rows.sequences.tolist(), rows.order_stamps.tolist(), strict=True
        )
        return [
            None if slot < 0 else AcceptedRow(True, publisher, sequence, stamp, None, slot)
            for slot, publisher, sequence, stamp in columns
        ]

    def ends_of(self, slots: Int64s) -> Int64s:
        """Return the ends of the lives of records in microseconds, 0 without a record or an end."""
        rows = self.fold.records.rows(slots)
        ends = due_times(rows.order_stamps, rows.lives, self.fold.life_ms)
        ends[~self.fold.records.live(slots)] = 0
        return ends

    def topics_of(self, keys: Sequence[bytes]) -> list[str] | None:
        """Return the topic of each key. None for a SOW of one topic."""
        return [_TOPIC_OF(key)[0] for key in keys] if self._patterned else None

    def _reader(self, kind: str) -> KeyReader:
        reader = self._readers.get(kind)
        if reader is None:
            definition = self.definition
            reader = self._readers[kind] = KeyReader(
                definition.key, kind, missing=definition.missing_key, topic_in_key=self._patterned
            )
        return reader


def _label(batch: MessageBatch, row: int) -> bytes:
    key = batch.key(row)
    return b"" if key is None else key.encode()


def _some(topics: list[str] | None, rows: Int64s, some: Int64s) -> list[str] | None:
    if topics is None or len(some) == len(rows):
        return topics
    return [topics[at] for at in np.searchsorted(rows, some).tolist()]


def _without_bad(rows: Int64s, column: KeyColumn) -> RowKeys:
    if not column.bad:
        return RowKeys(rows, column.keys, {})
    keep = np.ones(len(rows), np.bool_)
    keep[[*column.bad]] = False
    kept = np.flatnonzero(keep).astype(I8)
    bad = {int(rows[at]): reason for at, reason in column.bad.items()}
    return RowKeys(rows[kept], [column.keys[at] for at in kept.tolist()], bad)
