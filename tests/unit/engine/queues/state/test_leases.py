"""Leases of consumers against dictionaries, without state beyond the leased messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap64

from tickertape.batch import MessageBatch
from tickertape.batch.derive import merge
from tickertape.batch.encode import batch_from_bodies
from tickertape.engine.queues.state.leases import Lease, LeaseTable
from tickertape.wire.settlement import Runs, runs_in, runs_of

PUBLISHERS = (3, 2**64 - 1)
FIRST = 50
"""First sequence in the log of the model. Positions start at another number."""


def batch_of(publisher: int, first: int, count: int) -> MessageBatch:
    return batch_from_bodies("work", [b"x"] * count, publisher=publisher, first_sequence=first)


def runs(*rows: tuple[int, int, int]) -> Runs:
    return np.array(rows, "<u8").reshape(-1, 3)


def rows_of(left: Runs) -> list[tuple[int, ...]]:
    return [tuple(row) for row in left.tolist()]


def at(*positions: int) -> BitMap64:
    return BitMap64(positions)


def is_empty(leases: LeaseTable[str]) -> bool:
    return not (leases.count or len(leases) or leases._blocks or leases._publishers or leases._held)


def test_lease_lookup_of_a_run_returns_both_leases_and_the_unleased_rest() -> None:
    leases: LeaseTable[str] = LeaseTable()
    inky = leases.grant("inky", batch_of(7, 1, 100), np.arange(1000, 1100), 1.0, 9.0)
    clyde = leases.grant("clyde", batch_of(7, 111, 10), np.arange(1110, 1120), 2.0, 8.0)
    found, left = leases.find(runs((7, 91, 40), (8, 1, 3)))
    assert found == [(inky, BitMap64(range(1090, 1100))), (clyde, BitMap64(range(1110, 1120)))]
    assert rows_of(left) == [(7, 101, 10), (7, 121, 10), (8, 1, 3)]
    assert leases.of_positions(at(999, 1000, 1099, 1105, 1119)) == [
        (inky, at(1000, 1099)),
        (clyde, at(1119)),
    ]
    assert leases.count == 110


def test_released_message_leased_a_second_time_belongs_to_the_new_lease() -> None:
    leases: LeaseTable[str] = LeaseTable()
    old = leases.grant("inky", batch_of(7, 1, 70), np.arange(70), 1.0, None)
    leases.release(old, at(9))
    found, left = leases.find(runs((7, 10, 1)))
    assert not found
    assert rows_of(left) == [(7, 10, 1)]
    new = leases.grant("clyde", batch_of(7, 10, 1), np.array([9]), 2.0, None)
    found, left = leases.find(runs((7, 1, 70)))
    assert found == [(old, old.positions), (new, at(9))]
    assert not len(left)
    leases.release(old, old.positions)
    leases.release(old, at(9))
    assert leases.find(runs((7, 10, 1)))[0] == [(new, at(9))]
    leases.release(new, at(9))
    assert is_empty(leases)


def test_lease_lookup_reflects_each_change() -> None:
    leases: LeaseTable[str] = LeaseTable()
    asked = runs((7, 1, 3))
    assert rows_of(leases.find(asked)[1]) == [(7, 1, 3)]
    inky = leases.grant("inky", batch_of(7, 1, 3), np.arange(3), 1.0, 9.0)
    assert leases.find(asked)[0] == [(inky, at(0, 1, 2))]
    later = leases.extend(inky, at(1), 20.0)
    assert leases.find(asked)[0] == [(inky, at(0, 2)), (later, at(1))]
    leases.release(inky, at(0))
    found, left = leases.find(asked)
    assert found == [(inky, at(2)), (later, at(1))]
    assert rows_of(left) == [(7, 1, 1)]


def test_extended_part_of_a_lease_becomes_a_separate_lease() -> None:
    leases: LeaseTable[str] = LeaseTable()
    lease = leases.grant("inky", batch_of(7, 1, 100), np.arange(100), 1.0, 5.0)
    part = leases.extend(lease, BitMap64(range(30, 80)), 7.0)
    assert part is not lease
    assert part.holder == "inky"
    assert part.granted_at == 1.0
    assert leases.due(6.0) == [lease]
    assert leases.due(7.0) == [lease, part]
    assert leases.find(runs((7, 1, 100)))[0] == [
        (lease, BitMap64(range(100)) - BitMap64(range(30, 80))),
        (part, BitMap64(range(30, 80))),
    ]
    assert leases.extend(part, part.positions, None) is part
    assert leases.due(100.0) == [lease]
    assert leases.extend(lease, BitMap64(range(30, 80)), 1.0) is lease
    assert leases.next_deadline() == 5.0
    assert leases.of_holder("inky") == [lease, part]
    assert leases.count == 100


def test_due_leases_remain_due_until_release() -> None:
    leases: LeaseTable[int] = LeaseTable()
    held = [leases.grant(i, batch_of(7, 1 + i, 1), np.array([i]), i, 10.0 - i) for i in range(10)]
    assert leases.due(5.0) == leases.due(5.0) == held[:4:-1]
    assert leases.next_deadline() == 1.0
    assert leases.oldest_granted() == 0
    leases.release(held[9], held[9].positions)
    leases.release(held[0], held[0].positions)
    assert leases.due(5.0) == held[8:4:-1]
    assert leases.next_deadline() == 2.0
    assert leases.oldest_granted() == 1


def test_lease_extended_often_is_due_once_without_extra_deadlines() -> None:
    leases: LeaseTable[str] = LeaseTable()
    lease = leases.grant("inky", batch_of(7, 1, 1), np.array([0]), 0.0, 1.0)
    for i in range(10_000):
        leases.extend(lease, lease.positions, float(i % 3))
    assert leases.due(5.0) == [lease]
    assert len(leases._deadlines._heap) <= 65


def test_released_leases_leave_no_deadlines_or_blocks() -> None:
    """A lease held for a long time does not prevent the removal of other times."""
    leases: LeaseTable[str] = LeaseTable()
    leases.grant("old", batch_of(9, 1, 1), np.array([0]), 0.0, 1.0)
    for i in range(1, 5_000):
        lease = leases.grant("inky", batch_of(7, i, 1), np.array([i]), float(i), 10.0 + i)
        leases.release(lease, lease.positions)
    assert len(leases._deadlines._heap) <= 65
    assert len(leases._grants._heap) <= 65
    assert len(leases._blocks) == len(leases._publishers) == len(leases._held) == 1


@pytest.mark.parametrize("shift", [0, 1, 37, 63])
def test_lease_lookup_is_correct_for_every_run_and_alignment(shift: int) -> None:
    """Messages 20 to 149 with a settled gap. Positions start at another offset in their blocks."""
    leases: LeaseTable[str] = LeaseTable()
    base = 640 + shift
    lease = leases.grant("inky", batch_of(7, 20, 130), np.arange(20, 150) + base, 0.0, None)
    leases.release(lease, BitMap64(range(base + 90, base + 100)))
    for first in range(1, 160, 3):
        for count in range(1, 161 - first, 7):
            wanted = set(range(first, first + count))
            leased = wanted & (set(range(20, 150)) - set(range(90, 100)))
            found, left = leases.find(runs((7, first, count)))
            assert {place - base for _, places in found for place in places} == leased
            assert {s for _, start, n in left.tolist() for s in range(start, start + n)} == wanted - leased


def test_lease_of_the_highest_sequence_is_found_and_released() -> None:
    leases: LeaseTable[str] = LeaseTable()
    top = 2**64 - 2
    lease = leases.grant("inky", batch_of(7, top - 99, 100), np.arange(5, 105), 0.0, None)
    found, left = leases.find(runs((7, top - 200, 201)))
    assert found == [(lease, lease.positions)]
    assert rows_of(left) == [(7, top - 200, 101)]
    leases.release(lease, lease.positions)
    assert is_empty(leases)


@given(st.permutations(range(12)))
def test_lease_lookup_is_correct_for_messages_in_any_order(order: list[int]) -> None:
    """With priorities, positions are not in increasing order."""
    leases: LeaseTable[str] = LeaseTable()
    whole = merge([batch_of(3, 10, 6), batch_of(4, 100, 6)])
    batch = merge([batch_of(whole.publisher(i), whole.sequence(i), 1) for i in order])
    lease = leases.grant("inky", batch, np.array(order) + 60, 0.0, None)
    for message in range(12):
        name = runs((whole.publisher(message), whole.sequence(message), 1))
        assert leases.find(name)[0] == [(lease, at(60 + message))]
    named = runs_in(runs_of(batch.publishers, batch.sequences))
    assert leases.find(named)[0] == [(lease, lease.positions)]


class LeaseTableMachine(RuleBasedStateMachine):
    """Compare the lease table with dictionaries, for messages of two publishers."""

    @initialize(places=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=20, max_size=150))
    def write(self, places: list[tuple[int, int]]) -> None:
        self.leases: LeaseTable[str] = LeaseTable()
        self.name: dict[int, tuple[int, int]] = {}
        self.place: dict[tuple[int, int], int] = {}
        self.owner: dict[int, Lease[str]] = {}
        self.times: dict[Lease[str], tuple[float, float | None]] = {}
        self.now = 0.0
        nexts = [FIRST, FIRST]
        for position, (which, gap) in enumerate(places):
            at_position = 100 + position + (30 if position > 60 else 0)
            key = (PUBLISHERS[which], nexts[which])
            nexts[which] += 1 + (gap == 3)
            self.name[at_position], self.place[key] = key, at_position

    @rule(data=st.data(), holder=st.sampled_from("abc"), deadline=st.none() | st.integers(0, 50))
    def grant(self, data: st.DataObject, holder: str, deadline: int | None) -> None:
        free = sorted(set(self.name) - set(self.owner))
        if not free:
            return
        low = data.draw(st.integers(0, len(free) - 1))
        wanted = free[low : low + data.draw(st.integers(1, 100))]
        if data.draw(st.booleans()):
            wanted = wanted[::-1]
        batches = [batch_of(*self.name[position], 1) for position in wanted]
        self.now += 1
        batch = merge(batches) if len(batches) > 1 else batches[0]
        lease = self.leases.grant(holder, batch, np.array(wanted), self.now, deadline)
        assert lease.holder == holder
        self.owner.update(dict.fromkeys(wanted, lease))
        self.times[lease] = (self.now, deadline)

    @rule(data=st.data(), entire=st.booleans(), to=st.none() | st.integers(0, 50), extend=st.booleans())
    @precondition(lambda self: self.owner)
    def settle(self, data: st.DataObject, entire: bool, to: int | None, extend: bool) -> None:
        lease = self.owner[data.draw(st.sampled_from(sorted(self.owner)))]
        theirs = {position for position, owner in self.owner.items() if owner is lease}
        if not entire:
            low = data.draw(st.sampled_from(sorted(self.name)))
            step = data.draw(st.integers(1, 3))
            theirs &= set(range(low, low + data.draw(st.integers(1, 100)), step))
        beside = data.draw(st.sets(st.sampled_from(sorted(self.name)))) if entire else set()
        beside = {position for position in beside if self.owner.get(position) is not lease}
        if extend:
            other = self.leases.extend(lease, BitMap64(theirs | beside), to)
            if theirs:
                self.times[other] = (self.times[lease][0], to)
            self.owner.update(dict.fromkeys(theirs, other))
        else:
            self.leases.release(lease, BitMap64(theirs | beside))
            for position in theirs:
                del self.owner[position]

    @rule(rows=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 200), st.integers(1, 150)), max_size=3))
    def find(self, rows: list[tuple[int, int, int]]) -> None:
        named = [(PUBLISHERS[which], first, count) for which, first, count in rows]
        found, left = self.leases.find(runs(*named))
        expected: dict[Lease[str], set[int]] = {}
        free: list[tuple[int, int]] = []
        for publisher, first, count in named:
            for key in ((publisher, sequence) for sequence in range(first, first + count)):
                owner = self.owner.get(self.place.get(key, -1))
                if owner is None:
                    free.append(key)
                else:
                    expected.setdefault(owner, set()).add(self.place[key])
        assert {lease: set(positions) for lease, positions in found} == expected
        assert len(found) == len(expected)
        assert [
            (publisher, sequence)
            for publisher, first, count in left.tolist()
            for sequence in range(first, first + count)
        ] == free

    @rule(positions=st.sets(st.integers(90, 300)))
    def by_position(self, positions: set[int]) -> None:
        expected: dict[Lease[str], set[int]] = {}
        for position in positions & set(self.owner):
            expected.setdefault(self.owner[position], set()).add(position)
        found = self.leases.of_positions(BitMap64(positions))
        assert {lease: set(theirs) for lease, theirs in found} == expected
        assert len(found) == len(expected)

    @rule(now=st.integers(0, 50))
    def due(self, now: int) -> None:
        due = self.leases.due(now)
        living = set(self.owner.values())
        ends = {lease: self.times[lease][1] for lease in living}
        assert set(due) == {lease for lease, end in ends.items() if end is not None and end <= now}
        assert [ends[lease] for lease in due] == sorted(ends[lease] or 0 for lease in due)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "owner"):
            return
        leases, living = self.leases, set(self.owner.values())
        assert leases.count == len(self.owner)
        assert len(leases) == len(living)
        for holder in "abc":
            theirs = [lease for lease in self.times if lease in living and lease.holder == holder]
            assert leases.of_holder(holder) == theirs, "oldest first"
        ends = [end for lease in living if (end := self.times[lease][1]) is not None]
        assert leases.next_deadline() == min(ends, default=None)
        assert leases.oldest_granted() == min((self.times[lease][0] for lease in living), default=None)
        pieces = [piece for pieces in leases._blocks.values() for piece in pieces]
        assert sum(piece.bits.bit_count() for piece in pieces) == leases.count
        assert all(piece.bits for piece in pieces)
        for lease in living:
            assert set(lease.positions) == {p for p, owner in self.owner.items() if owner is lease}
        if not living:
            assert is_empty(leases)


TestLeaseTableMachine = LeaseTableMachine.TestCase
TestLeaseTableMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
