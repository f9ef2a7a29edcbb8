"""Queue browse: visible messages, early requests and failures."""

from __future__ import annotations

import pytest

from tests.helpers.queue_engine import QueueEngine
from tests.simulation.engine_peer import Peer
from tickertape.base.errors import JournalCorrupt
from tickertape.engine.runtime.queue_definition import QueueDefinition

MANY = 12


def publish_persisted(world: QueueEngine, publisher: Peer, topic: str, body: bytes) -> None:
    """Publish a message and work only until it is persisted."""
    publisher.publish(topic, [body])
    while publisher.acked_frame < publisher.frames:
        world.run_job() if world.jobs else world.work()


@pytest.mark.parametrize("from_disk", [False, True])
def test_browse_after_persistence_finds_the_message(from_disk: bool) -> None:
    names = [f"q{number}" for number in range(MANY)]
    world = QueueEngine(*(QueueDefinition(name, underlying=f"^({name}|all)$") for name in names))
    if from_disk:
        world.small_tail()
    publisher, browser = world.connect("publisher"), world.connect("browser")
    for number, name in enumerate(names):
        publish_persisted(world, publisher, "all", b"%d" % number)
        browser.subscribe(name, name, options="browse")
        world.settle()
        assert [heard.body for heard in browser.heard[name]] == [b"%d" % n for n in range(number + 1)]
        assert browser.marks[name] == [f"completed after {number + 1}", "ended"]


def test_browse_of_a_closed_connection_is_dropped_and_others_proceed() -> None:
    names = [f"q{number}" for number in range(MANY)]
    world = QueueEngine(*(QueueDefinition(name, underlying=f"^({name}|all)$") for name in names))
    publisher, browser, leaving = (world.connect(name) for name in ("publisher", "browser", "leaving"))
    publish_persisted(world, publisher, "all", b"1")
    for name in names:
        leaving.subscribe(name, name, options="browse")
        browser.subscribe(name, name, options="browse")
    assert world.queue(names[-1]).considered < world.broker.journal.commits.persisted_end
    queues = world.broker.queues
    early = queues._early
    for look in [look for look in early[names[-1]] if look.session.conn == leaving.conn]:
        look.subscription.close()  # a step of the queue would start it
    assert {look.session.conn for look in early[names[-1]]} == {browser.conn}
    world.disconnect(leaving)
    world.settle()
    for name in names:
        assert [heard.body for heard in browser.heard[name]] == [b"1"]
    assert not any(early.values())


def test_browse_of_a_queue_that_stops_first_ends_with_the_error() -> None:
    names = [f"q{number}" for number in range(MANY)]
    world = QueueEngine(*(QueueDefinition(name, underlying="all", filter="/n >= 0") for name in names))
    world.broker.journal.view.tail_bytes_max = 1  # so that it has to be read from the disk
    publisher, browser = world.connect("publisher"), world.connect("browser")
    for _ in range(5):
        publisher.publish("all", [b'{"n": 1, "text": "%s"}' % (b"x" * 5_000)])
        while world.jobs:  # and nothing else
            world.run_job()
    assert publisher.acked_frame == publisher.frames
    browser.subscribe("s", names[-1], options="browse")
    while not world.reads:
        assert world.broker.has_work
        world.work()
    assert world.queue(names[-1]).considered < world.broker.journal.commits.persisted_end
    while world.reads or world.broker.has_work:
        if not world.reads:
            world.work()
            continue
        read = world.reads.pop()
        world.broker.read_done(read.token, JournalCorrupt("segment 0 is damaged"), world.instant)
        world.collect()
    assert {event[0] for event in world.told} == {"queue_stopped"}
    assert (browser.heard["s"], browser.marks["s"]) == ([], ["ended journal_corrupt"])
