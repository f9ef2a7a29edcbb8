"""What a look into a queue finds."""

from __future__ import annotations

import pytest

from tests.helpers.queue_engine import QueueEngine
from tests.simulation.engine_peer import Peer
from tickertape.base.errors import JournalCorrupt
from tickertape.engine.runtime.queue_definition import QueueDefinition

MANY = 12


def publish_and_be_told(world: QueueEngine, publisher: Peer, topic: str, body: bytes) -> None:
    """The message is on disk, and nothing else has happened since."""
    publisher.publish(topic, [body])
    while publisher.acked_frame < publisher.frames:
        world.run_job() if world.jobs else world.work()


@pytest.mark.parametrize("from_disk", [False, True])
def test_who_was_told_that_a_message_is_on_disk_finds_it(from_disk: bool) -> None:
    names = [f"q{number}" for number in range(MANY)]
    world = QueueEngine(*(QueueDefinition(name, underlying=f"^({name}|all)$") for name in names))
    if from_disk:
        world.small_tail()
    publisher, looker = world.connect("publisher"), world.connect("looker")
    for number, name in enumerate(names):
        publish_and_be_told(world, publisher, "all", b"%d" % number)
        looker.subscribe(name, name, options="browse")
        world.settle()
        assert [heard.body for heard in looker.heard[name]] == [b"%d" % n for n in range(number + 1)]
        assert looker.marks[name] == [f"completed after {number + 1}", "ended"]


def test_who_goes_before_his_look_begins_leaves_nothing_behind_and_others_look() -> None:
    names = [f"q{number}" for number in range(MANY)]
    world = QueueEngine(*(QueueDefinition(name, underlying=f"^({name}|all)$") for name in names))
    publisher, looker, gone = (world.connect(name) for name in ("publisher", "looker", "gone"))
    publish_and_be_told(world, publisher, "all", b"1")
    for name in names:
        gone.subscribe(name, name, options="browse")
        looker.subscribe(name, name, options="browse")
    assert world.queue(names[-1]).considered < world.broker.journal.commits.persisted_end
    queues = world.broker.queues
    early = queues._early
    for look in [look for look in early[names[-1]] if look.session.conn == gone.conn]:
        look.subscription.close()  # a step of the queue would begin it
    assert {look.session.conn for look in early[names[-1]]} == {looker.conn}
    world.disconnect(gone)
    world.settle()
    for name in names:
        assert [heard.body for heard in looker.heard[name]] == [b"1"]
    assert not any(early.values())


def test_a_look_into_a_queue_that_stops_before_it_begins_is_told_why() -> None:
    names = [f"q{number}" for number in range(MANY)]
    world = QueueEngine(*(QueueDefinition(name, underlying="all", filter="/n >= 0") for name in names))
    world.broker.journal.view.tail_bytes_max = 1  # so that it has to be read from the disk
    publisher, looker = world.connect("publisher"), world.connect("looker")
    for _ in range(5):
        publisher.publish("all", [b'{"n": 1, "text": "%s"}' % (b"x" * 5_000)])
        while world.jobs:  # and nothing else
            world.run_job()
    assert publisher.acked_frame == publisher.frames
    looker.subscribe("s", names[-1], options="browse")
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
    assert {told[0] for told in world.told} == {"queue_stopped"}
    assert (looker.heard["s"], looker.marks["s"]) == ([], ["ended journal_corrupt"])
