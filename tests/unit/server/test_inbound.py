"""Which large frames are read on: bounded together, in order, and never all of them at a stand."""

from __future__ import annotations

from random import Random

import pytest

from tickertape.base.limits import frame_bytes_max, inbound_bytes_max
from tickertape.server.inbound import Inbound


def three_of_which_one_waits() -> Inbound:
    """1 and 2 are read on since 0 and 1, and take all there is; 3 waits since 2."""
    inbound = Inbound(100, 10, 20)
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
    inbound = Inbound(100, 10, 20)
    assert inbound.came(1, 500, 5, 0)
    assert not inbound.came(2, 500, 5, 0)
    assert not inbound.came(3, 1, 5, 0)
    assert inbound.ended(1, 1) == [2]
    assert inbound.ended(2, 1) == [3]


def test_nobody_stalls_while_nobody_waits() -> None:
    inbound = Inbound(100, 10, 20)
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
    inbound = Inbound()
    read = sum(inbound.came(conn, frame_bytes_max, 1, 0) for conn in range(1000))
    assert 2 <= read == inbound_bytes_max // frame_bytes_max
    assert inbound.bytes <= inbound_bytes_max


@pytest.mark.parametrize("seed", range(40))
def test_random_arrivals_keep_the_bound_the_order_and_always_go_on(seed: int) -> None:
    """Connections send, stand still and vanish at random; what is not read from does not come on."""
    rng = Random(seed)
    stall, progress, bytes_max = 10.0, 8, rng.choice([50, 200, 1000])
    inbound = Inbound(bytes_max, stall, progress)
    now = 0.0
    sizes: dict[int, int] = {}
    received: dict[int, int] = {}
    read: set[int] = set()
    waiting: list[int] = []

    def admit(conns: list[int]) -> None:
        assert conns == waiting[: len(conns)], "in the order in which they began"
        del waiting[: len(conns)]
        read.update(conns)

    def end(conn: int) -> None:
        del sizes[conn], received[conn]
        if conn in waiting:
            waiting.remove(conn)
        read.discard(conn)
        admit(inbound.ended(conn, now))

    def come(conn: int, size: int) -> None:
        received[conn] += size
        if received[conn] >= sizes[conn]:
            end(conn)
        else:
            assert inbound.came(conn, sizes[conn], received[conn], now)

    for _ in range(600):
        now += rng.choice([0.0, 0.1, 3.0])
        what = rng.random()
        if what < 0.4:
            conn = rng.randrange(30)
            if conn not in sizes:
                sizes[conn], received[conn] = rng.randrange(2, 60), 1
                may = inbound.came(conn, sizes[conn], 1, now)
                assert may or waiting or read, "nobody waits for nothing"
                if may:
                    assert not waiting, "nobody overtakes"
                    read.add(conn)
                else:
                    waiting.append(conn)
        elif what < 0.8 and read:
            come(rng.choice(sorted(read)), rng.randrange(1, 20))
        elif what < 0.9 and sizes:
            end(rng.choice(sorted(sizes)))
        while (stalled := inbound.stalled(now)) is not None:
            assert stalled in read, "only who is read from can stall"
            assert waiting, "and only while others wait"
            end(stalled)
        assert inbound.waiting == len(waiting)
        assert inbound.bytes == sum(sizes[conn] for conn in read)
        assert inbound.bytes <= bytes_max or len(read) == 1
        assert not waiting or read
        assert not waiting or inbound.bytes + sizes[waiting[0]] > bytes_max
        assert (inbound.deadline() is None) is (not waiting)

    before = now
    count = len(sizes)
    while waiting:  # all stand still from now on: time alone lets everybody have a turn
        deadline = inbound.deadline()
        assert deadline is not None
        now = max(now, deadline)
        stalled = inbound.stalled(now)
        assert stalled is not None
        end(stalled)
    assert now - before <= stall * (count + 1)
