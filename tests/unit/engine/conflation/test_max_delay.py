"""What conflation holds while the wall clock, and with it the clock of the log, does not move on."""

from __future__ import annotations

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld

HOUR = 3_600_000_000


def bodies(peer: Peer) -> list[bytes]:
    return [heard.body for heard in peer.heard["s"]]


def conflated(interval: str) -> tuple[EngineWorld, Peer, Peer]:
    world = EngineWorld(1)
    writer, reader = world.connect("writer"), world.connect("reader")
    writer.publish("t", [b"before"])
    reader.subscribe("s", "t", bookmark="0|1|", options=f"conflation={interval}", credit=1 << 20)
    world.settle()
    return world, writer, reader


def replayed(world: EngineWorld, interval: str) -> list[bytes]:
    """What a replay has of the same."""
    later = world.connect("later")
    later.subscribe("s", "t", bookmark="0", options=f"conflation={interval}", credit=1 << 20)
    world.settle()
    world.wake(2.0)
    world.settle()
    return bodies(later)


def test_a_wall_clock_that_is_put_back_holds_nothing_back() -> None:
    """The clock of the log stands still then, for an hour here; twice the interval by the other clock is
    enough, again and again."""
    world, writer, reader = conflated("1s")
    world.wall -= HOUR
    heard: list[bytes] = []
    for number in range(3):
        writer.publish("t", [b"%d" % number, b"%d newest" % number])
        world.settle()
        world.wake(1.9)
        world.settle()
        assert len(heard) == number, "not before it has to be"
        deadline = world.broker.next_deadline(world.now())
        assert deadline is not None
        world.wake(deadline - world.mono)
        world.settle()
        heard = bodies(reader)
        assert heard[number:] == [b"%d newest" % number]


def test_nor_while_there_is_always_something_that_is_not_on_disk_yet() -> None:
    world, writer, reader = conflated("1s")
    world.wall -= HOUR
    writer.publish("t", [b"first"])
    for number in range(200):
        writer.publish("t", [b"%d" % number])
        world.run_job()  # of the one before
        while world.broker.has_work:
            world.work()
        assert world.broker.journal.commits.persisted_end < world.broker.journal.commits.accepted_end
        world.wake(0.1)
    assert 8 <= len(bodies(reader)) <= 12, "about one in two seconds"


def test_a_slow_disk_takes_nothing_apart_that_belongs_together() -> None:
    world, writer, reader = conflated("50ms")
    writer.publish("t", [b"first"])
    world.settle()
    world.wake(0.02)
    writer.publish("t", [b"second"])
    for _ in range(15):  # its sync takes longer than twice the interval
        world.wake(0.01)
        while world.broker.has_work:
            world.work()
    deadline = world.broker.next_deadline(world.now())
    assert deadline is None or deadline > world.mono, "it is the disk that is waited for, not a moment"
    world.settle()
    world.wake(1.0)
    world.settle()
    assert bodies(reader) == [b"second"]
    assert replayed(world, "50ms")[-1] == b"second"
    assert b"first" not in replayed(world, "50ms")


def test_nor_does_a_connection_that_takes_nothing() -> None:
    world, writer, reader = conflated("50ms")
    writer.publish("t", [b"first"])
    world.settle()
    world.broker.blocked(reader.conn)
    world.wake(0.02)
    writer.publish("t", [b"second"])
    world.settle()
    for _ in range(30):
        world.wake(0.01)
        world.settle()
    world.broker.writable(reader.conn)
    world.collect()
    world.settle()
    world.wake(1.0)
    world.settle()
    assert bodies(reader) == [b"second"]


def test_for_who_takes_nothing_it_stays_held_and_counted() -> None:
    world, writer, reader = conflated("1s")
    writer.publish("t", [b"x" * 10_000])
    world.settle()
    world.wall -= HOUR
    world.broker.blocked(reader.conn)
    memory = world.broker.subscriptions.conflation.budget
    counted = memory.bytes
    assert counted > 10_000
    for _ in range(10):
        world.wake(1.0)
        world.settle()
    assert memory.bytes == counted
    world.broker.writable(reader.conn)
    world.collect()
    world.settle()
    deadline = world.broker.next_deadline(world.now())
    assert deadline is not None
    assert deadline <= world.mono, "it is due"
    world.wake()
    world.settle()
    assert bodies(reader) == [b"x" * 10_000]
    assert memory.bytes == 0
