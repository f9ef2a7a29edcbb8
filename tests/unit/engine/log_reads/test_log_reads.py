"""Start searches of subscriptions: in steps, within the read budget, ended with the connection."""

from __future__ import annotations

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.base.bookmarks import AtBookmarks, parse_bookmark
from tickertape.base.limits import bookmarks_per_list_max, option_bytes_max, option_parts_max
from tickertape.base.options import parse_options
from tickertape.engine.commands import range_searches as searches
from tickertape.engine.limits import bookmarks_sought_per_connection_max, searches_per_connection_max
from tickertape.engine.runtime.effects import PauseReading, ResumeReading
from tickertape.wire.commands import Ack, Resolve, Resolved


def _world(messages: int = 50) -> tuple[EngineWorld, Peer]:
    """A log on the disk and a peer that reads it."""
    world = EngineWorld(9)
    publisher = world.connect("publisher")
    for number in range(messages):
        publisher.publish("t", [b"%d" % number])
        world.settle()
    world.broker.journal.view.tail.clear()
    world.broker.journal.view.tail_bytes_max = 1
    return world, world.connect("reader")


def _list(world: EngineWorld, unknown: int) -> str:
    known = world.log("t")
    names = [f"{heard.publisher}|{heard.sequence}|" for heard in known[5:10]]
    return ",".join([f"1|{number}|" for number in range(1, unknown + 1)] + names)


def test_long_bookmark_list_is_searched_in_several_steps() -> None:
    world, peer = _world()
    command = peer.subscribe("s", "t", bookmark=_list(world, 400), credit=1 << 20)
    steps = 0
    while command not in peer.answers:
        assert world.reads or world.broker.has_work
        if world.reads:
            world.run_read()
        else:
            world.work()
            steps += 1
    assert steps >= 400 // 16
    world.settle()
    assert [heard.body for heard in peer.heard["s"]] == [b"%d" % number for number in range(6, 50)]


def test_search_of_a_closed_connection_ends_and_releases_memory() -> None:
    world, peer = _world()
    peer.subscribe("waits for its turn", "t", bookmark=_list(world, 400), credit=1 << 20)
    peer.subscribe("reads", "t", bookmark=_list(world, 0), credit=1 << 20)
    budget = world.broker.reads.budgets.log
    assert world.reads
    assert budget.held_bytes
    world.broker.disconnected(peer.conn)
    world.settle()
    assert not world.reads
    assert not world.broker.has_work
    assert budget.held_bytes == 0
    assert not peer.answers


def test_searches_wait_for_the_read_budget_and_all_are_answered() -> None:
    world, peer = _world()
    world.broker.reads.budgets.log.bytes_max = 1
    bookmark = _list(world, 0)
    commands = [peer.subscribe(f"s{number}", "t", bookmark=bookmark, credit=1 << 20) for number in range(20)]
    assert len(world.reads) == 1, "the others wait"
    world.settle()
    after = "{}|{}|".format(*world.log("t")[5][:2])
    assert all(peer.answers[command] == Ack(id=command, start=7, after=after) for command in commands)


def test_more_searches_than_one_connection_may_have_are_refused() -> None:
    world, peer = _world()
    bookmark = _list(world, 40)
    for number in range(searches_per_connection_max + 1):
        peer.send(Resolve(id=1000 + number, topic="t", bookmark=bookmark))
    refused = [a for a in peer.answers.values() if isinstance(a, Ack) and a.code == "not_ready"]
    assert len(refused) == 1
    world.settle()
    assert sum(isinstance(c, Resolved) for c, _ in peer.received) == searches_per_connection_max


def test_connection_with_many_searched_bookmarks_is_paused_until_completion() -> None:
    world, peer = _world()
    count = bookmarks_sought_per_connection_max // 3
    for number in range(3):
        assert world.pauses == []
        peer.subscribe(f"s{number}", "t", bookmark=_list(world, count), credit=1 << 20)
    assert world.pauses == [PauseReading(peer.conn, "searches")]
    world.settle()
    assert world.pauses[1:] == [ResumeReading(peer.conn, "searches")]
    assert [len(peer.heard[f"s{number}"]) for number in range(3)] == [44, 44, 44]
    assert world.broker.subscriptions.searches.bookmarks == 0


def test_searched_bookmarks_of_all_connections_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(searches, "bookmarks_sought_max", 1_000)
    world, peer = _world()
    other = world.connect("other")
    first = peer.subscribe("s", "t", bookmark=_list(world, 900), credit=1 << 20)
    second = other.subscribe("s", "t", bookmark=_list(world, 200), credit=1 << 20)
    assert _code(other, second) == "not_ready"
    assert first not in peer.answers
    world.broker.disconnected(peer.conn)
    assert world.broker.subscriptions.searches.bookmarks == 0
    third = other.subscribe("s", "t", bookmark=_list(world, 200), credit=1 << 20)
    world.settle()
    assert _code(other, third) == ""


def test_bookmark_list_longer_than_the_limit_is_refused() -> None:
    _, peer = _world()
    at_most = ",".join(["1|1|"] * bookmarks_per_list_max)
    assert isinstance(parse_bookmark(at_most), AtBookmarks)
    command = peer.subscribe("s", "t", bookmark=at_most + ",1|1|", credit=1 << 20)
    assert _code(peer, command) == "bad_bookmark"


def test_options_longer_than_the_limit_are_refused() -> None:
    world, peer = _world()
    assert parse_options(" " * option_bytes_max) == {}
    assert parse_options("," * (option_parts_max - 1)) == {}
    for number, options in enumerate((" " * (option_bytes_max + 1), "," * option_parts_max)):
        peer.send(Resolve(id=number, topic="t", bookmark="0", options=options))
        world.collect()
        assert _code(peer, number) == "bad_option"


def _code(peer: Peer, command: int) -> str | None:
    answer = peer.answers[command]
    assert isinstance(answer, Ack)
    return answer.code
