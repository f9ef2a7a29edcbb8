"""One read budget for all readers: never exceeded, and no wait for free or idle memory."""

from __future__ import annotations

from random import Random

import pytest

from tests.helpers.tiers import parts
from tickertape.engine.log_reads.budget import READ_BYTES_LEAST, ReadBudget

KIB = 1024


class Readers:
    """Readers that record grants and losses."""

    def __init__(self, bytes_max: int) -> None:
        self.budget = ReadBudget(bytes_max)
        self.granted: list[str] = []
        self.lost: list[str] = []

    def reserve(self, name: str, size: int) -> bool:
        return self.budget.reserve(name, size, lambda: self.granted.append(name))

    def idle(self, name: str) -> None:
        self.budget.idle(name, lambda: self.lost.append(name))


def test_waiting_reader_is_granted_memory_after_a_release() -> None:
    readers = Readers(100 * KIB)
    assert readers.reserve("a", 60 * KIB)
    assert not readers.reserve("b", 60 * KIB)
    assert not readers.reserve("c", 10 * KIB), "no reader overtakes the queue"
    readers.budget.release("a")
    assert readers.granted == ["b", "c"]
    assert readers.budget.held_bytes == 70 * KIB
    assert readers.reserve("b", 60 * KIB), "already granted"


def test_longest_idle_reader_loses_memory_first() -> None:
    readers = Readers(100 * KIB)
    for name in "abc":
        assert readers.reserve(name, 33 * KIB)
    readers.idle("b")
    readers.idle("a")
    assert not readers.lost
    assert readers.reserve("d", 30 * KIB)
    assert readers.lost == ["b"]
    readers.budget.busy("a")
    assert not readers.reserve("e", 30 * KIB)
    readers.idle("c")
    assert readers.lost == ["b", "c"]
    assert readers.granted == ["e"]


def test_read_larger_than_the_budget_is_granted_alone() -> None:
    readers = Readers(10 * KIB)
    assert readers.reserve("a", KIB)
    assert not readers.reserve("huge", 50 * KIB)
    readers.budget.release("a")
    assert readers.granted == ["huge"]
    assert not readers.reserve("b", KIB)
    readers.budget.forget("huge")
    assert readers.granted == ["huge", "b"]


def test_reader_that_leaves_the_queue_does_not_block_later_readers() -> None:
    readers = Readers(12 * KIB)
    assert readers.reserve("a", 8 * KIB)
    assert not readers.reserve("b", 8 * KIB)
    assert not readers.reserve("c", 1)
    readers.budget.forget("b")
    assert readers.granted == ["c"]


def test_reader_that_requests_more_releases_held_memory_before_waiting() -> None:
    readers = Readers(12 * KIB)
    assert readers.reserve("a", 8 * KIB)
    assert not readers.reserve("b", 12 * KIB)
    assert not readers.reserve("a", 9 * KIB), "b is first"
    assert readers.granted == ["b"]
    readers.budget.release("b")
    assert readers.granted == ["b", "a"]


def test_small_read_counts_with_the_minimum_size() -> None:
    readers = Readers(10 * READ_BYTES_LEAST)
    assert all(readers.reserve(str(number), 1) for number in range(10))
    assert not readers.reserve("more", 1)


@pytest.mark.parametrize("seed", parts(20, 6))
def test_random_reservations_keep_the_budget_limit_and_never_stall(seed: int) -> None:
    rng = Random(seed)
    readers = Readers(100 * KIB)
    names = [str(number) for number in range(30)]
    waiting: set[str] = set()
    active: dict[str, int] = {}
    idle: set[str] = set()
    sizes: dict[str, int] = {}
    for _ in range(3000):
        name = rng.choice(names)
        if name in active and rng.random() < 0.7:
            if rng.random() < 0.4:
                active.pop(name)
                idle.add(name)
                readers.idle(name)
            else:
                active.pop(name)
                readers.budget.release(name)
        elif name in idle:
            idle.discard(name)
            readers.budget.busy(name)
            active[name] = sizes[name]
        elif name in waiting and rng.random() < 0.2:
            waiting.discard(name)
            readers.budget.forget(name)
        elif name not in active and name not in waiting:
            sizes[name] = rng.choice([5, 20, 60]) * KIB
            if readers.reserve(name, sizes[name]):
                active[name] = sizes[name]
            else:
                waiting.add(name)
        for granted in readers.granted:
            waiting.discard(granted)
            active[granted] = sizes[granted]
        for lost in readers.lost:
            idle.discard(lost)
        readers.granted.clear()
        readers.lost.clear()
        held = sum(active.values()) + sum(sizes[one] for one in idle)
        assert readers.budget.held_bytes == held <= 100 * KIB
        assert not (waiting and not active and not idle), "a reader waits although no other holds memory"
        assert not (waiting and idle), "a reader waits for an idle reader"
