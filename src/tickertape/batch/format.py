"""Batch format (docs/formats/batch.md): structs, column bits, checksums, and validation of a batch.

Validation does not verify the checksums of bodies (see `MessageBatch.verify`) and copies no aligned buffer.
Every count is compared with the length of the buffer before use, so no allocation exceeds the input.
"""

from __future__ import annotations

from itertools import pairwise
from struct import Struct
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tickertape.base.checksum import crc32c
from tickertape.base.errors import BadBatch
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import headers_bytes_max, label_bytes_max, message_bytes_max, topic_bytes_max

VERSION: Final = 0
CODEC_NONE: Final = 0

HEADER: Final = Struct("<IBBHIIIIII")
"""total_bytes, version, codec, columns, count, runs, topics, head_bytes, body_bytes, reserved."""
TOTAL: Final = Struct("<I")
"""total_bytes, the first field of every batch."""
RUN: Final = Struct("<QQqIIII")
"""publisher, first_sequence, timestamp, count, crc, flags, origin."""
HEADER_BYTES: Final = 32
RUN_BYTES: Final = 40
PAIR: Final = Struct("<ii")
LENGTH: Final = Struct("<i")
"""Offsets of a table with one entry."""

SEQUENCES: Final = 1
EXPIRATIONS: Final = 2
CORRELATION_IDS: Final = 4
KEYS: Final = 8
KINDS: Final = 16
MESSAGE_FLAGS: Final = 32
ORDER_STAMPS: Final = 128
HEADERS: Final = 256
COLUMNS_KNOWN: Final = 0x1BF
"""Bit 6 (subscriptions) is reserved. Readers of version 0 reject it and the bits above 8."""

KIND_MESSAGE: Final = 0
KIND_CONTROL: Final = 1
KIND_RESTATED: Final = 2
"""Record that became the current one of its key again."""

FLAG_SUPERSEDED: Final = 1
"""Message flag: another message of the key was the current one when this one was stored."""
FLAG_DELTA: Final = 2
"""Message flag: the body has only changed fields. In publish frames and stores, never in a log."""
MESSAGE_FLAGS_KNOWN: Final = FLAG_SUPERSEDED | FLAG_DELTA

RUN_BY_SERVER: Final = 1
"""Run flag: the server computed the checksum, because it split the run or selected from it."""
RUN_LATE: Final = 2
"""Run flag: sequences below the highest one of the publisher, which filled a hole."""
RUN_MERGED: Final = 4
"""Run flag: the server made a body, from a delta or by enrichment. Implies `RUN_BY_SERVER`."""
RUN_FLAGS_KNOWN: Final = RUN_BY_SERVER | RUN_LATE | RUN_MERGED

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
        ("origin", "<u4"),
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
    """One row of the run table, as Python integers. `timestamp` is in microseconds since 1970 UTC."""

    publisher: int
    first_sequence: int
    timestamp: int
    message_count: int
    crc: int
    flags: int
    origin: int = 0
    """0: a client of this log published it. n: number of an `origin` record of this log."""


class Places(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Start of each optional section, in bytes from the start of the batch. 0 = absent."""

    topic_index: int = 0
    sequences: int = 0
    expirations: int = 0
    correlation_ids: int = 0
    keys: int = 0
    kinds: int = 0
    message_flags: int = 0
    order_stamps: int = 0
    headers: int = 0


NO_PLACES: Final = Places()


class Labels(NamedTuple):
    """Column of UTF-8 texts, or of encoded headers: entry i is `text[offsets[i]:offsets[i + 1]]`, empty for
    none."""

    offsets: Int32s
    text: Buffer


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """Optional sections of a batch as arrays. None = absent."""

    topic_index: Int32s | None = None
    sequences: UInt64s | None = None
    expirations: Int64s | None = None
    correlation_ids: Labels | None = None
    keys: Labels | None = None
    kinds: Bytes8 | None = None
    message_flags: Bytes8 | None = None
    order_stamps: Int64s | None = None
    """One per run, microseconds since 1970 UTC. Without the column: the timestamp of the run."""
    headers: Labels | None = None


def pad8(size: int) -> int:
    """Return `size` rounded up to a multiple of 8."""
    return (size + 7) & ~7


def run_crc(lengths: Buffer, bodies: Buffer) -> int:
    """Return the checksum of a run: CRC32C over its body lengths (i32 each), continued over its bodies."""
    return crc32c(bodies, crc32c(lengths))


def run_crcs(offsets: Int32s, bodies: Buffer, begins: Int64s, counts: Int64s) -> list[int]:
    """Return the checksums of runs that start at messages `begins` and have `counts` messages."""
    ends = begins + counts
    length_bytes, body_bytes = lengths_of(offsets).tobytes(), memoryview(bodies)
    edges = zip(begins.tolist(), ends.tolist(), offsets[begins].tolist(), offsets[ends].tolist(), strict=True)
    return [run_crc(length_bytes[4 * a : 4 * b], body_bytes[c:d]) for a, b, c, d in edges]


def lengths_of(offsets: _Ints) -> _Ints:
    """Return the n lengths between n + 1 `offsets`."""
    return offsets[1:] - offsets[:-1]


def offsets_from(lengths: AnyArray) -> Int32s:
    """Return n + 1 offsets from 0 for n lengths. The caller ensures a sum below 2 GiB."""
    offsets = np.empty(len(lengths) + 1, I4)
    offsets[0] = 0
    lengths.cumsum(dtype=I4, out=offsets[1:])
    return offsets


def numbered(runs: Runs) -> UInt64s:
    """Return the sequences of all messages of `runs` without gaps."""
    counts = runs["count"]
    starts = counts.cumsum(dtype=U8) - counts
    sequences = np.arange(int(counts.sum(dtype=U8)), dtype=U8)
    # A negative difference wraps around, and wraps back in the addition.
    sequences += np.repeat(runs["first_sequence"] - starts, counts)
    return sequences


def read_only(array: AnyArray) -> AnyArray:
    """Make `array` read-only and return it."""
    array.setflags(write=False)
    return array


# -- check --------------------------------------------------------------------------------------------


_frombuffer: Final = np.frombuffer
_CONTINUATION_MASK: Final = 0xC0
_CONTINUATION: Final = 0x80


Checked = tuple[memoryview, int, int, int, int, int, tuple[str, ...], Places]
"""Parts of a valid batch: bytes, messages, runs, head bytes, body bytes, column bits, topics, places."""


def check(buffer: Buffer) -> Checked:
    """Return the parts of the batch that fills `buffer`. Raises `BadBatch` with the error and its place."""
    source = _settled(buffer)
    return _check(source, len(source))


def check_head(head: Buffer, nbytes: int) -> Checked:
    """Return the parts of a batch of `nbytes` from its head, which fills `head`. Raises `BadBatch`."""
    source = _settled(head)
    checked = _check(source, nbytes)
    if checked[3] != len(source):
        raise BadBatch(
            f"Invalid batch: its head claims {checked[3]} bytes, but has {len(source)}. "
            "Report the defect of its sender."
        )
    return checked


def _check(source: memoryview, size: int) -> Checked:
    total, version, codec, columns, count, run_count, topic_count, head_bytes, body_bytes, reserved = (
        HEADER.unpack_from(source)
    )
    if total != size:
        raise BadBatch(
            f"Invalid batch: it claims {total} bytes, but has {size}. Report the defect of its sender."
        )
    if version != VERSION or codec != CODEC_NONE or columns & ~COLUMNS_KNOWN or reserved:
        raise BadBatch(
            f"Unsupported batch of version {version}, codec {codec}, columns {columns:#x}, reserved "
            f"{reserved}. Use version {VERSION}, codec {CODEC_NONE}, columns up to {COLUMNS_KNOWN:#x}."
        )
    if head_bytes & 7 or (head_bytes + body_bytes + 7) & ~7 != size:
        raise BadBatch(
            f"Invalid batch of {size} bytes: head of {head_bytes} and bodies of "
            f"{body_bytes} do not fill it. Report the defect of its sender."
        )
    if not 1 <= run_count <= count or not topic_count:
        raise BadBatch(
            f"Invalid batch: it has {count} messages in {run_count} runs and "
            f"{topic_count} topics, but needs a topic, and a message for each run. "
            "Report the defect of its sender."
        )
    offsets_at = HEADER_BYTES + RUN_BYTES * run_count
    topics_at = (offsets_at + 4 * (count + 1) + 7) & ~7
    names_at = topics_at + 4 * (topic_count + 1)
    if names_at > head_bytes or head_bytes > len(source):
        raise BadBatch(
            f"Invalid batch head of {head_bytes} bytes: too short for {count} "
            f"messages in {run_count} runs. Report the defect of its sender."
        )
    if count == 1:
        if PAIR.unpack_from(source, offsets_at) != (0, body_bytes) or body_bytes > message_bytes_max:
            raise BadBatch(
                f"Invalid batch: a message of {body_bytes} bytes is too large or "
                "contradicts its offsets. Report the defect of its sender."
            )
    else:
        _check_offsets(_frombuffer(source, I4, count + 1, offsets_at), body_bytes, message_bytes_max, "body")
    _check_runs(source, run_count, count)
    if topic_count == 1:
        topics, end = _one_topic(source, topics_at, head_bytes)
    else:
        topics, end = _many_topics(source, topics_at, topic_count, head_bytes)
    places = NO_PLACES
    if columns or topic_count > 1:
        places, end = _places(source, pad8(end), head_bytes, count, run_count, topic_count, columns)
        _check_columns(source, count, run_count, topic_count, places)
    if (end + 7) & ~7 != head_bytes:
        raise BadBatch(
            f"Invalid batch: its head has {head_bytes} bytes, but its "
            f"sections end at {end}. Report the defect of its sender."
        )
    return source, count, run_count, head_bytes, body_bytes, columns, topics, places


def _settled(buffer: Buffer) -> memoryview:
    """Return `buffer` as flat read-only bytes at an address divisible by 8, copied only if necessary."""
    if type(buffer) is bytes:  # the data of a bytes object always starts at such an address
        source = memoryview(buffer)
        size = len(source)
    else:
        source = memoryview(buffer)
        if not source.c_contiguous:
            source = memoryview(source.tobytes())
        if source.format != "B" or source.ndim != 1:
            source = source.cast("B")
        if not source.readonly:
            source = source.toreadonly()
        size = len(source)
        if size >= HEADER_BYTES and not size & 7 and not _frombuffer(source, I8).flags.aligned:
            source = memoryview(source.tobytes())
    if size < HEADER_BYTES or size & 7:
        raise BadBatch(
            f"Invalid batch of {size} bytes. Its size must be a multiple of 8, and at least {HEADER_BYTES}."
        )
    return source


def _check_offsets(offsets: Int32s, end: int, entry_max: int, noun: str) -> None:
    if offsets[0] != 0 or offsets[-1] != end:
        raise BadBatch(
            f"Invalid batch: {noun} offsets go from {offsets[0]} to "
            f"{offsets[-1]}, not from 0 to {end}. Report the defect of its sender."
        )
    falls = offsets[1:] < offsets[:-1]  # comparison instead of subtraction, which could overflow
    at = falls.argmax()
    if falls[at]:
        raise BadBatch(
            f"Invalid batch: {noun} offset {at + 1} is below the previous offset. "
            "Report the defect of its sender."
        )
    if end > entry_max:
        longest = int(lengths_of(offsets).max())
        if longest > entry_max:
            raise BadBatch(f"Invalid batch: a {noun} has {longest} bytes. Use at most {entry_max} bytes.")


def _check_runs(source: memoryview, run_count: int, count: int) -> None:
    if run_count == 1:
        _, first, _, messages, _, flags, _ = RUN.unpack_from(source, HEADER_BYTES)
        wrong = messages != count or first + count > SEQUENCE_END
        unfounded = flags & (RUN_MERGED | RUN_BY_SERVER) == RUN_MERGED
    else:
        runs = _frombuffer(source, RUN_DTYPE, run_count, HEADER_BYTES)
        counts = runs["count"].astype(U8)
        firsts = runs["first_sequence"]
        messages = int(counts.sum())
        wrong = (
            messages != count or not counts.all() or bool((firsts + (counts - np.uint64(1)) < firsts).any())
        )
        flags = int(np.bitwise_or.reduce(runs["flags"]))
        unfounded = flags & RUN_MERGED != 0 and bool(
            ((runs["flags"] & np.uint32(RUN_MERGED | RUN_BY_SERVER)) == RUN_MERGED).any()
        )
    if wrong:
        raise BadBatch(
            f"Invalid batch: runs have {messages} of {count} messages, or a run is "
            "empty or exceeds 64 bits. Report the defect of its sender."
        )
    if flags & ~RUN_FLAGS_KNOWN:
        raise BadBatch(f"Unsupported batch: a run has flags {flags:#x}. Use version {VERSION}.")
    if unfounded:
        raise BadBatch(
            "Invalid batch: a run has merged bodies, but its checksum is not flagged as the server's. "
            "Report the defect of its sender."
        )


def _one_topic(source: memoryview, at: int, head_bytes: int) -> tuple[tuple[str, ...], int]:
    begin = at + 8
    first, size = PAIR.unpack_from(source, at)
    end = begin + size
    if first or not 0 <= size <= topic_bytes_max or end > head_bytes:
        raise BadBatch(
            f"Invalid batch: a topic name has offsets {first} to {size} in a head "
            f"of {head_bytes} bytes. Report the defect of its sender."
        )
    try:
        return (str(source[begin:end], "utf-8"),), end
    except UnicodeDecodeError as error:
        raise BadBatch(
            f"Invalid batch: a topic name is not UTF-8: {error}. Report the defect of its sender."
        ) from None


def _many_topics(source: memoryview, at: int, n: int, head_bytes: int) -> tuple[tuple[str, ...], int]:
    begin, end = _text_table(source, at, n, head_bytes, topic_bytes_max, "topic name")
    text = source[begin:end].tobytes()
    places = _frombuffer(source, I4, n + 1, at).tolist()
    pairs = pairwise(places)
    try:
        if text.isascii():
            names = text.decode("ascii")
            topics = tuple([names[a:b] for a, b in pairs])
        else:
            topics = tuple([text[a:b].decode("utf-8") for a, b in pairs])
    except UnicodeDecodeError as error:
        raise BadBatch(
            f"Invalid batch: a topic name is not UTF-8: {error}. Report the defect of its sender."
        ) from None
    if len(set(topics)) != n:
        raise BadBatch(
            f"Invalid batch: two of its {n} topic names are equal. Report the defect of its sender."
        )
    return topics, end


def _text_table(
    source: memoryview, at: int, n: int, head_bytes: int, entry_max: int, noun: str
) -> tuple[int, int]:
    """Return start and end of the text of a table of `n` entries at `at`, all inside the head."""
    begin = at + 4 * (n + 1)
    if begin > head_bytes:
        raise BadBatch(
            f"Invalid batch: {noun} offsets end at {begin}, its head at {head_bytes}. "
            "Report the defect of its sender."
        )
    if n == 1:  # the most frequent number, for which numpy costs most of the validation
        first, size = PAIR.unpack_from(source, at)
        if not first and 0 <= size <= min(entry_max, head_bytes - begin):
            return begin, begin + size
    offsets = _frombuffer(source, I4, n + 1, at)
    size = int(offsets[-1])
    if not 0 <= size <= head_bytes - begin:
        raise BadBatch(
            f"Invalid batch: {noun}s have {size} bytes in a head of {head_bytes}. "
            "Report the defect of its sender."
        )
    _check_offsets(offsets, size, entry_max, noun)
    return begin, begin + size


def _places(
    source: memoryview, at: int, head_bytes: int, n: int, run_count: int, topic_count: int, columns: int
) -> tuple[Places, int]:
    """Return the places of the optional sections and the end of the last one. Validates labels."""
    begins: dict[str, int] = {}
    end = at
    fixed: tuple[tuple[str, int, int], ...] = (
        ("topic_index", topic_count > 1, 4 * n),
        ("sequences", columns & SEQUENCES, 8 * n),
        ("expirations", columns & EXPIRATIONS, 8 * n),
    )
    for name, present, size in fixed:
        if present:
            begins[name] = pad8(end)
            end = begins[name] + size
    for name, bit, noun in (("correlation_ids", CORRELATION_IDS, "correlation id"), ("keys", KEYS, "key")):
        if columns & bit:
            begins[name] = pad8(end)
            begin, end = _text_table(source, begins[name], n, head_bytes, label_bytes_max, noun)
            text = source[begin:end].tobytes()
            if not text.isascii():
                fault = label_text_fault(text, _frombuffer(source, I4, n + 1, begins[name]))
                if fault:
                    raise BadBatch(f"Invalid batch: a {noun} {fault}. Report the defect of its sender.")
    fixed = (
        ("kinds", columns & KINDS, n),
        ("message_flags", columns & MESSAGE_FLAGS, n),
        ("order_stamps", columns & ORDER_STAMPS, 8 * run_count),
    )
    for name, present, size in fixed:
        if present:
            begins[name] = pad8(end)
            end = begins[name] + size
    if columns & HEADERS:
        begins["headers"] = pad8(end)
        _, end = _text_table(source, begins["headers"], n, head_bytes, headers_bytes_max, "header")
    if end > head_bytes:
        raise BadBatch(
            f"Invalid batch: its head has {head_bytes} bytes, but its "
            f"columns end at {end}. Report the defect of its sender."
        )
    return Places(**begins), end


def label_text_fault(text: bytes, offsets: Int32s) -> str:
    """Return the reason why a label is not UTF-8, or an empty text.

    The whole text must be valid, and no label may start inside a character."""
    if text.isascii():
        return ""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"is not UTF-8: {error}"
    begins = offsets[offsets < len(text)]
    if ((_frombuffer(text, I1)[begins] & _CONTINUATION_MASK) == _CONTINUATION).any():
        return "is not UTF-8: it starts inside a character"
    return ""


def _check_columns(source: memoryview, n: int, run_count: int, topic_count: int, places: Places) -> None:
    if places.topic_index:
        index = _frombuffer(source, I4, n, places.topic_index)
        if int(index.min()) < 0 or int(index.max()) >= topic_count:
            raise BadBatch(
                f"Invalid batch: a topic index is outside 0 to {topic_count - 1}. "
                "Report the defect of its sender."
            )
    if places.sequences:
        _check_sequences(source, n, _frombuffer(source, RUN_DTYPE, run_count, HEADER_BYTES), places.sequences)
    if places.expirations and int(_frombuffer(source, I8, n, places.expirations).min()) < 0:
        raise BadBatch("Invalid batch: an expiration is below 0. Report the defect of its sender.")
    if places.kinds and int(_frombuffer(source, I1, n, places.kinds).max()) > KIND_RESTATED:
        raise BadBatch(
            f"Invalid batch: a message kind is above {KIND_RESTATED}. Report the defect of its sender."
        )
    if (
        places.message_flags
        and int(_frombuffer(source, I1, n, places.message_flags).max()) > MESSAGE_FLAGS_KNOWN
    ):
        raise BadBatch(
            f"Invalid batch: message flags are above {MESSAGE_FLAGS_KNOWN}. Report the defect of its sender."
        )


def _check_sequences(source: memoryview, n: int, runs: Runs, at: int) -> None:
    sequences = _frombuffer(source, U8, n, at)
    starts = runs["count"].cumsum(dtype=np.int64) - runs["count"]
    if (sequences[starts] != runs["first_sequence"]).any():
        raise BadBatch(
            "Invalid batch: the sequence column does not start with the first "
            "sequence of its run. Report the defect of its sender."
        )
    if n == 1:
        return
    stays = sequences[1:] <= sequences[:-1]
    stays[starts[1:] - 1] = False  # sequences may decrease from one run to the next
    if stays.any():
        raise BadBatch(
            f"Invalid batch: sequence {sequences[1:][stays][0]} is not above the "
            "previous one in its run. Report the defect of its sender."
        )
