"""exact.md 20: `replace` swaps topic, filter and options without loss or duplicates."""

from __future__ import annotations

from random import Random

import pytest

from tests.helpers.tiers import parts
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.base.errors import JournalCorrupt
from tickertape.base.limits import message_cost_bytes
from tickertape.engine.commands.range_searches import RangeSearch
from tickertape.engine.limits import replaces_waiting_max
from tickertape.wire.commands import Ack


def _bodies(peer: Peer, sub_id: str = "s") -> list[int]:
    return [int(heard.body) for heard in peer.heard[sub_id]]


def _replace(peer: Peer, sub_id: str, topic: str, **more: object) -> int:
    """Replace a subscription and keep the recorded deliveries."""
    heard, marks = peer.heard[sub_id], peer.marks[sub_id]
    options = ",".join(["replace", str(more.pop("options", ""))])
    command = peer.subscribe(sub_id, topic, options=options, **more)  # type: ignore[arg-type]
    peer.heard[sub_id][:0] = heard
    peer.marks[sub_id][:0] = marks
    return command


@pytest.mark.behaviour(20)
def test_live_subscription_changes_with_the_next_accepted_message() -> None:
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


def test_index_skip_for_the_old_topic_does_not_pass_messages_of_the_new_topic() -> None:
    world = EngineWorld(1)
    world.broker.journal.view.tail_bytes_max = 1  # so that it is read from segments, by their indexes
    publisher, peer = world.connect("publisher"), world.connect("reader")
    peer.subscribe("s", "a")
    world.settle()
    world.broker.blocked(peer.conn)
    publisher.publish("a", [b"100"])
    for _ in range(50):
        publisher.publish("c", [bytes(2_000)])
        world.settle()
    _replace(peer, "s", "b")
    for number in range(50):  # behind the change, and nothing more of the old topic
        publisher.publish("b", [b"%d" % number])
        world.settle()
    assert _bodies(peer) == []
    world.broker.writable(peer.conn)
    world.settle()
    assert _bodies(peer) == [100, *range(50)]


def test_completed_follows_the_last_message_when_credit_allows_one_at_a_time() -> None:
    world = EngineWorld(2)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    for number in range(5):
        publisher.publish("a", [b"%d" % number])
        world.settle()
    peer.subscribe("s", "a", bookmark="0", credit=message_cost_bytes + 1)
    world.settle()
    assert _bodies(peer) == list(range(5))
    assert peer.marks["s"] == ["completed after 5"]


@pytest.mark.behaviour(20)
def test_replay_changes_at_the_current_position() -> None:
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
    considered = world.log_feeds(peer.conn)["s"].position
    _replace(peer, "s", "b", credit=4096)
    world.settle()
    after = _bodies(peer)[len(before) :]
    log = {position: int(heard.body) for position, heard in world.positions().items()}
    assert before == [number for position, number in log.items() if position < considered and number % 2 == 0]
    assert after == [number for position, number in log.items() if position >= considered and number % 2]
    assert peer.marks["s"] == ["completed after 100"]


def test_replace_with_a_bookmark_starts_the_new_subscription_at_the_bookmark() -> None:
    world = EngineWorld(3)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    for number in range(20):
        publisher.publish("a", [b"%d" % number])
    world.settle()
    peer.subscribe("s", "a")
    world.settle()
    command = _replace(peer, "s", "a", bookmark="0")
    world.settle()
    assert peer.answers[command] == Ack(id=command, start=world.broker.journal.view.first_position, after="0")
    assert _bodies(peer) == list(range(20))


def test_refused_replace_leaves_the_old_subscription_unchanged() -> None:
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


def test_replace_by_a_position_range_ends_the_old_subscription() -> None:
    world = EngineWorld(8)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    publisher.publish("a", [b"%d" % number for number in range(5)])
    world.settle()
    peer.subscribe("s", "a", bookmark="0")
    world.settle()
    journal = world.broker.journal
    first, end = journal.view.first_position, journal.commits.accepted_end
    _replace(peer, "s", "a", positions=(first, end), journal=journal.identity)
    world.settle()
    assert _bodies(peer) == [*range(5), *range(5)]
    assert peer.marks["s"][-1] == "ended"
    publisher.publish("a", [b"5"])
    world.settle()
    assert len(peer.heard["s"]) == 10, "the replaced subscription delivers nothing"
    assert not list(world.broker._delivery.fanout.feeds())


def _outlived(seed: int) -> tuple[EngineWorld, Peer, int]:
    """Return a subscription that ended while the start of its replacement is searched.

    The result is the engine, the peer, and the command of the replacement.
    """
    world = EngineWorld(seed)
    world.broker.journal.view.tail_bytes_max = 1
    publisher, peer = world.connect("publisher"), world.connect("reader")
    for number in range(50):
        publisher.publish("a", [b"%d" % number])
        world.settle()
    assert publisher.logged_on is not None
    name = publisher.logged_on.publisher
    peer.subscribe("s", "a", bookmark=f"[{name}|1|:{name}|3|]", options="pause")
    world.settle()
    peer.resume("s")
    command = _replace(peer, "s", "a", bookmark=f"{name}|20|")
    owners = world.broker.reads._owners
    while "s" in world.log_feeds(peer.conn):
        reads = [read for read in world.reads if not isinstance(owners[read.token], RangeSearch)]
        if world.broker.has_work:
            world.work()
        else:
            world.reads.remove(reads[0])
            world.broker.read_done(reads[0].token, world._bytes(reads[0].request), world.now())
            world.collect()
    return world, peer, command


@pytest.mark.parametrize("cause", ["disconnected", "damaged"])
def test_replacement_that_never_starts_leaves_no_state(cause: str) -> None:
    world, peer, _ = _outlived(9)
    held = world.broker.subscriptions._registry._by_conn
    assert held[peer.conn].coming
    if cause == "disconnected":
        world.broker.disconnected(peer.conn)
    else:
        for read in [*world.reads]:
            world.broker.read_done(read.token, JournalCorrupt("damaged"), world.now())
        world.reads.clear()
        world.collect()
        world.settle()
    assert peer.conn not in held


def test_subscription_end_during_the_search_keeps_the_replacement() -> None:
    world, peer, command = _outlived(9)
    peer.marks["s"].clear()
    world.settle()
    answer = peer.answers[command]
    assert isinstance(answer, Ack)
    assert answer.code == ""
    assert _bodies(peer)[-30:] == list(range(20, 50))


def test_replace_answered_first_is_not_undone_by_an_older_replace_in_search() -> None:
    world = EngineWorld(9)
    world.broker.journal.view.tail_bytes_max = 1  # so that starts are read from segments
    publisher, peer = world.connect("publisher"), world.connect("reader")
    for number in range(50):
        publisher.publish("t", [b"%d" % number])
        world.settle()
    assert publisher.logged_on is not None
    name = publisher.logged_on.publisher
    peer.subscribe("s", "a")
    world.settle()
    older = _replace(peer, "s", "t", bookmark=f"{name}|20|")
    newer = _replace(peer, "s", "u")
    world.settle()
    assert peer.answers[newer] == Ack(id=newer)
    answer = peer.answers[older]
    assert isinstance(answer, Ack)
    assert answer.code == "subscription_unknown"
    publisher.publish("t", [b"100"])
    publisher.publish("u", [b"200"])
    publisher.publish("a", [b"300"])
    world.settle()
    assert _bodies(peer) == [200]


def test_replace_changes_the_rate_of_a_replay_and_ends_live_delivery() -> None:
    world = EngineWorld(10)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    publisher.publish("a", [b"%d" % number for number in range(500)])
    world.settle()
    peer.subscribe("s", "a", bookmark="0", options="rate=10", credit=1 << 20)
    _replace(peer, "s", "a", options="rate=100", credit=1 << 20)
    world.settle()
    begin = world.mono
    while world.mono < begin + 1:
        world.wake(0.002)
        world.settle()
    assert 90 <= len(peer.heard["s"]) <= 115
    peer.subscribe("live", "b", bookmark="0|1|", options="live")
    world.settle()
    _replace(peer, "live", "b")
    publisher.publish("b", [b"1"])
    while world.broker.has_work:
        world.work()
    assert _bodies(peer, "live") == [], "it is not persisted"
    world.settle()
    assert _bodies(peer, "live") == [1]
    assert isinstance(answer := peer.answers[peer.pause("live")], Ack)
    assert answer.code == ""


def test_number_of_waiting_replaces_is_bounded() -> None:
    world = EngineWorld(11, recorded=frozenset({"log"}))
    publisher, peer = world.connect("publisher"), world.connect("reader")
    peer.subscribe("s", "rest")
    world.broker.blocked(peer.conn)  # it does not read its socket
    publisher.publish("rest", [b"1"], sequenced=False)
    codes = set()
    for _ in range(replaces_waiting_max + 10):
        answer = peer.answers[peer.subscribe("s", "rest", options="replace")]
        assert isinstance(answer, Ack)
        codes.add(answer.code)
    assert codes == {"", "not_ready"}
    world.broker.disconnected(peer.conn)


def test_replace_of_an_unknown_id_creates_a_subscription() -> None:
    world = EngineWorld(5)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    command = peer.subscribe("s", "a", options="replace")
    publisher.publish("a", [b"1"])
    world.settle()
    assert isinstance(peer.answers[command], Ack)
    assert _bodies(peer) == [1]


def test_subscribe_with_a_used_id_without_replace_is_refused() -> None:
    world = EngineWorld(6)
    peer = world.connect("reader")
    peer.subscribe("s", "a")
    answer = peer.answers[peer.subscribe("s", "b")]
    assert isinstance(answer, Ack)
    assert answer.code == "subscription_exists"
    assert "replace" in answer.text


def test_replace_delivers_conflated_messages_before_the_change() -> None:
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


@pytest.mark.behaviour(20)
@pytest.mark.parametrize("seed", parts(60, 20))
def test_repeated_replaces_lose_and_duplicate_nothing(seed: int) -> None:
    """A message is delivered if the subscription covered its topic when it was accepted."""
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
