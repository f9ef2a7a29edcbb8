"""Life queue: ends of lives, bounded steps and memory, replaced records, and jumps of the clock."""

from __future__ import annotations

import numpy as np
import pytest

from tickertape.batch.format import Int64s
from tickertape.engine.limits import sow_expiry_step_max
from tickertape.engine.sow.state.expiry import NEVER, LifeQueue, due_times

SECOND = 1_000_000
START = 1_790_000_000 * SECOND
YEAR = 365 * 86_400 * SECOND


def i8(*numbers: int) -> Int64s:
    return np.array(numbers, np.int64)


class Records:
    """Ends of lives by slot, as record columns hold them, and a queue of them."""

    def __init__(self, count: int) -> None:
        self.ends = np.zeros(count, np.int64)
        self.queue = LifeQueue()

    def set(self, slots: Int64s, ends: Int64s) -> None:
        self.ends[slots] = ends
        self.queue.add(slots, ends)

    def step(self, now: int, limit: int = sow_expiry_step_max) -> list[int]:
        """Expire the records that one step finds."""
        slots = self.queue.due(now, limit)
        assert len(slots) <= limit
        over: list[int] = self.queue.confirm(slots, self.ends[slots], now).tolist()
        self.ends[over] = 0
        return over

    def expire(self, now: int) -> list[int]:
        """Expire all records that are due."""
        found: list[int] = []
        for _ in range(10_000):
            at = self.queue.next_due()
            if at is None or at > now:
                return sorted(found)
            found += self.step(now)
        raise AssertionError("the queue remains due")


# -- ends of lives ------------------------------------------------------------------------------------


def test_life_counts_from_the_order_stamp() -> None:
    stamps = i8(START, START + 1, START + 2, START + 3)
    ends = due_times(stamps, i8(5, 0, NEVER, 2_000), 1_000)
    assert ends.tolist() == [START + 5_000, START + 1 + SECOND, NEVER, START + 3 + 2 * SECOND]
    assert due_times(stamps, i8(5, 0, NEVER, 2_000)).tolist() == [
        START + 5_000, 0, NEVER, START + 3 + 2 * SECOND,
    ]  # fmt: skip
    assert due_times(stamps, None).tolist() == [0] * 4
    assert due_times(stamps, None, 1).tolist() == (stamps + 1_000).tolist()
    assert due_times(stamps, None, NEVER).tolist() == [NEVER] * 4


def test_life_beyond_the_largest_time_ends_before_never() -> None:
    ends = due_times(i8(START, NEVER, 0, -5), i8(NEVER - 1, NEVER - 1, NEVER - 1, 1))
    assert all(0 < end < NEVER for end in ends[[0, 2, 3]].tolist())
    assert (ends[[0, 2]] > NEVER - SECOND).all()
    assert due_times(i8(-(10**9)), i8(1)).tolist() == [1]


# -- due ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("life", [1, SECOND - 1, SECOND, 63 * SECOND, 64 * SECOND + 1, 3_600 * SECOND, YEAR])
def test_record_expires_within_a_second_after_the_end_of_life(life: int) -> None:
    records = Records(4)
    records.set(i8(2), i8(START + life))
    assert records.expire(START + life - 1) == []
    assert records.ends[2]
    assert records.expire(START + life + SECOND - 1) == [2]
    assert records.queue.next_due() is None


@pytest.mark.parametrize("end", [0, NEVER])
def test_record_without_an_end_is_not_queued(end: int) -> None:
    queue = LifeQueue()
    queue.add(i8(1, 2), i8(end, end))
    queue.add_one(3, end)
    assert queue.next_due() is None
    assert queue.due(NEVER).tolist() == []


def test_entry_of_a_replaced_record_expires_nothing() -> None:
    records = Records(8)
    records.set(i8(1, 2, 3, 4), np.full(4, START + SECOND))
    records.set(i8(1), i8(START + 10 * SECOND))  # replaced, with a later end
    records.ends[2] = 0  # deleted
    records.set(i8(3), i8(NEVER))
    assert records.expire(START + 2 * SECOND) == [4]
    assert records.expire(START + 10 * SECOND - 1) == []
    assert records.expire(START + 11 * SECOND) == [1]
    assert records.queue.next_due() is None


def test_earlier_end_of_a_replaced_record_counts() -> None:
    records = Records(8)
    records.set(i8(1), i8(START + YEAR))
    records.set(i8(1), i8(START + SECOND))
    records.queue.add_one(2, START + YEAR)
    records.queue.add_one(2, START + SECOND)
    records.ends[2] = START + SECOND
    assert records.expire(START + 2 * SECOND) == [1, 2]
    assert records.expire(START + 2 * YEAR) == []


def test_entry_of_a_deleted_record_does_not_end_the_next_one() -> None:
    records = Records(8)
    records.set(i8(1), i8(START + 5 * SECOND))
    records.ends[1] = 0
    records.set(i8(1), i8(START + 7 * SECOND))
    assert records.expire(START + 6 * SECOND) == []
    assert records.expire(START + 8 * SECOND) == [1]


def test_slot_is_due_once_until_a_record_is_added() -> None:
    queue = LifeQueue()
    queue.add(i8(5, 5, 5), i8(START, START, START))
    assert queue.due(START).tolist() == [5]
    assert queue.due(START + YEAR).tolist() == []
    queue.add(i8(5), i8(START))  # its expiry was not stored
    assert (queue.next_due() or NEVER) <= START
    assert queue.due(START).tolist() == [5]


def test_last_end_of_a_repeated_slot_counts() -> None:
    records = Records(8)
    records.set(i8(5, 5), i8(START + 50 * SECOND, START + 3 * SECOND))
    records.set(i8(6, 6), i8(START + 3 * SECOND, START + 50 * SECOND))
    assert records.ends[[5, 6]].tolist() == [START + 3 * SECOND, START + 50 * SECOND]
    assert records.expire(START + 4 * SECOND) == [5]
    assert records.expire(START + 51 * SECOND) == [6]


# -- bounds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("life", [0, 30, 3_600, 86_400])
def test_many_records_of_one_end_expire_in_bounded_steps(life: int) -> None:
    count = 3 * sow_expiry_step_max + 5
    records = Records(count)
    end = START + life * SECOND
    assert records.queue.due(START - SECOND).tolist() == []
    records.set(np.arange(count), np.full(count, end))
    steps = []
    while (at := records.queue.next_due()) is not None:
        assert at <= end
        steps.append(records.step(at))
    assert max(map(len, steps)) <= sow_expiry_step_max
    assert sorted(slot for step in steps for slot in step) == list(range(count))
    assert len(steps) <= 4 * 4, "each entry moves at most three times before its end"


@pytest.mark.slow
def test_million_records_of_any_life_cost_columns_and_few_buckets() -> None:
    count = 1_000_000
    rng = np.random.default_rng(1)
    ends = START + (10 ** rng.uniform(6, 15.5, count)).astype(np.int64)
    queue = LifeQueue()
    assert queue.due(START).tolist() == []
    for low in range(0, count, 2_048):
        high = min(low + 2_048, count)
        queue.add(np.arange(low, high), ends[low:high])
    assert len(queue._buckets) < 8 * 66
    assert queue.bytes < 3.2 * 8 * count


def test_record_that_is_set_many_times_has_one_entry() -> None:
    records = Records(8)
    empty = LifeQueue().bytes
    for n in range(10_000):
        records.set(i8(3), i8(START + 3_600 * SECOND + n))
        if n % 3 == 0:
            records.ends[3] = 0  # deleted, and published later
    records.ends[3] = START + 3_600 * SECOND + 9_999
    assert records.queue.bytes - empty <= 8 * 16
    assert records.expire(START + 3_599 * SECOND) == []
    assert records.expire(START + 3_602 * SECOND) == [3]


def test_slots_beyond_the_first_columns_are_added() -> None:
    records = Records(200_000)
    records.queue.add_one(70_000, START)
    records.set(i8(199_999), i8(START))
    records.ends[70_000] = START
    assert records.expire(START) == [70_000, 199_999]


# -- clock --------------------------------------------------------------------------------------------


def test_clock_that_steps_back_delays_and_expires_nothing_early() -> None:
    records = Records(8)
    records.set(i8(1, 2), i8(START + 100 * SECOND, START + 5_000 * SECOND))
    assert records.expire(START + 99 * SECOND) == []
    assert records.expire(START - 50 * SECOND) == []
    records.set(i8(3), i8(START - 20 * SECOND))
    assert records.expire(START - 21 * SECOND) == []
    assert records.expire(START - 20 * SECOND) == [3]
    assert records.expire(START + 100 * SECOND) == [1]
    assert records.expire(START + 5_000 * SECOND) == [2]


def test_record_added_after_a_jump_of_the_clock_expires_in_time() -> None:
    records = Records(8)
    records.set(i8(1), i8(START + YEAR // 2))
    assert records.expire(START + YEAR) == [1]
    records.set(i8(2, 3), i8(START + 60 * SECOND, START + 2 * YEAR))  # the clock is right by now
    records.queue.add_one(4, START + 61 * SECOND)
    records.ends[4] = START + 61 * SECOND
    assert records.expire(START + 59 * SECOND) == []
    assert records.expire(START + 60 * SECOND) == [2]
    assert records.expire(START + 61 * SECOND) == [4]
    assert records.expire(START + 2 * YEAR) == [3]


def test_overdue_records_of_a_start_expire_at_once_in_few_buckets() -> None:
    count = 50_000
    records = Records(count)
    ends = START - np.arange(count) * 1_000 * SECOND
    records.set(np.arange(count), ends)
    assert len(records.queue._buckets) < 8 * 66
    assert records.expire(START) == list(range(count))
