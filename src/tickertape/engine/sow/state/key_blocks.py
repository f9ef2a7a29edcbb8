"""Append-only blocks with the bytes of long keys, compacted in bounded steps."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tickertape.batch.format import I8, U8, Int64s, UInt64s
from tickertape.engine.limits import sow_key_block_bytes

_BLOCK_MASK: Final = (1 << 32) - 1
_NUMBER: Final = np.dtype("u4")
_RECORD_BYTES: Final = 8
"""Slot and offset of a key."""


@dataclass(slots=True)
class _KeyBlock:
    """Keys, and the slot and offset of each, in the order of their insertion."""

    data: bytearray = field(default_factory=bytearray)
    slots: array[int] = field(default_factory=lambda: array("I"))
    offsets: array[int] = field(default_factory=lambda: array("I"))
    live_bytes: int = 0


class KeyBlocks:
    """Bytes of keys, found by their *place*: the number of a block, and from bit 32 on the offset in it.

    A block without live bytes is removed. If more than half of all bytes are garbage, the block with the
    fewest live bytes is compacted: the owner appends its live keys again, a few in each step.
    """

    def __init__(self, block_bytes: int = sow_key_block_bytes) -> None:
        self._block_bytes = block_bytes
        self._blocks: dict[int, _KeyBlock] = {}
        self._last = -1
        """Number of the block that grows."""
        self._compacted: int | None = None
        """Number of the block under compaction."""
        self._examined = 0
        """Keys of that block that were examined."""
        self._records = 0
        self.stored_bytes: int = 0
        """Total length of all keys in blocks, also of released ones."""
        self.live_bytes: int = 0
        """Total length of the keys that are not released."""

    @property
    def nbytes(self) -> int:
        """Memory of all blocks in bytes, without free space."""
        return self.stored_bytes + _RECORD_BYTES * self._records

    def append(self, slots: Sequence[int], keys: Sequence[bytes]) -> list[int]:
        """Store the keys of `slots`, and return their places."""
        places: list[int] = []
        block = self._blocks.get(self._last)
        for slot, key in zip(slots, keys, strict=True):
            if block is None or len(block.data) + len(key) > self._block_bytes:
                block = self._begin_block()
            offset = len(block.data)
            block.data += key
            block.slots.append(slot)
            block.offsets.append(offset)
            block.live_bytes += len(key)
            places.append(self._last | offset << 32)
        added = sum(map(len, keys))
        self.stored_bytes += added
        self._records += len(keys)
        self.live_bytes += added
        return places

    def append_joined(self, slots: Int64s, data: bytes, ends: Int64s) -> UInt64s:
        """Store the keys of `slots`, joined in `data` up to each of their `ends`. Return their places."""
        places = np.empty(len(slots), U8)
        starts = np.append(0, ends[:-1])
        low = 0
        while low < len(slots):
            start = int(starts[low])
            high = max(int(ends.searchsorted(start + self._block_bytes, "right")), low + 1)
            block = self._begin_block()
            block.data += data[start : int(ends[high - 1])]
            block.slots.frombytes(slots[low:high].astype(_NUMBER).tobytes())
            block.offsets.frombytes((starts[low:high] - start).astype(_NUMBER).tobytes())
            block.live_bytes = len(block.data)
            places[low:high] = self._last | starts[low:high] - start << 32
            low = high
        self.stored_bytes += len(data)
        self._records += len(slots)
        self.live_bytes += len(data)
        return places

    def _begin_block(self) -> _KeyBlock:
        previous = self._blocks.get(self._last)
        if previous is not None and not previous.live_bytes:
            self._drop(self._last)
        self._last += 1
        block = self._blocks[self._last] = _KeyBlock()
        return block

    def key(self, place: int, length: int) -> bytes:
        """Return the key of a place."""
        offset = place >> 32
        return bytes(self._blocks[place & _BLOCK_MASK].data[offset : offset + length])

    def start_with(self, places: Sequence[int], keys: Sequence[bytes]) -> list[bool]:
        """Return for each place whether the bytes from there on start with a key."""
        blocks = self._blocks
        return [
            blocks[place & _BLOCK_MASK].data.startswith(key, place >> 32)
            for place, key in zip(places, keys, strict=True)
        ]

    def release(self, places: Sequence[int], lengths: Sequence[int]) -> None:
        """Count keys as garbage. Their places are invalid from now on."""
        for place, length in zip(places, lengths, strict=True):
            number = place & _BLOCK_MASK
            block = self._blocks[number]
            block.live_bytes -= length
            if not block.live_bytes and number != self._last:
                self._drop(number)
        self.live_bytes -= sum(lengths)

    def _drop(self, number: int) -> None:
        block = self._blocks.pop(number)
        self.stored_bytes -= len(block.data)
        self._records -= len(block.slots)
        if number == self._compacted:
            self._compacted = None

    def examine(self, count: int) -> tuple[Int64s, UInt64s] | None:
        """Return slots and places of the next keys under compaction, at most `count`, or None.

        The owner appends those keys that it still has at this place, and then releases their old places.
        """
        if self._compacted is None and not self._begin_compaction():
            return None
        number = self._compacted
        assert number is not None
        block = self._blocks[number]
        end = min(self._examined + count, len(block.slots))
        slots = np.array(block.slots[self._examined : end], I8)
        places = np.array(block.offsets[self._examined : end], U8) << np.uint64(32) | np.uint64(number)
        self._examined = end
        return slots, places

    def _begin_compaction(self) -> bool:
        if self.stored_bytes <= 2 * (self.live_bytes + self._block_bytes):
            return False
        others = (number for number in self._blocks if number != self._last)
        self._compacted = min(others, key=lambda number: self._blocks[number].live_bytes, default=None)
        self._examined = 0
        return self._compacted is not None
