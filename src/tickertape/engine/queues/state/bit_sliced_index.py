"""Bit-sliced index: a number for each of many positions, as one bitmap per bit.

Operations on many positions take a few bitmap operations per bit, regardless of how many different numbers
exist. A missing number and the number 0 are the same.
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
"""Maximum number of positions that are selected one by one from a larger set."""


class BitSlices:
    """Numbers by position, 0 by default."""

    def __init__(self, slices: Iterable[BitMap64] = ()) -> None:
        self.slices: list[BitMap64] = list(slices)
        """One bitmap per bit, lowest bit first."""

    def __bool__(self) -> bool:
        return any(self.slices)

    def of(self, position: int) -> int:
        """Return the number of a position."""
        return sum(1 << bit for bit, held in enumerate(self.slices) if position in held)

    def put(self, positions: BitMap64, number: int) -> None:
        """Set the number of positions whose number was 0."""
        while number >> len(self.slices):
            self.slices.append(BitMap64())
        for bit, held in enumerate(self.slices):
            if number >> bit & 1:
                held |= positions

    def put_each(self, positions: Int64s, numbers: AnyArray) -> None:
        """Set a number (unsigned, 64 bits) for each of the ascending positions."""
        for bit in range(int(numbers.max()).bit_length() if len(numbers) else 0):
            if bit == len(self.slices):
                self.slices.append(BitMap64())
            self.slices[bit] |= bitmap_of(positions[(numbers >> np.uint64(bit) & np.uint64(1)).astype(bool)])

    def add_one(self, positions: BitMap64) -> None:
        """Increment the numbers of positions by one."""
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
        """Set the numbers of positions to 0."""
        for held in self.slices:
            held -= positions
        self._trim()

    def keep(self, positions: BitMap64) -> None:
        """Set all numbers outside of `positions` to 0."""
        for held in self.slices:
            held &= positions
        self._trim()

    def positions(self) -> BitMap64:
        """Return the positions with a number other than 0."""
        return BitMap64.union(BitMap64(), *self.slices)

    def at_least(self, positions: BitMap64, number: int) -> BitMap64:
        """Return the members of `positions` with at least this number."""
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
        """Return the `count` members of `positions` with the highest numbers. Lower positions win ties."""
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
        """Return the number of each of `positions`, in their order (unsigned, 64 bits)."""
        places = array_of(positions)
        found = np.zeros(len(places), np.uint64)
        for bit, held in enumerate(self.slices):
            some = held & positions
            if some:
                found[places.searchsorted(array_of(some))] |= np.uint64(1 << bit)
        return found

    def highest_first(self, positions: BitMap64) -> Int64s:
        """Return `positions` by descending number, and by ascending position for equal numbers."""
        order = np.argsort(~self.numbers(positions), kind="stable")
        return array_of(positions)[order]

    def _trim(self) -> None:
        while self.slices and not self.slices[-1]:
            self.slices.pop()


def first_of(positions: BitMap64, count: int) -> BitMap64:
    """Return a copy of the lowest `count` members of `positions`."""
    if count <= 0:
        return BitMap64()
    if count <= _PICKED_MAX < len(positions):
        return bitmap_of(first_places(positions, count))  # faster than a copy of the whole set
    found = positions.copy()
    if count < len(positions):
        found.remove_range(positions[count], int(positions.max()) + 1)
    return found


def first_places(positions: BitMap64, count: int) -> Int64s:
    """Return the lowest `count` members of `positions`, ascending, at a cost that depends on `count` only."""
    return np.fromiter(islice(positions, count), np.int64)


def below(positions: BitMap64, limit: int) -> BitMap64:
    """Return the members of `positions` below `limit`."""
    if not positions or positions.max() < limit:
        return positions
    count = positions.rank(limit - 1) if limit > 0 else 0
    return first_of(positions, count)
