"""Bit-sliced index: one number for each of many positions, as a bitmap for each bit.

Work on many positions takes a few operations on bitmaps for each bit, however many different numbers there
are. A position without a number and a position with 0 are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

import numpy as np
from pyroaring import BitMap64

from tickertape.batch.format import AnyArray, Int64s
from tickertape.engine.queues.state.records import array_of, bitmap_of

_PICKED_MAX: Final = 4_096
"""Up to so many of a larger set are picked one by one."""


class BitSlices:
    """Numbers by position, 0 where nothing else is said."""

    def __init__(self, slices: Iterable[BitMap64] = ()) -> None:
        self.slices: list[BitMap64] = list(slices)
        """The lowest bit first."""

    def __bool__(self) -> bool:
        return any(self.slices)

    def of(self, position: int) -> int:
        """The number of a position."""
        return sum(1 << bit for bit, held in enumerate(self.slices) if position in held)

    def put(self, positions: BitMap64, number: int) -> None:
        """These have a number, and had 0 before."""
        while number >> len(self.slices):
            self.slices.append(BitMap64())
        for bit, held in enumerate(self.slices):
            if number >> bit & 1:
                held |= positions

    def put_each(self, positions: Int64s, numbers: AnyArray) -> None:
        """As `put`: a number (unsigned, 64 bits) for each position, which rise."""
        for bit in range(int(numbers.max()).bit_length() if len(numbers) else 0):
            if bit == len(self.slices):
                self.slices.append(BitMap64())
            self.slices[bit] |= bitmap_of(positions[(numbers >> np.uint64(bit) & np.uint64(1)).astype(bool)])

    def add_one(self, positions: BitMap64) -> None:
        """The numbers of these rise by one."""
        carry = positions
        for bit, held in enumerate(self.slices):
            if not carry:
                return
            both = held & carry
            self.slices[bit] = held ^ carry
            carry = both
        if carry:
            self.slices.append(carry.copy())

    def forget(self, positions: BitMap64) -> None:
        """The numbers of these are 0."""
        for held in self.slices:
            held -= positions
        self._trim()

    def keep(self, positions: BitMap64) -> None:
        """All other numbers are 0."""
        for held in self.slices:
            held &= positions
        self._trim()

    def positions(self) -> BitMap64:
        """Those whose number is not 0."""
        return BitMap64.union(BitMap64(), *self.slices)

    def at_least(self, positions: BitMap64, number: int) -> BitMap64:
        """Which of `positions` have this number or a higher one."""
        above, equal = BitMap64(), positions
        for bit in reversed(range(max(len(self.slices), number.bit_length()))):
            held = self.slices[bit] if bit < len(self.slices) else BitMap64()
            if number >> bit & 1:
                equal = equal & held
            else:
                above |= equal & held
                equal = equal - held
        return above | equal

    def highest(self, positions: BitMap64, count: int) -> BitMap64:
        """Those `count` of `positions` with the highest numbers; of equal ones the lowest positions."""
        if len(positions) <= count:
            return positions
        above, equal = BitMap64(), positions
        for held in reversed(self.slices):
            high = equal & held
            if not high:
                continue
            if len(above) + len(high) > count:
                equal = high
            else:
                above |= high
                equal = equal - high
        return above | first_of(equal, count - len(above))

    def numbers(self, positions: BitMap64) -> AnyArray:
        """The number of each of `positions`, in their order (unsigned, 64 bits)."""
        places = array_of(positions)
        found = np.zeros(len(places), np.uint64)
        for bit, held in enumerate(self.slices):
            some = held & positions
            if some:
                found[places.searchsorted(array_of(some))] |= np.uint64(1 << bit)
        return found

    def highest_first(self, positions: BitMap64) -> Int64s:
        """`positions`, the highest numbers first, of equal ones the lowest positions."""
        order = np.argsort(~self.numbers(positions), kind="stable")
        return array_of(positions)[order]

    def _trim(self) -> None:
        while self.slices and not self.slices[-1]:
            self.slices.pop()


def first_of(positions: BitMap64, count: int) -> BitMap64:
    """The lowest `count` of `positions`, as a set of its own."""
    if count <= 0:
        return BitMap64()
    if count <= _PICKED_MAX < len(positions):
        return bitmap_of(first_places(positions, count))  # a copy takes time for all of them
    found = positions.copy()
    if count < len(positions):
        found.remove_range(positions[count], int(positions.max()) + 1)
    return found


def first_places(positions: BitMap64, count: int) -> Int64s:
    """The lowest `count` of `positions`, rising, of however many there are."""
    return np.fromiter(islice(positions, count), np.int64)


def below(positions: BitMap64, limit: int) -> BitMap64:
    """Those of `positions` below `limit`."""
    if not positions or positions.max() < limit:
        return positions
    count = positions.rank(limit - 1) if limit > 0 else 0
    return first_of(positions, count)
