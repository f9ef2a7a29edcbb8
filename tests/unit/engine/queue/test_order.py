"""In which order messages are delivered, and what that keeps of those that have left."""

from __future__ import annotations

import numpy as np
from pyroaring import BitMap64

from tickertape.engine.queue.order import Order
from tickertape.engine.queue.state import QueueState


def test_priorities_of_which_nothing_is_left_are_not_looked_at_again() -> None:
    state = QueueState()
    order = Order(state, prioritised=True)
    count = 500
    state.enter(BitMap64(range(count)))
    order.enter(np.arange(count), list(range(count)), None)
    for expected in reversed(range(count)):
        (position,) = order.next(1).tolist()
        assert position == expected
        taken = BitMap64([position])
        state.lease(taken)
        order.delivered(taken)
        state.leased -= taken
        order.left(taken)
    assert order.levels <= 1


def test_a_priority_stays_while_one_of_its_messages_is_leased() -> None:
    state = QueueState()
    order = Order(state, prioritised=True)
    state.enter(BitMap64([1, 2]))
    order.enter(np.array([1, 2]), [9, 1], None)
    state.lease(BitMap64([1]))
    assert order.next(1).tolist() == [2]
    state.give_back(BitMap64([1]))
    assert order.next(1).tolist() == [1]
