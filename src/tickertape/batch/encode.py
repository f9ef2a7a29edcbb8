"""Encode the head of a batch: takes columns and returns a `MessageBatch`.

Callers pass consistent columns; only the two size limits of the format are checked.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from tickertape.base.errors import MessageTooLarge
from tickertape.base.interfaces import Buffer
from tickertape.batch.format import (
    BODY_BYTES_END,
    CODEC_NONE,
    CORRELATION_IDS,
    EXPIRATIONS,
    HEADER,
    HEADER_BYTES,
    I4,
    KEYS,
    KINDS,
    NO_PLACES,
    PADDING,
    RUN_BYTES,
    SEQUENCES,
    TOTAL_BYTES_END,
    VERSION,
    Columns,
    Labels,
    Places,
    offsets_from,
    pad8,
)
from tickertape.batch.message_batch import MessageBatch

_TOPICS_CACHED: Final = 1024
_BITS: Final = (0, SEQUENCES, EXPIRATIONS, CORRELATION_IDS, KEYS, KINDS)
"""Column bits of the fields of `Columns`; the topic index needs none."""


def check_body_bytes(size: int) -> None:
    """Raise `MessageTooLarge` when the bodies of one batch would not fit 32-bit offsets."""
    if size >= BODY_BYTES_END:
        raise MessageTooLarge(
            f"bodies of {size} bytes in one batch: it holds less than {BODY_BYTES_END}, split it"
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
    """A batch of the given columns. `runs` and `offsets` are encoded; several topics need a topic index.

    `bodies` is kept, not copied. Raises `MessageTooLarge` when the encoding would pass the format's sizes.
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
        raise MessageTooLarge(f"one batch of {total} bytes: it holds less than {TOTAL_BYTES_END}, split it")
    header = HEADER.pack(
        total, VERSION, CODEC_NONE, columns, count, run_count, len(topics), head_size, body_bytes, 0
    )
    batch = MessageBatch(count, run_count, head_size, body_bytes, columns, topics, places)
    batch._table = b"".join((header, *parts))
    batch.bodies = memoryview(bodies)
    return batch


def _columns(at: int, optional: Columns) -> tuple[int, Places, list[Buffer]]:
    """Column bits, places and padded buffers of the optional sections; the first one begins at `at`."""
    columns = 0
    places = []
    parts: list[Buffer] = []
    for bit, column in zip(_BITS, optional, strict=True):
        if column is None:
            places.append(0)
            continue
        columns |= bit
        places.append(at)
        buffers = (
            (column.offsets.tobytes(), column.text) if isinstance(column, Labels) else (column.tobytes(),)
        )
        size = sum(map(len, buffers))
        parts += buffers
        parts.append(PADDING[-size & 7])
        at += pad8(size)
    return columns, Places(*places), parts
