"""CRC-64 of a string: ECMA-182, reflected, as in xz (CRC-64/XZ).

Long strings need no Python step per byte. A CRC is linear: rows of bytes are summed with one table per
column, and the rows are then combined in pairs.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np

_POLYNOMIAL: Final = 0xC96C5795D7870F42
_ONES: Final = (1 << 64) - 1
_ROW: Final = 64
"""Bytes of a row."""
_SHORT: Final = 256
"""Strings up to this length are processed byte by byte."""
_CHUNK: Final = 1 << 16
"""Bytes that are processed together."""

_Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]


def _first_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE: Final = _first_table()


def crc64(text: str) -> int:
    """Return the CRC-64 of the UTF-8 bytes of a string."""
    data = text.encode()
    state = _ONES
    at = 0
    while len(data) - at > _SHORT:
        state = _of_many(data[at : at + _CHUNK], state)
        at += _CHUNK
    for byte in data[at:]:
        state = _TABLE[(state ^ byte) & 255] ^ state >> 8
    return state ^ _ONES


def _of_many(data: bytes, state: int) -> int:
    """Return the state after `data`, which has more than eight bytes."""
    rows = 1 << ((len(data) - 1) // _ROW).bit_length()
    padded = np.zeros(rows * _ROW, np.uint8)  # leading zeros do not change a state of 0
    padded[-len(data) :] = np.frombuffer(data, np.uint8)
    padded[-len(data) :][:8] ^= np.frombuffer(state.to_bytes(8, "little"), np.uint8)
    places = padded.reshape(rows, _ROW) + _row_begins()
    words: _Words = np.bitwise_xor.reduce(_row_table()[places], axis=1)
    level = 0
    while len(words) > 1:
        words = _behind(words[0::2], level) ^ words[1::2]
        level += 1
    return int(words[0])


@cache
def _row_begins() -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.arange(_ROW, dtype=np.int64) * 256


@cache
def _row_table() -> _Words:
    """Return, per column of a row and byte value, the effect on the state at the end of the row."""
    tables = [np.array(_TABLE, np.uint64)]
    for _ in range(_ROW - 1):
        tables.append(_with_zero(tables[-1]))
    return np.concatenate(tables[::-1])


def _with_zero(states: _Words) -> _Words:
    """Return the states after one more zero byte."""
    table = np.array(_TABLE, np.uint64)
    return table[(states & np.uint64(255)).astype(np.int64)] ^ states >> np.uint64(8)


@cache
def _tables_behind(level: int) -> tuple[_Words, ...]:
    """Return, per byte of a state, its value after 2 to the power of `level` rows of zeros."""
    each = [np.arange(256, dtype=np.uint64) << np.uint64(8 * number) for number in range(8)]
    if level:
        return tuple(_behind(_behind(states, level - 1), level - 1) for states in each)
    for _ in range(_ROW):
        each = [_with_zero(states) for states in each]
    return tuple(each)


def _behind(states: _Words, level: int) -> _Words:
    """Return the states after 2 to the power of `level` rows of zeros."""
    found = np.zeros(len(states), np.uint64)
    for number, table in enumerate(_tables_behind(level)):
        found ^= table[(states >> np.uint64(8 * number) & np.uint64(255)).astype(np.int64)]
    return found
