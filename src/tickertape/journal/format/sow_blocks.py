"""Blocks of base and delta files of SOW topics: records and dead keys in columns.

The layout is in docs/formats/sow-checkpoint.md. Encoding neither joins nor copies bodies, and decoded blocks
are views of the input.

Invariants:
- A length is checked before its use, so no allocation exceeds the input.
- An encoded block has passed the checks of its reader.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from tickertape.base.interfaces import Buffer
from tickertape.base.limits import headers_bytes_max, label_bytes_max, message_bytes_max, topic_bytes_max
from tickertape.batch.format import (
    I4,
    I8,
    PADDING,
    U8,
    AnyArray,
    Int32s,
    Int64s,
    Labels,
    UInt64s,
    label_text_fault,
    lengths_of,
    offsets_from,
    pad8,
)
from tickertape.journal.format.segment import FormatError
from tickertape.journal.limits import sow_file_block_bytes_max, sow_file_key_bytes_max

U4: Final = np.dtype("<u4")
UInt32s = npt.NDArray[np.uint32]

BLOCK_PAYLOAD_BYTES_MAX: Final = sow_file_block_bytes_max + message_bytes_max
_COLUMNS: Final = struct.Struct("<IIII")
"""Rows, bits of columns, publishers of the table, topics."""

_TIMESTAMPS: Final = 1
_ORIGINS: Final = 2
_EXPIRATIONS: Final = 4
_CORRELATION_IDS: Final = 8
_MESSAGE_KEYS: Final = 16
_HEADERS: Final = 32
_COLUMNS_KNOWN: Final = 63


class RecordBlock(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Records in columns, one row each. None is an absent column."""

    positions: Int64s
    sequences: UInt64s
    timestamps: Int64s | None
    """None: equal to the order stamps."""
    order_stamps: Int64s
    publishers: UInt64s
    """Publisher ids: a table if `publisher_numbers` has rows of it, else one for each row. A writer omits
    unused ids of a table."""
    publisher_numbers: UInt32s | None
    origins: UInt32s | None
    """Numbers of `origin` records. None: all records were stored by clients of this log."""
    topics: tuple[str, ...]
    """Table of topics, for a SOW over a pattern. Empty for one topic."""
    topic_numbers: UInt32s | None
    """Rows of `topics`, or None without them."""
    expirations: Int64s | None
    """Milliseconds as in a message batch, 0 = none."""
    keys: Labels
    """Canonical keys."""
    correlation_ids: Labels | None
    message_keys: Labels | None
    headers: Labels | None
    body_offsets: Int32s
    """Start of each body in the joined `bodies`, and their end."""
    bodies: tuple[Buffer, ...]

    @property
    def rows(self) -> int:
        """Number of records."""
        return len(self.positions)


class DeadKeys(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Keys of records that older files have and the state no longer has."""

    topics: tuple[str, ...]
    """As in `RecordBlock`."""
    topic_numbers: UInt32s | None
    keys: Labels

    @property
    def rows(self) -> int:
        """Number of keys."""
        return len(self.keys.offsets) - 1


def key_column(keys: list[bytes]) -> Labels:
    """Return canonical keys as a column."""
    return Labels(offsets_from(np.fromiter(map(len, keys), I4, len(keys))), b"".join(keys))


def key_list(column: Labels) -> list[bytes]:
    """Return the canonical keys of a column."""
    data = bytes(column.text)
    return [data[start:end] for start, end in pairwise(column.offsets.tolist())]


def _check_records(block: RecordBlock) -> None:
    """Check that all columns fit each other. Raises `FormatError`."""
    n = block.rows
    if not n:
        raise FormatError("a block has no rows")
    for column in (
        block.sequences,
        block.order_stamps,
        block.timestamps,
        block.origins,
        block.expirations,
        block.publishers if block.publisher_numbers is None else block.publisher_numbers,
    ):
        if column is not None and len(column) != n:
            raise FormatError(f"a column has {len(column)} of {n} rows")
    if int(block.positions.min()) < 0:
        raise FormatError("a position is below 0, or has more than 63 bits")
    if block.publisher_numbers is not None and int(block.publisher_numbers.max()) >= len(block.publishers):
        raise FormatError("a publisher number exceeds its table")
    if block.expirations is not None and int(block.expirations.min()) < 0:
        raise FormatError("an expiration is below 0")
    _check_topics(block, n)
    _check_texts(block.keys, n, sow_file_key_bytes_max, "key")
    for labels, most, noun in (
        (block.correlation_ids, label_bytes_max, "correlation id"),
        (block.message_keys, label_bytes_max, "message key"),
        (block.headers, headers_bytes_max, "header"),
    ):
        if labels is not None:
            _check_texts(labels, n, most, noun)
    if block.correlation_ids is not None:
        fault = label_text_fault(bytes(block.correlation_ids.text), block.correlation_ids.offsets)
        if fault:
            raise FormatError(f"a correlation id {fault}")
    _check_offsets(block.body_offsets, n, _bytes_of(block.bodies), message_bytes_max, "body")


def _check_dead_keys(block: DeadKeys) -> None:
    n = block.rows
    if n < 1:
        raise FormatError("a block has no rows")
    _check_topics(block, n)
    _check_texts(block.keys, n, sow_file_key_bytes_max, "key")


def _check_topics(block: RecordBlock | DeadKeys, n: int) -> None:
    numbers = block.topic_numbers
    if numbers is None or not block.topics:
        if numbers is not None or block.topics:
            raise FormatError("topics need a table and numbers")
        return
    for topic in block.topics:
        check_topic(topic)
    if len(set(block.topics)) < len(block.topics):
        raise FormatError("two topics of a block have the same name")
    if len(numbers) != n or int(numbers.max()) >= len(block.topics):
        raise FormatError("topic numbers do not fit their table")


def check_topic(topic: str) -> None:
    """Raise `FormatError` for an empty or too long topic name."""
    size = len(topic.encode())
    if not 0 < size <= topic_bytes_max:
        raise FormatError(f"a topic name has {size} bytes")


def _check_texts(labels: Labels, n: int, entry_max: int, noun: str) -> None:
    _check_offsets(labels.offsets, n, _bytes_of((labels.text,)), entry_max, noun)


def _check_offsets(offsets: Int32s, n: int, size: int, entry_max: int, noun: str) -> None:
    if len(offsets) != n + 1 or offsets[0] != 0 or offsets[-1] != size:
        raise FormatError(f"{noun} offsets do not fit {n} rows of {size} bytes")
    if (offsets[1:] < offsets[:-1]).any():
        raise FormatError(f"{noun} offsets are out of order")
    longest = int(lengths_of(offsets).max())
    if longest > entry_max:
        raise FormatError(f"a {noun} has {longest} bytes, more than {entry_max}")


def _bytes_of(buffers: tuple[Buffer, ...] | list[Buffer]) -> int:
    return sum([memoryview(buffer).nbytes for buffer in buffers])


# -- encode -------------------------------------------------------------------------------------------


def encode_records(block: RecordBlock) -> list[Buffer]:
    """Return a block of records as buffers. Raises `FormatError` for columns that readers would refuse."""
    _check_records(block)
    n = block.rows
    publishers, numbers = _smaller_publishers(block, n)
    bits = 0
    for bit, column in (
        (_TIMESTAMPS, block.timestamps),
        (_ORIGINS, block.origins),
        (_EXPIRATIONS, block.expirations),
        (_CORRELATION_IDS, block.correlation_ids),
        (_MESSAGE_KEYS, block.message_keys),
        (_HEADERS, block.headers),
    ):
        bits |= 0 if column is None else bit
    table = 0 if numbers is None else len(publishers)
    buffers: list[Buffer] = [_COLUMNS.pack(n, bits, table, len(block.topics))]
    buffers += _array_section(block.positions, I8)
    buffers += _array_section(block.sequences, U8)
    buffers += _array_section(block.timestamps, I8)
    buffers += _array_section(block.order_stamps, I8)
    buffers += _array_section(publishers, U8)
    buffers += _array_section(numbers, U4)
    buffers += _array_section(block.origins, U4)
    buffers += _topic_sections(block)
    buffers += _array_section(block.expirations, I8)
    buffers += _text_sections(block.keys)
    for labels in (block.correlation_ids, block.message_keys, block.headers):
        if labels is not None:
            buffers += _text_sections(labels)
    buffers += _array_section(block.body_offsets, I4)
    buffers += _section(*block.bodies)
    _check_size(_bytes_of(buffers), _last_body(block))
    return buffers


def encode_dead_keys(block: DeadKeys) -> list[Buffer]:
    """Return a block of dead keys as buffers. Raises `FormatError` for keys that readers would refuse."""
    _check_dead_keys(block)
    buffers: list[Buffer] = [_COLUMNS.pack(block.rows, 0, 0, len(block.topics))]
    buffers += _topic_sections(block)
    buffers += _text_sections(block.keys)
    _check_size(_bytes_of(buffers), 0)
    return buffers


def _smaller_publishers(block: RecordBlock, n: int) -> tuple[UInt64s, UInt32s | None]:
    """Return publishers as a table and numbers, or as one id for each row, whichever has fewer bytes."""
    table, numbers = block.publishers, block.publisher_numbers
    if numbers is None:
        table, rows = np.unique(block.publishers, return_inverse=True)
        numbers = rows.astype(U4)
    else:
        used = np.zeros(len(table), np.bool_)
        used[numbers] = True
        if not used.all():
            numbers = (used.cumsum(dtype=U4) - np.uint32(1))[numbers]
            table = table[used]
    if 2 * len(table) < n:
        return table, numbers
    return table[numbers], None


def _array_section(column: AnyArray | None, dtype: np.dtype[np.generic]) -> list[Buffer]:
    return [] if column is None else _section(np.ascontiguousarray(column, dtype).data)


def _text_sections(labels: Labels) -> list[Buffer]:
    return [*_array_section(labels.offsets, I4), *_section(labels.text)]


def _topic_sections(block: RecordBlock | DeadKeys) -> list[Buffer]:
    if block.topic_numbers is None:
        return []
    table = key_column([topic.encode() for topic in block.topics])
    return [*_text_sections(table), *_array_section(block.topic_numbers, U4)]


def _section(*parts: Buffer) -> list[Buffer]:
    """Return the bytes of a section, with padding to a multiple of 8 bytes."""
    views: list[Buffer] = [memoryview(part).cast("B") for part in parts]
    padding = -_bytes_of(views) % 8
    return [*views, PADDING[padding]] if padding else views


# -- decode -------------------------------------------------------------------------------------------


class _Sections:
    """Sections of a payload in their order. Each starts at a multiple of 8 bytes."""

    def __init__(self, payload: memoryview, at: int) -> None:
        self._payload = payload
        self._at = at

    def array(self, dtype: np.dtype[np.generic], rows: int) -> AnyArray:
        """Return the next array, which is a view."""
        size = rows * dtype.itemsize
        self._check(size)
        found = np.frombuffer(self._payload, dtype, rows, self._at)
        self._at += pad8(size)
        return found

    def texts(self, rows: int) -> Labels:
        """Return the next offsets and their text."""
        offsets: Int32s = self.array(I4, rows + 1)
        size = int(offsets[-1])
        self._check(size)
        text = self._payload[self._at : self._at + size]
        self._at += pad8(size)
        return Labels(offsets, text)

    def topics(self, count: int, rows: int) -> tuple[tuple[str, ...], UInt32s | None]:
        """Return the next table of topics and their numbers, if the block has topics."""
        if not count:
            return (), None
        table = self.texts(count)
        _check_texts(table, count, topic_bytes_max, "topic name")
        return tuple([decode_topic(name) for name in key_list(table)]), self.array(U4, rows)

    def end(self) -> None:
        """Check that all bytes were read."""
        if self._at != len(self._payload):
            raise FormatError(f"its columns end at byte {self._at} of {len(self._payload)}")

    def _check(self, size: int) -> None:
        if not 0 <= size <= len(self._payload) - self._at:
            raise FormatError("a column exceeds its block")


def decode_records(payload: memoryview) -> RecordBlock:
    """Return the records of a block. Raises `FormatError`."""
    n, bits, publishers, topic_count = _head(payload)
    if bits & ~_COLUMNS_KNOWN:
        raise FormatError(f"a block has the unknown columns {bits:#x}")
    sections = _Sections(payload, _COLUMNS.size)

    def array(bit: int, dtype: np.dtype[np.generic]) -> AnyArray | None:
        return sections.array(dtype, n) if bits & bit else None

    def texts(bit: int) -> Labels | None:
        return sections.texts(n) if bits & bit else None

    positions, sequences = sections.array(I8, n), sections.array(U8, n)
    timestamps = array(_TIMESTAMPS, I8)
    order_stamps = sections.array(I8, n)
    publisher_ids = sections.array(U8, publishers or n)
    publisher_numbers = sections.array(U4, n) if publishers else None
    origins = array(_ORIGINS, U4)
    topics, topic_numbers = sections.topics(topic_count, n)
    expirations = array(_EXPIRATIONS, I8)
    keys = sections.texts(n)
    correlation_ids, message_keys, headers = texts(_CORRELATION_IDS), texts(_MESSAGE_KEYS), texts(_HEADERS)
    bodies = sections.texts(n)
    sections.end()
    block = RecordBlock(
        positions=positions,
        sequences=sequences,
        timestamps=timestamps,
        order_stamps=order_stamps,
        publishers=publisher_ids,
        publisher_numbers=publisher_numbers,
        origins=origins,
        topics=topics,
        topic_numbers=topic_numbers,
        expirations=expirations,
        keys=keys,
        correlation_ids=correlation_ids,
        message_keys=message_keys,
        headers=headers,
        body_offsets=bodies.offsets,
        bodies=(bodies.text,),
    )
    _check_records(block)
    _check_size(len(payload), _last_body(block))
    return block


def decode_dead_keys(payload: memoryview) -> DeadKeys:
    """Return the keys of a block of dead keys. Raises `FormatError`."""
    n, bits, publishers, topic_count = _head(payload)
    if bits or publishers:
        raise FormatError(f"a block of dead keys has the unknown columns {bits:#x}")
    sections = _Sections(payload, _COLUMNS.size)
    topics, topic_numbers = sections.topics(topic_count, n)
    keys = sections.texts(n)
    sections.end()
    block = DeadKeys(topics=topics, topic_numbers=topic_numbers, keys=keys)
    _check_dead_keys(block)
    _check_size(len(payload), 0)
    return block


def _head(payload: memoryview) -> tuple[int, int, int, int]:
    if len(payload) < _COLUMNS.size:
        raise FormatError("a block is too short")
    rows, bits, publishers, topics = _COLUMNS.unpack_from(payload)
    if not rows:
        raise FormatError("a block has no rows")
    return rows, bits, publishers, topics


def _last_body(block: RecordBlock) -> int:
    return int(block.body_offsets[-1]) - int(block.body_offsets[-2])


def _check_size(size: int, last: int) -> None:
    if size - last > sow_file_block_bytes_max:
        raise FormatError(f"a block has {size - last} bytes beside its last body")


def decode_topic(data: Buffer) -> str:
    """Return a topic name. Raises `FormatError` for an invalid one."""
    try:
        topic = str(data, "utf-8")
    except UnicodeDecodeError:
        raise FormatError("a topic name is not UTF-8") from None
    check_topic(topic)
    return topic
