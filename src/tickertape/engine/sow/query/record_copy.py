"""Record copy: the records of one state at one position, copied in bounded steps.

The current records are copied first, and then the changes above the position are undone once. The earliest
change of a slot has its record at the position, so changes are undone from the latest to the earliest.

Invariants:
- The copy has the records at the position, also while the fold continues.
- A step copies at most `query_step_slots_max` slots, looks up or names `query_step_keys_max` keys, or undoes
  one piece of kept changes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tickertape.base.errors import QueryTooSlow
from tickertape.batch.format import I8, Bools, Int64s
from tickertape.engine.limits import query_step_keys_max, query_step_slots_max
from tickertape.engine.sow.state.blocks import BlockPin, Views
from tickertape.engine.sow.state.change import EarlierRows
from tickertape.engine.sow.state.fold import StateFold
from tickertape.engine.sow.state.keys import ExplicitKeys
from tickertape.engine.sow.state.labels import labels_bytes, text_bytes
from tickertape.engine.sow.state.records import RecordRows

SourceNumbers = npt.NDArray[np.uint16]

row_bytes = 52
"""Memory of a copied record without label: view, position, order stamp, publisher, sequence and expiry."""
_KEY_BYTES = 41
"""Memory of a canonical key without its bytes, and of its place in a list."""


class FoundRecords(NamedTuple):
    """Some records of a result."""

    rows: RecordRows
    keys: list[bytes]
    """Their canonical keys, if the query needs them."""
    sources: SourceNumbers | None = None
    """Number of the source of each record. None: the query has one source."""

    @property
    def nbytes(self) -> int:
        """Memory of the rows and keys."""
        size = row_bytes * len(self.rows.positions) + keys_bytes(self.keys)
        return size if self.rows.labels is None else size + labels_bytes(self.rows.labels)

    def part(self, low: int, high: int | None) -> FoundRecords:
        """Return the records from `low` to `high`."""
        sources = None if self.sources is None else self.sources[low:high]
        return FoundRecords(self.rows.select(slice(low, high)), self.keys[low:high], sources)

    def some(self, at: Int64s) -> FoundRecords:
        """Return the records at some indices."""
        keys, sources = self.keys, self.sources
        return FoundRecords(
            self.rows.select(at),
            [keys[one] for one in at.tolist()] if keys else [],
            None if sources is None else sources[at],
        )


class WantedKeys:
    """Canonical keys of the records to select, in pieces that are read once for all SOW topics.

    `keys` are canonical, or with `explicit` they are explicit keys in ASCII.
    """

    def __init__(self, keys: Sequence[bytes], *, explicit: bool = False) -> None:
        self._keys = keys
        self._explicit = explicit
        self._pieces: list[list[bytes]] = []
        self._members: set[bytes] = set()

    def __len__(self) -> int:
        """Return the number of keys, with repeated ones."""
        return len(self._keys)

    def __contains__(self, key: bytes) -> bool:
        """Return whether a key is in a piece that was read."""
        return key in self._members

    def piece(self, number: int) -> list[bytes] | None:
        """Return the keys of one piece, distinct from those of the pieces before, or None behind the last."""
        low = number * query_step_keys_max
        if low >= len(self._keys):
            return None
        if number == len(self._pieces):
            some = self._keys[low : low + query_step_keys_max]
            if self._explicit:
                some = ExplicitKeys().read(some).keys
            keys = [key for key in dict.fromkeys(some) if key and key not in self._members]
            self._members.update(keys)
            self._pieces.append(keys)
        return self._pieces[number]

    def pieces(self) -> list[bytes]:
        """Return the keys of all pieces."""
        found: list[bytes] = []
        for number in count():
            piece = self.piece(number)
            if piece is None:
                break
            found += piece
        return found


class RecordCopy:
    """Copy of the records of one state: all, those with the keys `wanted`, those in `slots`, ascending, or
    those that `search` finds.

    A search takes one bounded step for each item. It may leave out slots whose records changed after the copy
    began.

    `position` is the end of a commit up to which the log is folded, with all its changes. Call `step` until
    `over`, and then take the records from `pieces`. `close` may be called at any time.
    """

    waiting = False
    """Whether it waits for a read of the log: never, because bodies are in memory."""
    uncopied = 0
    """Selected records that are not in `pieces`, because the result does not need them."""

    def __init__(
        self,
        fold: StateFold,
        position: int,
        wanted: WantedKeys | None,
        slots: Int64s | None = None,
        search: Iterator[Int64s] | None = None,
        *,
        with_keys: bool,
    ) -> None:
        self._fold = fold
        self.publishers = fold.records.publishers
        self.record_count = fold.records.record_count
        """Records at the position."""
        self._slots = slots
        self._search = search if slots is None and wanted is None else None
        self._wanted = wanted
        self._with_keys = with_keys
        self._end = fold.records.slot_end
        self._parts: list[_Part] = []
        self._found: set[int] = set()
        """Slots of wanted keys."""
        self.pin: BlockPin | None = None
        """Pin of the bodies. None without records."""
        self.pieces: list[FoundRecords] = []
        """Records, when the copy is over."""
        self.nbytes = 0
        """Memory of the copied records and their keys."""
        self._scan: int | None = fold.changes.open_scan(position)
        self._steps = self._run()
        self.over = False
        """Whether all records are in `pieces`."""

    def close(self) -> list[Any]:
        """End the copy and forget its records. Further calls have no effect.

        Returns its memory, for `ResultMemory.discard`."""
        self.over = True
        self._end_scan()
        self._steps.close()
        memory: list[Any] = [*self._parts, *self.pieces]
        self._parts, self.pieces, self._found = [], [], set()
        self.nbytes = 0
        if self.pin is not None:
            memory += self.pin.release()
        return memory

    def step(self) -> None:
        """Execute one bounded step. Raises `QueryTooSlow` if the changes since its position are forgotten."""
        if self.over:
            return
        if self._scan is not None and not self._fold.changes.is_open(self._scan):
            raise QueryTooSlow(
                "Cannot finish the query: too many records have changed since its start. Select fewer "
                "records, or query again."
            )
        if next(self._steps, self) is self:
            self.over = True

    def _end_scan(self) -> None:
        if self._scan is not None:
            self._fold.close_scan(self._scan)
            self._scan = None

    # -- steps ------------------------------------------------------------------------------------------

    def _run(self) -> Generator[None, None, None]:
        if self._wanted is not None:
            yield from self._copy_wanted(self._wanted)
        elif self._slots is not None:
            yield from self._copy_some(self._slots)
        elif self._search is not None:
            yield from self._copy_found(self._search)
        else:
            yield from self._copy_all()
        assert self._scan is not None
        changes = self._fold.changes
        for number in reversed(changes.needed_by(self._scan)):
            self._undo(changes.earlier(number))
            yield
        if not self._with_keys:
            self._end_scan()
        self._found = set()
        while self._parts:
            yield from self._collect(self._parts.pop())
        self._end_scan()

    def _copy_all(self) -> Iterator[None]:
        records = self._fold.records
        for low in range(0, self._end, query_step_slots_max):
            copied = records.copy_range(low, min(low + query_step_slots_max, self._end))
            self._add(_Part(low, None, copied.live, copied.rows))
            yield

    def _copy_some(self, slots: Int64s) -> Iterator[None]:
        for low in range(0, len(slots), query_step_keys_max):
            self._copy_slots(slots[low : low + query_step_keys_max])
            yield

    def _copy_found(self, search: Iterator[Int64s]) -> Iterator[None]:
        """Copy the slots of a search, few of them together with those of later steps."""
        waiting: list[Int64s] = []
        for found in search:
            waiting.append(found)
            if sum(map(len, waiting)) >= query_step_keys_max:
                self._copy_slots(np.concatenate(waiting))
                waiting = []
            yield
        if waiting:
            self._copy_slots(np.concatenate(waiting))

    def _copy_slots(self, slots: Int64s) -> None:
        if len(slots):
            records = self._fold.records
            self._add(_Part(0, slots, records.live(slots), records.rows(slots)))

    def _copy_wanted(self, wanted: WantedKeys) -> Iterator[None]:
        for number in count():
            keys = wanted.piece(number)
            if keys is None:
                return
            slots = np.sort(self._fold.keys.find(keys))
            slots = slots[slots.searchsorted(0) :].astype(I8)
            self._copy_slots(slots)
            self._found.update(slots.tolist())
            yield

    def _add(self, part: _Part) -> None:
        live = part.live.all()
        self._pin(part.rows.views if live else part.rows.views[part.live])
        self._parts.append(part)
        self.nbytes += rows_bytes(part.rows)

    def _pin(self, views: Views) -> None:
        if self.pin is not None:
            self.pin.extend(views)
        elif len(views):
            self.pin = self._fold.records.blocks.pin(views)

    def _undo(self, earlier: EarlierRows) -> None:
        """Undo a piece of changes, whose later pieces are undone."""
        restored = False
        unfound = np.ones(len(earlier.slots), np.bool_)
        for part in self._parts:
            mine, at = part.changed(earlier.slots)
            if len(at):
                unfound[mine] = False
                before = _text_bytes(part, at)
                part.live[at] = earlier.live[mine]
                part.rows.assign(at, earlier.rows.select(mine))
                self.nbytes += _text_bytes(part, at) - before
                restored = True
        if restored:
            self._pin(earlier.rows.views)
        if self._wanted is not None:
            self._add_removed(earlier, self._wanted)
        elif self._search is not None:
            self._add_earlier(earlier, (unfound & earlier.live).nonzero()[0])

    def _add_removed(self, earlier: EarlierRows, wanted: WantedKeys) -> None:
        """Add slots of wanted keys that were removed before the keys were looked up."""
        fold, found = self._fold, self._found
        gone = (~fold.records.live(earlier.slots)).nonzero()[0]
        slots = earlier.slots[gone]
        at = [
            one
            for one, slot, key in zip(gone.tolist(), slots.tolist(), fold.keys.keys_of(slots), strict=True)
            if key in wanted and slot not in found
        ]
        found.update(earlier.slots[at].tolist())
        self._add_earlier(earlier, np.array(at, I8))

    def _add_earlier(self, earlier: EarlierRows, at: Int64s) -> None:
        """Add rows before a piece of changes whose slots are in no part."""
        if len(at):
            self._add(_Part(0, earlier.slots[at], earlier.live[at], earlier.rows.select(at)))

    def _collect(self, part: _Part) -> Iterator[None]:
        """Add the records of a part to the pieces, with their keys."""
        self.nbytes -= rows_bytes(part.rows)
        if part.slots is None and not self._with_keys and part.live.all():
            piece = FoundRecords(part.rows, [])
            self.pieces.append(piece)
            self.nbytes += piece.nbytes
            yield
            return
        at = part.live.nonzero()[0]
        most = query_step_keys_max if self._with_keys else query_step_slots_max
        for low in range(0, max(len(at), 1), most):
            some = at[low : low + most]
            keys = self._fold.keys.keys_of(part.slots_at(some)) if self._with_keys else []
            if len(some):
                piece = FoundRecords(part.rows.select(some), keys)
                self.pieces.append(piece)
                self.nbytes += piece.nbytes
            yield


class _Part(NamedTuple):
    """Copy of the records of some slots: of the slots from `low` on, or of `slots`, ascending."""

    low: int
    slots: Int64s | None
    live: Bools
    rows: RecordRows

    def slots_at(self, at: Int64s) -> Int64s:
        return at + self.low if self.slots is None else self.slots[at]

    def changed(self, changed: Int64s) -> tuple[Int64s, Int64s]:
        """Return which of some ascending slots are in this part, and their indices here."""
        if self.slots is None:
            first, last = changed.searchsorted((self.low, self.low + len(self.live))).tolist()
            mine = np.arange(first, last)
            return mine, changed[first:last] - self.low
        places = changed.searchsorted(self.slots)
        places[places == len(changed)] = 0
        at = (changed[places] == self.slots).nonzero()[0]
        return places[at], at


def _text_bytes(part: _Part, at: Int64s) -> int:
    labels = part.rows.labels
    return 0 if labels is None else text_bytes(labels[at])


def rows_bytes(rows: RecordRows) -> int:
    """Return the memory of copied records with their labels, without keys."""
    return row_bytes * len(rows.positions) + labels_bytes(rows.labels)


def keys_bytes(keys: list[bytes]) -> int:
    """Return the memory of canonical keys in a list."""
    return sum(map(len, keys)) + _KEY_BYTES * len(keys)
