"""Owns reading sets of positions that checkpoints of version 0 have: the portable format of Roaring bitmaps
for 64 bits, as a library wrote it.

Must never trust a count before the bytes for it are there, or write: sets are written by sets.py.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from pyroaring import BitMap64

_PLAIN: Final = 12_346
_WITH_RUNS: Final = 12_347
_OFFSETS_FROM: Final = 4
"""With runs, offsets are there from so many containers on."""
_ARRAY_MAX: Final = 4_096
"""A container of more that has no runs is a table of bits."""
_BITS_BYTES: Final = 8_192


class _RoaringSource:
    """Bytes that are read from the front."""

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
            raise ValueError("bytes behind a Roaring bitmap")


def read_roaring(data: bytes, end: int) -> BitMap64:
    """The set of a bitmap, of positions below `end`. Raises `ValueError` for what is none."""
    source, found, before = _RoaringSource(data), BitMap64(), -1
    for _ in range(source.number("Q")):
        high = source.number("I")
        if high <= before:
            raise ValueError("a Roaring bitmap does not rise")
        if high << 32 >= end:
            raise ValueError(f"a set has positions from {end} on")
        before = high
        _read_32(source, high << 32, found)
    source.end()
    if found and found.max() >= end:
        raise ValueError(f"a set has positions from {end} on")
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
        raise ValueError("no Roaring bitmap")
    heads = np.frombuffer(source.take(4 * count), "<u2").reshape(-1, 2).tolist()
    if not runs or count >= _OFFSETS_FROM:
        source.take(4 * count)  # containers follow one another without them
    before = -1
    for number, (key, less_one) in enumerate(heads):
        if key <= before:
            raise ValueError("a Roaring bitmap does not rise")
        before = key
        has_runs = bool(runs and runs[number // 8] >> number % 8 & 1)
        size = _container(source, base + (key << 16), less_one + 1, has_runs, found)
        if size != less_one + 1:
            raise ValueError("a container of a Roaring bitmap has another size than it says")


def _container(source: _RoaringSource, base: int, size: int, has_runs: bool, found: BitMap64) -> int:
    if has_runs:
        table = np.frombuffer(source.take(4 * source.number("H")), "<u2").reshape(-1, 2).astype(np.int64)
        stops = table.sum(axis=1) + 1
        if (table[1:, 0] < stops[:-1]).any() or (stops > 1 << 16).any():
            raise ValueError("runs of a Roaring bitmap do not rise")
        for (first, _), stop in zip(table.tolist(), stops.tolist(), strict=True):
            found.add_range(base + first, base + stop)
        return int(table[:, 1].sum()) + len(table)
    if size > _ARRAY_MAX:
        bits = np.frombuffer(source.take(_BITS_BYTES), np.uint8)
        places = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    else:
        places = np.frombuffer(source.take(2 * size), "<u2").astype(np.int64)
        if (places[1:] <= places[:-1]).any():
            raise ValueError("an array of a Roaring bitmap does not rise")
    found |= BitMap64((places + base).astype(np.uint64))
    return len(places)
