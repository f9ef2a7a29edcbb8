"""Slow consumers of non-persistent topics: shared backlogs on disk, read back in order."""

from __future__ import annotations

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.engine.limits import block_bytes_max, spill_read_bytes_max, spill_write_bytes_max
from tickertape.engine.runtime.effects import OfflineStart, OfflineStop, SpillRead, SpillWrite
from tickertape.engine.transient.slow_consumers import SlowConsumerBuffers, SlowConsumerLimits
from tickertape.journal.limits import batch_memory_bytes
from tickertape.wire.commands import Goodbye

SMALL = SlowConsumerLimits(memory_bytes=2_000_000, connection_bytes=500_000)


def _world(slow_clients: SlowConsumerLimits = SMALL) -> EngineWorld:
    return EngineWorld(1, recorded=frozenset(), slow_clients=slow_clients)


def _backlogs(world: EngineWorld) -> SlowConsumerBuffers:
    return world.broker.services.transient.slow_consumers


def _subscriber(world: EngineWorld, name: str, topic: str = "u", *, stalled: bool = False) -> Peer:
    peer = world.connect(name)
    peer.subscribe("s", topic, credit=1 << 30)
    if stalled:
        world.broker.blocked(peer.conn)
    return peer


def _bodies(peer: Peer) -> list[bytes]:
    return [heard.body for heard in peer.heard["s"]]


def _wake(world: EngineWorld, peer: Peer) -> None:
    world.broker.writable(peer.conn)
    world.collect()


def _body(number: int, size: int) -> bytes:
    return b"%08d" % number + bytes(size - 8)


def test_backlog_of_a_stalled_subscriber_spills_to_disk_and_is_delivered_in_order() -> None:
    world = _world()
    slow, live = _subscriber(world, "slow", stalled=True), _subscriber(world, "live")
    publisher = world.connect("p")
    bodies = [_body(number, 10_000) for number in range(500)]
    for body in bodies:
        publisher.publish("u", [body], sequenced=False)
        while world.spilled.jobs:
            world.run_spill()
        assert _backlogs(world).held_bytes <= SMALL.memory_bytes
    assert _bodies(live) == bodies, "at once"
    assert world.spilled.bytes == _backlogs(world).spill.disk_bytes > 4_000_000
    assert world.offline == [OfflineStart(slow.conn, world.offline[0].bytes)]  # type: ignore[union-attr]
    publisher.publish("u", [b"newest"], sequenced=False)
    _wake(world, slow)
    world.settle()
    assert _bodies(slow) == [*bodies, b"newest"]
    assert isinstance(world.offline[1], OfflineStop)
    assert _backlogs(world).held_bytes == _backlogs(world).spill.disk_bytes == 0
    assert not world.spilled.files


def test_shared_backlog_is_written_once_and_read_once_for_all_subscribers() -> None:
    world = _world()
    slow = [_subscriber(world, f"slow-{number}", stalled=True) for number in range(12)]
    publisher = world.connect("p")
    for number in range(300):
        publisher.publish("u", [_body(number, 10_000)], sequenced=False)
        while world.spilled.jobs:
            world.run_spill()
    spill = _backlogs(world).spill
    assert spill.written_bytes < 300 * 11_000
    for peer in slow:
        _wake(world, peer)
    world.settle()
    assert all(_bodies(peer) == [_body(number, 10_000) for number in range(300)] for peer in slow)
    assert 0 < spill.read_bytes <= 3 * spill.written_bytes, "separate reads would be twelve times"


def test_backlog_of_small_publishes_has_little_overhead_for_many_subscribers() -> None:
    world = _world(SlowConsumerLimits(disk_bytes=0))
    slow = [_subscriber(world, f"slow-{number}", stalled=True) for number in range(30)]
    publisher = world.connect("p")
    for number in range(1_000):
        publisher.publish("u", [_body(number, 100)], sequenced=False)
    assert _backlogs(world).held_bytes < 1_000 * 200 + 256 * (batch_memory_bytes + 200)
    _wake(world, slow[7])
    world.settle()
    assert _bodies(slow[7]) == [_body(number, 100) for number in range(1_000)]


def test_largest_backlog_spills_first_and_small_backlogs_stay_in_memory() -> None:
    world = _world(SlowConsumerLimits(memory_bytes=1_000_000))
    little = _subscriber(world, "little", "little", stalled=True)
    most = _subscriber(world, "most", "most", stalled=True)
    publisher = world.connect("p")
    for number in range(20):
        publisher.publish("little", [_body(number, 2_000)], sequenced=False)
    for number in range(100):
        publisher.publish("most", [_body(number, 10_000)], sequenced=False)
        while world.spilled.jobs:
            world.run_spill()
    assert [effect.conn for effect in world.offline] == [most.conn]
    written = _backlogs(world).spill.written_bytes
    _wake(world, little)
    while world.broker.has_work:
        world.work()
    assert _bodies(little) == [_body(number, 2_000) for number in range(20)], "nothing had to be read"
    assert _backlogs(world).spill.written_bytes == written


def test_full_spill_disk_ends_the_slowest_subscriber_only() -> None:
    world = _world()
    first = _subscriber(world, "first", stalled=True)
    publisher = world.connect("p")
    for number in range(40):
        publisher.publish("u", [_body(number, 10_000)], sequenced=False)
    second = _subscriber(world, "second", stalled=True)
    world.spilled.fails = lambda job: OSError(28, "no space left") if isinstance(job, SpillWrite) else None
    for number in range(40, 60):
        publisher.publish("u", [_body(number, 10_000)], sequenced=False)
    world.settle()
    assert first.goodbye is not None
    assert first.goodbye.code == "slow_client"
    assert "cannot be written to disk: [Errno 28] no space left" in first.goodbye.text
    assert second.goodbye is None
    _wake(world, second)
    world.settle()
    assert _bodies(second) == [_body(number, 10_000) for number in range(40, 60)]
    assert _backlogs(world).spill.disk_bytes == 0


def test_damaged_spilled_backlog_ends_the_subscriber_with_an_error() -> None:
    world = _world()
    slow, live = _subscriber(world, "slow", stalled=True), _subscriber(world, "live")
    publisher = world.connect("p")
    for number in range(400):
        publisher.publish("u", [_body(number, 10_000)], sequenced=False)
        while world.spilled.jobs:
            world.run_spill()
    world.spilled.damages = lambda data: data[:5_000] + bytes([data[5_000] ^ 1]) + data[5_001:]
    _wake(world, slow)
    world.settle()
    assert slow.goodbye is not None
    assert (slow.goodbye.code, slow.goodbye.text.rpartition(": ")[2]) == (
        "slow_client",
        "its spilled backlog does not match its checksum. Check the disk of the server.",
    )
    assert not _bodies(slow), "nothing of a damaged block is sent"
    assert live.goodbye is None
    assert not world.spilled.files


def test_slow_spill_disk_ends_the_slowest_subscriber_at_the_memory_limit() -> None:
    world = _world()
    slow, live = _subscriber(world, "slow", stalled=True), _subscriber(world, "live")
    publisher = world.connect("p")
    for number in range(400):  # and no write is ever answered
        publisher.publish("u", [_body(number, 10_000)], sequenced=False)
        assert _backlogs(world).held_bytes <= SMALL.memory_bytes
    assert slow.goodbye is not None
    assert "memory_limit (2000000 bytes)" in slow.goodbye.text
    assert len(_bodies(live)) == 400
    assert sum(len(b"".join(job.buffers)) for job in world.spilled.jobs if isinstance(job, SpillWrite)) <= (
        spill_write_bytes_max + block_bytes_max
    )
    world.settle()
    assert not world.spilled.files


def test_spill_reads_are_bounded_for_many_resumed_subscribers() -> None:
    world = _world(SlowConsumerLimits(memory_bytes=3_000_000, connection_bytes=100_000))
    slow = [_subscriber(world, f"slow-{number}", f"u{number}", stalled=True) for number in range(60)]
    publisher = world.connect("p")
    for _ in range(2):
        for number in range(60):
            publisher.publish(f"u{number}", [bytes(250_000)], sequenced=False)
            while world.spilled.jobs:
                world.run_spill()
    for peer in slow:
        _wake(world, peer)
    while world.broker.has_work:
        world.work()
    reads = [job for job in world.spilled.jobs if isinstance(job, SpillRead)]
    assert 1 < len(reads) < 60
    assert sum(job.size for job in reads) <= spill_read_bytes_max
    world.settle()
    assert all(_bodies(peer) == [bytes(250_000)] * 2 for peer in slow)


def test_subscriber_behind_the_age_limit_is_ended_by_the_clock() -> None:
    world = _world(SlowConsumerLimits(age_seconds=30.0))
    slow, live = _subscriber(world, "slow", stalled=True), _subscriber(world, "live")
    publisher = world.connect("p")
    publisher.publish("u", [b"1"], sequenced=False)
    assert world.broker.next_deadline() is not None
    world.wake(29.0)
    publisher.publish("u", [b"2"], sequenced=False)
    assert slow.goodbye is None
    world.wake(2.0)
    goodbye: Goodbye | None = world.peers[slow.conn].goodbye
    assert goodbye is not None
    assert "30 seconds, the age_limit" in goodbye.text
    assert live.goodbye is None


def test_subscriber_that_keeps_reading_is_not_ended_by_age() -> None:
    world = _world(SlowConsumerLimits(age_seconds=10.0))
    peer = world.connect("s")
    peer.subscribe("s", "u", credit=40)
    publisher = world.connect("p")
    publisher.publish("u", [b"first", b"second"], sequenced=False)
    for _ in range(50):
        publisher.publish("u", [b"more"], sequenced=False)
        peer.give_credit("s")
        world.wake(1.0)
        assert _backlogs(world).held_bytes, "it is always behind"
    assert peer.goodbye is None


@pytest.mark.parametrize("size", [100, 300_000, 5_000_000])
def test_spilled_messages_of_any_size_are_read_back(size: int) -> None:
    world = _world(SlowConsumerLimits(memory_bytes=12_000_000, connection_bytes=0))
    slow = _subscriber(world, "slow", stalled=True)
    publisher = world.connect("p")
    bodies = [_body(number, size) for number in range(8)]
    for body in bodies:
        publisher.publish("u", [body], sequenced=False)
        while world.spilled.jobs:
            world.run_spill()
    _wake(world, slow)
    world.settle()
    assert _bodies(slow) == bodies


def test_publish_in_delivery_is_sent_once_and_in_order_to_an_unblocked_subscriber() -> None:
    world = _world(SlowConsumerLimits())
    _subscriber(world, "first", stalled=True)
    second = _subscriber(world, "second", stalled=True)
    publisher = world.connect("p")
    publisher.publish("u", [b"0"], sequenced=False)
    world.broker.writable(second.conn)
    # Its first piece shares a block with the waiting messages, and the next one closes that block.
    bodies = [_body(number, 80_000) for number in range(1, 7)]
    publisher.publish("u", bodies, sequenced=False)
    world.settle()
    assert _bodies(second) == [b"0", *bodies]


def test_failed_spill_write_is_retried_for_other_subscribers() -> None:
    world = _world(SlowConsumerLimits(connection_bytes=10_000))
    peers = [_subscriber(world, f"slow-{number}", stalled=True) for number in range(2)]
    publisher = world.connect("p")
    failures = [OSError(5, "once")]
    world.spilled.fails = lambda _: failures.pop() if failures else None
    for number in range(60):
        publisher.publish("u", [_body(number, 10_000)], sequenced=False)
    world.settle()
    assert [peer.goodbye is None for peer in peers] == [True, False]
    backlogs = _backlogs(world)
    assert not backlogs.spill.writing_bytes
    assert backlogs.dirty_bytes < block_bytes_max, "only the block that still grows"
    _wake(world, peers[0])
    world.settle()
    assert _bodies(peers[0]) == [_body(number, 10_000) for number in range(60)]


def test_read_back_blocks_are_released_for_a_blocked_connection() -> None:
    world = _world()
    slow = _subscriber(world, "slow", stalled=True)
    publisher = world.connect("p")
    for number in range(400):
        publisher.publish("u", [_body(number, 10_000)], sequenced=False)
        while world.spilled.jobs:
            world.run_spill()
    _wake(world, slow)
    while not world.spilled.jobs:
        world.work()
    world.run_spill()
    assert _backlogs(world).pinned_bytes
    world.broker.blocked(slow.conn)
    while world.broker.has_work:
        world.work()
    assert not _backlogs(world).pinned_bytes
    _wake(world, slow)
    world.settle()
    assert _bodies(slow) == [_body(number, 10_000) for number in range(400)]
