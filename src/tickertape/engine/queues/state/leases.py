"""Lease table: the leases of one queue, found by holder, bookmark or position.

Positions are grouped in blocks of 64. A piece has the positions of one block that belong to one lease and one
publisher, as long as position and sequence increase together. Each piece is indexed by its block and by the
blocks of its sequences. Lookups therefore need no sorting or searching, and a batch of 1,000 messages has
sixteen pieces.

Invariants:
- Settled messages are neither kept nor returned. Memory is limited by the number of leased messages.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np
from pyroaring import BitMap64

from tickertape.batch import MessageBatch
from tickertape.batch.format import Int64s
from tickertape.engine.runtime.scheduling import DeadlineQueue
from tickertape.wire.settlement import Runs

Holder = TypeVar("Holder", bound=Hashable)

_SHIFT: Final = 6
_BLOCK: Final = 1 << _SHIFT
_LOW: Final = _BLOCK - 1

_Bits = tuple[int, int]
"""A first position, and a bit for each of the following positions."""


@dataclass(eq=False, slots=True)
class Lease(Generic[Holder]):
    """Messages that one consumer holds until a deadline. Only `LeaseTable` changes it."""

    holder: Holder
    deadline: float | None
    """Monotonic time (seconds) at which it ends. None: never."""
    granted_at: float
    """Monotonic time (seconds) at which its messages were delivered."""
    positions: BitMap64
    """Positions of its unsettled messages."""


class _Piece(Generic[Holder]):
    """Positions of one block in one lease. The sequence of a message is its position minus `offset`."""

    __slots__ = ("begin", "bits", "block", "end", "lease", "offset", "publisher")

    def __init__(
        self, lease: Lease[Holder], publisher: int, offset: int, block: int, bits: int, begin: int, end: int
    ) -> None:
        self.lease = lease
        self.publisher = publisher
        self.offset = offset
        self.block = block
        self.bits = bits
        self.begin = begin
        """First sequence. It does not change when that message is settled."""
        self.end = end
        """Sequence after the last message. It does not change either."""


class LeaseTable(Generic[Holder]):
    """All leases of one queue. `now` and deadlines are monotonic seconds."""

    count: int
    """Number of leased messages."""

    def __init__(self) -> None:
        self.count = 0
        self._leases: set[Lease[Holder]] = set()
        self._held: dict[Holder, dict[Lease[Holder], None]] = {}
        self._blocks: dict[int, list[_Piece[Holder]]] = {}
        self._publishers: dict[int, dict[int, list[_Piece[Holder]]]] = {}
        self._deadlines: DeadlineQueue[Lease[Holder]] = DeadlineQueue()
        self._grants: DeadlineQueue[Lease[Holder]] = DeadlineQueue()
        self._found: tuple[Runs, tuple[list[tuple[Lease[Holder], BitMap64]], Runs]] | None = None
        """Last result of `find`, until a lease changes, because a settlement calls it twice."""

    def __len__(self) -> int:
        """Return the number of leases."""
        return len(self._leases)

    # -- grant and release ------------------------------------------------------------------------------

    def grant(
        self, holder: Holder, batch: MessageBatch, positions: Int64s, now: float, deadline: float | None
    ) -> Lease[Holder]:
        """Lease the messages of `batch` at `positions` to `holder`. None of them may be leased."""
        self._found = None
        lease = self._lease(holder, deadline, now, BitMap64())
        for publisher, sequence, count, position in _spans(batch, positions):
            lease.positions.add_range(position, position + count)
            offset = position - sequence
            end = position + count
            while position < end:
                block = position >> _SHIFT
                base = block << _SHIFT
                stop = min(end, base + _BLOCK)
                bits = (1 << stop - position) - 1 << position - base
                self._place(_Piece(lease, publisher, offset, block, bits, position - offset, stop - offset))
                position = stop
        self.count += batch.count
        return lease

    def release(self, lease: Lease[Holder], positions: BitMap64) -> None:
        """Remove positions from a lease. An empty lease is removed."""
        self._found = None
        ours = lease.positions & positions
        for piece, bits in self._pieces(lease, ours):
            piece.bits ^= bits
            if not piece.bits:
                self._drop(piece)
        self._took(lease, ours)
        self.count -= len(ours)

    def extend(self, lease: Lease[Holder], positions: BitMap64, deadline: float | None) -> Lease[Holder]:
        """Set the deadline of some positions of `lease`. They become a separate lease, unless they are all of
        it.

        Without common positions, nothing changes."""
        self._found = None
        ours = lease.positions & positions
        if not ours:
            return lease
        if len(ours) == len(lease.positions):
            lease.deadline = deadline
            self._deadlines.drop(lease)
            if deadline is not None:
                self._deadlines.put(lease, deadline)
            return lease
        other = self._lease(lease.holder, deadline, lease.granted_at, ours)
        for piece, bits in list(self._pieces(lease, ours)):
            if bits == piece.bits:
                piece.lease = other
            else:
                piece.bits ^= bits
                self._place(
                    _Piece(other, piece.publisher, piece.offset, piece.block, bits, piece.begin, piece.end)
                )
        self._took(lease, ours)
        return other

    def _lease(
        self, holder: Holder, deadline: float | None, granted_at: float, positions: BitMap64
    ) -> Lease[Holder]:
        lease = Lease(holder, deadline, granted_at, positions)
        self._leases.add(lease)
        self._held.setdefault(holder, {})[lease] = None
        self._grants.put(lease, granted_at)
        if deadline is not None:
            self._deadlines.put(lease, deadline)
        return lease

    def _took(self, lease: Lease[Holder], positions: BitMap64) -> None:
        """Remove positions from a lease, and remove an empty lease."""
        lease.positions -= positions
        if lease.positions or lease not in self._leases:
            return
        self._leases.discard(lease)
        theirs = self._held[lease.holder]
        del theirs[lease]
        if not theirs:
            del self._held[lease.holder]
        self._deadlines.drop(lease)
        self._grants.drop(lease)

    # -- lookups ----------------------------------------------------------------------------------------

    def find(self, runs: Runs) -> tuple[list[tuple[Lease[Holder], BitMap64]], Runs]:
        """Return the leased positions of `runs` (rows of publisher, first sequence, count) by lease, and the
        rest of `runs` that is not leased."""
        if self._found is not None and self._found[0] is runs:
            return self._found[1]
        said = self._find(runs)
        self._found = runs, said
        return said

    def _find(self, runs: Runs) -> tuple[list[tuple[Lease[Holder], BitMap64]], Runs]:
        found: dict[Lease[Holder], list[_Bits]] = {}
        free: list[Runs] = []
        for row, (publisher, first, count) in enumerate(runs.tolist()):
            met: list[_Bits] = []  # sequences of this run
            for piece, bits in self._of_run(publisher, first, count):
                base = piece.block << _SHIFT
                found.setdefault(piece.lease, []).append((base, bits))
                met.append((base - piece.offset, bits))
            named = sum([bits.bit_count() for _, bits in met])
            if not named:
                free.append(runs[row : row + 1])
            elif named < count:
                free.append(_unmet_runs(publisher, first, count, met))
        return _gathered(found), np.concatenate(free) if free else runs[:0]

    def of_positions(self, positions: BitMap64) -> list[tuple[Lease[Holder], BitMap64]]:
        """Return the leased members of `positions`, by lease."""
        found: dict[Lease[Holder], list[_Bits]] = {}
        for block, wanted in _in_blocks(positions):
            for piece in self._blocks.get(block, ()):
                if bits := piece.bits & wanted:
                    found.setdefault(piece.lease, []).append((block << _SHIFT, bits))
        return _gathered(found)

    def of_holder(self, holder: Holder) -> list[Lease[Holder]]:
        """Return all leases of `holder`, oldest first."""
        return list(self._held.get(holder, ()))

    def due(self, now: float) -> list[Lease[Holder]]:
        """Return leases with a deadline at or before `now`, earliest first. They remain until they are
        released."""
        due = self._deadlines.due(now)
        for lease in due:
            assert lease.deadline is not None
            self._deadlines.put(lease, lease.deadline)
        return due

    def next_deadline(self) -> float | None:
        """Return the earliest deadline, or None."""
        return self._deadlines.first()

    def oldest_granted(self) -> float | None:
        """Return the time at which the oldest lease was granted, or None."""
        return self._grants.first()

    def _of_run(self, publisher: int, first: int, count: int) -> Iterator[tuple[_Piece[Holder], int]]:
        """Yield the pieces with sequences of a run, each once, with the bits of these sequences."""
        held = self._publishers.get(publisher)
        if held is None:
            return
        end = first + count
        low, high = first >> _SHIFT, end - 1 >> _SHIFT
        blocks: Iterable[int] = range(low, high + 1)
        if high - low > 2 * len(held):
            blocks = sorted([block for block in held if low <= block <= high])
        for block in blocks:
            for piece in held.get(block, ()):
                if piece.end <= first or piece.begin >= end:
                    continue
                if piece.begin >> _SHIFT != block != low:
                    continue  # already yielded for the previous block
                bits = piece.bits
                origin = (piece.block << _SHIFT) - piece.offset
                if piece.begin < first:
                    bits &= -1 << first - origin
                if piece.end > end:
                    bits &= (1 << end - origin) - 1
                if bits:
                    yield piece, bits

    def _pieces(self, lease: Lease[Holder], positions: BitMap64) -> Iterator[tuple[_Piece[Holder], int]]:
        """Yield the pieces of `lease` that contain some of `positions`, with the bits of these positions."""
        for block, wanted in _in_blocks(positions):
            for piece in tuple(self._blocks.get(block, ())):
                if piece.lease is lease and (bits := piece.bits & wanted):
                    yield piece, bits

    def _place(self, piece: _Piece[Holder]) -> None:
        held = self._publishers.get(piece.publisher)
        if held is None:
            held = self._publishers[piece.publisher] = {}
        _put(self._blocks, piece.block, piece)
        first, last = piece.begin >> _SHIFT, piece.end - 1 >> _SHIFT
        _put(held, first, piece)
        if last != first:
            _put(held, last, piece)

    def _drop(self, piece: _Piece[Holder]) -> None:
        held = self._publishers[piece.publisher]
        _remove(self._blocks, piece.block, piece)
        first, last = piece.begin >> _SHIFT, piece.end - 1 >> _SHIFT
        _remove(held, first, piece)
        if last != first:
            _remove(held, last, piece)
        if not held:
            del self._publishers[piece.publisher]


def _spans(batch: MessageBatch, positions: Int64s) -> list[list[int]]:
    """Return publisher, first sequence, count and first position of ranges in which both increase by one."""
    count = batch.count
    first = int(positions[0])
    if batch.run_count == 1 and not batch.has_sequences:
        run = batch.first_run
        if count == 1 or positions.tobytes() == np.arange(first, first + count).tobytes():
            return [[run.publisher, run.first_sequence, count, first]]
    publishers, sequences = batch.publishers, batch.sequences
    new = np.ones(count, bool)
    new[1:] = positions[1:] != positions[:-1] + 1
    new[1:] |= publishers[1:] != publishers[:-1]
    new[1:] |= sequences[1:] != sequences[:-1] + np.uint64(1)
    starts = np.flatnonzero(new)
    counts = np.diff(starts, append=count)
    columns = (publishers[starts], sequences[starts], counts, positions[starts])
    return [list(span) for span in zip(*(column.tolist() for column in columns), strict=True)]


def _put(lists: dict[int, list[_Piece[Holder]]], key: int, piece: _Piece[Holder]) -> None:
    pieces = lists.get(key)
    if pieces is None:
        lists[key] = [piece]
    else:
        pieces.append(piece)


def _remove(lists: dict[int, list[_Piece[Holder]]], key: int, piece: _Piece[Holder]) -> None:
    pieces = lists[key]
    if len(pieces) == 1:
        del lists[key]
    else:
        pieces.remove(piece)


def _in_blocks(positions: BitMap64) -> Iterator[_Bits]:
    """Yield the blocks that contain some of `positions`, with the bits of these positions."""
    if not positions:
        return
    low, high = positions.min(), positions.max()
    if high - low + 1 == len(positions):
        for block in range(low >> _SHIFT, (high >> _SHIFT) + 1):
            base = block << _SHIFT
            bits = (1 << min(_BLOCK, high + 1 - base)) - 1
            yield block, bits & -1 << low - base if low > base else bits
        return
    block, bits = low >> _SHIFT, 0
    for position in positions.to_array():
        if position >> _SHIFT != block:
            yield block, bits
            block, bits = position >> _SHIFT, 0
        bits |= 1 << (position & _LOW)
    yield block, bits


def _gathered(found: dict[Lease[Holder], list[_Bits]]) -> list[tuple[Lease[Holder], BitMap64]]:
    return [(lease, _set_of(stretches)) for lease, stretches in found.items()]


def _set_of(stretches: Iterable[_Bits]) -> BitMap64:
    numbers = BitMap64()
    for base, bits in stretches:
        while bits:
            low = (bits & -bits).bit_length() - 1
            bits >>= low
            count = (~bits & bits + 1).bit_length() - 1  # number of trailing ones
            base += low
            numbers.add_range(base, base + count)
            bits >>= count
            base += count
    return numbers


def _unmet_runs(publisher: int, first: int, count: int, met: list[_Bits]) -> Runs:
    """Return the part of a run that is not in `met`, as runs."""
    missing = BitMap64()
    missing.add_range(first, first + count)
    missing -= _set_of(met)
    sequences = np.asarray(missing.to_array(), np.uint64)
    starts = np.flatnonzero(np.concatenate(([True], sequences[1:] != sequences[:-1] + np.uint64(1))))
    runs = np.empty((len(starts), 3), "<u8")
    runs[:, 0], runs[:, 1] = publisher, sequences[starts]
    runs[:, 2] = np.diff(starts, append=len(sequences))
    return runs
