"""Records of a state under random commits, scans, pins and compaction, against dicts of bytes.

A scan returns the records at its position, with their keys, however many commits and steps of compaction
happen between its own steps. Pinned results stay readable.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.helpers.record_rows import appended, int64s, open_scans, undo
from tickertape.batch.format import Int64s
from tickertape.engine.limits import sow_label_memory_bytes
from tickertape.engine.sow.state.blocks import BlockPin, BodyBlocks, Views, stored_bytes
from tickertape.engine.sow.state.change import DELETED, EXPIRED, ChangeEffects, ChangeLog
from tickertape.engine.sow.state.records import RecordRow, RecordRows, RecordTable

BLOCK = 200
_SIZES = st.one_of(st.integers(0, 14), st.integers(13, 30), st.integers(13, 30), st.integers(150, 300))
BODIES = st.builds(
    lambda size, number: (number.to_bytes(2, "big") * size)[:size], _SIZES, st.integers(0, 65_535)
)
NUMBERS = st.integers(0, 2**64 - 1)


class Record(NamedTuple):
    """A record of the oracle."""

    key: int
    body: bytes
    position: int
    order_stamp: int
    publisher: int
    sequence: int
    expiry: int
    label: bytes | None


class Scan(NamedTuple):
    """An open scan, the expected records by slot, and its result."""

    number: int
    expected: dict[int, Record]
    pin: BlockPin
    low: list[int]
    """First slot that was not copied."""
    high: int


class Result(NamedTuple):
    """Pinned views of bodies."""

    pin: BlockPin
    views: Views
    bodies: list[bytes]


class RecordMachine(RuleBasedStateMachine):
    """Commits, scans and steps of compaction. Each record has a key, and a slot has at most one key."""

    @initialize(
        first=st.sampled_from([0, 65_530]),
        expires=st.booleans(),
        bytes_max=st.sampled_from([1 << 28, 40_000]),
        bodies=st.lists(BODIES, min_size=20, max_size=40),
    )
    def begin(self, first: int, expires: bool, bytes_max: int, bodies: list[bytes]) -> None:
        self.blocks = BodyBlocks(BLOCK)
        self.table = RecordTable(self.blocks, expires=expires)
        self.changes = ChangeLog(self.table, bytes_max)
        self.expires = expires
        self.first = self.slot_end = first
        self.position = 0
        self.key = 0
        self.records: dict[int, Record] = {}
        self.keys: dict[int, int] = {}
        self.publishers: set[int] = set()
        self.free: list[int] = []
        self.scans: list[Scan] = []
        self.results: list[Result] = []
        self._put({self._new_slot(): body for body in bodies}, 1)

    # -- commits ----------------------------------------------------------------------------------------

    def _new_slot(self) -> int:
        if self.free:
            slot = self.free.pop()
        else:
            slot, self.slot_end = self.slot_end, self.slot_end + 1
        self.key += 1
        self.keys[slot] = self.key
        return slot

    def _record(self, slot: int, body: bytes, number: int, labelled: bool) -> Record:
        position, self.position = self.position, self.position + 1
        expiry = number % 1_000 if self.expires else 0
        label = b"c%d" % position if labelled and position % 3 else None
        return Record(self.keys[slot], body, position, 3 * position, number, position + 9, expiry, label)

    def _apply(self, effects: ChangeEffects) -> None:
        self.free += effects.released.tolist()
        if effects.ended:
            for scan in self.scans:
                if scan.number in effects.ended:
                    scan.pin.release()
            self.scans = [scan for scan in self.scans if scan.number not in effects.ended]

    @rule(
        order=st.randoms(use_true_random=False),
        fresh=st.lists(BODIES, max_size=6),
        again=st.lists(st.tuples(st.integers(0, 1_000), BODIES), min_size=4, max_size=16),
        number=NUMBERS,
        labelled=st.booleans(),
    )
    def put(
        self,
        order: Random,
        fresh: list[bytes],
        again: list[tuple[int, bytes]],
        number: int,
        labelled: bool,
    ) -> None:
        live = sorted(self.records)
        bodies = {live[at % len(live)]: body for at, body in again} if live else {}
        bodies |= {self._new_slot(): body for body in fresh}
        slots = [*bodies]
        order.shuffle(slots)
        self._put({slot: bodies[slot] for slot in slots}, number, labelled)

    def _put(self, bodies: dict[int, bytes], number: int, labelled: bool = False) -> None:
        start = self.position
        records = {slot: self._record(slot, body, number, labelled) for slot, body in bodies.items()}
        rows = RecordRows(
            appended(self.blocks, [*bodies.values()]),
            int64s([record.position for record in records.values()]),
            int64s([record.order_stamp for record in records.values()]),
            np.full(len(records), self.table.publishers.number(number), np.uint32),
            np.array([record.sequence for record in records.values()], np.uint64),
            int64s([record.expiry for record in records.values()]) if self.expires else None,
            np.array([record.label for record in records.values()], object) if labelled else None,
        )
        effects = self.changes.put(start, self.position, int64s([*records]), rows)
        self.records |= records
        self._apply(effects)

    @rule(body=BODIES, at=st.integers(0, 1_000), fresh=st.booleans(), number=NUMBERS, labelled=st.booleans())
    def put_one(self, body: bytes, at: int, fresh: bool, number: int, labelled: bool) -> None:
        live = sorted(self.records)
        slot = live[at % len(live)] if live and not fresh else self._new_slot()
        start = self.position
        record = self._record(slot, body, number, labelled)
        row = RecordRow(
            self.blocks.append_one(body),
            record.position,
            record.order_stamp,
            self.table.publishers.number(number),
            record.sequence,
            record.expiry,
            record.label,
        )
        effects = self.changes.put_one(start, self.position, slot, row)
        self.records[slot] = record
        self._apply(effects)

    @precondition(lambda self: self.records)
    @rule(
        ranks=st.sets(st.integers(0, 1_000), min_size=1, max_size=6), kind=st.sampled_from([DELETED, EXPIRED])
    )
    def drop(self, ranks: set[int], kind: int) -> None:
        live = sorted(self.records)
        slots = [*{live[rank % len(live)] for rank in ranks}]
        start, self.position = self.position, self.position + 1
        for slot in slots:
            del self.records[slot]
        self._apply(self.changes.drop(start, self.position, int64s(slots), kind))

    # -- scans and pins ---------------------------------------------------------------------------------

    @rule(span=st.integers(1, 40))
    def open_scan(self, span: int) -> None:
        number = self.changes.open_scan(self.position)
        pin = self.blocks.pin(appended(self.blocks, []))
        self.scans.append(Scan(number, dict(self.records), pin, [self.first], self.table.slot_end))
        self._step(self.scans[-1], span)

    @precondition(lambda self: self.scans)
    @rule(at=st.integers(0, 1_000), span=st.integers(1, 40))
    def step_of_scan(self, at: int, span: int) -> None:
        self._step(self.scans[at % len(self.scans)], span)

    def _step(self, scan: Scan, span: int) -> None:
        low, high = scan.low[0], min(scan.low[0] + span, max(scan.high, scan.low[0]))
        piece = self.table.copy_range(low, high)
        undo(self.changes, scan.number, piece)
        scan.low[0] = high
        slots: Int64s = piece.live.nonzero()[0]
        rows = piece.rows.select(slots)
        scan.pin.extend(rows.views)
        publishers = self.table.publishers.ids(rows.publishers).tolist()
        bodies = self.blocks.take(rows.views)
        lives = [0] * len(slots) if rows.lives is None else rows.lives.tolist()
        labels = [None] * len(slots) if rows.labels is None else rows.labels.tolist()
        found = {
            low + slot: Record(self.keys[low + slot], *values)
            for slot, *values in zip(
                slots.tolist(), bodies, rows.positions.tolist(), rows.order_stamps.tolist(), publishers,
                rows.sequences.tolist(), lives, labels, strict=True,
            )
        }  # fmt: skip
        assert found == {slot: record for slot, record in scan.expected.items() if low <= slot < high}
        self.results.append(Result(self.blocks.pin(rows.views), rows.views, bodies))
        if high >= scan.high:
            self.changes.close_scan(scan.number)
            self.scans.remove(scan)
            scan.pin.release()

    @precondition(lambda self: len(self.scans) > 2)
    @rule(at=st.integers(0, 1_000))
    def close_scan(self, at: int) -> None:
        scan = self.scans.pop(at % len(self.scans))
        self.changes.close_scan(scan.number)
        scan.pin.release()

    @rule()
    def forget(self) -> None:
        self.free += self.changes.forget().tolist()

    @precondition(lambda self: len(self.results) > 3)
    @rule(at=st.integers(0, 1_000))
    def release(self, at: int) -> None:
        self.results.pop(at % len(self.results)).pin.release()

    @rule(steps=st.integers(1, 5))
    def compact(self, steps: int) -> None:
        for _ in range(steps):
            if not self.table.compact_step():
                break

    # -- checks -----------------------------------------------------------------------------------------

    @invariant()
    def table_equals_the_oracle(self) -> None:
        slots = self.table.live_slots(0, self.table.slot_end)
        assert slots.tolist() == sorted(self.records)
        assert self.table.record_count == len(self.records)
        rows = self.table.rows(slots)
        assert self.blocks.take(rows.views) == [self.records[slot].body for slot in slots.tolist()]
        assert rows.positions.tolist() == [self.records[slot].position for slot in slots.tolist()]
        labels = [self.records[slot].label for slot in slots.tolist()]
        assert labels == ([None] * len(slots) if rows.labels is None else rows.labels.tolist())
        texts = sum(len(label) + sow_label_memory_bytes for label in labels if label is not None)
        self.publishers.update(record.publisher for record in self.records.values())
        assert self.table.nbytes == self.slot_end * self.table.row_bytes + texts + 120 * len(self.publishers)
        assert self.blocks.live_bytes == stored_bytes(rows.views) + self.changes.body_bytes
        assert sorted({*self.free} & {*self.records}) == []
        assert len({*self.free}) == len(self.free)

    @invariant()
    def pinned_results_stay_readable(self) -> None:
        for pin, views, bodies in self.results:
            assert pin.take(views) == bodies
        if not self.results and not self.scans:
            assert self.blocks.held_bytes == 0
        if not open_scans(self.changes) and not self.changes.has_forgettable:
            assert self.changes.nbytes == self.changes.body_bytes == 0

    def teardown(self) -> None:
        """Compaction ends, and everything can be dropped."""
        for result in self.results:
            result.pin.release()
        for scan in self.scans:
            self.changes.close_scan(scan.number)
            scan.pin.release()
        while self.changes.has_forgettable:
            self.free += self.changes.forget().tolist()
        for _ in range(10_000):
            if not self.table.compact_step():
                break
        else:
            raise AssertionError("compaction does not end")
        self.table_equals_the_oracle()
        self.changes.drop(self.position, self.position + 1, int64s(sorted(self.records)), DELETED)
        assert (self.blocks.live_bytes, self.blocks.block_count, self.blocks.held_bytes) == (0, 0, 0)
        assert {*self.free} | {*self.records} == {*range(self.first, self.slot_end)}


TestRecords = pytest.mark.slow(RecordMachine.TestCase)
