"""Pause and resume: positions are kept, and replays resumed together keep log order."""

from __future__ import annotations

import pytest

from tests.simulation.engine_peer import Heard, Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.base.limits import combined_subscriptions_max
from tickertape.batch import MessageBatch
from tickertape.batch.format import Int64s
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.wire.commands import Ack


def _world(messages: int = 60, topics: int = 3) -> tuple[EngineWorld, Peer, Peer]:
    """A log of `topics` topics in turn, and a peer that reads it."""
    world = EngineWorld(11)
    publisher = world.connect("publisher")
    for number in range(messages):
        publisher.publish(f"t{number % topics}", [b"%d" % number])
        if number % 7 == 0:
            world.settle()
    world.settle()
    return world, publisher, world.connect("reader")


def _bodies(heard: list[Heard]) -> list[int]:
    return [int(message.body) for message in heard]


def _answer(peer: Peer, command: int) -> Ack:
    answer = peer.answers[command]
    assert isinstance(answer, Ack)
    return answer


def test_paused_subscription_receives_nothing_until_resume() -> None:
    world, publisher, peer = _world()
    command = peer.subscribe("s", "t1", bookmark="0", options="pause")
    world.settle()
    assert _answer(peer, command).code == ""
    assert peer.heard["s"] == []
    assert peer.marks["s"] == []
    publisher.publish("t1", [b"1000"])
    peer.resume("s")
    world.settle()
    assert _bodies(peer.heard["s"]) == [*range(1, 60, 3), 1000]
    assert peer.marks["s"] == ["completed after 20"], "it has caught up with the log as of the subscribe"


def test_pause_at_the_end_of_the_log_keeps_the_position() -> None:
    world, publisher, peer = _world()
    peer.subscribe("s", "t1", bookmark="0|1|")
    world.settle()
    peer.pause("s")
    publisher.publish("t1", [b"1", b"2"])
    world.settle()
    assert peer.heard["s"] == []
    peer.resume("s")
    world.settle()
    publisher.publish("t1", [b"3"])
    world.settle()
    assert _bodies(peer.heard["s"]) == [1, 2, 3]


@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_pause_during_a_replay_skips_and_duplicates_nothing(steps: int) -> None:
    world, _, peer = _world(300)
    world.small_tail()
    world.small_bounds()
    peer.subscribe("s", "t1", bookmark="0", credit=400)
    for _ in range(steps):
        world.step()
    peer.pause("s")
    before = len(peer.heard["s"])
    peer.give_credit("s")
    world.settle()
    assert len(peer.heard["s"]) == before
    peer.resume("s")
    world.settle()
    assert _bodies(peer.heard["s"]) == list(range(1, 300, 3))


@pytest.mark.behaviour(16)
def test_replays_resumed_together_keep_the_common_order_of_the_log() -> None:
    world, _, peer = _world(300)
    world.broker.journal.view.tail_bytes_max = 1
    ids = ["a", "b", "c"]
    for number, sub_id in enumerate(ids):
        peer.subscribe(sub_id, f"t{number}", bookmark="0", options="pause", credit=600)
    peer.subscribe("both", "^t[01]$", bookmark="0", options="pause", credit=900)
    world.settle()
    peer.resume(*ids, "both")
    world.settle()
    by_sequence = [sequence for _, _, sequence in peer.order]
    assert by_sequence == sorted(by_sequence), "log order holds across them"
    assert world.counts["frames for several"]
    for number, sub_id in enumerate(ids):
        assert _bodies(peer.heard[sub_id]) == list(range(number, 300, 3))
    assert _bodies(peer.heard["both"]) == [n for n in range(300) if n % 3 < 2]


@pytest.mark.behaviour(16)
def test_only_replays_at_equal_position_and_rate_are_combined() -> None:
    world, publisher, peer = _world()
    other = world.connect("other")
    peer.subscribe("first", "t0", bookmark="0", options="pause")
    peer.subscribe("rated", "t1", bookmark="0", options="pause,rate=100000")
    peer.subscribe("now", "t2", bookmark="0|1|", options="pause")
    other.subscribe("elsewhere", "t0", bookmark="0", options="pause")
    world.settle()
    peer.resume("first", "rated", "now")
    other.resume("elsewhere")
    publisher.publish("t2", [b"1000"])
    world.settle()
    for _ in range(1000):
        world.wake(0.001)
        world.settle()
    assert not world.counts["frames for several"]
    assert _bodies(peer.heard["first"]) == _bodies(other.heard["elsewhere"]) == list(range(0, 60, 3))
    assert _bodies(peer.heard["rated"]) == list(range(1, 60, 3))
    assert _bodies(peer.heard["now"]) == [1000]


@pytest.mark.behaviour(16)
@pytest.mark.parametrize("commands", [1, 2])
def test_only_replays_of_one_resume_command_are_combined(commands: int) -> None:
    world, _, peer = _world(300)
    world.broker.journal.view.tail_bytes_max = 1
    ids = ("a", "b")
    for number, sub_id in enumerate(ids):
        peer.subscribe(sub_id, f"t{number}", bookmark="0", options="pause", credit=1 << 20)
    world.settle()
    if commands == 1:
        peer.resume(*ids)
    else:
        for sub_id in ids:
            peer.resume(sub_id)
    world.settle()
    for number, sub_id in enumerate(ids):
        assert _bodies(peer.heard[sub_id]) == list(range(number, 300, 3))
    by_sequence = [sequence for _, _, sequence in peer.order]
    combined = commands == 1
    assert bool(world.counts["frames for several"]) is combined
    assert (by_sequence == sorted(by_sequence)) is combined


@pytest.mark.behaviour(16)
def test_replays_above_the_frame_limit_are_combined_in_several_groups() -> None:
    world = EngineWorld(12)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    count = combined_subscriptions_max + 20
    for number in reversed(range(count)):
        publisher.publish(f"t{number}", [b"%d" % number])
    world.settle()
    ids = [f"s{number}" for number in range(count)]
    for number, sub_id in enumerate(ids):
        peer.subscribe(sub_id, f"t{number}", bookmark="0", options="pause")
    world.broker.journal.view.tail_bytes_max = 1
    world.settle()
    peer.resume(*ids)
    world.settle()
    assert all(len(peer.heard[sub_id]) == 1 for sub_id in ids)
    for group in (ids[:combined_subscriptions_max], ids[combined_subscriptions_max:]):
        by_sequence = [sequence for sub_id, _, sequence in peer.order if sub_id in set(group)]
        assert by_sequence == sorted(by_sequence)


def test_replays_at_one_rate_are_combined_and_keep_the_rate() -> None:
    world, _, peer = _world(400, topics=2)
    for number in range(2):
        peer.subscribe(f"s{number}", f"t{number}", bookmark="0", options="pause,rate=100", credit=1 << 20)
    world.settle()
    begin = world.mono
    peer.resume("s0", "s1")
    while world.mono < begin + 1:
        world.settle()
        world.wake(0.002)
    world.settle()
    counts = [len(peer.heard[f"s{number}"]) for number in range(2)]
    assert 95 <= counts[0] <= 105
    assert abs(counts[0] - counts[1]) <= 1
    assert peer.order == sorted(peer.order, key=lambda one: one[2])


@pytest.mark.behaviour(17)
def test_an_unknown_id_is_refused_and_the_others_are_not_touched() -> None:
    world, _, peer = _world()
    peer.subscribe("s", "t1", bookmark="0", credit=100)
    refused = _answer(peer, peer.pause("s", "unknown"))
    assert refused.code == "subscription_unknown"
    assert "'unknown'" in refused.text
    world.settle()
    assert _bodies(peer.heard["s"]) == list(range(1, 60, 3))
    assert _answer(peer, peer.resume("unknown")).code == "subscription_unknown"


def test_pause_of_a_subscription_without_bookmark_is_refused() -> None:
    world, _, peer = _world()
    peer.subscribe("plain", "t1")
    refused = _answer(peer, peer.pause("plain"))
    assert refused.code == "bad_option"
    assert "has no bookmark" in refused.text
    command = peer.subscribe("other", "t1", options="pause")
    assert _answer(peer, command).code == "bad_option"
    world.settle()


def test_repeated_pause_or_resume_has_no_further_effect() -> None:
    world, _, peer = _world()
    peer.subscribe("s", "t1", bookmark="0", options="pause")
    assert _answer(peer, peer.pause("s", "s")).code == ""
    world.settle()
    assert peer.heard["s"] == []
    assert _answer(peer, peer.resume("s", "s")).code == ""
    assert _answer(peer, peer.resume("s")).code == ""
    world.settle()
    assert _bodies(peer.heard["s"]) == list(range(1, 60, 3))


def test_pause_of_one_combined_replay_does_not_affect_the_others() -> None:
    world, _, peer = _world(300)
    world.small_tail()
    for number in range(3):
        peer.subscribe(f"s{number}", f"t{number}", bookmark="0", options="pause", credit=600)
    world.settle()
    peer.resume("s0", "s1", "s2")
    for _ in range(12):
        world.step()
    assert _answer(peer, peer.pause("s1")).code == ""
    kept = len(peer.heard["s1"])
    world.settle()
    assert len(peer.heard["s1"]) == kept
    for number in (0, 2):
        assert _bodies(peer.heard[f"s{number}"]) == list(range(number, 300, 3))
    peer.resume("s1")
    world.settle()
    assert _bodies(peer.heard["s1"]) == list(range(1, 300, 3))


def test_paused_subscription_ends_with_the_connection() -> None:
    world, _, peer = _world()
    peer.subscribe("s", "t1", bookmark="0", options="pause")
    world.settle()
    world.broker.disconnected(peer.conn)
    again = world.connect("reader")
    assert _answer(again, again.resume("s")).code == "subscription_unknown"


def test_combined_replays_at_a_rate_filter_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0
    before = ContentFilter.matching_rows

    def passing(self: ContentFilter, batch: MessageBatch, indices: Int64s) -> Int64s:
        nonlocal looked_at
        looked_at += len(indices)
        return before(self, batch, indices)

    monkeypatch.setattr(ContentFilter, "matching_rows", passing)
    world = EngineWorld(12)
    publisher = world.connect("publisher")
    publisher.publish("t", [b'{"k":%d}' % (number % 10) for number in range(1000)])
    world.settle()
    peer = world.connect("reader")
    for sub_id in ("a", "b"):
        peer.subscribe(sub_id, "t", bookmark="0", filter="/k = 1", options="pause,rate=100", credit=1 << 20)
    world.settle()
    peer.resume("a", "b")
    for _ in range(700):
        world.settle()
        world.wake(0.002)
    assert len(peer.heard["a"]) == len(peer.heard["b"]) == 100
    assert looked_at <= 2 * 1000 + 200
