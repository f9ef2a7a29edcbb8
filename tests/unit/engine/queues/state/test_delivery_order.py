"""Delivery order of queue messages: correct, and with bounded work."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from pyroaring import BitMap64

from tickertape.engine.limits import priorities_max
from tickertape.engine.queues.state.delivery_order import DeliveryOrder
from tickertape.engine.queues.state.messages import QueueMessages
from tickertape.engine.queues.state.records import Outcome, OutcomeKind, Reason, ranges_of


class Counting(QueueMessages):
    """Queue messages that count the calls of `has`."""

    asked = 0

    def has(self, positions: BitMap64) -> BitMap64:
        self.asked += 1
        return super().has(positions)


@pytest.fixture
def state() -> Counting:
    return Counting()


@pytest.fixture
def order(state: Counting) -> DeliveryOrder:
    """One message of each distinct priority, odd priorities only."""
    order = DeliveryOrder(state, prioritised=True)
    enter(order, state, 0, [2 * number + 1 for number in range(priorities_max)])
    return order


def enter(order: DeliveryOrder, state: QueueMessages, first: int, priorities: list[int]) -> None:
    positions = BitMap64(range(first, first + len(priorities)))
    state.enter(positions)
    order.enter(np.arange(first, first + len(priorities), dtype=np.int64), priorities, None)


def test_additional_priorities_do_not_check_all_others_each_time(
    order: DeliveryOrder, state: Counting
) -> None:
    state.asked = 0
    enter(order, state, priorities_max, [2 * number for number in range(100)])
    assert state.asked <= priorities_max, "at most one pass over all priorities"
    assert order.next(1).tolist() == [priorities_max - 1]


def test_settled_messages_free_priority_levels_for_others(order: DeliveryOrder, state: Counting) -> None:
    left = BitMap64(range(priorities_max))
    state.apply(Outcome(OutcomeKind.DONE, ranges_of(left)))
    enter(order, state, priorities_max, [2 * number for number in range(100)])
    assert order.next(1).tolist() == [priorities_max + 99]


def test_priorities_of_settled_messages_are_checked_once(order: DeliveryOrder, state: Counting) -> None:
    left = BitMap64(range(10, priorities_max))
    state.apply(Outcome(OutcomeKind.DONE, ranges_of(left)))
    assert order.next(1).tolist() == [9]
    state.asked = 0
    assert order.next(1).tolist() == [9]
    assert state.asked == 0


def messages(state: QueueMessages, order: DeliveryOrder, priorities: list[int]) -> list[int]:
    """Lease all ready messages and return them in delivery order."""
    taken = []
    while len(found := order.next(3)):
        taken += found.tolist()
        state.lease(BitMap64(found.astype(np.uint64)))
    return taken


def expected(priorities: list[int], among: set[int]) -> list[int]:
    return sorted(among, key=lambda at: (-priorities[at], at))


@pytest.mark.parametrize("levels", [1, 3, 50, 1_000])
def test_order_of_leases_and_returns_matches_sorting(levels: int) -> None:
    random = Random(levels)
    state = QueueMessages(target_depth=700)
    order = DeliveryOrder(state, prioritised=True)
    priorities = [random.randrange(levels) << random.randrange(50) for _ in range(1_000)]
    enter(order, state, 0, priorities)
    ready = set(state.ready)
    assert len(ready) == 700
    assert messages(state, order, priorities) == expected(priorities, ready)
    back = BitMap64(random.sample(sorted(ready), 300))
    state.apply(Outcome(OutcomeKind.RETURNED, ranges_of(back), Reason.CANCELLED))
    assert messages(state, order, priorities) == expected(priorities, set(back))
    state.apply(Outcome(OutcomeKind.DONE, ranges_of(BitMap64(random.sample(sorted(ready), 350)))))
    assert messages(state, order, priorities) == expected(priorities, set(range(700, 1_000)))


def test_order_among_selected_messages_with_mostly_empty_levels_matches_sorting() -> None:
    random = Random(5)
    state = QueueMessages()
    order = DeliveryOrder(state, prioritised=True)
    priorities = [random.randrange(1 << 64) for _ in range(2_000)]
    enter(order, state, 0, priorities)
    for _ in range(20):
        among = BitMap64(random.sample(range(2_000), random.randrange(1, 50)))
        judged = random.randrange(2_000)
        fits = {at for at in among if at < judged}
        assert order.next(40, among, judged).tolist() == expected(priorities, fits)[:40]


@pytest.mark.parametrize("among", [None, BitMap64([0, 1])])
def test_priorities_of_leased_messages_are_checked_once(
    order: DeliveryOrder, state: Counting, among: BitMap64 | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a filter the levels are skipped. With a filter the rest is searched as a whole."""
    state.lease(BitMap64(range(10, priorities_max)))
    looked: list[int] = []
    fitting = DeliveryOrder._fitting

    def counted(*arguments: Any) -> BitMap64:
        looked.append(1)
        return fitting(*arguments)

    monkeypatch.setattr(DeliveryOrder, "_fitting", staticmethod(counted))
    assert order.next(1, among).tolist() == [9 if among is None else 1]
    state.asked = 0
    assert order.next(1, among).tolist() == [9 if among is None else 1]
    assert state.asked == 0
    assert len(looked) <= 100


def test_delivery_order_returns_several_levels_together() -> None:
    state = QueueMessages()
    order = DeliveryOrder(state, prioritised=True)
    enter(order, state, 0, list(range(5_000)))
    assert order.next(4_096).tolist() == list(range(4_999, 903, -1))


def test_snapshot_is_unchanged_after_further_messages_of_the_same_priorities(state: Counting) -> None:
    order = DeliveryOrder(state, prioritised=True)
    enter(order, state, 0, [1, 2, 1])
    _, levels = order.snapshot()
    before = {priority: list(positions) for priority, positions in levels.items()}
    enter(order, state, 3, [2, 2, 1, 3])
    assert {priority: list(positions) for priority, positions in levels.items()} == before


def test_snapshot_of_many_priorities_copies_only_those_that_change(
    order: DeliveryOrder, state: Counting
) -> None:
    _, levels = order.snapshot()
    assert all(order._levels[priority] is positions for priority, positions in levels.items())
    enter(order, state, priorities_max, [1, 1, 3])
    copied = [priority for priority, positions in levels.items() if order._levels[priority] is not positions]
    assert copied == [1, 3]
    now = order._levels[1]
    enter(order, state, priorities_max + 3, [1])
    assert order._levels[1] is now
