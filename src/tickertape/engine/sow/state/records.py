"""Record table: the current record of each slot, in columns.

Invariants:
- A slot without a record has the empty view.
- Columns grow in place, so each method copies and none returns a view of a column.
- Each view in a block is claimed by its slot, so compaction finds it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tickertape.batch.format import I8, U8, AnyArray, Bools, Int64s, UInt64s
from tickertape.engine.limits import sow_growth_rows
from tickertape.engine.sow.state.blocks import BodyBlocks, View, Views, in_block, lengths_in
from tickertape.engine.sow.state.labels import (
    LABEL_PLACE_BYTES,
    LabelColumn,
    RecordLabels,
    has_labels,
)

PublisherNumbers = npt.NDArray[np.uint32]
"""Numbers of publishers in the table of publisher ids (`PublisherTable.number`)."""

_NUMBER: Final = np.dtype("<u4")
_WIDE: Final = np.dtype("V16")
_ROW_BYTES: Final = 16 + 8 + 8 + 4 + 8
_FIRST_PUBLISHERS: Final = 16
_OUTDATED_ENTRIES_MAX: Final = 10_000
_PUBLISHER_BYTES: Final = 120
"""Approximate memory of one publisher: two numbers, an entry of the dict, and 8 bytes."""


class RecordRows(NamedTuple):
    """Records in columns: row i is for slot i of a list of slots."""

    views: Views
    positions: Int64s
    order_stamps: Int64s
    """Microseconds since 1970 UTC."""
    publishers: PublisherNumbers
    sequences: UInt64s
    lives: Int64s | None = None
    """Lifetimes of the messages in milliseconds, 0 = none. None on a topic without expiration."""
    labels: RecordLabels | None = None
    """Correlation ids of the messages. None: no record of the topic has had one until now."""

    @classmethod
    def empty(cls, count: int) -> RecordRows:
        """Return rows without values, lives and labels, whose memory is not touched."""
        return cls(
            np.empty((count, 2), U8),
            np.empty(count, I8),
            np.empty(count, I8),
            np.empty(count, np.uint32),
            np.empty(count, U8),
        )

    def select(self, at: Int64s | slice) -> RecordRows:
        """Return some of the rows."""
        return RecordRows(
            self.views[at],
            self.positions[at],
            self.order_stamps[at],
            self.publishers[at],
            self.sequences[at],
            None if self.lives is None else self.lives[at],
            None if self.labels is None else self.labels[at],
        )

    def assign(self, at: Int64s | slice, rows: RecordRows) -> None:
        """Replace the rows `at` with `rows`, in place. Of equal indices the last one wins.

        Labels of `rows` are left out if these rows have no labels."""
        for column, values in zip(self[:-1], rows[:-1], strict=True):
            if column is not None and values is not None:
                column[at] = values
        if self.labels is not None:
            self.labels[at] = rows.labels


class RecordRow(NamedTuple):
    """One record."""

    view: View
    position: int
    order_stamp: int
    publisher: int
    sequence: int
    life: int = 0
    label: bytes | None = None


class Replaced(NamedTuple):
    """Previous records of slots: which slots had one, and their views. The other views are empty."""

    live: Bools
    views: Views


class SlotRange(NamedTuple):
    """Copy of the records of consecutive slots. Rows without a record have no meaning."""

    low: int
    live: Bools
    rows: RecordRows


class RecordColumns:
    """Columns of records that grow in place."""

    def __init__(self, rows: int, *, expires: bool) -> None:
        self.expires = expires
        self.row_bytes = _ROW_BYTES + 8 * expires
        """Memory of one row, without its label."""
        self._labels: LabelColumn | None = None
        """None before the first label."""
        self._columns: list[AnyArray] = [
            np.zeros((rows, 2), U8),
            np.zeros(rows, I8),
            np.zeros(rows, I8),
            np.zeros(rows, _NUMBER),
            np.zeros(rows, U8),
        ]
        if expires:
            self._columns.append(np.zeros(rows, I8))

    @property
    def has_labels(self) -> bool:
        """Whether rows have places for labels."""
        return self._labels is not None

    @property
    def label_bytes(self) -> int:
        """Memory of the labels, without their places."""
        return 0 if self._labels is None else self._labels.text_bytes

    def resize(self, rows: int) -> None:
        """Change the number of rows. New rows are zero."""
        # NumPy refuses to resize an array with a second reference, so no local name may refer to it.
        self._columns[0].resize((rows, 2))
        for number in range(1, len(self._columns)):
            self._columns[number].resize(rows)
        if self._labels is not None:
            self._labels.resize(rows)

    def keep_labels(self) -> None:
        """Make places for labels."""
        if self._labels is None:
            self._labels = LabelColumn(len(self._columns[1]))
            self.row_bytes += LABEL_PLACE_BYTES

    def set(self, at: Int64s | slice, rows: RecordRows) -> None:
        """Replace rows."""
        self.set_views(at, rows.views)
        for column, values in zip(self._columns[1:], rows[1:-1], strict=False):
            column[at] = 0 if values is None else values
        if rows.labels is not None or self._labels is not None:
            self.set_labels(at, rows.labels)

    def set_labels(self, at: Int64s | slice, labels: RecordLabels | None) -> None:
        """Replace the labels of rows. None: they have none."""
        if self._labels is None and labels is not None and has_labels(labels):
            self.keep_labels()
        if self._labels is not None:
            self._labels.set(at, labels)

    def set_views(self, at: Int64s | slice, views: Views) -> None:
        """Replace the views of rows."""
        _wide(self._columns[0])[at] = _wide(views)

    def set_row(self, at: int, row: RecordRow) -> None:
        """Replace one row."""
        columns = self._columns
        columns[0][at, 0], columns[0][at, 1] = row.view
        columns[1][at] = row.position
        columns[2][at] = row.order_stamp
        columns[3][at] = row.publisher
        columns[4][at] = row.sequence
        if self.expires:
            columns[5][at] = row.life
        if row.label is not None or self._labels is not None:
            self.set_labels(slice(at, at + 1), np.array([row.label], object))

    def views(self, at: Int64s) -> Views:
        """Return the views of rows."""
        views: Views = self._columns[0].take(at, axis=0)
        return views

    def positions(self, low: int, high: int) -> Int64s:
        """Return the positions of the rows from `low` to `high`."""
        return self._columns[1][low:high].copy()

    def view(self, at: int) -> View:
        """Return the view of one row."""
        views = self._columns[0]
        return views.item(at, 0), views.item(at, 1)

    def get(self, at: Int64s) -> RecordRows:
        """Return copies of rows."""
        rows = RecordRows(*[column.take(at, axis=0) for column in self._columns])
        return rows if self._labels is None else rows._replace(labels=self._labels.get(at))

    def copy(self, low: int, high: int) -> RecordRows:
        """Return copies of the rows from `low` to `high`."""
        rows = RecordRows(*[column[low:high].copy() for column in self._columns])
        return rows if self._labels is None else rows._replace(labels=self._labels.get(slice(low, high)))

    def labels(self, at: Int64s) -> RecordLabels | None:
        """Return the labels of rows. None without a column of them."""
        return None if self._labels is None else self._labels.get(at)


class PublisherTable:
    """Numbers of publisher ids, in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._ids = np.zeros(_FIRST_PUBLISHERS, U8)
        self.nbytes = 0
        """Memory of the table."""

    def number(self, publisher: int) -> int:
        """Return the number of a publisher id. It never changes."""
        number = self._numbers.get(publisher)
        if number is None:
            number = self._numbers[publisher] = len(self._numbers)
            self.nbytes += _PUBLISHER_BYTES
            if number == len(self._ids):
                self._ids.resize(2 * number)
            self._ids[number] = publisher
        return number

    def ids(self, numbers: PublisherNumbers) -> UInt64s:
        """Return the publisher ids of numbers."""
        return self._ids[numbers]


class RecordTable:
    """Current records by slot. The caller chooses slots (`KeyTable`) and drops replaced bodies."""

    def __init__(self, blocks: BodyBlocks, *, expires: bool = False) -> None:
        """Make an empty table. `expires`: whether messages may have a lifetime."""
        self.blocks = blocks
        self.expires = expires
        self.record_count = 0
        self.slot_end = 0
        """One above the highest slot that was ever used."""
        self.position_end = 0
        """One above the highest position of a record that was ever put."""
        self.late_puts = 0
        """Puts of records below `position_end`. Without them, a record that was put after the table had some
        `position_end` is at or above it."""
        self._capacity = sow_growth_rows
        self._columns = RecordColumns(self._capacity, expires=expires)
        self._live = np.zeros(self._capacity, np.bool_)
        self.publishers = PublisherTable()

    @property
    def nbytes(self) -> int:
        """Return the memory of the columns up to the highest used slot, of the labels, and of the publisher
        table."""
        return self.slot_end * self.row_bytes + self._columns.label_bytes + self.publishers.nbytes

    @property
    def row_bytes(self) -> int:
        """Return the memory of the columns of one slot, without its label."""
        return self._columns.row_bytes + 1

    @property
    def has_labels(self) -> bool:
        """Whether slots have places for labels."""
        return self._columns.has_labels

    # -- change -----------------------------------------------------------------------------------------

    def reserve(self, slot_end: int) -> None:
        """Make rows for all slots below `slot_end`."""
        self.slot_end = max(self.slot_end, slot_end)
        if slot_end > self._capacity:
            self._capacity = -(-slot_end // sow_growth_rows) * sow_growth_rows
            self._columns.resize(self._capacity)
            self._live.resize(self._capacity)

    def keep_labels(self) -> None:
        """Make places for labels."""
        self._columns.keep_labels()

    def put(self, slots: Int64s, rows: RecordRows) -> Replaced:
        """Set the records of distinct slots, and return the previous ones. Their bodies are not dropped.

        The caller has appended the bodies in the same step.
        """
        if not len(slots):
            return Replaced(np.zeros(0, np.bool_), np.zeros((0, 2), U8))
        self.reserve(int(slots.max()) + 1)
        self._note_positions(int(rows.positions.min()), int(rows.positions.max()))
        replaced = Replaced(self._live[slots], self._columns.views(slots))
        self._columns.set(slots, rows)
        self._live[slots] = True
        self.blocks.claim(rows.views, slots)
        self.record_count += len(slots) - int(np.count_nonzero(replaced.live))
        return replaced

    def put_one(self, slot: int, row: RecordRow) -> View:
        """Set the record of one slot. Return the previous view, or the empty one."""
        self.reserve(slot + 1)
        self._note_positions(row.position, row.position)
        view = self._columns.view(slot)
        self._columns.set_row(slot, row)
        if not self._live.item(slot):
            self.record_count += 1
            self._live[slot] = True
        self.blocks.claim_one(row.view, slot)
        return view

    def _note_positions(self, first: int, last: int) -> None:
        if first < self.position_end:
            self.late_puts += 1
        self.position_end = max(self.position_end, last + 1)

    def drop(self, slots: Int64s) -> Replaced:
        """Remove the records of distinct slots, and return them. Their bodies are not dropped."""
        replaced = Replaced(self._live[slots], self._columns.views(slots))
        self._columns.set_views(slots, np.zeros((len(slots), 2), U8))
        if self._columns.has_labels:
            self._columns.set_labels(slots, None)
        self._live[slots] = False
        self.record_count -= int(np.count_nonzero(replaced.live))
        return replaced

    # -- read -------------------------------------------------------------------------------------------

    def live(self, slots: Int64s) -> Bools:
        """Return which slots have a record."""
        return self._live[slots]

    def rows(self, slots: Int64s) -> RecordRows:
        """Return the records of slots. Rows of slots without a record have the empty view."""
        return self._columns.get(slots)

    def views(self, slots: Int64s) -> Views:
        """Return the views of the records of slots."""
        return self._columns.views(slots)

    def labels(self, slots: Int64s) -> RecordLabels | None:
        """Return the labels of slots. None: no record has had one until now."""
        return self._columns.labels(slots)

    def body(self, slot: int) -> bytes | None:
        """Return the body of the record of a slot, or None without a record."""
        if slot >= self.slot_end or not self._live[slot]:
            return None
        return self.blocks.take_one(self._columns.view(slot))

    def live_slots(self, low: int, high: int) -> Int64s:
        """Return the slots from `low` to `high` that have a record, ascending."""
        return self._live[low:high].nonzero()[0] + low

    def changed_slots(self, low: int, high: int, position: int) -> Int64s:
        """Return the slots from `low` to `high` with a record at or above a position, ascending."""
        changed = self._columns.positions(low, high) >= position
        return (changed & self._live[low:high]).nonzero()[0] + low

    def copy_range(self, low: int, high: int) -> SlotRange:
        """Return the records of the slots from `low` to `high`, or to the highest used one."""
        high = max(low, min(high, self.slot_end))
        return SlotRange(low, self._live[low:high].copy(), self._columns.copy(low, high))

    # -- compaction -------------------------------------------------------------------------------------

    def compact_step(self) -> int:
        """Move live bodies out of the emptiest block. Return the work in bytes, or 0 if none is necessary.

        A step examines a bounded number of claims, and copies less than half a block.
        """
        number = self.blocks.emptiest()
        if number is None:
            return 0
        slots = self.blocks.take_owners(number)
        work = 16 * len(slots)
        slots = slots[in_block(self._columns.views(slots), number)]
        slots = _distinct(slots)
        moved = self.blocks.move(number, self._columns.views(slots))
        self._columns.set_views(slots, moved)
        self.blocks.claim(moved, slots)
        return work + int(lengths_in(moved).sum())


class MessageSlots:
    """Slots by the message that is their record. It has all live slots of the table at its start."""

    def __init__(self, table: RecordTable) -> None:
        self._table = table
        self._slots: dict[tuple[int, int], int] = {}
        """By publisher and sequence. Outdated entries are dropped when they are many."""
        self.add(table.live_slots(0, table.slot_end))

    def add(self, slots: Int64s) -> None:
        """Add slots that have new records."""
        if len(self._slots) > 2 * self._table.record_count + _OUTDATED_ENTRIES_MAX:
            self._slots.clear()
            slots = self._table.live_slots(0, self._table.slot_end)
        self._slots.update(zip(self._messages(slots), slots.tolist(), strict=True))

    def find(self, publishers: UInt64s, sequences: UInt64s) -> Int64s:
        """Return the slots whose records are these distinct messages. Messages without one are left out."""
        names = zip(publishers.tolist(), sequences.tolist(), strict=True)
        found = [name for name in names if name in self._slots]
        slots = np.array([self._slots[name] for name in found], I8)
        current = [now == name for now, name in zip(self._messages(slots), found, strict=True)]
        return slots[np.array(current, np.bool_) & self._table.live(slots)]

    def _messages(self, slots: Int64s) -> list[tuple[int, int]]:
        rows = self._table.rows(slots)
        ids = self._table.publishers.ids(rows.publishers)
        return [*zip(ids.tolist(), rows.sequences.tolist(), strict=True)]


def _distinct(slots: Int64s) -> Int64s:
    """Return ascending distinct slots. NumPy's `unique` takes ten times as long for a few thousand."""
    slots = np.sort(slots)
    first = np.ones(len(slots), np.bool_)
    first[1:] = slots[1:] != slots[:-1]
    return slots[first]


def _wide(views: Views) -> AnyArray:
    """Return an array of 16-byte elements on the same memory, which NumPy copies at once."""
    wide: AnyArray = np.ascontiguousarray(views).view(_WIDE)[:, 0]
    return wide
