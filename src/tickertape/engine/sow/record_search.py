"""Record search: finds the accepted records of a delete, in bounded steps over a state that changes.

A scan tests folded records, or looks up given keys. Keys that were accepted meanwhile are then looked up in
rounds, and the last round runs in the step of the append. After too many rounds, everything else that changes
the topic waits.

Invariants:
- The result is exact at the accepted state of its last round.
- A step tests at most `sow_delete_round_rows` records. `finish` tests those that are left, and rows of the
  frame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np

from tickertape.base.errors import NotReady
from tickertape.base.text_format import shown
from tickertape.batch.format import CORRELATION_IDS, I8, U8, Int64s
from tickertape.engine.limits import record_key_step_max, sow_delete_round_rows
from tickertape.engine.sow.accepted import Overlay
from tickertape.engine.sow.accepted_row import AcceptedRow
from tickertape.engine.sow.memory import StateMemory
from tickertape.engine.sow.state.blocks import lengths_in
from tickertape.engine.sow.state.delete import DeleteBuilder, DeleteRecord
from tickertape.engine.sow.state.labels import RecordLabels, label_of, no_labels
from tickertape.engine.sow.state.records import RecordRows, RecordTable
from tickertape.engine.sow.topic import StateTopic
from tickertape.filter.limits import filter_piece_bytes_max


class RecordTest(Protocol):
    """Test of records."""

    def passing(self, rows: RecordRows, bodies: Sequence[bytes], keys: Sequence[bytes], /) -> Int64s:
        """Return the indices of the records that pass, ascending."""


class DeleteSearch(ABC):
    """Search for the records of a SOW topic that a delete ends."""

    def __init__(self, topic: StateTopic) -> None:
        self._topic = topic
        self._builder = DeleteBuilder(topic.name, topic.key_fingerprint)
        self._matching: set[bytes] = set()
        """Keys of the records that the delete selects."""
        self._changed: set[bytes] = set()
        self._overlay: Overlay | None = None
        self._scanned = False
        self._holds = False

    @property
    def topic(self) -> StateTopic:
        """The SOW topic."""
        return self._topic

    @property
    def left(self) -> int:
        """Number of keys that changed and were not looked up."""
        return len(self._changed)

    def scan(self, overlay: Overlay) -> Iterator[None]:
        """Search the records, one piece for each yield. `finish` or `close` must follow."""
        self._overlay, self._changed = overlay, overlay.watch()
        yield from self._scan()
        self._scanned = True

    def scan_changed(self) -> Iterator[None]:
        """Look up the keys that changed until now, one piece for each yield."""
        changed = [*self._changed]
        self._changed.clear()
        for low in range(0, len(changed), sow_delete_round_rows):
            if self._overlay is None:
                return
            self._look_again(self._overlay, changed[low : low + sow_delete_round_rows])
            yield None

    def merge(self) -> Iterator[None]:
        """Sort the keys that were found until now, one piece for each yield."""
        yield from self._builder.merge()

    def hold(self) -> None:
        """Let everything else that changes the topic wait, until the end of the search."""
        if self._overlay is not None and not self._holds:
            self._overlay.hold()
            self._holds = True

    def finish(
        self, keys: Sequence[bytes], rows: Sequence[AcceptedRow], bodies: Sequence[bytes | None]
    ) -> DeleteRecord:
        """Look up the last changed keys, enter rows that are not accepted yet, and return the record.

        Raises `NotReady` before the end of the scan."""
        overlay = self._overlay
        if overlay is None or not self._scanned:
            raise NotReady(
                f"Cannot delete records of {shown(self._topic.name)}: the connection was closed during the "
                "search. Repeat the delete."
            )
        self._look_again(overlay, [*self._changed])
        self._enter(keys, rows, bodies)
        self.close()
        matches = len(self._matching)
        record = self._builder.build(matches, max(matches, self._topic.fold.records.record_count))
        more = record.more or matches > record.counts.deleted
        return record if more == record.more else msgspec.structs.replace(record, more=more)

    def close(self) -> None:
        """End the search."""
        if self._overlay is not None:
            if self._holds:
                self._overlay.release()
                self._holds = False
            self._overlay.end_watch(self._changed)
            self._overlay = None

    def _look_again(self, overlay: Overlay, keys: Sequence[bytes]) -> None:
        rows = overlay.latest(keys)
        self._enter(keys, rows, [overlay.body(row) if row.live else None for row in rows])

    @abstractmethod
    def _scan(self) -> Iterator[None]:
        """Search the records, one piece for each yield."""

    @abstractmethod
    def _enter(
        self, keys: Sequence[bytes], rows: Sequence[AcceptedRow], bodies: Sequence[bytes | None], /
    ) -> None:
        """Replace the results of keys, which have these latest candidates. Dead ones have no body."""

    def _add(self, keys: Sequence[bytes], rows: Sequence[AcceptedRow]) -> None:
        """Add candidates to the record."""
        self._builder.add(
            keys,
            np.array([row.publisher for row in rows], U8),
            np.array([row.sequence for row in rows], U8),
            np.array([row.order_stamp for row in rows], I8),
            topics=self._topic.topics_of(keys),
            live=np.array([row.live for row in rows], np.bool_),
        )


class RecordSearch(DeleteSearch):
    """Search for all records that pass a test."""

    def __init__(self, topic: StateTopic, test: RecordTest) -> None:
        super().__init__(topic)
        self._test = test

    def _scan(self) -> Iterator[None]:
        records = self._topic.fold.records
        slot, end = 0, records.slot_end
        while slot < end:
            slot = self._scan_piece(slot, min(slot + sow_delete_round_rows, end))
            yield None

    def _scan_piece(self, low: int, high: int) -> int:
        """Test some records. Return the next slot."""
        slots = self._topic.fold.records.live_slots(low, high)
        tested = self._test_records(slots)
        return high if tested == len(slots) else int(slots[tested])

    def _test_records(self, slots: Int64s) -> int:
        """Test the records of slots. Return how many of the first ones are one piece."""
        if not len(slots):
            return 0
        fold = self._topic.fold
        rows = fold.records.rows(slots)
        fits = int(np.searchsorted(np.cumsum(lengths_in(rows.views)), filter_piece_bytes_max, side="right"))
        fits = max(fits, 1)
        if fits < len(slots):
            slots, rows = slots[:fits], rows.select(slice(0, fits))
        keys = fold.keys.keys_of(slots)
        at = self._test.passing(rows, fold.records.blocks.take(rows.views), keys)
        found = [keys[one] for one in at.tolist()]
        self._matching.update(found)
        if found and not self._builder.is_full:
            rows = rows.select(at)
            publishers = fold.records.publishers.ids(rows.publishers)
            topics = self._topic.topics_of(found)
            self._builder.add(found, publishers, rows.sequences, rows.order_stamps, topics=topics)
        return len(slots)

    def _enter(
        self, keys: Sequence[bytes], rows: Sequence[AcceptedRow], bodies: Sequence[bytes | None], /
    ) -> None:
        before = self._matching.intersection(keys)
        self._matching -= before
        live = [at for at, body in enumerate(bodies) if body is not None]
        found: list[int] = []
        if live:
            mine = [rows[at] for at in live]
            data = [body for body in bodies if body is not None]
            columns = _columns_of(self._topic.fold.records, mine)
            passing = self._test.passing(columns, data, [keys[at] for at in live])
            found = [live[at] for at in passing.tolist()]
        names = [keys[at] for at in found]
        self._matching.update(names)
        if names and not self._builder.is_full:
            self._add(names, [rows[at] for at in found])
            before.difference_update(names)
        if before:
            gone = [*before]
            self._builder.remove(gone, topics=self._topic.topics_of(gone))


class NameSearch(RecordSearch):
    """Search for records by keys as clients see them (`names`), which are those that `test` passes."""

    def __init__(
        self, topic: StateTopic, test: RecordTest, names: Sequence[str], memory: StateMemory
    ) -> None:
        super().__init__(topic, test)
        self._names = names
        self._memory = memory

    def _scan(self) -> Iterator[None]:
        fold = self._topic.fold
        yield from self._memory.index_record_keys(fold)
        for low in range(0, len(self._names), record_key_step_max):
            index = fold.record_keys
            found = None if index is None else index.candidates(self._names[low : low + record_key_step_max])
            if found is None:  # records need the memory of the index
                yield from super()._scan()
                return
            while len(found := found[fold.records.live(found)]):
                found = found[self._test_records(found[:sow_delete_round_rows]) :]
                yield None


class KeySearch(DeleteSearch):
    """Search for the latest candidates of many given keys."""

    def __init__(self, topic: StateTopic, keys: Sequence[bytes]) -> None:
        super().__init__(topic)
        self._wanted = dict.fromkeys(keys)

    def _scan(self) -> Iterator[None]:
        keys = [*self._wanted]
        for low in range(0, len(keys), sow_delete_round_rows):
            if self._overlay is None:
                return
            piece = keys[low : low + sow_delete_round_rows]
            self._enter(piece, self._overlay.latest(piece), ())
            yield None

    def _enter(
        self, keys: Sequence[bytes], rows: Sequence[AcceptedRow], _bodies: Sequence[bytes | None], /
    ) -> None:
        mine = [at for at, key in enumerate(keys) if key in self._wanted]
        names, found = [keys[at] for at in mine], [rows[at] for at in mine]
        self._matching.difference_update(names)
        self._matching.update([name for name, row in zip(names, found, strict=True) if row.live])
        self._add(names, found)


def _columns_of(records: RecordTable, rows: Sequence[AcceptedRow]) -> RecordRows:
    """Return accepted rows as rows of the table. Their views have no meaning."""
    return RecordRows(
        np.zeros((len(rows), 2), U8),
        np.array([row.position for row in rows], I8),
        np.array([row.order_stamp for row in rows], I8),
        np.array([records.publishers.number(row.publisher) for row in rows], np.uint32),
        np.array([row.sequence for row in rows], U8),
        labels=_labels_of(records, rows),
    )


def _labels_of(records: RecordTable, rows: Sequence[AcceptedRow]) -> RecordLabels:
    """Return the correlation ids of live rows."""
    found = no_labels(len(rows))
    folded = []
    for at, row in enumerate(rows):
        if row.batch is None:
            folded.append(at)
        elif row.batch.columns & CORRELATION_IDS:
            found[at] = label_of(row.batch, row.place)
    if folded and records.has_labels:
        found[folded] = records.labels(np.array([rows[at].place for at in folded], I8))
    return found
