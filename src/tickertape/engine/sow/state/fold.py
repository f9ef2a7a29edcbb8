"""State fold: applies the rows of the log to the records of one SOW topic.

Rows are applied in the order of the log. With one origin this is the order of their ranks, so the last row of
a key decides. Only rows that may be below records of a checkpoint are compared with them (`compare_below`).

Invariants:
- The keys of the index are those of the records.
- Applying rows again changes nothing, if all rows behind them are applied again too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tickertape.base.interfaces import Buffer
from tickertape.batch import MessageBatch
from tickertape.batch.format import CORRELATION_IDS, I8, Bools, Int32s, Int64s, Labels, UInt64s
from tickertape.engine.limits import fold_scalar_rows_max
from tickertape.engine.sow.state.blocks import BodyBlocks
from tickertape.engine.sow.state.candidates import RowColumns, deleted_wins, published_wins
from tickertape.engine.sow.state.change import DELETED, EXPIRED, ChangeEffects, ChangeLog
from tickertape.engine.sow.state.delete import DeleteKind, DeleteRecord
from tickertape.engine.sow.state.deleted_keys import DeletedKeys
from tickertape.engine.sow.state.expiry import LifeQueue, due_times
from tickertape.engine.sow.state.key_index import KEY_ROW_BYTES, KeyTable
from tickertape.engine.sow.state.labels import decoded, label_of, labels_of
from tickertape.engine.sow.state.record_key_index import RecordKeyIndex
from tickertape.engine.sow.state.records import (
    MessageSlots,
    PublisherNumbers,
    RecordRow,
    RecordRows,
    RecordTable,
)


class Source(NamedTuple):
    """Messages of one commit."""

    batch: MessageBatch
    first_position: int
    end: int
    """Position after the commit."""


class StoredRecords(NamedTuple):
    """Records of a checkpoint, in columns."""

    keys: Labels
    """Distinct."""
    positions: Int64s
    order_stamps: Int64s
    publishers: UInt64s
    """Publisher ids: a table for `publisher_numbers`, else one for each record."""
    publisher_numbers: PublisherNumbers | None
    sequences: UInt64s
    lives: Int64s | None
    labels: Labels | None
    """Correlation ids. None: no record has one."""
    bodies: Buffer
    body_offsets: Int32s
    """n + 1 offsets into `bodies`."""


class DeleteRow(NamedTuple):
    """A delete or expiry record and its row in the log."""

    record: DeleteRecord
    publisher: int
    sequence: int
    order_stamp: int
    position: int


class RecordIndex(Protocol):
    """Index of records that follows each change of them (`RecordIndexes`)."""

    @property
    def nbytes(self) -> int:
        """Memory."""

    def put(self, slots: Int64s, keys: Sequence[bytes], bodies: Sequence[bytes], /) -> None:
        """Set the records of distinct slots."""

    def drop(self, slots: Int64s, /) -> None:
        """Remove the records of slots."""


class StateFold:
    """The records of one SOW topic. `secret` is the secret of the process for hashes of keys.

    `expires`: whether records may have an end of life. `life_ms`: life of messages without their own, 0 for
    none. `untidy`: it adds itself when it has care although no message was folded. `index`: index of the
    records, or None. `record_keys`: index of their keys as clients see them, or None."""

    def __init__(
        self,
        secret: bytes,
        *,
        expires: bool = False,
        life_ms: int = 0,
        untidy: dict[StateFold, None] | None = None,
        index: RecordIndex | None = None,
        record_keys: RecordKeyIndex | None = None,
    ) -> None:
        self.keys = KeyTable(secret)
        self.records = RecordTable(BodyBlocks(), expires=expires)
        self.changes = ChangeLog(self.records)
        self.lives = LifeQueue() if expires else None
        self._slots_by_message: MessageSlots | None = None
        """Slots that `delete_messages` needs. None before the first such delete, and after the recovery."""
        self._index = index
        self.record_keys = record_keys
        """Index of the keys as clients see them. None for explicit keys, unless topics share them."""
        self._untidy = {} if untidy is None else untidy
        self.life_ms = life_ms
        """Life of messages without their own in milliseconds, 0 for none."""
        self.compare_below = 0
        """Rows below this position may be older than the records."""
        self.deleted_keys = DeletedKeys()
        self.highest_order_stamp = 0
        self.unkeyed = 0
        """Messages of the log without a valid key. They are in no state."""
        self.deleted = 0
        """Records that were deleted since the start (`recovered`)."""
        self.expired = 0
        """Records that expired since then."""

    @property
    def record_bytes(self) -> int:
        """Memory of the records with their keys and lives, without free slots, and without anything that
        only queries need."""
        lives = 0 if self.lives is None else self.lives.bytes
        free = (self.keys.slots - self.records.record_count) * (self.records.row_bytes + KEY_ROW_BYTES)
        bodies = self.records.blocks.nbytes - self.changes.body_bytes
        return self.keys.nbytes + self.index_bytes + self.records.nbytes + bodies + lives - free

    @property
    def index_bytes(self) -> int:
        """Memory of the hash indexes, and of the index of record keys."""
        fields = 0 if self._index is None else self._index.nbytes
        return fields + (0 if self.record_keys is None else self.record_keys.nbytes)

    @property
    def nbytes(self) -> int:
        """Memory of records, keys, bodies, lives, kept changes and deleted keys."""
        blocks = self.records.blocks
        lives = 0 if self.lives is None else self.lives.bytes
        return (
            lives
            + self.keys.nbytes
            + self.index_bytes
            + self.records.nbytes
            + blocks.nbytes
            + blocks.held_bytes
            + self.changes.nbytes
            + self.deleted_keys.nbytes
        )

    def recovered(self) -> None:
        """Count deleted and expired records from now on, after the recovery."""
        self.deleted = self.expired = 0
        self._slots_by_message = None

    # -- checkpoints ------------------------------------------------------------------------------------

    def begin_at(self, compare_below: int) -> None:
        """Compare the following rows below a position with the records, which may be newer."""
        self.compare_below = compare_below

    def load(self, stored: Sequence[StoredRecords | Labels]) -> None:
        """Set the records of an empty state from a checkpoint: records, and keys of records that ended.

        Later ones replace earlier ones."""
        columns = [part.keys if isinstance(part, StoredRecords) else part for part in stored]
        present = [isinstance(part, StoredRecords) for part in stored]
        found = self.keys.fill(columns, present)
        self.records.reserve(self.keys.slots)
        for part, slots in zip(stored, found, strict=True):
            if isinstance(part, StoredRecords):
                self._load(part, slots)

    def _load(self, stored: StoredRecords, slots: Int64s) -> None:
        """Set the records that have slots, which are distinct and new."""
        table = self.records
        stamps = stored.order_stamps
        self.highest_order_stamp = max(self.highest_order_stamp, int(stamps.max()))
        ids, rows = stored.publishers, stored.publisher_numbers
        if rows is None:
            ids, inverse = np.unique(ids, return_inverse=True)
            rows = inverse.astype(np.uint32)
        numbers = np.array([table.publishers.number(one) for one in ids.tolist()], np.uint32)
        at: Int64s | slice = slice(None)
        if slots.min() < 0:
            at = np.flatnonzero(slots >= 0)
            slots, stamps, rows = slots[at], stamps[at], rows[at]
            if not len(slots):
                return
        lives = None
        if self.lives is not None:
            lives = np.zeros(len(slots), I8) if stored.lives is None else stored.lives[at]
            self.lives.add(slots, due_times(stamps, lives, self.life_ms))
        offsets = stored.body_offsets.astype(I8)
        records = RecordRows(
            table.blocks.append_some(stored.bodies, offsets[:-1][at], offsets[1:][at]),
            stored.positions[at],
            stamps,
            numbers[rows],
            stored.sequences[at],
            lives,
            None if stored.labels is None else decoded(stored.labels, 0, len(stored.positions))[at],
        )
        self._applied(self.changes.put(0, 0, slots, records))
        if self._index is not None:
            self._changed(slots, self.keys.keys_of(slots))

    # -- messages ---------------------------------------------------------------------------------------

    def publish(self, keys: list[bytes], source: Source, rows: Int64s) -> None:
        """Apply messages: `rows` of a commit, ascending, and their keys."""
        if len(keys) < fold_scalar_rows_max and source.end > self.compare_below:
            self._publish_few(keys, source, rows)
            return
        latest = dict(zip(keys, range(len(keys)), strict=True))
        if len(latest) < len(keys):
            chosen = np.fromiter(latest.values(), I8, len(latest))
            order = np.argsort(chosen)
            distinct = [*latest]
            keys, rows = [distinct[at] for at in order.tolist()], rows[chosen[order]]
        slots = self.keys.find(keys)
        if source.first_position < self.compare_below:
            wins = self._wins(source, rows, slots)
            if not wins.all():
                keys = [key for key, win in zip(keys, wins.tolist(), strict=True) if win]
                rows, slots = rows[wins], slots[wins]
                if not keys:
                    return
        absent = np.flatnonzero(slots < 0)
        if len(absent):
            slots[absent] = self.keys.insert([keys[at] for at in absent.tolist()])
        records = self._rows_of(source, rows)
        self.highest_order_stamp = max(self.highest_order_stamp, int(records.order_stamps.max()))
        if self.lives is not None and records.lives is not None:
            self.lives.add(slots, due_times(records.order_stamps, records.lives, self.life_ms))
        self._applied(self.changes.put(source.first_position, source.end, slots, records))
        self._changed(slots, keys)

    def _publish_few(self, keys: list[bytes], source: Source, rows: Int64s) -> None:
        batch, first = source.batch, source.first_position
        stamps = None if batch.order_stamps is None else np.repeat(batch.order_stamps, batch.runs["count"])
        labelled = batch.columns & CORRELATION_IDS
        changed: dict[int, bytes] = {}
        for key, row in zip(keys, rows.tolist(), strict=True):
            slot = int(self.keys.find([key])[0])
            if slot < 0:
                slot = int(self.keys.insert([key])[0])
            stamp = batch.timestamp(row) if stamps is None else int(stamps[row])
            self.highest_order_stamp = max(self.highest_order_stamp, stamp)
            life = batch.expiration(row) or 0
            if self.lives is not None:
                due = due_times(np.array([stamp], I8), np.array([life], I8), self.life_ms)
                self.lives.add_one(slot, int(due[0]))
            record = RecordRow(
                self.records.blocks.append_one(batch.body(row)),
                first + row,
                stamp,
                self.records.publishers.number(batch.publisher(row)),
                batch.sequence(row),
                life,
                label_of(batch, row) if labelled else None,
            )
            self._applied(self.changes.put_one(first, source.end, slot, record))
            changed[slot] = key
        if self._index is not None or self._slots_by_message is not None or self._keys_are_indexed:
            self._changed(np.array([*changed], I8), [*changed.values()])

    def set_record(self, key: bytes, row: RecordRow, commit: tuple[int, int]) -> int:
        """Set the record of one key because of a row of a commit, and return its slot.

        `commit` has the first position, and the position after the last one."""
        slot = int(self.keys.find([key])[0])
        if slot < 0:
            slot = int(self.keys.insert([key])[0])
        self.highest_order_stamp = max(self.highest_order_stamp, row.order_stamp)
        if self.lives is not None:
            due = due_times(np.array([row.order_stamp], I8), np.array([row.life], I8), self.life_ms)
            self.lives.add_one(slot, int(due[0]))
        self._applied(self.changes.put_one(*commit, slot, row))
        self._changed(np.array([slot], I8), [key])
        return slot

    def end_records(self, position: int, slots: Int64s, keys: list[bytes], kind: int) -> None:
        """End the records of slots because of the row at a position. `keys` are those of `slots`, and `kind`
        is `DELETED` or `EXPIRED`."""
        self.deleted_keys.add(keys, position)
        self.keys.remove(slots)
        self._applied(self.changes.drop(position, position + 1, slots, kind))
        self._removed(slots)
        if kind == EXPIRED:
            self.expired += len(slots)
        else:
            self.deleted += len(slots)

    def _changed(self, slots: Int64s, keys: list[bytes]) -> None:
        """Index the new records of distinct slots."""
        if self._slots_by_message is not None:
            self._slots_by_message.add(slots)
        if self.record_keys is not None:
            self.record_keys.added(slots)
        if self._index is not None:
            self._index.put(slots, keys, self.records.blocks.take(self.records.rows(slots).views))

    @property
    def _keys_are_indexed(self) -> bool:
        return self.record_keys is not None and self.record_keys.active

    def _removed(self, slots: Int64s) -> None:
        """Remove slots whose records have ended from the indexes."""
        if self.record_keys is not None:
            self.record_keys.removed(slots)
        if self._index is not None:
            self._index.drop(slots)

    def _rows_of(self, source: Source, rows: Int64s) -> RecordRows:
        """Return records with the messages `rows`, and store their bodies."""
        batch = source.batch
        starts, ends = batch.offsets[rows].astype(I8), batch.offsets[rows + 1].astype(I8)
        views = self.records.blocks.append_some(batch.bodies, starts, ends)
        numbers = [self.records.publishers.number(int(one)) for one in batch.runs["publisher"].tolist()]
        runs = np.searchsorted(batch.run_starts, rows, side="right") - 1
        lives = None
        if self.lives is not None:
            lives = np.zeros(len(rows), I8) if batch.expirations is None else batch.expirations[rows]
        return RecordRows(
            views,
            rows + source.first_position,
            self._stamps(batch, rows),
            np.array(numbers, np.uint32)[runs],
            batch.sequences[rows],
            lives,
            labels_of(batch, rows),
        )

    def _wins(self, source: Source, rows: Int64s, slots: Int64s) -> Bools:
        """Return which messages become the record of their key."""
        wins = np.ones(len(rows), np.bool_)
        known = np.flatnonzero(slots >= 0)
        batch, mine = source.batch, rows[known]
        new = RowColumns(self._stamps(batch, mine), batch.publishers[mine], batch.sequences[mine])
        wins[known] = published_wins(new, self._columns_of(slots[known]))
        return wins

    @staticmethod
    def _stamps(batch: MessageBatch, rows: Int64s) -> Int64s:
        if batch.order_stamps is None:
            return batch.timestamps[rows]
        stamps: Int64s = np.repeat(batch.order_stamps, batch.runs["count"])[rows]
        return stamps

    def _columns_of(self, slots: Int64s) -> RowColumns:
        records = self.records.rows(slots)
        return RowColumns(
            records.order_stamps, self.records.publishers.ids(records.publishers), records.sequences
        )

    # -- deletes and expiries ---------------------------------------------------------------------------

    def delete(self, row: DeleteRow, low: int, high: int) -> None:
        """Apply the keys `[low, high)` of a delete or expiry record."""
        record = row.record
        keys = record.keys_between(low, high)
        slots = self.keys.find(keys)
        known = np.flatnonzero(slots >= 0)
        if not len(known):
            return
        slots = slots[known]
        current = self._columns_of(slots)
        named = self._named(record, known + low)
        if record.kind is DeleteKind.EXPIRED:
            ends = (named.publishers == current.publishers) & (named.sequences == current.sequences)
        else:
            ends = deleted_wins(_repeated(row, len(slots)), named, current)
        if ends.any():
            self._end(row, slots[ends], [keys[at] for at in known[ends].tolist()])

    def delete_messages(self, row: DeleteRow, low: int, high: int) -> None:
        """Apply the keys `[low, high)` of a delete or expiry record that have another key fingerprint.

        The records of the named messages end, and the keys are ignored. Only the recovery may call it,
        because the first call visits all records."""
        if self._slots_by_message is None:
            self._slots_by_message = MessageSlots(self.records)
        record = row.record
        slots = self._slots_by_message.find(record.publishers_between(low, high), record.sequences[low:high])
        if len(slots):
            self._end(row, slots, self.keys.keys_of(slots))

    def _end(self, row: DeleteRow, slots: Int64s, keys: list[bytes]) -> None:
        """End records because of a delete or expiry record. `keys` are those of `slots`."""
        kind = EXPIRED if row.record.kind is DeleteKind.EXPIRED else DELETED
        self.end_records(row.position, slots, keys, kind)

    @staticmethod
    def _named(record: DeleteRecord, at: Int64s) -> RowColumns:
        numbers = record.publisher_numbers[at].astype(I8)
        ids: UInt64s = np.append(record.publishers, np.uint64(0))
        numbers[numbers >= len(record.publishers)] = len(record.publishers)
        return RowColumns(record.order_stamps[at], ids[numbers], record.sequences[at])

    # -- care -------------------------------------------------------------------------------------------

    def close_scan(self, scan: int) -> None:
        """End a scan of `changes`, or do nothing if it has ended. `care` forgets its changes."""
        self.changes.close_scan(scan)
        if self.changes.has_forgettable:
            self._untidy[self] = None

    @property
    def has_care(self) -> bool:
        """Whether `care` has work."""
        forgettable = self.changes.has_forgettable or self.deleted_keys.has_forgettable
        return forgettable or self.records.blocks.emptiest() is not None

    def care(self) -> None:
        """Execute one bounded step: forget changes that no scan needs or deleted keys, or compact a block."""
        if self.changes.has_forgettable:
            self.keys.release(self.changes.forget())
        elif self.deleted_keys.has_forgettable:
            self.deleted_keys.forget_step()
        else:
            self.records.compact_step()

    def _applied(self, effects: ChangeEffects) -> None:
        if len(effects.released):
            self.keys.release(effects.released)


def _repeated(row: DeleteRow, count: int) -> RowColumns:
    return RowColumns(
        np.full(count, row.order_stamp, I8),
        np.full(count, row.publisher, np.uint64),
        np.full(count, row.sequence, np.uint64),
    )
