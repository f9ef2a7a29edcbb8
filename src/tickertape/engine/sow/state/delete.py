"""Delete and expiry records: the keys that lose their record, as control records on the topic `$sow`.

A delete names for each key the message that it ends. An expiry names messages whose life has ended. The
format is documented in docs/formats/sow-records.md.

Invariants:
- A record can be applied from the log alone.
- Keys are distinct and in order, so a record can be applied in pieces.
- The size of a record is known exactly before it is encoded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tickertape.base.errors import JournalCorrupt
from tickertape.base.text_format import shown
from tickertape.batch.format import I8, U8, AnyArray, Bools, Int64s, UInt64s
from tickertape.engine.limits import sow_delete_keys_max, sow_delete_record_bytes_max, sow_expiry_step_max
from tickertape.engine.runtime.sow_definition import FINGERPRINT_BYTES
from tickertape.engine.sow.state.delete_rows import DeleteRows, joined, merged, offsets_of
from tickertape.engine.sow.state.key_order import PackedKeys
from tickertape.journal.format.control_record import LogId

UInt16s = npt.NDArray[np.uint16]
UInt32s = npt.NDArray[np.uint32]

_U2: Final = np.dtype("<u2")
_U4: Final = np.dtype("<u4")

NO_PUBLISHER: Final = 0xFFFF_FFFF
"""Publisher number of a key for which the record names no message."""
_NO_U2: Final = np.empty(0, _U2)
_NO_U4: Final = np.empty(0, _U4)

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
KeyFingerprint = Annotated[bytes, msgspec.Meta(min_length=FINGERPRINT_BYTES, max_length=FINGERPRINT_BYTES)]


class DeleteKind(IntEnum):
    """Why the keys of a record lose their record."""

    DELETED = 1
    """A client deleted them."""
    EXPIRED = 2
    """The life of the named messages has ended. This changes no other message of the key."""


class DeleteCounts(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Counts of a delete for its answer. An expiry has zeros."""

    matches: _Count
    """Records that matched, also those that stay because of a bound."""
    topic_matches: _Count
    """Records of the topics that the delete selected."""
    deleted: _Count
    """Records that this delete ended."""


NO_COUNTS: Final = DeleteCounts(0, 0, 0)


class DeleteRecord(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Keys of one delete or expiry, in columns with an entry for each key. Columns must not be changed."""

    topic: str
    """Name of the SOW topic."""
    key_fingerprint: bytes
    """Of the definition that made the keys (`SowDefinition.key_fingerprint`)."""
    kind: DeleteKind
    counts: DeleteCounts = NO_COUNTS
    more: bool
    """Whether more keys matched than the bounds allow. They stay."""
    publishers: UInt64s
    """Publisher ids, each once."""
    sequences: UInt64s
    """Sequence of the named message. 0: the record names no message of this key."""
    order_stamps: Int64s
    """Order stamp of the named message."""
    publisher_numbers: UInt32s
    """Index of its publisher in `publishers`. `NO_PUBLISHER` without a message."""
    offsets: UInt32s
    """Key i is `key_bytes[offsets[i]:offsets[i + 1]]`."""
    key_bytes: bytes
    """Canonical keys, ascending and distinct for each topic."""
    logs: tuple[bytes, ...] = ()
    """Log ids of other origins."""
    log_numbers: UInt16s = _NO_U2
    """Origin of the named message: n is `logs[n - 1]`, 0 the log of the record. Empty: 0 for all keys."""
    topics: tuple[str, ...] = ()
    """Topics of the keys, for a SOW over a pattern."""
    topic_numbers: UInt32s = _NO_U4
    """Index of the topic of a key in `topics`, ascending. Empty: 0 for all keys."""

    @property
    def count(self) -> int:
        """Number of keys."""
        return len(self.sequences)

    @property
    def encoded_bytes(self) -> int:
        """Size of the encoded record."""
        return _RecordLengths(
            keys=self.count,
            key_bytes=len(self.key_bytes),
            publishers=len(self.publishers),
            logs=len(self.logs),
            topics=len(self.topics),
            topic_bytes=sum(map(_text_bytes, self.topics)),
            log_column=len(self.log_numbers),
            topic_column=len(self.topic_numbers),
        ).encoded_bytes(self.topic, self.counts)

    def keys(self) -> list[bytes]:
        """Return all keys."""
        return self.keys_between(0, self.count)

    def keys_between(self, low: int, high: int) -> list[bytes]:
        """Return the keys `[low, high)`."""
        body = self.key_bytes
        return [body[start:end] for start, end in pairwise(self.offsets[low : high + 1].tolist())]

    def publishers_between(self, low: int, high: int) -> UInt64s:
        """Return the publisher ids of the messages that the keys `[low, high)` name, 0 without a message."""
        numbers = self.publisher_numbers[low:high]
        named = numbers != NO_PUBLISHER
        found = np.zeros(len(numbers), U8)
        found[named] = self.publishers[numbers[named]]
        return found

    def topics_between(self, low: int, high: int) -> list[str]:
        """Return the topics of the keys `[low, high)`."""
        if len(self.topic_numbers):
            return [self.topics[number] for number in self.topic_numbers[low:high].tolist()]
        return [(self.topics or (self.topic,))[0]] * (min(high, self.count) - low)


# -- encoding -----------------------------------------------------------------------------------------


class _StoredDelete(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Elements of an encoded record, in their order."""

    topic: str
    kind: DeleteKind
    counts: DeleteCounts
    more: bool
    logs: list[LogId]
    topics: list[str]
    publishers: bytes
    sequences: bytes
    order_stamps: bytes
    publisher_numbers: bytes
    log_numbers: bytes
    topic_numbers: bytes
    offsets: bytes
    key_bytes: bytes
    key_fingerprint: KeyFingerprint


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(_StoredDelete).decode
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


def encode(record: DeleteRecord) -> bytes:
    """Return the body of a record."""
    return _ENCODE(
        _StoredDelete(
            record.topic,
            record.kind,
            record.counts,
            record.more,
            list(record.logs),
            list(record.topics),
            np.asarray(record.publishers, U8).tobytes(),
            np.asarray(record.sequences, U8).tobytes(),
            np.asarray(record.order_stamps, I8).tobytes(),
            np.asarray(record.publisher_numbers, _U4).tobytes(),
            np.asarray(record.log_numbers, _U2).tobytes(),
            np.asarray(record.topic_numbers, _U4).tobytes(),
            np.asarray(record.offsets, _U4).tobytes(),
            record.key_bytes,
            record.key_fingerprint,
        )
    )


def decode(body: bytes) -> DeleteRecord:
    """Decode a record. Raises `JournalCorrupt`, without the position, for an invalid one.

    Columns are read-only. No memory beyond the size of the body is allocated before all
    lengths are checked.
    """
    try:
        if len(body) > sow_delete_record_bytes_max:
            raise ValueError(f"{len(body)} bytes, more than {sow_delete_record_bytes_max}")
        record = _record_of(_DECODE(body))
        _check_numbers(record)
        _check_keys(record)
    except _ERRORS as error:
        raise JournalCorrupt(f"invalid record of deleted keys: {shown(str(error))}") from None
    return record


def _record_of(stored: _StoredDelete) -> DeleteRecord:
    """Return the record with the columns of `stored`. Raises `ValueError` if their lengths disagree."""
    count = len(stored.sequences) // U8.itemsize
    most = sow_expiry_step_max if stored.kind is DeleteKind.EXPIRED else sow_delete_keys_max
    if count > most:
        raise ValueError(f"{count} keys, more than {most}")
    return DeleteRecord(
        topic=stored.topic,
        key_fingerprint=stored.key_fingerprint,
        kind=stored.kind,
        counts=stored.counts,
        more=stored.more,
        publishers=_column("publishers", stored.publishers, U8, len(stored.publishers) // U8.itemsize),
        sequences=_column("sequences", stored.sequences, U8, count),
        order_stamps=_column("order stamps", stored.order_stamps, I8, count),
        publisher_numbers=_column("publisher numbers", stored.publisher_numbers, _U4, count),
        offsets=_column("offsets", stored.offsets, _U4, count + 1),
        key_bytes=stored.key_bytes,
        logs=tuple(stored.logs),
        log_numbers=_column("log numbers", stored.log_numbers, _U2, count if stored.log_numbers else 0),
        topics=tuple(stored.topics),
        topic_numbers=_column(
            "topic numbers", stored.topic_numbers, _U4, count if stored.topic_numbers else 0
        ),
    )


def _column(name: str, data: bytes, kind: np.dtype[np.generic], count: int) -> AnyArray:
    if len(data) != count * kind.itemsize:
        raise ValueError(f"{name} have {len(data)} bytes instead of {count * kind.itemsize}")
    return np.frombuffer(data, kind)


def _check_numbers(record: DeleteRecord) -> None:
    named = record.sequences != 0
    numbers = record.publisher_numbers
    if (numbers[named] >= len(record.publishers)).any():
        raise ValueError("a publisher number is outside its table")
    if (numbers[~named] != NO_PUBLISHER).any():
        raise ValueError("a key without a message has a publisher")
    if (record.log_numbers > len(record.logs)).any():
        raise ValueError("a log number is outside its table")
    if (record.topic_numbers >= len(record.topics)).any():
        raise ValueError("a topic number is outside its table")
    if len(set(record.topics)) < len(record.topics):
        raise ValueError("a topic is twice in its table")
    if record.kind is DeleteKind.EXPIRED and (not named.all() or record.counts != NO_COUNTS):
        raise ValueError("an expiry has counts, or a key without a message")


def _check_keys(record: DeleteRecord) -> None:
    offsets, topics = record.offsets, record.topic_numbers
    if offsets[0] != 0 or offsets[-1] != len(record.key_bytes) or (offsets[1:] < offsets[:-1]).any():
        raise ValueError("offsets of keys are not ascending, or outside of the keys")
    if (topics[1:] < topics[:-1]).any():
        raise ValueError("topic numbers are not ascending")
    # A key follows the one before it, unless a topic starts with it.
    followed = np.flatnonzero(topics[1:] == topics[:-1]) if len(topics) else np.arange(record.count - 1)
    if not PackedKeys(offsets.astype(np.int64), record.key_bytes).are_rising(followed):
        raise ValueError("keys are not ascending, or not distinct")


class _RecordLengths(NamedTuple):
    """Lengths of the parts of a record."""

    keys: int
    key_bytes: int
    publishers: int
    topics: int
    topic_bytes: int
    """Size of the encoded topics."""
    topic_column: int
    """Topic numbers: one for each key, or none."""
    logs: int = 0
    log_column: int = 0

    def encoded_bytes(self, topic: str, counts: DeleteCounts) -> int:
        """Return the size of the encoded record."""
        heads = 1 + _text_bytes(topic) + 1 + 1 + 1  # the array, kind, array of counts, more
        numbers = sum(map(_number_bytes, (counts.matches, counts.topic_matches, counts.deleted)))
        tables = _array_bytes(self.logs) + _binary_bytes(16) * self.logs
        tables += _array_bytes(self.topics) + self.topic_bytes + _binary_bytes(8 * self.publishers)
        columns = 2 * _binary_bytes(8 * self.keys) + _binary_bytes(4 * self.keys)
        columns += _binary_bytes(2 * self.log_column) + _binary_bytes(4 * self.topic_column)
        keys = _binary_bytes(4 * (self.keys + 1)) + _binary_bytes(self.key_bytes)
        return heads + numbers + tables + columns + keys + _binary_bytes(FINGERPRINT_BYTES)


# Sizes of MessagePack values in their shortest forms.


def _text_bytes(text: str) -> int:
    size = len(text.encode())
    return size + (1 if size < 32 else 2 if size < 1 << 8 else 3 if size < 1 << 16 else 5)


def _binary_bytes(size: int) -> int:
    return size + (2 if size < 1 << 8 else 3 if size < 1 << 16 else 5)


def _array_bytes(count: int) -> int:
    return 1 if count < 16 else 3 if count < 1 << 16 else 5


def _number_bytes(value: int) -> int:
    return (
        1 if value < 128 else 2 if value < 1 << 8 else 3 if value < 1 << 16 else 5 if value < 1 << 32 else 9
    )


# -- building -----------------------------------------------------------------------------------------

_ROW_BYTES: Final = 8 + 8 + 4 + 4
"""Size of an encoded key in addition to its bytes: sequence, order stamp, publisher number and offset."""


class _RecordHead(NamedTuple):
    """Properties of a record that no key changes."""

    topic: str
    key_fingerprint: bytes
    kind: DeleteKind


class DeleteBuilder:
    """Collects the keys of a delete or an expiry, and builds records within the bounds.

    The last row of a key counts. Keys that exceed the bounds of a record stay for the next one, from the
    highest down. Topics are in the order in which they were added. Add rows in pieces of some thousand,
    because each piece is sorted at once, and `build` merges them."""

    def __init__(self, topic: str, key_fingerprint: bytes, kind: DeleteKind = DeleteKind.DELETED) -> None:
        """The definition that made the keys has `key_fingerprint`."""
        self._head = _RecordHead(topic, key_fingerprint, kind)
        self._keys_max = sow_expiry_step_max if kind is DeleteKind.EXPIRED else sow_delete_keys_max
        self._parts: list[DeleteRows] = []
        """Sorted pieces."""
        self._merged = 0
        """Number of the first pieces that are merged. They are in order, and have no key in common."""
        self._publishers: dict[int, int] = {}
        """Number of each publisher."""
        self._topics: dict[str, int] = {}
        """Number of each topic. Empty for a SOW of one topic."""

    @property
    def count(self) -> int:
        """Number of collected rows."""
        return sum(len(part.lengths) for part in self._parts)

    @property
    def is_full(self) -> bool:
        """Whether the collected rows reach a bound of one record, if their keys are distinct."""
        size = sum(len(part.key_bytes) for part in self._parts) + _ROW_BYTES * self.count
        return self.count >= self._keys_max or size >= sow_delete_record_bytes_max

    def add(
        self,
        keys: Sequence[bytes],
        publishers: UInt64s,
        sequences: UInt64s,
        order_stamps: Int64s,
        *,
        topics: Sequence[str] | None = None,
        live: Bools | None = None,
    ) -> None:
        """Collect rows.

        Args:
            keys: Canonical keys. A key replaces an earlier row of it.
            publishers: Publisher ids of the named messages.
            sequences: Sequences of the named messages. 0: a key without a candidate, which names none.
            order_stamps: Order stamps of the named messages.
            topics: Topics of the keys of a SOW over a pattern. None for a SOW of one topic.
            live: Which of the named messages are records. None: all of them.

        Raises:
            ValueError: Rows with and without a topic.
        """
        if self._parts and (topics is None) != (not self._topics):
            raise ValueError("some rows have a topic, and others have none")
        if not len(keys):
            return
        named = sequences != 0
        table, numbers = self._publishers, self._topics
        ids, ids_of = np.unique(publishers, return_inverse=True)
        rows = DeleteRows(
            b"".join(keys),
            np.fromiter(map(len, keys), I8, len(keys)),
            np.array([table.setdefault(publisher, len(table)) for publisher in ids.tolist()], I8)[ids_of],
            sequences,
            np.where(named, order_stamps, 0),
            np.zeros(len(keys), I8)
            if topics is None
            else np.array([numbers.setdefault(topic, len(numbers)) for topic in topics], I8),
            named if live is None else named & live,
            np.zeros(len(keys), np.bool_),
        )
        self._parts.append(rows.sort())

    def remove(self, keys: Sequence[bytes], *, topics: Sequence[str] | None = None) -> None:
        """Remove the earlier rows of keys. `topics` is as for `add`."""
        if not len(keys):
            return
        nothing = np.zeros(len(keys), I8)
        self.add(keys, nothing.astype(U8), nothing.astype(U8), nothing, topics=topics)
        self._parts[-1].removed[:] = True

    def merge(self) -> Iterator[None]:
        """Merge the rows that were added until now, one piece for each yield. Add no rows meanwhile."""
        if len(self._parts) > 1:
            self._parts = yield from merged(self._parts)
            self._merged = len(self._parts)

    def build(self, matches: int = 0, topic_matches: int = 0, *, more: bool = False) -> DeleteRecord:
        """Return a record of the lowest keys within the bounds, and keep the others.

        Args:
            matches: Records that matched, for the answer to a delete.
            topic_matches: Records of the selected topics, for the answer to a delete.
            more: Whether more keys match than were collected. `DeleteRecord.more` is also true if keys
                stay in the builder.

        Raises:
            ValueError: A key is too large for a record.
        """
        rows = self._sorted()
        self._merged = 1
        self._parts = [rows]
        total = len(rows.lengths)
        counts = (
            NO_COUNTS if self._head.kind is DeleteKind.EXPIRED else DeleteCounts(matches, topic_matches, 0)
        )
        prefixes = _Prefixes(self._head, counts, rows, list(self._topics))
        count = most = min(total, self._keys_max)
        if most and prefixes.encoded_bytes(most) > sow_delete_record_bytes_max:
            count = bisect_right(range(1, most), sow_delete_record_bytes_max, key=prefixes.encoded_bytes)
            if not count:
                raise ValueError(f"a key of {rows.lengths[0]} bytes is too large for a record")
        self._parts = [rows.part(count, total)] if count < total else []
        self._merged = len(self._parts)
        return prefixes.record(list(self._publishers), count, more=more or count < total)

    def _sorted(self) -> DeleteRows:
        """Return all rows, sorted and distinct."""
        first, later = joined(self._parts[: self._merged]), self._parts[self._merged :]
        if not later:
            return first
        rows = joined(later)
        if len(later) > 1:
            rows = rows.sort()
        return first.with_later(rows) if self._merged else rows.kept()


class _Prefixes:
    """Records of the first of some sorted rows, and their sizes."""

    def __init__(self, head: _RecordHead, counts: DeleteCounts, rows: DeleteRows, topics: list[str]) -> None:
        self._head = head
        self._counts = counts
        self._rows = rows
        self._offsets = offsets_of(rows.lengths)
        changes = rows.topics[1:] != rows.topics[:-1]  # rows are in the order of topics
        firsts = np.concatenate((np.zeros(min(len(rows.topics), 1), I8), changes.nonzero()[0] + 1))
        self._topic_of = np.concatenate((np.zeros(len(firsts) and 1, I8), changes.cumsum()))
        self._topics = [topics[number] for number in rows.topics[firsts].tolist()] if topics else []
        """Topics with a row."""
        self._texts = list(accumulate(map(_text_bytes, self._topics), initial=0))
        named = np.flatnonzero(rows.sequences)[::-1]
        first_of = np.full(int(rows.publishers.max(initial=-1)) + 1, -1)
        first_of[rows.publishers[named]] = named  # of equal publishers the last assignment wins
        self._firsts = np.sort(first_of[first_of >= 0])
        """First row of each publisher."""
        self._deleted = offsets_of(rows.live.astype(I8))

    def encoded_bytes(self, count: int) -> int:
        """Return the size of the record of the first `count` rows, which rises with them."""
        topics = self._topic_count(count)
        lengths = _RecordLengths(
            keys=count,
            key_bytes=int(self._offsets[count]),
            publishers=int(self._firsts.searchsorted(count)),
            topics=topics,
            topic_bytes=self._texts[topics],
            topic_column=count if topics > 1 else 0,
        )
        return lengths.encoded_bytes(self._head.topic, self._counts_of(count))

    def record(self, publishers: list[int], count: int, *, more: bool) -> DeleteRecord:
        """Return the record of the first `count` rows. `publishers` are the ids by number."""
        rows, topics = self._rows, self._topic_count(count)
        named = rows.sequences[:count] != 0
        named_publishers = rows.publishers[:count][named]
        is_used = np.bincount(named_publishers) > 0
        used = is_used.nonzero()[0]
        publisher_numbers = np.full(count, NO_PUBLISHER, _U4)
        publisher_numbers[named] = (is_used.cumsum() - 1)[named_publishers]
        return DeleteRecord(
            topic=self._head.topic,
            key_fingerprint=self._head.key_fingerprint,
            kind=self._head.kind,
            counts=self._counts_of(count),
            more=more,
            publishers=np.array([publishers[number] for number in used.tolist()], U8),
            sequences=rows.sequences[:count].copy(),
            order_stamps=rows.order_stamps[:count].copy(),
            publisher_numbers=publisher_numbers,
            offsets=self._offsets[: count + 1].astype(_U4),
            key_bytes=rows.key_bytes[: int(self._offsets[count])],
            topics=tuple(self._topics[:topics]),
            topic_numbers=self._topic_of[:count].astype(_U4) if topics > 1 else _NO_U4,
        )

    def _topic_count(self, count: int) -> int:
        return int(self._topic_of[count - 1]) + 1 if self._topics and count else 0

    def _counts_of(self, count: int) -> DeleteCounts:
        if self._counts is NO_COUNTS:
            return NO_COUNTS
        return msgspec.structs.replace(self._counts, deleted=int(self._deleted[count]))
