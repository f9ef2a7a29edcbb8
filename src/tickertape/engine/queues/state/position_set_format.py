"""Position set format: encodes a set of positions for disk.

A set is a sequence of ascending runs of consecutive positions. Each run stores the gap before it and its
length, as unsigned LEB128 numbers. The format is documented in docs/formats/queue-checkpoint.md.

Invariants:
- Each set has exactly one encoding.
- Lengths are checked before memory is allocated for them.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from pyroaring import BitMap64

from tickertape.batch.format import AnyArray, Bytes8, Int64s
from tickertape.engine.queues.state.records import array_of

_CHUNK: Final = 1 << 20
"""Number of positions processed together. Full chunks are not expanded, and smaller sets are not split."""
_NUMBER_BYTES_MAX: Final = 9
"""Maximum encoded size of a number (63 bits)."""
_LOW_BITS: Final = np.uint64(0x7F)
_MORE: Final = np.uint64(0x80)
"""Continuation bit: the next byte belongs to the same number."""


def encode_set(positions: BitMap64) -> bytes:
    """Encode a set."""
    starts, ends = _runs(positions)
    numbers = np.empty(2 * len(starts), np.uint64)
    if len(starts):
        numbers[0] = starts[0]
        numbers[2::2] = starts[1:] - ends[:-1]
        numbers[1::2] = ends - starts
    return _encode(numbers)


def decode_set(data: bytes, end: int) -> BitMap64:
    """Decode a set of positions below `end`. Raises `ValueError` for invalid bytes."""
    numbers = _decode(data)
    if len(numbers) % 2:
        raise ValueError("a set of positions ends within a run")
    if (numbers[1:] == 0).any():
        raise ValueError("a set of positions has empty or adjacent runs")
    found = BitMap64()
    if not len(numbers):
        return found
    # Each number and their sum are small enough to exclude an integer overflow.
    if int(numbers.max()) > end or float(numbers.astype(float).sum()) > 2.0 * end + 1:
        raise ValueError(f"a set has positions at or above {end}")
    edges = numbers.cumsum()
    if int(edges[-1]) > end:
        raise ValueError(f"a set has positions at or above {end}")
    for first, stop in edges.reshape(-1, 2).tolist():
        found.add_range(first, stop)
    return found


def lowest_of(data: bytes) -> int | None:
    """Return the lowest position of an encoded set without decoding the rest, or None if it is empty.

    Raises `ValueError` for invalid bytes."""
    if not data:
        return None
    return int(_decode(data[: next((i + 1 for i, byte in enumerate(data[:10]) if byte < 0x80), 10)])[0])


def _runs(positions: BitMap64) -> tuple[Int64s, Int64s]:
    """Return the first positions and the end positions of runs of consecutive positions."""
    if len(positions) <= _CHUNK:
        return _stretches(array_of(positions))
    starts: list[Int64s] = []
    ends: list[Int64s] = []
    low: int | None = int(positions.min())
    while low is not None:
        span = BitMap64()
        span.add_range(low, low + _CHUNK)
        part = positions & span
        if len(part) == _CHUNK:
            starts.append(np.array([low]))
            ends.append(np.array([low + _CHUNK]))
        else:
            firsts, lasts = _stretches(array_of(part))
            starts.append(firsts)
            ends.append(lasts)
        low = next(positions.iter_equal_or_larger(low + _CHUNK), None)
    firsts, lasts = np.concatenate(starts), np.concatenate(ends)
    apart = firsts[1:] != lasts[:-1]
    return firsts[np.concatenate(([True], apart))], lasts[np.concatenate((apart, [True]))]


def _stretches(places: Int64s) -> tuple[Int64s, Int64s]:
    """Return the result of `_runs` for an array of ascending positions."""
    breaks = np.flatnonzero(np.diff(places) != 1)
    return (
        np.concatenate((places[:1], places[breaks + 1])),
        np.concatenate((places[breaks] + 1, places[-1:] + 1)),
    )


def _encode(numbers: AnyArray) -> bytes:
    longer = np.flatnonzero(numbers > _LOW_BITS)
    if not len(longer):
        return numbers.astype(np.uint8).tobytes()
    sizes = np.ones(len(numbers), np.int64)
    for count in range(2, _NUMBER_BYTES_MAX + 1):
        sizes[longer] = count
        longer = longer[numbers[longer] >> np.uint64(7 * count) > 0]
        if not len(longer):
            break
    ends = sizes.cumsum()
    out = np.empty(int(ends[-1]), np.uint8)
    left, places = numbers, ends - sizes
    while len(left):  # each iteration writes one byte of each remaining number
        more = left > _LOW_BITS
        out[places] = (left & _LOW_BITS) | more * _MORE
        left, places = left[more] >> np.uint64(7), places[more] + 1
    return out.tobytes()


def _decode(data: bytes) -> AnyArray:
    source: Bytes8 = np.frombuffer(data, np.uint8)
    if len(source) and source[-1] & 0x80:
        raise ValueError("a set of positions ends within a number")
    lasts = np.flatnonzero(source < 0x80)
    begins = np.concatenate(([0], lasts[:-1] + 1)) if len(lasts) else lasts
    sizes = lasts + 1 - begins
    if len(sizes) and sizes.max() > _NUMBER_BYTES_MAX:
        raise ValueError("a set of positions has a number of more than 63 bits")
    if (source[lasts][sizes > 1] == 0).any():
        raise ValueError("a set of positions has a number that is not in its shortest form")
    numbers = np.zeros(len(sizes), np.uint64)
    for count in range(int(sizes.max()) if len(sizes) else 0):
        has = sizes > count
        numbers[has] |= (source[begins[has] + count] & 0x7F).astype(np.uint64) << np.uint64(7 * count)
    return numbers


_PLAIN: Final = 12_346
_WITH_RUNS: Final = 12_347
_OFFSETS_FROM: Final = 4
"""Minimum number of containers with which a bitmap with runs has offsets."""
_ARRAY_MAX: Final = 4_096
"""Maximum size of an array container. A larger container without runs is a bitmap."""
_BITS_BYTES: Final = 8_192


class _RoaringSource:
    """Reads bytes sequentially."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise ValueError("a Roaring bitmap ends too early")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, code: str) -> int:
        (found,) = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))
        return int(found)

    def end(self) -> None:
        if self._at != len(self._data):
            raise ValueError("a Roaring bitmap has trailing bytes")


def read_roaring(data: bytes, end: int) -> BitMap64:
    """Decode a Roaring bitmap of positions below `end`. Raises `ValueError` for an invalid bitmap."""
    source, found, before = _RoaringSource(data), BitMap64(), -1
    for _ in range(source.number("Q")):
        high = source.number("I")
        if high <= before:
            raise ValueError("a Roaring bitmap is not ascending")
        if high << 32 >= end:
            raise ValueError(f"a set has positions at or above {end}")
        before = high
        _read_32(source, high << 32, found)
    source.end()
    if found and found.max() >= end:
        raise ValueError(f"a set has positions at or above {end}")
    return found


def _read_32(source: _RoaringSource, base: int, found: BitMap64) -> None:
    cookie = source.number("I")
    runs = b""
    if cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        runs = source.take((count + 7) // 8)
    elif cookie == _PLAIN:
        count = source.number("I")
    else:
        raise ValueError("the bytes are not a Roaring bitmap")
    heads = np.frombuffer(source.take(4 * count), "<u2").reshape(-1, 2).tolist()
    if not runs or count >= _OFFSETS_FROM:
        source.take(4 * count)  # offsets are redundant, because containers are consecutive
    before = -1
    for number, (key, less_one) in enumerate(heads):
        if key <= before:
            raise ValueError("a Roaring bitmap is not ascending")
        before = key
        has_runs = bool(runs and runs[number // 8] >> number % 8 & 1)
        size = _container(source, base + (key << 16), less_one + 1, has_runs, found)
        if size != less_one + 1:
            raise ValueError("a container of a Roaring bitmap does not have its declared size")


def _container(source: _RoaringSource, base: int, size: int, has_runs: bool, found: BitMap64) -> int:
    if has_runs:
        table = np.frombuffer(source.take(4 * source.number("H")), "<u2").reshape(-1, 2).astype(np.int64)
        stops = table.sum(axis=1) + 1
        if (table[1:, 0] < stops[:-1]).any() or (stops > 1 << 16).any():
            raise ValueError("runs of a Roaring bitmap are not ascending")
        for (first, _), stop in zip(table.tolist(), stops.tolist(), strict=True):
            found.add_range(base + first, base + stop)
        return int(table[:, 1].sum()) + len(table)
    if size > _ARRAY_MAX:
        bits = np.frombuffer(source.take(_BITS_BYTES), np.uint8)
        places = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    else:
        places = np.frombuffer(source.take(2 * size), "<u2").astype(np.int64)
        if (places[1:] <= places[:-1]).any():
            raise ValueError("an array of a Roaring bitmap is not ascending")
    found |= BitMap64((places + base).astype(np.uint64))
    return len(places)
