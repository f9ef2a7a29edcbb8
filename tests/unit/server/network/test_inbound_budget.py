"""Which large frames are read on: bounded together, in order, and never all of them at a stand."""

from __future__ import annotations

from random import Random

import pytest

from tickertape.base.limits import frame_bytes_max
from tickertape.server.limits import inbound_bytes_max
from tickertape.server.network.inbound_budget import InboundBudget


def three_of_which_one_waits() -> InboundBudget:
    """1 and 2 are read on since 0 and 1, and take all there is; 3 waits since 2."""
    inbound = InboundBudget(100, 10, 20)
    assert inbound.came(1, 60, 5, 0)
    assert inbound.came(2, 40, 5, 1)
    assert inbound.bytes == 100
    assert not inbound.came(3, 10, 5, 2)
    return inbound


def test_what_fits_is_read_on_and_the_rest_waits_in_order() -> None:
    inbound = three_of_which_one_waits()
    assert not inbound.came(4, 90, 5, 3)
    assert not inbound.came(5, 10, 5, 4)
    assert (inbound.bytes, inbound.waiting) == (100, 3)
    assert inbound.ended(2, 5) == [3], "5 would fit too, and comes after 4"
    assert inbound.ended(3, 6) == []
    assert inbound.ended(1, 7) == [4, 5]
    assert (inbound.bytes, inbound.waiting) == (100, 0)


def test_who_gives_up_waiting_makes_way() -> None:
    inbound = three_of_which_one_waits()
    assert inbound.ended(2, 5) == [3]
    assert not inbound.came(4, 90, 5, 6)
    assert not inbound.came(5, 30, 5, 7)
    assert inbound.ended(4, 8) == [5]
    assert inbound.ended(4, 9) == [], "who has no frame changes nothing"


def test_a_frame_above_the_bound_is_read_on_alone() -> None:
    inbound = InboundBudget(100, 10, 20)
    assert inbound.came(1, 500, 5, 0)
    assert not inbound.came(2, 500, 5, 0)
    assert not inbound.came(3, 1, 5, 0)
    assert inbound.ended(1, 1) == [2]
    assert inbound.ended(2, 1) == [3]


def test_nobody_stalls_while_nobody_waits() -> None:
    inbound = InboundBudget(100, 10, 20)
    inbound.came(1, 100, 5, 0)
    assert inbound.deadline() is None
    assert inbound.stalled(1e9) is None


def test_who_stands_still_longest_stalls_counted_from_when_somebody_waits() -> None:
    inbound = three_of_which_one_waits()
    assert inbound.deadline() == 12
    assert inbound.stalled(11.9) is None
    assert inbound.stalled(12) == 1
    assert inbound.ended(1, 12) == [3]
    assert inbound.stalled(1e9) is None, "2 stood still as long, but nobody waits any more"


def test_the_time_of_an_admitted_frame_begins_with_its_admission() -> None:
    inbound = three_of_which_one_waits()
    assert not inbound.came(4, 90, 5, 3)
    assert inbound.ended(2, 9) == [3]
    assert inbound.stalled(12) == 1
    assert inbound.ended(1, 12) == [4]
    assert not inbound.came(5, 90, 5, 12)
    assert (inbound.stalled(21.9), inbound.stalled(22)) == (None, 3)


def test_only_enough_of_a_frame_is_progress() -> None:
    inbound = three_of_which_one_waits()
    assert inbound.came(1, 60, 24, 5)
    assert inbound.stalled(12) == 1, "19 more of its bytes are too few"
    assert inbound.came(1, 60, 25, 11)
    assert inbound.stalled(12) == 2, "and 20 are enough"
    assert inbound.came(2, 40, 25, 12)
    assert inbound.deadline() == 21


def test_what_the_server_itself_held_up_is_excused() -> None:
    inbound = three_of_which_one_waits()
    inbound.excuse(1, 11)
    inbound.excuse(3, 11)
    inbound.excuse(99, 11)
    assert (inbound.deadline(), inbound.stalled(12)) == (12, 2)
    inbound.excuse_all(50)
    assert (inbound.deadline(), inbound.stalled(59)) == (60, None)


def test_the_bound_of_the_product_holds_more_than_one_frame() -> None:
    inbound = InboundBudget()
    read = sum(inbound.came(conn, frame_bytes_max, 1, 0) for conn in range(1000))
    assert 2 <= read == inbound_bytes_max // frame_bytes_max
    assert inbound.bytes <= inbound_bytes_max


class Crowd:
    """Connections that send, stand still and vanish at random; who is not read from does not come on."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.bytes_max = self.rng.choice([50, 200, 1000])
        self.inbound = InboundBudget(self.bytes_max, stall_seconds=10.0, progress_bytes=8)
        self.now = 0.0
        self.sizes: dict[int, int] = {}
        self.received: dict[int, int] = {}
        self.read: set[int] = set()
        self.waiting: list[int] = []
        self.waited = 0
        self.stalled = 0

    def begin(self, conn: int) -> None:
        """A frame begins."""
        self.sizes[conn], self.received[conn] = self.rng.randrange(2, 60), 1
        if self.inbound.came(conn, self.sizes[conn], 1, self.now):
            assert not self.waiting, "nobody overtakes"
            self.read.add(conn)
        else:
            assert self.read, "nobody waits for nothing"
            self.waiting.append(conn)
            self.waited += 1

    def come(self, conn: int, size: int) -> None:
        """More of a frame comes."""
        self.received[conn] += size
        if self.received[conn] >= self.sizes[conn]:
            self.end(conn)
        else:
            assert self.inbound.came(conn, self.sizes[conn], self.received[conn], self.now)

    def end(self, conn: int) -> None:
        """A frame is complete, or its connection is gone."""
        del self.sizes[conn], self.received[conn]
        if conn in self.waiting:
            self.waiting.remove(conn)
        self.read.discard(conn)
        admitted = self.inbound.ended(conn, self.now)
        assert admitted == self.waiting[: len(admitted)], "in the order in which they began"
        del self.waiting[: len(admitted)]
        self.read.update(admitted)

    def judge(self) -> None:
        """Whoever has stalled is ended."""
        while (conn := self.inbound.stalled(self.now)) is not None:
            assert conn in self.read, "only who is read from can stall"
            assert self.waiting, "and only while others wait"
            self.end(conn)
            self.stalled += 1

    def step(self) -> None:
        """Something happens."""
        self.now += self.rng.choice([0.0, 0.1, 1.0])
        what, conn = self.rng.random(), self.rng.randrange(30)
        if what < 0.4 and conn not in self.sizes:
            self.begin(conn)
        elif what < 0.8 and self.read:
            self.come(self.rng.choice(sorted(self.read)), self.rng.randrange(1, 20))
        elif what < 0.85 and self.sizes:
            self.end(self.rng.choice(sorted(self.sizes)))
        self.judge()

    def check(self) -> None:
        """The bound holds, no room is wasted, and somebody can go on."""
        assert self.inbound.waiting == len(self.waiting)
        assert self.inbound.bytes == sum(self.sizes[conn] for conn in self.read)
        assert self.inbound.bytes <= self.bytes_max or len(self.read) == 1
        assert (self.inbound.deadline() is None) is (not self.waiting)
        if self.waiting:
            assert self.read
            assert self.inbound.bytes + self.sizes[self.waiting[0]] > self.bytes_max


@pytest.mark.parametrize("seed", range(40))
def test_random_arrivals_keep_the_bound_and_the_order_and_always_go_on(seed: int) -> None:
    crowd = Crowd(seed)
    for _ in range(600):
        crowd.step()
        crowd.check()
    if crowd.bytes_max < 1000:
        assert crowd.waited > 10, "this seed shows nothing"
    # All stand still from now on: time alone gives everybody a turn.
    before, frames = crowd.now, len(crowd.sizes)
    while crowd.waiting:
        deadline = crowd.inbound.deadline()
        assert deadline is not None
        crowd.now = max(crowd.now, deadline)
        stalled = crowd.stalled
        crowd.judge()
        assert crowd.stalled > stalled
        crowd.check()
    assert crowd.now - before <= 10.0 * frames


def test_random_arrivals_meet_stalls() -> None:
    crowd = Crowd(0)
    crowd.inbound = InboundBudget(50, stall_seconds=2.0, progress_bytes=8)
    crowd.bytes_max = 50
    for _ in range(600):
        crowd.step()
        crowd.check()
    assert crowd.stalled > 10
