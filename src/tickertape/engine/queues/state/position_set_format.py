"""Owns the bytes of a set of positions on disk, which no library decides.

A set is its runs of neighbours in rising order: of each the gap before it and its length, as variable-length
numbers of 7 bits a byte, lowest first. One set has one encoding. docs/formats/queue-checkpoint.md shows it.
Must never take memory for what bytes claim before that was checked.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from pyroaring import BitMap64

from tickertape.batch.format import AnyArray, Bytes8, Int64s
from tickertape.engine.queues.state.records import array_of

_CHUNK: Final = 1 << 20
"""Positions that are looked at together: a longer run is not written out, and a smaller set is not cut."""
_NUMBER_BYTES_MAX: Final = 9
"""A number has at most 63 bits."""
_LOW_BITS: Final = np.uint64(0x7F)
_MORE: Final = np.uint64(0x80)
"""In a byte: the next one belongs to the same number."""


def encode_set(positions: BitMap64) -> bytes:
    """A set as bytes."""
    starts, ends = _runs(positions)
    numbers = np.empty(2 * len(starts), np.uint64)
    if len(starts):
        numbers[0] = starts[0]
        numbers[2::2] = starts[1:] - ends[:-1]
        numbers[1::2] = ends - starts
    return _encode(numbers)


def decode_set(data: bytes, end: int) -> BitMap64:
    """The set that bytes say, of positions below `end`. Raises `ValueError` for what is none."""
    numbers = _decode(data)
    if len(numbers) % 2:
        raise ValueError("a set of positions ends within a run")
    if (numbers[1:] == 0).any():
        raise ValueError("a set of positions has runs that are empty, or not apart")
    found = BitMap64()
    if not len(numbers):
        return found
    # Each is small enough, and so is their sum: no sum of whole numbers overflows then.
    if int(numbers.max()) > end or float(numbers.astype(float).sum()) > 2.0 * end + 1:
        raise ValueError(f"a set has positions from {end} on")
    edges = numbers.cumsum()
    if int(edges[-1]) > end:
        raise ValueError(f"a set has positions from {end} on")
    for first, stop in edges.reshape(-1, 2).tolist():
        found.add_range(first, stop)
    return found


def lowest_of(data: bytes) -> int | None:
    """The lowest position of an encoded set, without reading the rest; None: it is empty. Raises `ValueError`
    for what is none."""
    if not data:
        return None
    return int(_decode(data[: next((i + 1 for i, byte in enumerate(data[:10]) if byte < 0x80), 10)])[0])


def _runs(positions: BitMap64) -> tuple[Int64s, Int64s]:
    """First positions, and those behind the last, of stretches of neighbours."""
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
    """As `_runs`, of rising positions."""
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
    while len(left):  # one byte of each number that is not written yet
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
        raise ValueError("a set of positions has a number that is longer than it need be")
    numbers = np.zeros(len(sizes), np.uint64)
    for count in range(int(sizes.max()) if len(sizes) else 0):
        has = sizes > count
        numbers[has] |= (source[begins[has] + count] & 0x7F).astype(np.uint64) << np.uint64(7 * count)
    return numbers
