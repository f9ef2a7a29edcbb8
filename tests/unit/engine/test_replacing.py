"""exact.md 20: `replace` swaps topic, filter and options under the same id; nothing is lost or doubled."""

from __future__ import annotations

from random import Random

import pytest

from tests.simulation.engine_world import EngineWorld, Peer
from tickertape.wire.commands import Ack


def _bodies(peer: Peer, sub_id: str = "s") -> list[int]:
    return [int(heard.body) for heard in peer.heard[sub_id]]


def _replace(peer: Peer, sub_id: str, topic: str, **more: object) -> int:
    """Without forgetting what was heard."""
    heard, marks = peer.heard[sub_id], peer.marks[sub_id]
    options = ",".join(["replace", str(more.pop("options", ""))])
    command = peer.subscribe(sub_id, topic, options=options, **more)  # type: ignore[arg-type]
    peer.heard[sub_id][:0] = heard
    peer.marks[sub_id][:0] = marks
    return command


def test_exact_20_at_the_end_of_the_log_it_changes_with_the_next_message_accepted() -> None:
    world = EngineWorld(1)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    peer.subscribe("s", "a")
    world.settle()
    publisher.publish("a", [b"1"])
    publisher.publish("b", [b"2"])
    command = _replace(peer, "s", "b")  # both are accepted and not yet persisted
    publisher.publish("a", [b"3"])
    publisher.publish("b", [b"4"])
    world.settle()
    assert peer.answers[command] == Ack(id=command)
    assert _bodies(peer) == [1, 4]
    assert peer.marks["s"] == ["completed after 0"]


def test_exact_20_a_replay_changes_where_it_stands() -> None:
    world = EngineWorld(2)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    for number in range(200):
        publisher.publish("ab"[number % 2], [b"%d" % number])
        world.settle()
    peer.subscribe("s", "a", bookmark="0", credit=400)
    for _ in range(10):
        world.step()
    before = _bodies(peer)
    assert 0 < len(before) < 100
    considered = world.broker.subscribing.of(peer.conn).recorded["s"].position
    _replace(peer, "s", "b", credit=4096)
    world.settle()
    after = _bodies(peer)[len(before) :]
    log = {position: int(heard.body) for position, heard in world.positions().items()}
    assert before == [number for position, number in log.items() if position < considered and number % 2 == 0]
    assert after == [number for position, number in log.items() if position >= considered and number % 2]
    assert peer.marks["s"] == ["completed after 100"]


def test_with_a_bookmark_it_begins_there_and_the_old_one_goes_on_until_then() -> None:
    world = EngineWorld(3)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    for number in range(20):
        publisher.publish("a", [b"%d" % number])
    world.settle()
    peer.subscribe("s", "a")
    world.settle()
    command = _replace(peer, "s", "a", bookmark="0")
    world.settle()
    assert peer.answers[command] == Ack(id=command, start=world.broker.journal.view.first_position)
    assert _bodies(peer) == list(range(20))


def test_a_replace_that_is_refused_leaves_the_old_one_as_it_was() -> None:
    world = EngineWorld(4)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    publisher.publish("a", [b"0"])
    world.settle()
    peer.subscribe("s", "a")
    for fields in (
        {"topic": "b", "bookmark": "7|7|", "options": "bookmark_not_found=fail"},
        {"topic": "(", "options": ""},
        {"topic": "b", "options": "rate=1"},
    ):
        command = _replace(peer, "s", **fields)
        world.settle()
        answer = peer.answers[command]
        assert isinstance(answer, Ack)
        assert answer.code
    publisher.publish("a", [b"1"])
    publisher.publish("b", [b"2"])
    world.settle()
    assert _bodies(peer) == [1]


def test_replace_of_what_is_not_there_is_a_subscription() -> None:
    world = EngineWorld(5)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    command = peer.subscribe("s", "a", options="replace")
    publisher.publish("a", [b"1"])
    world.settle()
    assert isinstance(peer.answers[command], Ack)
    assert _bodies(peer) == [1]


def test_without_replace_an_id_is_used_once() -> None:
    world = EngineWorld(6)
    peer = world.connect("reader")
    peer.subscribe("s", "a")
    answer = peer.answers[peer.subscribe("s", "b")]
    assert isinstance(answer, Ack)
    assert answer.code == "subscription_exists"
    assert "replace" in answer.text


def test_what_conflation_holds_comes_before_the_change() -> None:
    world = EngineWorld(7)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    peer.subscribe("s", "a", bookmark="0|1|", options="conflation=10s")
    publisher.publish("a", [b"1", b"2"])
    world.settle()
    assert _bodies(peer) == []
    _replace(peer, "s", "b")
    publisher.publish("b", [b"3", b"4"])
    world.settle()
    assert _bodies(peer) == [2, 3, 4]


@pytest.mark.parametrize("seed", range(60))
def test_exact_20_replaced_again_and_again_nothing_is_lost_or_doubled(seed: int) -> None:
    """A message is delivered if the subscription covered its topic when it was accepted, or, before the
    replay has caught up, when it was reached: of both, the choice may differ only between two replaces."""
    rng = Random(seed)
    world = EngineWorld(seed)
    world.small_tail()
    world.small_bounds()
    publisher, peer = world.connect("publisher"), world.connect("reader")
    peer.subscribe("s", "a", credit=rng.choice((100, 400, 4096)))
    current = "a"
    expected: list[int] = []
    for number in range(120):
        topic = rng.choice("ab")
        publisher.publish(topic, [b"%d" % number])
        if topic in current:
            expected.append(number)
        if rng.random() < 0.1:
            current = rng.choice(["a", "b", "ab"])
            name = {"a": "a", "b": "b", "ab": "^[ab]$"}[current]
            _replace(peer, "s", name, credit=rng.choice((100, 400, 4096)))
        for _ in range(rng.randrange(4)):
            world.step()
        if rng.random() < 0.3:
            peer.give_credit("s")
    world.settle()
    assert _bodies(peer) == expected
