"""In which order messages are next: where it must not become slow."""

from __future__ import annotations

import numpy as np
import pytest
from pyroaring import BitMap64

from tickertape.base.queue_limits import priorities_max
from tickertape.engine.queue.order import Order
from tickertape.engine.queue.records import Outcome, What, ranges_of
from tickertape.engine.queue.state import QueueState


class Counting(QueueState):
    """Counts how often it is asked what is in the queue."""

    asked = 0

    def has(self, positions: BitMap64) -> BitMap64:
        self.asked += 1
        return super().has(positions)


@pytest.fixture
def state() -> Counting:
    return Counting()


@pytest.fixture
def order(state: Counting) -> Order:
    """One message of each priority that is told apart, odd priorities only."""
    order = Order(state, prioritised=True)
    enter(order, state, 0, [2 * number + 1 for number in range(priorities_max)])
    return order


def enter(order: Order, state: QueueState, first: int, priorities: list[int]) -> None:
    positions = BitMap64(range(first, first + len(priorities)))
    state.enter(positions)
    order.enter(np.arange(first, first + len(priorities), dtype=np.int64), priorities, None)


def test_further_priorities_do_not_look_at_all_others_each_time(order: Order, state: Counting) -> None:
    state.asked = 0
    enter(order, state, priorities_max, [2 * number for number in range(100)])
    assert state.asked <= priorities_max, "at most once through all of them"
    assert order.next(1).tolist() == [priorities_max - 1]


def test_what_has_left_makes_room_for_other_priorities(order: Order, state: Counting) -> None:
    gone = BitMap64(range(priorities_max))
    state.apply(Outcome(What.DONE, ranges_of(gone)))
    enter(order, state, priorities_max, [2 * number for number in range(100)])
    assert order.next(1).tolist() == [priorities_max + 99]


def test_priorities_whose_messages_have_left_are_not_looked_at_again(order: Order, state: Counting) -> None:
    gone = BitMap64(range(10, priorities_max))
    state.apply(Outcome(What.DONE, ranges_of(gone)))
    assert order.next(1).tolist() == [9]
    state.asked = 0
    assert order.next(1).tolist() == [9]
    assert state.asked == 0
