"""Body blocks: bodies of records in append-only blocks, addressed by views of 16 bytes.

A view has the layout of Arrow's `binary_view`. A body of at most 12 bytes is only in its view. A longer body
is in a block. Its view has the length, the first four bytes, the number of the block, and the offset.

Invariants:
- A body never spans blocks, and stored bytes never change.
- The live bytes of a block are the sum of the lengths of its views that were appended and not dropped.
- A block without live bytes is freed. Its number is never used for another block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from tickertape.base.errors import LimitReached
from tickertape.base.interfaces import Buffer
from tickertape.batch.format import I1, I8, U8, AnyArray, Bools, Bytes8, Int64s, UInt64s
from tickertape.engine.limits import sow_block_bytes, sow_compaction_slots_max

INLINE_BYTES_MAX: Final = 12
"""Longest body that is in its view only."""
BLOCKS_END: Final = 1 << 31
"""Numbers of blocks are below it (int32 in Arrow)."""

Views = npt.NDArray[np.uint64]
"""n views in an array of shape (n, 2): head (length, first four bytes) and place (block and offset, or the
rest of a short body)."""
View = tuple[int, int]
"""Head and place of one view."""
NO_VIEW: Final[View] = (0, 0)
"""View of an empty body."""

_LOW: Final = np.uint64(0xFFFF_FFFF)
_HALF: Final = np.uint64(32)
_NONE: Final = -1
"""Number of no block."""
_FIRST_BLOCKS: Final = 64
_DISTINCT_SPAN_MAX: Final = 1 << 20
"""Range of numbers that are counted in an array of flags."""
_CLAIM_RUNS_MAX: Final = 64
"""Runs of views of one block that are claimed one by one. Above it, views are sorted by block."""
_GROUP_ROWS_MIN: Final = 8
"""Mean number of bodies that are copied by one NumPy call. Below it, bodies are copied one by one."""
_FEW_VIEWS: Final = 64
"""Views whose bodies are copied without NumPy, whose calls would cost more."""
_OWNER: Final = np.dtype("<u4")
_INLINE_COLUMNS: Final = np.arange(INLINE_BYTES_MAX)


def lengths_in(views: Views) -> Int64s:
    """Return the lengths of the bodies of `views`."""
    return (views[:, 0] & _LOW).view(I8)


def stored_bytes(views: Views) -> int:
    """Return the total length of the bodies in blocks."""
    lengths = lengths_in(views)
    return int(lengths.sum(where=lengths > INLINE_BYTES_MAX))


def in_block(views: Views, number: int) -> Bools:
    """Return the mask of views with a body in the block `number`."""
    found: Bools = (lengths_in(views) > INLINE_BYTES_MAX) & (_block_numbers(views) == number)
    return found


class BodyBlocks:
    """Append-only blocks with the bodies of one state.

    The owner of a view claims it with a number (the slot). Compaction finds the owners of a block by these
    claims, so its cost depends on the block, not on the number of records.
    """

    def __init__(self, block_bytes: int = sow_block_bytes) -> None:
        self._block_bytes = block_bytes
        self._buffers: dict[int, memoryview] = {}
        self._claims: dict[int, bytearray] = {}
        """Owners (u32) of views in each block, also of views that were replaced since."""
        self._pins = _BlockPins()
        self._next = 0
        self._open = _NONE
        self._used = 0
        """Used bytes of the open block."""
        self._allocated = 0
        self.live_bytes = 0
        """Total length of the stored bodies that were not dropped. Bodies in views do not count."""
        # Columns of blocks with ascending numbers. Rows of freed blocks have no live bytes.
        self._index: dict[int, int] = {}
        self._count = 0
        self._numbers = np.zeros(_FIRST_BLOCKS, I8)
        self._live = np.zeros(_FIRST_BLOCKS, I8)
        self._capacities = np.zeros(_FIRST_BLOCKS, I8)
        self._claimed = np.zeros(_FIRST_BLOCKS, I8)

    @property
    def block_count(self) -> int:
        """Return the number of blocks that are not freed."""
        return len(self._buffers)

    @property
    def held_bytes(self) -> int:
        """Return the size of freed blocks that pins keep readable."""
        return self._pins.held_bytes

    @property
    def used_bytes(self) -> int:
        """Return the size of all blocks, without freed blocks and the unused rest of the open one."""
        unused = self._block_bytes - self._used if self._open != _NONE else 0
        return self._allocated - unused

    @property
    def nbytes(self) -> int:
        """Return the memory of all blocks and claims, without freed blocks."""
        return self.used_bytes + 4 * int(self._claimed[: self._count].sum())

    # -- append -----------------------------------------------------------------------------------------

    def append(self, bodies: Buffer, offsets: Int64s) -> Views:
        """Store the n bodies between n + 1 `offsets` into `bodies`, and return their views."""
        return self.append_some(bodies, offsets[:-1], offsets[1:])

    def append_some(self, bodies: Buffer, starts: Int64s, ends: Int64s) -> Views:
        """Store the n bodies from `starts` to `ends` of `bodies`, and return their views."""
        lengths = ends - starts
        if not lengths.any():
            return np.zeros((len(lengths), 2), U8)
        source = np.frombuffer(bodies, I1)
        short = lengths <= INLINE_BYTES_MAX
        if not short.any():
            return self._store(source, starts, lengths)
        views = np.empty((len(lengths), 2), U8)
        rows = short.nonzero()[0]
        views[rows] = _inline_views(source, starts[rows], lengths[rows])
        rows = (~short).nonzero()[0]
        if len(rows):
            views[rows] = self._store(source, starts[rows], lengths[rows])
        return views

    def append_one(self, body: bytes) -> View:
        """Store one body and return its view."""
        length = len(body)
        if length <= INLINE_BYTES_MAX:
            text = int.from_bytes(body, "little")
            return length | (text & 0xFFFF_FFFF) << 32, text >> 32
        number, at = self._space(length)
        self._buffers[number][at : at + length] = body
        self._add_live(number, length)
        return length | int.from_bytes(body[:4], "little") << 32, number | at << 32

    def _store(self, source: Bytes8, starts: Int64s, lengths: Int64s) -> Views:
        """Copy bodies above 12 bytes into blocks. Adjacent bodies are copied together."""
        ends = lengths.cumsum()
        begins = ends - lengths
        seams = (starts[1:] != starts[:-1] + lengths[:-1]).nonzero()[0] + 1
        views = np.empty((len(lengths), 2), U8)
        views[:, 0] = lengths | _prefixes(source, starts) << 32
        data = source.data
        low = 0
        while low < len(lengths):
            number, at = self._space(int(lengths[low]))
            buffer = self._buffers[number]
            # Bodies that fit: of a larger body exactly one.
            high = int(ends.searchsorted(begins[low] + len(buffer) - at, "right"))
            views[low:high, 1] = number | (begins[low:high] + (at - begins[low])) << 32
            inside = seams[(seams > low) & (seams < high)]
            if len(inside) * _GROUP_ROWS_MIN > high - low > _GROUP_ROWS_MIN:
                rows = slice(low, high)
                _copy_bodies(data, starts[rows], lengths[rows], buffer, begins[rows] + (at - begins[low]))
            else:
                to = at
                for a, b in pairwise([low, *inside.tolist(), high]):
                    piece = data[int(starts[a]) : int(starts[b - 1] + lengths[b - 1])]
                    buffer[to : to + len(piece)] = piece
                    to += len(piece)
            self._add_live(number, int(ends[high - 1] - begins[low]))
            low = high
        return views

    def _space(self, length: int) -> tuple[int, int]:
        """Return number and free offset of a block with space for a body."""
        if length > self._block_bytes:
            return self._new_block(length), 0
        if self._open == _NONE or self._used + length > self._block_bytes:
            self._open, self._used = self._new_block(self._block_bytes), 0
        return self._open, self._used

    def _new_block(self, capacity: int) -> int:
        number = self._next
        if number >= BLOCKS_END:
            raise LimitReached(
                f"Cannot store more records: the server has allocated {BLOCKS_END:,} memory blocks since "
                "its start, which is the limit. Restart the server."
            )
        buffer = np.empty(capacity, I1).data
        row = self._count
        if row == len(self._numbers):
            self._numbers.resize(2 * row)
            self._live.resize(2 * row)
            self._capacities.resize(2 * row)
            self._claimed.resize(2 * row)
        self._numbers[row], self._live[row], self._capacities[row], self._claimed[row] = (
            number,
            0,
            capacity,
            0,
        )
        self._count += 1
        self._next += 1
        self._index[number] = row
        self._buffers[number] = buffer
        self._claims[number] = bytearray()
        self._allocated += capacity
        return number

    def _add_live(self, number: int, length: int) -> None:
        self._live[self._index[number]] += length
        self.live_bytes += length
        if number == self._open:
            self._used += length

    # -- read -------------------------------------------------------------------------------------------

    def take(self, views: Views) -> list[bytes]:
        """Return the bodies of `views`."""
        return _take(views, self._buffers)

    def take_one(self, view: View) -> bytes:
        """Return the body of one view."""
        return _take_one(view, self._buffers)

    def gather(self, views: Views) -> tuple[Buffer, Int64s]:
        """Return the bodies of n views, joined, and their n + 1 offsets."""
        return _gather(views, self._buffers)

    def pin(self, views: Views) -> BlockPin:
        """Keep the bodies of `views` readable until the pin is released."""
        pin = BlockPin(self._buffers, self._pins)
        pin.extend(views)
        return pin

    # -- drop -------------------------------------------------------------------------------------------

    def drop(self, views: Views) -> None:
        """Forget the bodies of `views`. Each appended view is dropped at most once."""
        lengths = lengths_in(views)
        stored = lengths > INLINE_BYTES_MAX
        if not stored.all():
            views, lengths = views[stored], lengths[stored]
        if not len(lengths):
            return
        live = self._live[: self._count]
        rows = self._numbers[: self._count].searchsorted(_block_numbers(views))
        fallen = np.bincount(rows, lengths, self._count).astype(I8)
        live -= fallen
        self.live_bytes -= int(lengths.sum())
        for row in ((live == 0) & (fallen > 0)).nonzero()[0].tolist():
            self._free(row)
        self._remove_freed_rows()

    def drop_one(self, view: View) -> None:
        """Forget the body of one view."""
        length = view[0] & 0xFFFF_FFFF
        if length <= INLINE_BYTES_MAX:
            return
        row = self._index[view[1] & 0xFFFF_FFFF]
        self._live[row] -= length
        self.live_bytes -= length
        if not self._live[row]:
            self._free(row)
            self._remove_freed_rows()

    def clear(self) -> list[memoryview]:
        """Forget all bodies, and return the blocks. Nothing is pinned."""
        buffers = [*self._buffers.values()]
        for column in (self._buffers, self._claims, self._index):
            column.clear()
        self._count = self._used = self._allocated = self.live_bytes = 0
        self._open = _NONE
        return buffers

    def _free(self, row: int) -> None:
        number, capacity = int(self._numbers[row]), int(self._capacities[row])
        del self._buffers[number], self._claims[number], self._index[number]
        self._claimed[row] = 0
        self._allocated -= capacity
        if number == self._open:
            self._open = _NONE
        self._pins.block_freed(number, capacity)

    def _remove_freed_rows(self) -> None:
        """Remove the rows of freed blocks once they are the majority."""
        if self._count - len(self._buffers) <= max(_FIRST_BLOCKS // 2, len(self._buffers)):
            return
        rows = self._live[: self._count].nonzero()[0]
        self._count = len(rows)
        for column in (self._numbers, self._live, self._capacities, self._claimed):
            column[: self._count] = column[rows]
        self._index = dict(zip(self._numbers[: self._count].tolist(), range(self._count), strict=True))

    # -- compaction -------------------------------------------------------------------------------------

    def claim(self, views: Views, owners: Int64s) -> None:
        """Record the owner of each view. Owners are below 2**32."""
        stored = lengths_in(views) > INLINE_BYTES_MAX
        numbers = _block_numbers(views)
        if not stored.all():
            numbers, owners = numbers[stored], owners[stored]
        if not len(numbers):
            return
        seams = (numbers[1:] != numbers[:-1]).nonzero()[0] + 1
        if len(seams) > _CLAIM_RUNS_MAX:
            order = numbers.argsort(kind="stable")
            numbers, owners = numbers[order], owners[order]
            seams = (numbers[1:] != numbers[:-1]).nonzero()[0] + 1
        data = owners.astype(_OWNER).tobytes()
        for low, high in pairwise([0, *seams.tolist(), len(numbers)]):
            number = int(numbers[low])
            self._claims[number] += data[4 * low : 4 * high]
            self._claimed[self._index[number]] += high - low

    def claim_one(self, view: View, owner: int) -> None:
        """Record the owner of one view."""
        if view[0] & 0xFFFF_FFFF > INLINE_BYTES_MAX:
            number = view[1] & 0xFFFF_FFFF
            self._claims[number] += owner.to_bytes(4, "little")
            self._claimed[self._index[number]] += 1

    def emptiest(self) -> int | None:
        """Return the number of the block to compact next, or None.

        It is the one with the fewest live bytes among those that are less than half live, are not open for
        appends, and have claims. A block whose owners were all examined may have live bytes that only kept
        changes name.
        """
        live = self._live[: self._count]
        wanted = (live > 0) & (2 * live < self._capacities[: self._count])
        wanted &= self._claimed[: self._count] > 0
        if self._open != _NONE:
            wanted[self._index[self._open]] = False
        rows = wanted.nonzero()[0]
        return int(self._numbers[rows[live[rows].argmin()]]) if len(rows) else None

    def take_owners(self, number: int) -> Int64s:
        """Remove a bounded number of claims of a block, and return their owners, some more than once."""
        claims = self._claims[number]
        data = claims[-4 * sow_compaction_slots_max :]
        del claims[-4 * sow_compaction_slots_max :]
        self._claimed[self._index[number]] -= len(data) // 4
        return np.frombuffer(data, _OWNER).astype(I8)

    def move(self, number: int, views: Views) -> Views:
        """Store bodies of the block `number` once more, drop the old ones, and return the new views."""
        source = np.frombuffer(self._buffers[number], I1)
        moved = self._store(source, _offsets(views), lengths_in(views))
        self.drop(views)
        return moved


class BlockPin:
    """Pin of blocks: their bodies stay readable after drops, compaction and freeing, until the release."""

    def __init__(self, buffers: dict[int, memoryview], pins: _BlockPins) -> None:
        self._source = buffers
        self._pins = pins
        self._buffers: dict[int, memoryview] = {}

    def extend(self, views: Views) -> None:
        """Pin the blocks of further views, which are readable now."""
        stored = lengths_in(views) > INLINE_BYTES_MAX
        for number in _distinct(_block_numbers(views)[stored]):
            if number not in self._buffers:
                self._buffers[number] = self._source[number]
                self._pins.add(number)

    def narrow(self, views: Views) -> None:
        """Release the blocks without a body of `views`, which are pinned."""
        kept = set(_distinct(_block_numbers(views)[lengths_in(views) > INLINE_BYTES_MAX]))
        for number in self._buffers.keys() - kept:
            del self._buffers[number]
            self._pins.remove(number)

    def take(self, views: Views) -> list[bytes]:
        """Return the bodies of pinned views."""
        return _take(views, self._buffers)

    def gather(self, views: Views) -> tuple[Buffer, Int64s]:
        """Return the bodies of n pinned views, joined, and their n + 1 offsets."""
        return _gather(views, self._buffers)

    @property
    def nbytes(self) -> int:
        """Return the size of the pinned blocks."""
        return sum(map(len, self._buffers.values()))

    def release(self) -> list[memoryview]:
        """End the pin. Further calls have no effect. Returns the freed blocks that it kept readable."""
        buffers, self._buffers = self._buffers, {}
        for number in buffers:
            self._pins.remove(number)
        return [buffer for number, buffer in buffers.items() if number not in self._source]


class _BlockPins:
    """Number of pins of each pinned block, and the freed blocks among them."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._freed: dict[int, int] = {}
        self.held_bytes = 0

    def add(self, number: int) -> None:
        self._counts[number] = self._counts.get(number, 0) + 1

    def remove(self, number: int) -> None:
        count = self._counts[number] - 1
        if count:
            self._counts[number] = count
            return
        del self._counts[number]
        self.held_bytes -= self._freed.pop(number, 0)

    def block_freed(self, number: int, capacity: int) -> None:
        if number in self._counts:
            self._freed[number] = capacity
            self.held_bytes += capacity


def _block_numbers(views: Views) -> Int64s:
    return (views[:, 1] & _LOW).view(I8)


def _offsets(views: Views) -> Int64s:
    return (views[:, 1] >> _HALF).view(I8)


def _distinct(numbers: Int64s) -> list[int]:
    if not len(numbers):
        return []
    first = int(numbers.min())
    span = int(numbers.max()) - first + 1
    if span > _DISTINCT_SPAN_MAX:
        return [int(number) for number in np.unique(numbers)]
    found = np.zeros(span, np.bool_)
    found[numbers - first] = True
    return [first + number for number in found.nonzero()[0].tolist()]


def _prefixes(source: Bytes8, starts: Int64s) -> Int64s:
    """Return the first four bytes of bodies as numbers. Each has at least four bytes."""
    words: npt.NDArray[np.uint32] = np.ndarray(len(source) - 3, "<u4", source, strides=(1,))
    return words[starts].astype(I8)


def _inline_views(source: Bytes8, starts: Int64s, lengths: Int64s) -> Views:
    at = starts[:, None] + _INLINE_COLUMNS
    text = source[np.minimum(at, len(source) - 1)]
    text[lengths[:, None] <= _INLINE_COLUMNS] = 0
    raw = np.zeros((len(lengths), 16), I1)
    raw[:, 0] = lengths
    raw[:, 4:] = text
    views: UInt64s = raw.view(U8)
    return views


def _take_one(view: View, buffers: dict[int, memoryview]) -> bytes:
    return _take_each((view,), buffers)[0]


def _take_each(views: Iterable[Sequence[int]], buffers: dict[int, memoryview]) -> list[bytes]:
    bodies = []
    for head, place in views:
        length = head & 0xFFFF_FFFF
        if length <= INLINE_BYTES_MAX:
            bodies.append((head >> 32 | place << 32).to_bytes(INLINE_BYTES_MAX, "little")[:length])
        else:
            at = place >> 32
            bodies.append(buffers[place & 0xFFFF_FFFF][at : at + length].tobytes())
    return bodies


def _gather(views: Views, buffers: dict[int, memoryview]) -> tuple[Buffer, Int64s]:
    if len(views) <= _FEW_VIEWS:
        bodies = _take_each(views.tolist(), buffers)
        return b"".join(bodies), np.array([0, *accumulate(map(len, bodies))], I8)
    lengths = lengths_in(views)
    offsets = np.zeros(len(views) + 1, I8)
    lengths.cumsum(out=offsets[1:])
    if not offsets[-1]:
        return b"", offsets
    numbers = _block_numbers(views)
    starts = _offsets(views)
    inline = (lengths <= INLINE_BYTES_MAX).nonzero()[0]
    numbers[inline] = _NONE  # their bodies are in the views themselves
    starts[inline] = 16 * inline + 4
    own = memoryview(views.tobytes() if len(inline) else b"")
    ends = starts + lengths
    seams = ((numbers[1:] != numbers[:-1]) | (starts[1:] != ends[:-1])).nonzero()[0]
    if len(seams) * _GROUP_ROWS_MIN > len(views):
        order, edges = _by_block(numbers)
        if len(edges) * _GROUP_ROWS_MIN < len(views):
            joined = np.empty(int(offsets[-1]), I1).data
            for low, high in pairwise(edges):
                rows = order[low:high]
                number = int(numbers[rows[0]])
                source = own if number == _NONE else buffers[number]
                _copy_bodies(source, starts[rows], lengths[rows], joined, offsets[rows])
            return joined, offsets
    first = np.concatenate(([0], seams + 1))
    last = np.concatenate((seams, [len(views) - 1]))
    runs = zip(numbers[first].tolist(), starts[first].tolist(), ends[last].tolist(), strict=True)
    return b"".join([(own if number == _NONE else buffers[number])[a:b] for number, a, b in runs]), offsets


def _by_block(numbers: Int64s) -> tuple[Int64s, list[int]]:
    """Return an order of rows in which equal blocks are adjacent, and the edges between blocks."""
    keys: AnyArray = numbers - numbers.min()
    if int(keys.max()) < 1 << 16:
        keys = keys.astype(np.uint16)  # which NumPy sorts in linear time
    order = keys.argsort(kind="stable")
    keys = keys[order]
    return order, [0, *((keys[1:] != keys[:-1]).nonzero()[0] + 1).tolist(), len(order)]


def _copy_bodies(source: memoryview, starts: Int64s, lengths: Int64s, target: memoryview, at: Int64s) -> None:
    """Copy bodies from `starts` in `source` to `at` in `target`.

    Bodies whose lengths have the same highest bit are copied together, each as two parts that overlap.
    """
    exponents = np.frexp(lengths.astype(np.float64))[1]
    for exponent in np.bincount(exponents).nonzero()[0].tolist():
        size = 1 << exponent >> 1
        if size:
            rows = (exponents == exponent).nonzero()[0]
            part = np.dtype((np.void, size))
            parts: AnyArray = np.ndarray(len(source) - size + 1, part, source, strides=(1,))
            places: AnyArray = np.ndarray(len(target) - size + 1, part, target, strides=(1,))
            first, to, rest = starts[rows], at[rows], lengths[rows] - size
            places[to] = parts[first]
            places[to + rest] = parts[first + rest]


def _take(views: Views, buffers: dict[int, memoryview]) -> list[bytes]:
    if len(views) <= _FEW_VIEWS:
        return _take_each(views.tolist(), buffers)
    joined, offsets = _gather(views, buffers)
    data = bytes(joined)
    return [data[a:b] for a, b in pairwise(offsets.tolist())]
