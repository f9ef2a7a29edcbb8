"""Non-persistent topics: shared frames, delivery in bounded steps, and bounded backlogs."""

from __future__ import annotations

import pytest

from tests.helpers.engine_parts import make_outbox
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.batch import BatchBuilder, MessageBatch, batch_from_bodies
from tickertape.engine.commands import publish_checks
from tickertape.engine.limits import step_bytes_max, step_delivery_bytes, unrecorded_piece_bytes_max
from tickertape.engine.runtime.effects import Effect, PauseReading, ResumeReading, Send
from tickertape.engine.sessions.read_throttle import ReadThrottle
from tickertape.engine.transient.delivery import TransientDelivery
from tickertape.engine.transient.slow_consumers import SlowConsumerLimits
from tickertape.journal.limits import batch_memory_bytes
from tickertape.wire.commands import Command, Deliver, Flush, Processed, Publish


def _world(slow_clients: SlowConsumerLimits | None = None) -> EngineWorld:
    return EngineWorld(1, recorded=frozenset({"recorded"}), slow_clients=slow_clients)


def _unrecorded(world: EngineWorld) -> TransientDelivery:
    return world.broker.services.transient


def _steps_of(world: EngineWorld, size: int) -> None:
    _unrecorded(world).step_bytes_max = size
    _unrecorded(world).written()


def _publish(world: EngineWorld, peer: Peer, batch: MessageBatch) -> None:
    """Publish and leave the effects in the engine."""
    peer.frames += 1
    parsed = MessageBatch.parse(batch.encode())
    world.broker.received(peer.conn, Publish(frame=peer.frames), parsed, world.now())


def _sends(effects: list[Effect], peer: Peer) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send) and effect.conn == peer.conn]


def _bytes_to(effects: list[Effect], peer: Peer) -> int:
    return sum(len(buffer) for send in _sends(effects, peer) for buffer in send.buffers)


def _count(peer: Peer, kind: type[Command]) -> int:
    return sum(isinstance(command, kind) for command, _ in peer.received)


def _bodies(peer: Peer, sub_id: str = "s") -> list[bytes]:
    return [heard.body for heard in peer.heard[sub_id]]


def _is_slow(peer: Peer) -> bool:
    return peer.goodbye is not None and peer.goodbye.code == "slow_client"


def _subscriber(world: EngineWorld, name: str, topic: str, *, stalled: bool = False) -> Peer:
    peer = world.connect(name)
    peer.subscribe("s", topic, credit=1 << 20)
    if stalled:
        world.broker.blocked(peer.conn)
    return peer


# -- fanning out --------------------------------------------------------------------------------------


def test_all_subscribers_of_a_publish_share_the_same_buffers() -> None:
    world = _world()
    peers = [_subscriber(world, f"s{number}", "u") for number in range(3)]
    publisher = world.connect("p")
    _publish(world, publisher, batch_from_bodies("u", [b""] * 20_000))
    effects = world.broker.effects()
    sent = [[id(b) for send in _sends(effects, peer) for b in send.buffers[1:]] for peer in peers]
    assert len(sent[0]) > 1, "it is cut into pieces"
    assert sent[0] == sent[1] == sent[2]


def test_message_above_the_credit_of_all_is_checksummed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _world()
    for number in range(5):
        world.connect(f"s{number}").subscribe("s", "u", credit=100)
    publisher = world.connect("p")
    summed = []
    whole = MessageBatch.crc

    def crc(batch: MessageBatch) -> int:
        summed.append(batch.nbytes)
        return whole(batch)

    monkeypatch.setattr(MessageBatch, "crc", crc)
    _publish(world, publisher, batch_from_bodies("u", [bytes(100_000)]))
    world.collect()
    world.settle()
    assert [_bodies(peer) for peer in world.peers.values() if "s" in peer.heard] == [[bytes(100_000)]] * 5
    assert len(summed) == 1


def test_sent_message_does_not_keep_the_whole_frame_in_memory() -> None:
    world = _world()
    peer, publisher = _subscriber(world, "s", "small"), world.connect("p")
    builder = BatchBuilder()
    builder.add("small", b"little")
    builder.add("large", bytes(100_000))
    _publish(world, publisher, builder.build())
    (send,) = _sends(world.broker.effects(), peer)
    for buffer in send.buffers:
        memory = memoryview(buffer).obj
        assert isinstance(memory, bytes)
        assert len(memory) < 1_000


def test_step_serves_a_bounded_number_and_processed_follows_the_last_delivery() -> None:
    world = _world()
    peers = [_subscriber(world, f"s{number}", "u") for number in range(50)]
    publisher = world.connect("p")
    _steps_of(world, 20 * step_delivery_bytes)
    publisher.publish("u", [b"x"], sequenced=False)
    served = sum(_count(peer, Deliver) for peer in peers)
    assert 5 <= served <= 20
    assert world.broker.has_work
    assert not _count(publisher, Processed)
    world.work()
    assert served < sum(_count(peer, Deliver) for peer in peers) <= 2 * served
    world.settle()
    assert [_bodies(peer) for peer in peers] == [[b"x"]] * 50
    assert _count(publisher, Processed) == 1


def test_bytes_queued_between_writes_are_bounded_for_many_subscriptions() -> None:
    world = _world()
    peer, publisher = world.connect("s"), world.connect("p")
    for number in range(60):
        peer.subscribe(str(number), "u", credit=1 << 30)
    for _ in range(3):
        _publish(world, publisher, batch_from_bodies("u", [b""] * 20_000))
    queued = _bytes_to(world.broker.effects(), peer)
    assert 0 < queued <= step_bytes_max + 2 * unrecorded_piece_bytes_max
    world.broker.blocked(peer.conn)
    while world.broker.has_work:
        world.broker.work(world.now())
        assert not _bytes_to(world.broker.effects(), peer)
    once = 3 * 2 * (20_000 * 4 + 10 * batch_memory_bytes)
    assert 0 < _unrecorded(world).slow_consumers.held_bytes < once, "a shared backlog is held once"


def test_one_subscription_is_sent_no_more_than_a_step_between_two_writes() -> None:
    world = _world()
    peer, publisher = world.connect("s"), world.connect("p")
    peer.subscribe("s", "u", credit=1 << 30)
    _publish(world, publisher, batch_from_bodies("u", [bytes(10_000)] * 1000))
    rounds = 0
    while queued := _bytes_to(world.broker.effects(), peer):
        assert queued <= step_bytes_max + 2 * unrecorded_piece_bytes_max
        rounds += 1
        world.broker.work(world.now())
    assert rounds >= 8
    assert not world.broker.has_work


def test_backlog_larger_than_a_step_is_sent_in_several_steps() -> None:
    world = _world()
    peer, publisher = world.connect("s"), world.connect("p")
    peer.subscribe("s", "u", credit=1 << 30)
    world.broker.blocked(peer.conn)
    for number in range(4):
        publisher.publish("u", [bytes([number]) * 100_000] * 10, sequenced=False)
    world.broker.writable(peer.conn)
    rounds = 0
    while world.broker.has_work:
        world.work()
        rounds += 1
    assert rounds >= 4
    assert [body[0] for body in _bodies(peer)] == [0] * 10 + [1] * 10 + [2] * 10 + [3] * 10


def test_large_publish_to_a_reading_subscriber_creates_no_backlog() -> None:
    world = _world()
    peer, publisher = world.connect("s"), world.connect("p")
    peer.subscribe("s", "u", credit=1 << 30)
    for number in range(3):
        _publish(world, publisher, batch_from_bodies("u", [bytes([number]) * 500_000] * 12))
        assert not _unrecorded(world).slow_consumers.held_bytes
    world.collect()
    while world.broker.has_work:
        world.work()
        assert not _unrecorded(world).slow_consumers.held_bytes
    assert [body[0] for body in _bodies(peer)] == [0] * 12 + [1] * 12 + [2] * 12


def test_subscriber_that_joins_during_a_delivery_receives_only_later_publishes() -> None:
    world = _world()
    peers = [_subscriber(world, f"s{number}", "u") for number in range(10)]
    publisher = world.connect("p")
    _steps_of(world, 1)
    publisher.publish("u", [b"1"], sequenced=False)
    publisher.publish("u", [b"2"], sequenced=False)
    late = _subscriber(world, "late", "u")
    leaving = peers.pop()
    world.broker.disconnected(leaving.conn)
    publisher.publish("u", [b"3"], sequenced=False)
    world.settle()
    assert [_bodies(peer) for peer in peers] == [[b"1", b"2", b"3"]] * 9
    assert _bodies(late) == [b"3"]
    assert _bodies(leaving) == []


@pytest.mark.parametrize("level", ["processed", "persisted"])
def test_flush_is_answered_after_earlier_publishes_are_delivered(level: str) -> None:
    world = _world()
    peers = [_subscriber(world, f"s{number}", "u") for number in range(10)]
    publisher = world.connect("p")
    _steps_of(world, 1)
    publisher.publish("u", [b"1"], sequenced=False)
    publisher.send(Flush(id=7, level=level))
    assert 7 not in publisher.answers
    world.settle()
    assert 7 in publisher.answers
    assert [_bodies(peer) for peer in peers] == [[b"1"]] * 10


def test_stop_waits_until_published_messages_are_delivered() -> None:
    world = _world()
    peers = [_subscriber(world, f"s{number}", "u") for number in range(10)]
    publisher = world.connect("p")
    _steps_of(world, 1)
    publisher.publish("u", [b"1"], sequenced=False)
    assert all(world.broker.subscriptions.owed(peer.conn) for peer in [publisher, *peers])
    world.settle()
    assert not any(world.broker.subscriptions.owed(peer.conn) for peer in [publisher, *peers])


def test_stop_waits_for_the_backlog_of_a_replaced_subscription() -> None:
    world = _world()
    peer, publisher = _subscriber(world, "s", "u", stalled=True), world.connect("p")
    publisher.publish("u", [b"1"], sequenced=False)
    world.settle()
    assert world.broker.subscriptions.owed(peer.conn)
    peer.subscribe("s", "v", options="replace", credit=1 << 20)
    world.settle()
    assert world.broker.subscriptions.owed(peer.conn)
    world.broker.writable(peer.conn)
    world.settle()
    assert _bodies(peer) == [b"1"]
    assert not world.broker.subscriptions.owed(peer.conn)


# -- publishers faster than the delivery ---------------------------------------------------------------


def test_publisher_faster_than_the_delivery_is_paused_until_delivery_catches_up() -> None:
    world = _world()
    _subscriber(world, "s", "u")
    other, publisher = world.connect("other"), world.connect("p")
    _unrecorded(world).waiting_bytes_max = 10_000
    _steps_of(world, 1)
    for _ in range(10):
        _publish(world, publisher, batch_from_bodies("u", [bytes(2_000)]))
    effects = world.broker.effects()
    assert [e for e in effects if isinstance(e, PauseReading)] == [PauseReading(publisher.conn, "unrecorded")]
    other.publish("recorded", [b"x"])
    assert _unrecorded(world).is_behind
    resumed = []
    while world.broker.has_work:
        world.broker.work(world.now())
        resumed += [e for e in world.broker.effects() if isinstance(e, ResumeReading | PauseReading)]
    assert resumed == [ResumeReading(publisher.conn, "unrecorded")]
    assert not _unrecorded(world).is_behind


def test_waiting_flushes_count_towards_the_pause_limit() -> None:
    world = _world()
    for number in range(3):
        _subscriber(world, f"s{number}", "u")
    publisher = world.connect("p")
    _unrecorded(world).waiting_bytes_max = 10 * batch_memory_bytes
    _steps_of(world, 1)
    _publish(world, publisher, batch_from_bodies("u", [b"x"]))
    for number in range(20):
        world.broker.received(publisher.conn, Flush(id=number + 1, level="processed"), None, world.now())
    assert world.broker.effects().count(PauseReading(publisher.conn, "unrecorded")) == 1


def test_read_throttle_reports_each_pause_reason_once_and_resumes_separately() -> None:
    outbox = make_outbox()
    pauses = ReadThrottle(outbox)
    pauses.pause(1, "journal")
    pauses.pause(1, "unrecorded")
    pauses.pause(2, "journal")
    pauses.pause(3, "journal")
    pauses.forget(3)
    pauses.pause(1, "journal")
    assert outbox.take() == [
        PauseReading(1, "journal"),
        PauseReading(1, "unrecorded"),
        PauseReading(2, "journal"),
        PauseReading(3, "journal"),
    ]
    pauses.resume_all("journal")
    assert outbox.take() == [ResumeReading(1, "journal"), ResumeReading(2, "journal")]
    pauses.resume(2, "unrecorded")
    pauses.resume(1, "unrecorded")
    pauses.resume_all("journal")
    pauses.resume_all("unrecorded")
    assert outbox.take() == [ResumeReading(1, "unrecorded")]
    assert not pauses.reasons


# -- backlogs ----------------------------------------------------------------------------------------


def test_connection_with_the_largest_backlog_is_ended_first() -> None:
    world = _world(SlowConsumerLimits(memory_bytes=100_000, disk_bytes=0))
    little = _subscriber(world, "little", "a", stalled=True)
    most = _subscriber(world, "most", "b", stalled=True)
    reading = _subscriber(world, "reading", "b")
    publisher = world.connect("p")
    for number in range(5):
        publisher.publish("a", [b"%d" % number * 2_000], sequenced=False)
    for number in range(20):
        publisher.publish("b", [b"%d" % number + bytes(8_000)], sequenced=False)
        world.settle()
        assert _unrecorded(world).slow_consumers.held_bytes <= 100_000
    assert _is_slow(most)
    assert little.goodbye is None
    assert len(_bodies(reading)) == 20
    world.broker.writable(little.conn)
    world.settle()
    assert _bodies(little) == [b"%d" % number * 2_000 for number in range(5)]
    assert _unrecorded(world).slow_consumers.held_bytes == 0


def test_connection_above_the_backlog_limit_is_ended_despite_shared_messages() -> None:
    world = _world(SlowConsumerLimits(disk_bytes=0))
    slow = world.connect("slow")
    slow.subscribe("s", "u", credit=32)
    reading = world.connect("reading")
    reading.subscribe("s", "u", credit=1 << 30)
    publisher = world.connect("p")
    batch = batch_from_bodies("u", [bytes(4_000_000)])
    for _ in range(5):
        _publish(world, publisher, batch)
        world.collect()
        while world.broker.has_work:
            world.work()
    assert not _is_slow(slow), "16 MiB may wait, in addition to the first message"
    _publish(world, publisher, batch)
    world.collect()
    world.settle()
    assert _is_slow(slow)
    assert slow.goodbye is not None
    assert "connection_limit (16777216 bytes)" in slow.goodbye.text
    assert len(_bodies(reading)) == 6
    assert _unrecorded(world).slow_consumers.held_bytes == 0


def test_subscription_that_waits_for_credit_leaves_no_engine_work() -> None:
    world = _world()
    peer = world.connect("s")
    peer.subscribe("s", "u", credit=64)
    publisher = world.connect("p")
    publisher.publish("u", [b"1234", b"5678", b"9"], sequenced=False)
    assert _bodies(peer) == [b"1234"]
    assert not world.broker.has_work
    world.settle()  # gives credit back
    assert _bodies(peer) == [b"1234", b"5678", b"9"]


def test_unblocked_connection_serves_subscriptions_in_turn() -> None:
    world = _world()
    peer = world.connect("s")
    for number in range(10):
        peer.subscribe(str(number), "u", credit=1 << 20)
    world.broker.blocked(peer.conn)
    publisher = world.connect("p")
    publisher.publish("u", [b"1"], sequenced=False)
    _steps_of(world, 1)
    for turn in range(10):
        world.broker.writable(peer.conn)
        world.work()
        world.broker.blocked(peer.conn)
        assert _count(peer, Deliver) == turn + 1
        while world.broker.has_work:
            world.work()
    assert all(_bodies(peer, str(number)) == [b"1"] for number in range(10))


# -- names --------------------------------------------------------------------------------------------


def test_remembered_topic_names_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_checks, "known_topics_bytes_max", 20_000)
    world = _world()
    publisher = world.connect("p")
    known = world.broker._publish_handler._checks._good_topics
    most = 0
    for number in range(100):
        publisher.publish(f"{number:04}" + "x" * 900, [b""], sequenced=False)
        most = max(most, len(known))
        assert sum(name.__sizeof__() for name in known) <= 20_000
    assert 10 <= most < 25
    assert publisher.goodbye is None
