"""Budget of large frames: a shared limit, admission in order, and detection of stalls."""

from __future__ import annotations

from random import Random

import pytest

from tests.helpers.tiers import parts
from tickertape.base.limits import frame_bytes_max
from tickertape.server.limits import inbound_bytes_max
from tickertape.server.network.inbound_budget import InboundBudget


def budget_with_one_waiting() -> InboundBudget:
    """Return a full budget: frames 1 and 2 are admitted since 0 and 1, frame 3 waits since 2."""
    inbound = InboundBudget(100, 10, 20)
    assert inbound.came(1, 60, 5, 0)
    assert inbound.came(2, 40, 5, 1)
    assert inbound.bytes == 100
    assert not inbound.came(3, 10, 5, 2)
    return inbound


def test_inbound_admits_frames_that_fit_and_queues_the_rest_in_order() -> None:
    inbound = budget_with_one_waiting()
    assert not inbound.came(4, 90, 5, 3)
    assert not inbound.came(5, 10, 5, 4)
    assert (inbound.bytes, inbound.waiting) == (100, 3)
    assert inbound.ended(2, 5) == [3], "5 fits too, but waits behind 4"
    assert inbound.ended(3, 6) == []
    assert inbound.ended(1, 7) == [4, 5]
    assert (inbound.bytes, inbound.waiting) == (100, 0)


def test_inbound_admits_next_frame_when_a_waiting_connection_closes() -> None:
    inbound = budget_with_one_waiting()
    assert inbound.ended(2, 5) == [3]
    assert not inbound.came(4, 90, 5, 6)
    assert not inbound.came(5, 30, 5, 7)
    assert inbound.ended(4, 8) == [5]
    assert inbound.ended(4, 9) == [], "a connection without a frame changes nothing"


def test_inbound_admits_frame_above_the_limit_alone() -> None:
    inbound = InboundBudget(100, 10, 20)
    assert inbound.came(1, 500, 5, 0)
    assert not inbound.came(2, 500, 5, 0)
    assert not inbound.came(3, 1, 5, 0)
    assert inbound.ended(1, 1) == [2]
    assert inbound.ended(2, 1) == [3]


def test_inbound_has_no_stall_deadline_without_waiting_frames() -> None:
    inbound = InboundBudget(100, 10, 20)
    inbound.came(1, 100, 5, 0)
    assert inbound.deadline() is None
    assert inbound.stalled(1e9) is None


def test_stall_deadline_counts_from_the_first_waiting_frame() -> None:
    inbound = budget_with_one_waiting()
    assert inbound.deadline() == 12
    assert inbound.stalled(11.9) is None
    assert inbound.stalled(12) == 1
    assert inbound.ended(1, 12) == [3]
    assert inbound.stalled(1e9) is None, "2 is stalled as long, but no frame waits"


def test_stall_deadline_of_an_admitted_frame_counts_from_the_admission() -> None:
    inbound = budget_with_one_waiting()
    assert not inbound.came(4, 90, 5, 3)
    assert inbound.ended(2, 9) == [3]
    assert inbound.stalled(12) == 1
    assert inbound.ended(1, 12) == [4]
    assert not inbound.came(5, 90, 5, 12)
    assert (inbound.stalled(21.9), inbound.stalled(22)) == (None, 3)


def test_progress_below_the_minimum_does_not_move_the_stall_deadline() -> None:
    inbound = budget_with_one_waiting()
    assert inbound.came(1, 60, 24, 5)
    assert inbound.stalled(12) == 1, "19 more bytes are too few"
    assert inbound.came(1, 60, 25, 11)
    assert inbound.stalled(12) == 2, "20 more bytes are enough"
    assert inbound.came(2, 40, 25, 12)
    assert inbound.deadline() == 21


def test_inbound_excuse_postpones_the_stall_deadline() -> None:
    inbound = budget_with_one_waiting()
    inbound.excuse(1, 11)
    inbound.excuse(3, 11)
    inbound.excuse(99, 11)
    assert (inbound.deadline(), inbound.stalled(12)) == (12, 2)
    inbound.excuse_all(50)
    assert (inbound.deadline(), inbound.stalled(59)) == (60, None)


def test_default_inbound_limit_holds_at_least_two_frames() -> None:
    inbound = InboundBudget()
    read = sum(inbound.came(conn, frame_bytes_max, 1, 0) for conn in range(1000))
    assert 2 <= read == inbound_bytes_max // frame_bytes_max
    assert inbound.bytes <= inbound_bytes_max


class RandomConnections:
    """Connections that send, stall and vanish at random. Only admitted frames progress."""

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
        """Start a frame."""
        self.sizes[conn], self.received[conn] = self.rng.randrange(2, 60), 1
        if self.inbound.came(conn, self.sizes[conn], 1, self.now):
            assert not self.waiting, "no frame overtakes a waiting one"
            self.read.add(conn)
        else:
            assert self.read, "no frame waits for an empty budget"
            self.waiting.append(conn)
            self.waited += 1

    def advance(self, conn: int, size: int) -> None:
        """Receive more of a frame."""
        self.received[conn] += size
        if self.received[conn] >= self.sizes[conn]:
            self.end(conn)
        else:
            assert self.inbound.came(conn, self.sizes[conn], self.received[conn], self.now)

    def end(self, conn: int) -> None:
        """Complete a frame, or lose its connection."""
        del self.sizes[conn], self.received[conn]
        if conn in self.waiting:
            self.waiting.remove(conn)
        self.read.discard(conn)
        admitted = self.inbound.ended(conn, self.now)
        assert admitted == self.waiting[: len(admitted)], "admitted in the order of arrival"
        del self.waiting[: len(admitted)]
        self.read.update(admitted)

    def end_stalled(self) -> None:
        """End all stalled connections."""
        while (conn := self.inbound.stalled(self.now)) is not None:
            assert conn in self.read, "only admitted frames can stall"
            assert self.waiting, "frames stall only while others wait"
            self.end(conn)
            self.stalled += 1

    def step(self) -> None:
        """Do a random action."""
        self.now += self.rng.choice([0.0, 0.1, 1.0])
        what, conn = self.rng.random(), self.rng.randrange(30)
        if what < 0.4 and conn not in self.sizes:
            self.begin(conn)
        elif what < 0.8 and self.read:
            self.advance(self.rng.choice(sorted(self.read)), self.rng.randrange(1, 20))
        elif what < 0.85 and self.sizes:
            self.end(self.rng.choice(sorted(self.sizes)))
        self.end_stalled()

    def check(self) -> None:
        """Check the limit, that no free budget is wasted, and that a frame can progress."""
        assert self.inbound.waiting == len(self.waiting)
        assert self.inbound.bytes == sum(self.sizes[conn] for conn in self.read)
        assert self.inbound.bytes <= self.bytes_max or len(self.read) == 1
        assert (self.inbound.deadline() is None) is (not self.waiting)
        if self.waiting:
            assert self.read
            assert self.inbound.bytes + self.sizes[self.waiting[0]] > self.bytes_max


@pytest.mark.parametrize("seed", parts(40, 13))
def test_random_arrivals_keep_limit_and_order_and_never_deadlock(seed: int) -> None:
    connections = RandomConnections(seed)
    for _ in range(600):
        connections.step()
        connections.check()
    if connections.bytes_max < 1000:
        assert connections.waited > 10, "this seed has too few waiting frames"
    # All are stalled from now on: time alone admits every waiting frame.
    before, frames = connections.now, len(connections.sizes)
    while connections.waiting:
        deadline = connections.inbound.deadline()
        assert deadline is not None
        connections.now = max(connections.now, deadline)
        stalled = connections.stalled
        connections.end_stalled()
        assert connections.stalled > stalled
        connections.check()
    assert connections.now - before <= 10.0 * frames


def test_random_arrivals_meet_stalls() -> None:
    connections = RandomConnections(0)
    connections.inbound = InboundBudget(50, stall_seconds=2.0, progress_bytes=8)
    connections.bytes_max = 50
    for _ in range(600):
        connections.step()
        connections.check()
    assert connections.stalled > 10
