"""Maximum delay of conflated messages while the wall clock and the log clock do not advance."""

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
    """Return the bodies of a conflated replay of the same log."""
    later = world.connect("later")
    later.subscribe("s", "t", bookmark="0", options=f"conflation={interval}", credit=1 << 20)
    world.settle()
    world.wake(2.0)
    world.settle()
    return bodies(later)


def test_conflated_messages_are_delivered_after_the_wall_clock_is_set_back() -> None:
    """The log clock pauses for an hour. The monotonic clock limits the delay to twice the interval."""
    world, writer, reader = conflated("1s")
    world.wall -= HOUR
    heard: list[bytes] = []
    for number in range(3):
        writer.publish("t", [b"%d" % number, b"%d newest" % number])
        world.settle()
        world.wake(1.9)
        world.settle()
        assert len(heard) == number, "not before the maximum delay"
        deadline = world.broker.next_deadline()
        assert deadline is not None
        world.wake(deadline - world.mono)
        world.settle()
        heard = bodies(reader)
        assert heard[number:] == [b"%d newest" % number]


def test_conflated_messages_are_delivered_while_the_disk_is_always_behind() -> None:
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


def test_slow_disk_does_not_split_a_conflation_interval() -> None:
    world, writer, reader = conflated("50ms")
    writer.publish("t", [b"first"])
    world.settle()
    world.wake(0.02)
    writer.publish("t", [b"second"])
    for _ in range(15):  # its sync takes longer than twice the interval
        world.wake(0.01)
        while world.broker.has_work:
            world.work()
    deadline = world.broker.next_deadline()
    assert deadline is None or deadline > world.mono, "the engine waits for the disk, not for a deadline"
    world.settle()
    world.wake(1.0)
    world.settle()
    assert bodies(reader) == [b"second"]
    assert replayed(world, "50ms")[-1] == b"second"
    assert b"first" not in replayed(world, "50ms")


def test_blocked_connection_does_not_split_a_conflation_interval() -> None:
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


def test_conflated_message_of_a_blocked_connection_stays_held_and_counted() -> None:
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
    deadline = world.broker.next_deadline()
    assert deadline is not None
    assert deadline <= world.mono, "it is due"
    world.wake()
    world.settle()
    assert bodies(reader) == [b"x" * 10_000]
    assert memory.bytes == 0
