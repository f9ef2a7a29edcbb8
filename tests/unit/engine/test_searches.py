"""Looking up where subscriptions begin: in steps, within the read budget, never for who is gone."""

from __future__ import annotations

from tests.simulation.engine_world import EngineWorld, Peer
from tickertape.base.limits import searches_per_connection_max
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


def test_a_long_list_is_looked_up_in_steps_between_which_others_have_their_turn() -> None:
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


def test_a_search_of_a_connection_that_is_gone_ends_and_gives_its_memory_back() -> None:
    world, peer = _world()
    peer.subscribe("waits for its turn", "t", bookmark=_list(world, 400), credit=1 << 20)
    peer.subscribe("reads", "t", bookmark=_list(world, 0), credit=1 << 20)
    budget = world.broker._delivery._budget
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
    world.broker._delivery._budget.bytes_max = 1
    bookmark = _list(world, 0)
    commands = [peer.subscribe(f"s{number}", "t", bookmark=bookmark, credit=1 << 20) for number in range(20)]
    assert len(world.reads) == 1, "the others wait"
    world.settle()
    assert all(peer.answers[command] == Ack(id=command, start=7) for command in commands)


def test_more_searches_than_one_connection_may_have_are_refused() -> None:
    world, peer = _world()
    bookmark = _list(world, 40)
    for number in range(searches_per_connection_max + 1):
        peer.send(Resolve(id=1000 + number, topic="t", bookmark=bookmark))
    refused = [a for a in peer.answers.values() if isinstance(a, Ack) and a.code == "not_ready"]
    assert len(refused) == 1
    world.settle()
    assert sum(isinstance(c, Resolved) for c, _ in peer.received) == searches_per_connection_max
