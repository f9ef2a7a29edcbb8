"""SOW topic: one state of the world, the readers of its keys, and its counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from tickertape.base.errors import BadSowKey
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch
from tickertape.batch.format import I8, Int64s
from tickertape.engine.limits import sow_key_bytes_max, sow_record_memory_bytes
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.filter_context import FilterContext
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sessions.session import Subscriber
from tickertape.engine.sow.accepted_row import AcceptedRow
from tickertape.engine.sow.query.column_memory import ColumnMemory
from tickertape.engine.sow.query.field_columns import FieldColumns
from tickertape.engine.sow.query.record_filter import RecordFilter, RecordKeyFilter
from tickertape.engine.sow.query.record_indexes import RecordIndexes
from tickertape.engine.sow.query.record_topics import RecordTopics
from tickertape.engine.sow.state.expiry import due_times
from tickertape.engine.sow.state.fold import StateFold
from tickertape.engine.sow.state.keys import ExplicitKeys, KeyColumn, KeyReader, label_fault, labels_between
from tickertape.engine.sow.state.labels import LABEL_PLACE_BYTES
from tickertape.engine.sow.state.merge import Merger
from tickertape.engine.sow.state.record_key_index import RecordKeyIndex
from tickertape.filter.batch_filter import bodies_of, rows_by_type
from tickertape.payload.canonical import encode_canonical

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
    """One SOW topic. `secret` is the secret of the process for hashes of keys. `untidy`: folds that
    may have care to do. `column_memory`: the memory of the columns of all SOW topics."""

    def __init__(
        self,
        definition: SowDefinition,
        filter_context: FilterContext,
        secret: bytes,
        untidy: dict[StateFold, None],
        column_memory: ColumnMemory,
    ) -> None:
        self.definition = definition
        self.name = definition.name
        life = definition.expiration
        self._record_topics = RecordTopics(definition, filter_context)
        self.indexes = RecordIndexes(definition.index, self._record_topics) if definition.index else None
        """Hash indexes of the records. None without any."""
        self._patterned = definition.pattern is not None
        self.fold = StateFold(
            secret,
            expires=life is not None,
            life_ms=life if isinstance(life, int) else 0,
            untidy=untidy,
            index=self.indexes,
            record_keys=self._record_key_index(secret),
        )
        self.columns = FieldColumns(self.fold, self._record_topics, column_memory)
        """Columns of the fields that filters compare repeatedly."""
        self.key_fingerprint = definition.key_fingerprint()
        self.incomplete_because = ""
        """Why the state does not include all messages of the topic, or empty."""
        self.refused = 0
        """Messages that the intake refused, because they had no valid key."""
        self._type_of = filter_context.type_of
        self._filter_context = filter_context
        self._mergers: dict[str, Merger] = {}
        self._readers: dict[str, KeyReader] = {}
        self._explicit = ExplicitKeys(topic_in_key=self._patterned)

    @property
    def record_memory_bytes(self) -> int:
        """Memory of a new record without its key, body and label, at most."""
        record_keys = self.fold.record_keys
        further = 0 if self.indexes is None else self.indexes.row_bytes
        if self.fold.records.has_labels:
            further += LABEL_PLACE_BYTES
        return sow_record_memory_bytes + further + (0 if record_keys is None else record_keys.row_bytes)

    def set_incomplete(self, reason: str) -> None:
        """Note that the state does not include all messages."""
        self.incomplete_because = reason

    def read_keys(self, batch: MessageBatch, rows: Int64s) -> RowKeys:
        """Read the keys of the messages `rows` (ascending, at least one) of a batch, all of this state."""
        topics = _topics_of(batch, rows) if self._patterned else None
        if not self.definition.key:
            return _without_bad(rows, self._explicit.read(_labels_of(batch, rows), topics))
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

    def accepted_keys(self, batch: MessageBatch, rows: Int64s) -> RowKeys:
        """Read the keys as `read_keys`, of messages from a client: with generated keys, no message may have a
        message key."""
        found = self.read_keys(batch, rows)
        if not self.definition.key or batch.keys is None:
            return found
        offsets = batch.keys.offsets
        named = rows[offsets[rows + 1] > offsets[rows]]
        if not len(named):
            return found
        reason = "it has a message key, and the topic has generated keys"
        good = ~np.isin(found.rows, named)
        keys = [key for key, stays in zip(found.keys, good.tolist(), strict=True) if stays]
        return RowKeys(found.rows[good], keys, dict.fromkeys(named.tolist(), reason) | found.bad)

    def recorded(self, keys: Sequence[bytes]) -> list[AcceptedRow | None]:
        """Return the folded record of each key, or None without one."""
        table = self.fold.records
        slots = self.fold.keys.find(keys)
        rows = table.rows(np.maximum(slots, 0))
        publishers = table.publishers.ids(rows.publishers).tolist()
        columns = zip(
            slots.tolist(), publishers, rows.sequences.tolist(), rows.order_stamps.tolist(), strict=True
        )
        return [
            None if slot < 0 else AcceptedRow(True, publisher, sequence, stamp, None, slot)
            for slot, publisher, sequence, stamp in columns
        ]

    # -- deltas and deletes ------------------------------------------------------------------------------

    def merger(self, topic: str) -> Merger:
        """Return the merger for deltas of a topic."""
        kind = self._type_of(topic)
        merger = self._mergers.get(kind)
        if merger is None:
            merger = self._mergers[kind] = Merger(kind)
        return merger

    def key_of(self, topic: str, body: bytes) -> bytes | str:
        """Return the key of a message on `topic` with this body, or the reason why it has none."""
        if not self.definition.key:
            return "its messages have explicit keys, and data contains no key"
        topics = [topic] if self._patterned else None
        column = self._reader(self._type_of(topic)).read([body], topics)
        return column.bad.get(0) or column.keys[0]

    def check_keys(self, keys: Sequence[bytes]) -> None:
        """Raise `BadSowKey` for canonical keys of a client that cannot be keys of this SOW."""
        if any(not 0 < len(key) <= sow_key_bytes_max for key in keys):
            fault = f"a key has {max(map(len, keys)):,} bytes" if all(keys) else "a key is empty"
            raise BadSowKey(
                f"Cannot select records of {shown(self.name)}: {fault}. "
                f"Use keys of 1 to {sow_key_bytes_max:,} bytes."
            )
        if self._patterned and not all(map(_names_topic, keys)):
            raise BadSowKey(
                f"Cannot select records of {shown(self.name)}: a key has no topic at its start. "
                "Give each key as an array: first the topic, then the values of the key fields."
            )

    def check_names(self, names: Sequence[str]) -> None:
        """Raise `BadSowKey` for names that cannot be explicit keys. Generated keys are not checked."""
        if self.definition.key:
            return
        for name in names:
            fault = label_fault(name.encode())
            if fault:
                raise BadSowKey(
                    f"Cannot select record {shown(name)} of {shown(self.name)}: {fault}. Correct the key."
                )

    def explicit_keys(self, topic: str, names: Sequence[str]) -> list[bytes]:
        """Return the keys of messages on `topic` with explicit keys."""
        return [encode_canonical([topic, name] if self._patterned else name) for name in names]

    def searches_keys(self, topic: str) -> bool:
        """Return whether records of `topic` are found by keys as clients see them, not by canonical keys:
        generated keys, and explicit keys on all topics of a pattern."""
        return bool(self.definition.key) or (self._patterned and topic == self.name)

    def key_filter(self, topic: str, names: Sequence[str], subscriber: Subscriber) -> RecordKeyFilter:
        """Return a filter for records whose keys, as clients see them, have these names. `topic` is as in
        `record_filter`."""
        only = self.record_filter(topic, None, subscriber) if topic != self.name else None
        return RecordKeyFilter(self._record_topics, frozenset(names), only)

    def record_filter(self, topic: str, filter: str | None, subscriber: Subscriber) -> RecordFilter:
        """Return a filter for records. For a SOW over a pattern, `topic` may be one of its topics. Raises
        `BadFilter`."""
        content = ContentFilter(filter, None, [self._type_of(topic)], self._filter_context, subscriber)
        only = {topic} if self._patterned and topic != self.name else None
        return RecordFilter(content, self._record_topics, self.fold.records.publishers, only)

    # -- columns ------------------------------------------------------------------------------------------

    def ends_of(self, slots: Int64s) -> Int64s:
        """Return the ends of the lives of records in microseconds, 0 without a record or an end."""
        rows = self.fold.records.rows(slots)
        ends = due_times(rows.order_stamps, rows.lives, self.fold.life_ms)
        ends[~self.fold.records.live(slots)] = 0
        return ends

    def topics_of(self, keys: Sequence[bytes]) -> list[str] | None:
        """Return the topic of each key. None for a SOW of one topic."""
        return [_TOPIC_OF(key)[0] for key in keys] if self._patterned else None

    def _record_key_index(self, secret: bytes) -> RecordKeyIndex | None:
        return RecordKeyIndex(self._record_topics, secret) if self.searches_keys(self.name) else None

    def _reader(self, kind: str) -> KeyReader:
        reader = self._readers.get(kind)
        if reader is None:
            definition = self.definition
            reader = self._readers[kind] = KeyReader(
                definition.key, kind, missing=definition.missing_key, topic_in_key=self._patterned
            )
        return reader


def _names_topic(key: bytes) -> bool:
    """Return whether a canonical key is an array with a topic and more."""
    try:
        found = _TOPIC_OF(key)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return len(found) > 1 and isinstance(found[0], str)


def _topics_of(batch: MessageBatch, rows: Int64s) -> list[str]:
    if batch.topic_index is None:
        return [batch.topics[0]] * len(rows)
    names = batch.topics
    return [names[number] for number in batch.topic_index[rows].tolist()]


def _labels_of(batch: MessageBatch, rows: Int64s) -> list[bytes]:
    """Return the message keys of rows, which are ascending."""
    low, high = int(rows[0]), int(rows[-1]) + 1
    labels = labels_between(batch.keys, low, high)
    return labels if len(labels) == len(rows) else [labels[row] for row in (rows - low).tolist()]


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
