"""Encode batches: join and checksum bodies, and write the head from columns.

Callers pass consistent columns. Only the two size limits of the format are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import error as struct_error
from struct import pack
from typing import Final, NamedTuple

import numpy as np

from tickertape.base.errors import BadMessage, BadTopic, MessageTooLarge, UsageError
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import label_bytes_max, message_bytes_max, topic_bytes_max
from tickertape.base.text_format import shown
from tickertape.batch.format import (
    BODY_BYTES_END,
    CODEC_NONE,
    CORRELATION_IDS,
    EXPIRATIONS,
    HEADER,
    HEADER_BYTES,
    HEADERS,
    I4,
    KEYS,
    KINDS,
    MESSAGE_FLAGS,
    NO_PLACES,
    ORDER_STAMPS,
    PADDING,
    PAIR,
    RUN,
    RUN_BYTES,
    SEQUENCE_END,
    SEQUENCES,
    TOTAL_BYTES_END,
    VERSION,
    AnyArray,
    Columns,
    Int32s,
    Labels,
    Places,
    offsets_from,
    pad8,
    run_crc,
)
from tickertape.batch.message_batch import MessageBatch

_TOPICS_CACHED: Final = 1024
_TOPICS_REMEMBERED: Final = 1024
_topics_checked: Final[set[str]] = set()
"""Topics that are known to be valid. A lookup is cheaper than encoding them again."""
_TIMESTAMP_END: Final = 1 << 63
_SECTIONS: Final = (
    ("topic_index", 0),
    ("sequences", SEQUENCES),
    ("expirations", EXPIRATIONS),
    ("correlation_ids", CORRELATION_IDS),
    ("keys", KEYS),
    ("kinds", KINDS),
    ("message_flags", MESSAGE_FLAGS),
    ("order_stamps", ORDER_STAMPS),
    ("headers", HEADERS),
)
"""Fields of `Columns` in the order of their sections, with their column bits. The topic index has no bit."""


def check_body_bytes(size: int) -> None:
    """Raise `MessageTooLarge` if the bodies of one batch exceed 32-bit offsets."""
    if size >= BODY_BYTES_END:
        raise MessageTooLarge(
            f"Cannot encode a batch with {size} bytes of bodies. Use smaller batches, below {BODY_BYTES_END} "
            "bytes each."
        )


@lru_cache(_TOPICS_CACHED)
def _one_topic(topic: str) -> bytes:
    return _topic_table((topic,))


def _topic_table(topics: tuple[str, ...]) -> bytes:
    texts = [topic.encode() for topic in topics]
    offsets = offsets_from(np.fromiter(map(len, texts), I4, len(texts)))
    table = b"".join((offsets.tobytes(), *texts))
    return table + PADDING[-len(table) & 7]


def assemble(
    *,
    runs: bytes,
    offsets: bytes,
    bodies: Buffer,
    topics: tuple[str, ...],
    optional: Columns | None = None,
) -> MessageBatch:
    """Return a batch of encoded `runs` and `offsets` and of the given columns.

    Several topics need a topic index. `bodies` is kept, not copied. Raises `MessageTooLarge` above the size
    limits of the format.
    """
    count = len(offsets) // 4 - 1
    run_count = len(runs) // RUN_BYTES
    table = _one_topic(topics[0]) if len(topics) == 1 else _topic_table(topics)
    head_size = HEADER_BYTES + len(runs) + pad8(len(offsets)) + len(table)
    parts: list[Buffer] = [runs, offsets, PADDING[-len(offsets) & 7], table]
    columns, places = 0, NO_PLACES
    if optional is not None:
        columns, places, extra = _columns(head_size, optional)
        parts += extra
        head_size += sum(map(len, extra))
    body_bytes = len(bodies)
    total = pad8(head_size + body_bytes)
    check_body_bytes(body_bytes)
    if total >= TOTAL_BYTES_END:
        raise MessageTooLarge(
            f"Cannot encode a batch of {total} bytes. Use smaller batches, below {TOTAL_BYTES_END} bytes "
            "each."
        )
    header = HEADER.pack(
        total, VERSION, CODEC_NONE, columns, count, run_count, len(topics), head_size, body_bytes, 0
    )
    batch = MessageBatch(count, run_count, head_size, body_bytes, columns, topics, places)
    batch._table = b"".join((header, *parts))
    batch.bodies = memoryview(bodies)
    return batch


def _columns(at: int, optional: Columns) -> tuple[int, Places, list[Buffer]]:
    """Return column bits, places and padded buffers of the optional sections. The first starts at `at`."""
    columns = 0
    places: dict[str, int] = {}
    parts: list[Buffer] = []
    for name, bit in _SECTIONS:
        column: Labels | AnyArray | None = getattr(optional, name)
        if column is None:
            continue
        columns |= bit
        places[name] = at
        buffers = (
            (column.offsets.tobytes(), column.text) if isinstance(column, Labels) else (column.tobytes(),)
        )
        size = sum(map(len, buffers))
        parts += buffers
        parts.append(PADDING[-size & 7])
        at += pad8(size)
    return columns, Places(**places), parts


def label_bytes(text: str, noun: str) -> bytes:
    """Encode a label. `noun` is its name in errors. Raises `BadMessage`."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise BadMessage(
            f"Invalid {noun} {shown(text)}: it is not valid Unicode. Use valid Unicode text."
        ) from None
    if len(encoded) > label_bytes_max:
        raise BadMessage(f"Invalid {noun} of {len(encoded)} bytes. Use at most {label_bytes_max} bytes.")
    return encoded


def topic_bytes(topic: str) -> int:
    """Return the size of a topic name in bytes. Raises `BadTopic` for invalid Unicode and long names."""
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        raise BadTopic(f"Invalid topic {shown(topic)}: it is not valid Unicode. Use another name.") from None
    if size > topic_bytes_max:
        raise BadTopic(f"Invalid topic of {size} bytes. Use at most {topic_bytes_max} bytes.")
    return size


class EncodedBodies(NamedTuple):
    """Joined bodies of one run with their checksum, independent of topic and sequences."""

    messages: int
    joined: Buffer
    offsets: bytes
    crc: int

    def batch(
        self, topic: str, *, publisher: int = 0, first_sequence: int = 0, timestamp: int = 0
    ) -> MessageBatch:
        """Return the batch of these bodies. Raises `BadTopic`, and `UsageError` for numbers out of range."""
        if topic not in _topics_checked:
            topic_bytes(topic)
            if len(_topics_checked) >= _TOPICS_REMEMBERED:
                _topics_checked.clear()
            _topics_checked.add(topic)
        run = new_run(publisher, first_sequence, timestamp, self.messages, self.crc)
        return assemble(runs=run, offsets=self.offsets, bodies=self.joined, topics=(topic,))


def lengths_in(bodies: Sequence[bytes]) -> Int32s:
    """Return the lengths of `bodies`. Raises `MessageTooLarge` for a body of 2 GiB or more."""
    try:
        return np.frombuffer(pack(f"<{len(bodies)}i", *map(len, bodies)), I4)
    except struct_error:
        raise MessageTooLarge(
            f"Invalid message: 2 GiB or more is too large. Use at most {message_bytes_max} bytes."
        ) from None


def encode_bodies(bodies: Sequence[bytes], lengths: Int32s | None = None) -> EncodedBodies:
    """Join `bodies`. `lengths` are their lengths, if known.

    Raises `UsageError` without bodies, `MessageTooLarge` for a body or a sum above the limits.
    """
    count = len(bodies)
    if count == 1:
        joined = bodies[0]
        if len(joined) > message_bytes_max:
            raise MessageTooLarge(
                f"Invalid message: {len(joined)} bytes is too large. Use at most {message_bytes_max} bytes."
            )
        offsets = PAIR.pack(0, len(joined))
        return EncodedBodies(1, joined, offsets, run_crc(offsets[4:], joined))
    if not count:
        raise UsageError("Cannot encode an empty batch. Pass at least one message.")
    joined = b"".join(bodies)
    check_body_bytes(len(joined))
    if lengths is None:
        lengths = lengths_in(bodies)
    if len(joined) > message_bytes_max:
        longest = int(lengths.max())
        if longest > message_bytes_max:
            raise MessageTooLarge(
                f"Invalid message: {longest} bytes is too large. Use at most {message_bytes_max} bytes."
            )
    return EncodedBodies(count, joined, offsets_from(lengths).tobytes(), run_crc(lengths.data, joined))


def batch_from_bodies(
    topic: str, bodies: Sequence[bytes], *, publisher: int = 0, first_sequence: int = 0, timestamp: int = 0
) -> MessageBatch:
    """Return a batch of one topic and one run (consecutive messages with one publisher and timestamp).

    `timestamp` is in microseconds since 1970 UTC. Raises `UsageError` without bodies or for numbers out of
    range, `BadTopic`, `MessageTooLarge`.
    """
    return encode_bodies(bodies).batch(
        topic, publisher=publisher, first_sequence=first_sequence, timestamp=timestamp
    )


def new_run(publisher: int, first_sequence: int, timestamp: int, count: int, crc: int) -> bytes:
    """Return the encoded run of `count` messages. Raises `UsageError` for a number out of range."""
    if not count:
        raise UsageError("Cannot encode an empty batch. Pass at least one message.")
    if not (0 <= publisher < SEQUENCE_END and 0 <= first_sequence <= SEQUENCE_END - count):
        raise UsageError(
            f"Invalid publisher {publisher} or first sequence {first_sequence}. Use unsigned 64-bit numbers."
        )
    if not -_TIMESTAMP_END <= timestamp < _TIMESTAMP_END:
        raise UsageError(f"Invalid timestamp {timestamp}. Use a signed 64-bit number.")
    return RUN.pack(publisher, first_sequence, timestamp, count, crc, 0, 0)
