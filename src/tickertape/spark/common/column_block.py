"""Column blocks: columns of a batch in their memory format, and the concatenation of many blocks.

A log may have one message per commit, so the work per block is small: Python never handles single messages,
and blocks are checked together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tickertape.base.errors import BadBatch
from tickertape.base.interfaces import Buffer
from tickertape.batch import RUN_DTYPE, MessageBatch
from tickertape.batch.format import (
    CODEC_NONE,
    HEADER,
    HEADER_BYTES,
    I1,
    I4,
    I8,
    PAIR,
    RUN_BYTES,
    VERSION,
    AnyArray,
    Int32s,
    Int64s,
    Labels,
    Runs,
    UInt64s,
    lengths_of,
    numbered,
    offsets_from,
    pad8,
)


class ColumnBlock(NamedTuple):
    """Messages of one batch."""

    messages: int
    body_bytes: int
    runs: Buffer
    offsets: Buffer
    """`messages` + 1 offsets of 32 bits, from 0."""
    bodies: Buffer
    topics: tuple[str, ...]
    topic_index: Int32s | None = None
    """Index into `topics` of each message, if more than one topic exists."""
    sequences: UInt64s | None = None
    """Sequence of each message, if runs have gaps."""
    positions: int | AnyArray | None = None
    """Position of each message, or of the first one if they are consecutive. None unless requested."""
    expirations: Int64s | None = None
    """Lifetime in milliseconds, 0 = unlimited."""
    correlation_ids: Labels | None = None
    keys: Labels | None = None

    @property
    def text_bytes(self) -> int:
        """Bytes of bodies and labels, which determine the memory besides the number of messages."""
        if self.keys is None and self.correlation_ids is None:
            return self.body_bytes
        labels = (self.keys, self.correlation_ids)
        return self.body_bytes + sum(len(some.text) for some in labels if some is not None)


def block_of_batch(batch: MessageBatch, positions: int | AnyArray | None = None) -> ColumnBlock:
    """Return a batch as a block with these positions, without copying."""
    return ColumnBlock(
        batch.count,
        batch.body_bytes,
        batch.runs.view(I1).data,
        batch.offsets.view(I1).data,
        batch.bodies,
        batch.topics,
        batch.topic_index,
        batch.sequences if batch.has_sequences else None,
        positions,
        batch.expirations,
        batch.correlation_ids,
        batch.keys,
    )


def plain_block(encoded: memoryview, position: int) -> ColumnBlock | None:
    """Return an encoded batch with one topic and no optional columns as a block. None if it must be parsed.

    The first message gets the position `position`.

    This costs a tenth of parsing: only the section bounds are checked here. `ColumnBlocks` checks the
    contents.
    """
    if len(encoded) < HEADER_BYTES:
        return None
    total, version, codec, columns, count, runs, topics, head_bytes, body_bytes, _ = HEADER.unpack_from(
        encoded
    )
    if columns or topics != 1 or version != VERSION or codec != CODEC_NONE or not 1 <= runs <= count:
        return None
    offsets_at = HEADER_BYTES + RUN_BYTES * runs
    offsets_end = offsets_at + 4 * (count + 1)
    names_at = pad8(offsets_end) + PAIR.size
    if names_at > head_bytes or total != len(encoded) or pad8(head_bytes + body_bytes) != total:
        return None
    first, size = PAIR.unpack_from(encoded, names_at - PAIR.size)
    if first or not 0 <= size <= head_bytes - names_at:
        return None
    try:
        topic = str(encoded[names_at : names_at + size], "utf-8")
    except UnicodeDecodeError:
        return None
    return ColumnBlock(
        count,
        body_bytes,
        encoded[HEADER_BYTES:offsets_at],
        encoded[offsets_at:offsets_end],
        encoded[head_bytes : head_bytes + body_bytes],
        (topic,),
        positions=position,
    )


class ColumnBlocks:
    """Concatenated blocks. Arrays are created at their first use.

    Their first use raises `BadBatch` if a block is inconsistent.
    """

    def __init__(self, pieces: Sequence[ColumnBlock]) -> None:
        self.pieces = pieces
        self.counts: Int64s = np.array([piece.messages for piece in pieces], I8)
        self.count = int(self.counts.sum())

    @cached_property
    def runs(self) -> Runs:
        """The run tables."""
        runs = _joined([piece.runs for piece in self.pieces], RUN_DTYPE)
        tables = np.array([len(piece.runs) // RUN_BYTES for piece in self.pieces], I8)
        messages = np.add.reduceat(runs["count"].astype(I8), tables.cumsum() - tables)
        if (messages != self.counts).any():
            raise BadBatch(
                "Invalid batch: its runs do not have as many messages as the batch. Report the defect."
            )
        return runs

    @cached_property
    def sequences(self) -> UInt64s:
        """Sequence of each message."""
        if all(piece.sequences is None for piece in self.pieces):
            return numbered(self.runs)
        return np.concatenate(
            [
                numbered(np.frombuffer(piece.runs, RUN_DTYPE)) if piece.sequences is None else piece.sequences
                for piece in self.pieces
            ]
        )

    @cached_property
    def positions(self) -> Int64s:
        """Positions of the messages."""
        return np.concatenate([_positions(piece) for piece in self.pieces])

    @cached_property
    def expirations(self) -> Int64s | None:
        """Lifetime of each message in milliseconds, 0 = unlimited. None if no message has one."""
        given = [piece.expirations for piece in self.pieces]
        if all(column is None for column in given):
            return None
        columns = zip(given, self.counts.tolist(), strict=True)
        return np.concatenate([np.zeros(count, I8) if some is None else some for some, count in columns])

    @cached_property
    def correlation_ids(self) -> Labels | None:
        """Correlation id of each message, empty = none. None if no message has one."""
        return self._labels([piece.correlation_ids for piece in self.pieces])

    @cached_property
    def keys(self) -> Labels | None:
        """Key of each message, empty = none. None if no message has one."""
        return self._labels([piece.keys for piece in self.pieces])

    def _labels(self, given: Sequence[Labels | None]) -> Labels | None:
        if all(labels is None for labels in given):
            return None
        lengths = [
            np.zeros(count, I4) if some is None else lengths_of(some.offsets)
            for some, count in zip(given, self.counts.tolist(), strict=True)
        ]
        text = b"".join([some.text for some in given if some is not None])
        return Labels(offsets_from(np.concatenate(lengths)), text)

    @cached_property
    def offsets(self) -> Int32s:
        """`count` + 1 offsets into `bodies`."""
        entries = self.counts + 1
        ends = entries.cumsum()
        joined = _joined([piece.offsets for piece in self.pieces], I4)
        sizes = np.array([piece.body_bytes for piece in self.pieces], I8)
        offsets = joined
        if len(self.pieces) > 1:
            kept = np.ones(len(joined), np.bool_)
            kept[ends[:-1] - 1] = False  # the end of a block is the start of the next
            bases = (sizes.cumsum() - sizes).astype(I4)
            offsets = (joined + np.repeat(bases, entries))[kept]
        if (
            joined[ends - entries].any()
            or (joined[ends - 1] != sizes).any()
            or (offsets[1:] < offsets[:-1]).any()
        ):
            raise BadBatch(
                "Invalid batch: its offsets do not ascend from 0 to the "
                "length of its bodies. Report the defect."
            )
        return offsets

    @cached_property
    def bodies(self) -> Buffer:
        """All bodies. The bodies of a single block are not copied."""
        if len(self.pieces) == 1:
            return self.pieces[0].bodies
        return b"".join([piece.bodies for piece in self.pieces])

    @cached_property
    def topics(self) -> tuple[list[str], Int32s, Int64s]:
        """Distinct topics, and runs in order: topic numbers and message counts."""
        numbers: dict[str, int] = {}
        indexes: list[AnyArray] = []
        counts: list[AnyArray] = []
        for piece in self.pieces:
            mine = np.array([numbers.setdefault(topic, len(numbers)) for topic in piece.topics], I4)
            if piece.topic_index is None:
                indexes.append(mine)
                counts.append(np.array([piece.messages], I8))
            else:
                indexes.append(mine[piece.topic_index])
                counts.append(np.ones(piece.messages, I8))
        return list(numbers), np.concatenate(indexes), np.concatenate(counts)


def _joined(buffers: list[Buffer], kind: np.dtype[Any]) -> AnyArray:
    return np.frombuffer(buffers[0] if len(buffers) == 1 else b"".join(buffers), kind)


def _positions(piece: ColumnBlock) -> AnyArray:
    if isinstance(piece.positions, np.ndarray):
        return piece.positions.astype(I8, copy=False)
    if piece.positions is None:
        raise BadBatch(
            "Cannot read positions: the server is older than this client and "
            "does not report them. Upgrade the server."
        )
    return np.arange(piece.positions, piece.positions + piece.messages, dtype=I8)
