"""Changes kept for scans: undo, release of slots, bodies, and the limit of their memory."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.record_rows import int64s, open_scans, record_rows, undo
from tickertape.engine.limits import sow_changes_piece_rows
from tickertape.engine.sow.state.blocks import BodyBlocks
from tickertape.engine.sow.state.change import DELETED, EXPIRED, ChangeEffects, ChangeLog
from tickertape.engine.sow.state.records import RecordRow, RecordTable

SMALL = 64


def body(number: int) -> bytes:
    return b"%020d" % number


class Log:
    """A change log over a small table, and the position of its next commit."""

    def __init__(
        self, records: int = 4, *, expires: bool = False, bytes_max: int = 1 << 28, block_bytes: int = SMALL
    ) -> None:
        self.table = RecordTable(BodyBlocks(block_bytes), expires=expires)
        self.blocks = self.table.blocks
        self.changes = ChangeLog(self.table, bytes_max)
        self.expires = expires
        self.position = 0
        self.put([*range(records)], 0)

    def put(self, slots: list[int], first: int) -> ChangeEffects:
        """Commit new bodies, numbered from `first` on."""
        bodies = [body(first + i) for i in range(len(slots))]
        rows = record_rows(self.blocks, bodies, position=self.position, expires=self.expires)
        start, self.position = self.position, self.position + len(slots)
        return self.changes.put(start, self.position, int64s(slots), rows)

    def drop(self, slots: list[int], kind: int = DELETED) -> ChangeEffects:
        start, self.position = self.position, self.position + 1
        return self.changes.drop(start, self.position, int64s(slots), kind)

    def state(self, scan: int | None = None, low: int = 0, high: int = 100) -> dict[int, bytes]:
        """Return the bodies of a range of slots, now or at the position of a scan."""
        piece = self.table.copy_range(low, high)
        if scan is not None:
            undo(self.changes, scan, piece)
        slots = (piece.live.nonzero()[0] + low).tolist()
        return dict(zip(slots, self.blocks.take(piece.rows.views[piece.live]), strict=True))

    def forget_all(self) -> list[int]:
        released: list[int] = []
        while self.changes.has_forgettable:
            released += self.changes.forget().tolist()
        return released


def numbered(**numbers: int) -> dict[int, bytes]:
    return {int(slot[1:]): body(number) for slot, number in numbers.items()}


# -- without scans ------------------------------------------------------------------------------------


def test_replaced_bodies_are_dropped_at_once_without_a_scan() -> None:
    log = Log()
    assert log.put([0, 1], 10).released.tolist() == []
    assert log.drop([2]).released.tolist() == [2]
    row = RecordRow(log.blocks.append_one(body(20)), 9, 0, 0, 0)
    assert log.changes.put_one(9, 10, 3, row).released.tolist() == []
    assert log.state() == numbered(s0=10, s1=11, s3=20)
    assert log.blocks.live_bytes == 60
    assert (log.changes.nbytes, open_scans(log.changes), log.changes.has_forgettable) == (0, [], False)


# -- undo ---------------------------------------------------------------------------------------------


def test_undo_returns_records_at_the_position_of_the_scan() -> None:
    log = Log()
    scan = log.changes.open_scan(log.position)
    log.put([0, 5], 10)
    log.put([0, 1], 20)
    log.drop([2, 0])
    log.put([7], 30)
    assert log.state(scan) == numbered(s0=0, s1=1, s2=2, s3=3)
    assert log.state(scan, 1, 3) == numbered(s1=1, s2=2)
    assert log.state() == numbered(s1=21, s3=3, s5=11, s7=30)


def test_earliest_change_of_a_slot_wins_within_and_across_commits() -> None:
    log = Log(1)
    scan = log.changes.open_scan(log.position)
    for number in range(1, 9):
        log.put([0], number)
    assert log.state(scan) == numbered(s0=0)


def test_each_scan_has_the_state_at_the_position_of_that_scan() -> None:
    log = Log()
    scans = {}
    for number in range(6):
        scans[log.changes.open_scan(log.position)] = log.state()
        log.put([number % 4, 4 + number], 100 * number)
    log.drop([0])
    for scan, state in scans.items():
        assert log.state(scan) == state
    first, *others = scans
    log.changes.close_scan(first)
    log.forget_all()
    assert [log.state(scan) for scan in others] == [scans[scan] for scan in others]


@pytest.mark.parametrize("expires", [False, True])
def test_undo_restores_all_columns(expires: bool) -> None:
    log = Log(2, expires=expires)
    before = log.table.copy_range(0, 2)
    scan = log.changes.open_scan(log.position)
    log.put([1, 0], 10)
    row = RecordRow(log.blocks.append_one(body(5)), 99, 99, 1, 99, 99)
    log.changes.put_one(6, 7, 0, row)
    piece = log.table.copy_range(0, 2)
    undo(log.changes, scan, piece)
    for column, old in zip(piece.rows, before.rows, strict=True):
        assert (column is None) == (old is None)
        if column is not None and old is not None:
            assert column.tolist() == old.tolist()


def test_undo_of_changes_above_the_rows_of_one_piece() -> None:
    count = 2 * sow_changes_piece_rows + 100
    log = Log(count, block_bytes=1 << 16)
    scan = log.changes.open_scan(log.position)
    slots = np.random.default_rng(5).permutation(count).tolist()
    log.put(slots, 10**6)
    log.put(slots[:10], 2 * 10**6)
    assert log.state(scan, 0, count) == {i: body(i) for i in range(count)}
    log.changes.close_scan(scan)
    log.changes.forget()
    assert log.changes.has_forgettable
    log.forget_all()
    assert log.blocks.live_bytes == 20 * count
    assert (log.changes.nbytes, log.changes.body_bytes) == (0, 0)


def test_scan_opens_only_after_all_applied_changes() -> None:
    log = Log()
    with pytest.raises(ValueError, match="Scan it at this position"):
        log.changes.open_scan(log.position - 1)
    log.changes.close_scan(log.changes.open_scan(log.position))
    log.drop([0], EXPIRED)
    with pytest.raises(ValueError, match="Cannot scan"):
        log.changes.open_scan(log.position - 1)


# -- slots and bodies ---------------------------------------------------------------------------------


def test_removed_slots_are_released_after_the_scan() -> None:
    log = Log(6)
    scan = log.changes.open_scan(log.position)
    assert log.drop([1, 2]).released.tolist() == []
    log.put([3], 10)
    assert log.drop([4], EXPIRED).released.tolist() == []
    assert not log.changes.has_forgettable
    assert log.changes.forget().tolist() == []
    log.changes.close_scan(scan)
    assert log.forget_all() == [1, 2, 4]
    assert log.forget_all() == []


def test_removed_slots_wait_for_the_oldest_scan_with_the_record() -> None:
    log = Log(6)
    old = log.changes.open_scan(log.position)
    log.drop([1])
    young = log.changes.open_scan(log.position)
    log.drop([2])
    log.changes.close_scan(young)
    assert log.forget_all() == []
    young = log.changes.open_scan(log.position)
    log.changes.close_scan(old)
    assert log.forget_all() == [1, 2]
    log.changes.close_scan(young)
    log.changes.close_scan(young)
    assert log.forget_all() == []


def test_bodies_of_kept_changes_are_dropped_when_forgotten() -> None:
    log = Log(2)
    scan = log.changes.open_scan(log.position)
    log.put([0, 1], 10)
    log.put([0, 1], 20)
    log.drop([1])
    assert log.blocks.live_bytes == 120
    assert log.changes.body_bytes == 100
    log.changes.close_scan(scan)
    assert log.forget_all() == [1]
    assert log.blocks.live_bytes == 20
    assert log.changes.body_bytes == 0


def test_kept_bodies_survive_compaction() -> None:
    log = Log(30)  # three in a block
    log.put([i for i in range(30) if i % 3], 100)
    state = log.state()
    scan = log.changes.open_scan(log.position)
    log.drop([*range(0, 30, 6)])
    steps = 0
    while log.table.compact_step():
        steps += 1
        assert log.state(scan) == state
    assert steps >= 10
    log.changes.close_scan(scan)
    log.forget_all()
    while log.table.compact_step():
        pass
    assert log.blocks.live_bytes == 20 * log.table.record_count == 20 * 25


# -- memory -------------------------------------------------------------------------------------------


def test_memory_of_kept_changes_has_rows_and_bodies() -> None:
    log = Log(400)
    log.changes.open_scan(log.position)
    log.put([*range(10)], 1_000)
    small = log.changes.nbytes
    log.put([*range(400)], 2_000)
    assert log.changes.nbytes - small == 256 * 54 + 400 * 20
    log.changes.close_scan(0)
    log.forget_all()
    assert log.changes.nbytes == 0


def test_oldest_scan_ends_when_kept_changes_exceed_the_limit() -> None:
    log = Log(300, bytes_max=60_000)
    old = log.changes.open_scan(log.position)
    assert log.put([*range(300)], 1_000).ended == ()
    young = log.changes.open_scan(log.position)
    assert log.put([*range(300)], 2_000).ended == (old,)
    assert log.state(young, 0, 300) == {i: body(1_000 + i) for i in range(300)}
    log.changes.close_scan(old)  # closing an ended scan is allowed
    log.forget_all()
    assert log.blocks.live_bytes == 12_000
    assert log.put([*range(100)], 3_000).ended == ()
    assert log.put([*range(300)], 4_000).ended == (young,)
    assert not open_scans(log.changes)
    log.forget_all()
    assert log.blocks.live_bytes == 6_000
