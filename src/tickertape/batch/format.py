"""Constants and types of the batch format (docs/formats/batch.md): structs, column bits and checksums."""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from tickertape.base.interfaces import Buffer

VERSION: Final = 0
CODEC_NONE: Final = 0

HEADER: Final = Struct("<IBBHIIIIII")
"""total_bytes, version, codec, columns, count, runs, topics, head_bytes, body_bytes, reserved."""
TOTAL: Final = Struct("<I")
"""total_bytes alone, with which every batch begins."""
RUN: Final = Struct("<QQqIIII")
"""publisher, first_sequence, timestamp, count, crc, flags, reserved."""
HEADER_BYTES: Final = 32
RUN_BYTES: Final = 40
PAIR: Final = Struct("<ii")
LENGTH: Final = Struct("<i")
"""The offsets of a table with one entry."""

SEQUENCES: Final = 1
EXPIRATIONS: Final = 2
CORRELATION_IDS: Final = 4
KEYS: Final = 8
KINDS: Final = 16
COLUMNS_KNOWN: Final = 31
"""Bits 5 (flags) and 6 (subscriptions) are reserved: a reader of version 0 refuses them."""

KIND_MESSAGE: Final = 0
KIND_CONTROL: Final = 1

RUN_BY_SERVER: Final = 1
"""Run flag: the checksum was made by the server, because it split the run or selected from it."""

SEQUENCE_END: Final = 1 << 64
BODY_BYTES_END: Final = 1 << 31
TOTAL_BYTES_END: Final = 1 << 32

I1: Final = np.dtype("u1")
I4: Final = np.dtype("<i4")
I8: Final = np.dtype("<i8")
U8: Final = np.dtype("<u8")
RUN_DTYPE: Final = np.dtype(
    [
        ("publisher", "<u8"),
        ("first_sequence", "<u8"),
        ("timestamp", "<i8"),
        ("count", "<u4"),
        ("crc", "<u4"),
        ("flags", "<u4"),
        ("reserved", "<u4"),
    ]
)

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Bytes8 = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Runs = npt.NDArray[np.void]
_Ints = TypeVar("_Ints", Int32s, Int64s)
AnyArray = npt.NDArray[Any]

PADDING: Final = tuple(bytes(n) for n in range(8))


class Run(NamedTuple):
    """One row of the run table, as Python integers."""

    publisher: int
    first_sequence: int
    timestamp: int
    message_count: int
    crc: int
    flags: int
    reserved: int = 0


class Places(NamedTuple):
    """Where the optional sections begin, in bytes from the start of the batch; 0 = absent."""

    topic_index: int = 0
    sequences: int = 0
    expirations: int = 0
    correlation_ids: int = 0
    keys: int = 0
    kinds: int = 0


NO_PLACES: Final = Places()


class Labels(NamedTuple):
    """A column of texts: label i is `text[offsets[i]:offsets[i + 1]]`, UTF-8; empty = none."""

    offsets: Int32s
    text: Buffer


class Columns(NamedTuple):
    """The optional sections of a batch as arrays; None = absent."""

    topic_index: Int32s | None = None
    sequences: UInt64s | None = None
    expirations: Int64s | None = None
    correlation_ids: Labels | None = None
    keys: Labels | None = None
    kinds: Bytes8 | None = None


def pad8(size: int) -> int:
    """`size` rounded up to a multiple of 8."""
    return (size + 7) & ~7


def run_crc(lengths: Buffer, bodies: Buffer) -> int:
    """Return the checksum of a run: CRC32C over its body lengths (i32 each), continued over its bodies."""
    return crc32c(bodies, crc32c(lengths))


def lengths_of(offsets: _Ints) -> _Ints:
    """Return the lengths between `offsets`, n of n + 1."""
    return offsets[1:] - offsets[:-1]


def offsets_from(lengths: AnyArray) -> Int32s:
    """n + 1 offsets from n lengths, the first 0. The caller has checked that the sum is below 2 GiB."""
    offsets = np.empty(len(lengths) + 1, I4)
    offsets[0] = 0
    lengths.cumsum(dtype=I4, out=offsets[1:])
    return offsets


def numbered(runs: Runs) -> UInt64s:
    """Return the sequences of all messages of `runs` when none has gaps."""
    counts = runs["count"]
    starts = counts.cumsum(dtype=U8) - counts
    sequences = np.arange(int(counts.sum(dtype=U8)), dtype=U8)
    # a difference below 0 wraps, and wraps back when it is added
    sequences += np.repeat(runs["first_sequence"] - starts, counts)
    return sequences


def read_only(array: AnyArray) -> AnyArray:
    """`array`, after making it read-only."""
    array.setflags(write=False)
    return array
