"""A queue that cannot read the log stops with an event, and other queues continue."""

from __future__ import annotations

from tests.helpers.queue_engine import QueueEngine
from tickertape.base.errors import JournalCorrupt
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.wire.commands import Ack, Ended


def test_queue_with_an_unreadable_log_stops_and_reports_the_error() -> None:
    world = QueueEngine(QueueDefinition("work"), QueueDefinition("other"))
    world.connect("p").publish("work", [b"1", b"2"])
    world.settle()
    world.reopen()  # so that it has to be read from the disk
    consumer, other = world.connect("c"), world.connect("o")
    consumer.subscribe("s", "work")
    while not world.reads:
        world.work()
    read = world.reads.pop()
    world.broker.read_done(read.token, JournalCorrupt("segment 0 is damaged"), world.instant)
    world.collect()
    world.settle()

    assert consumer.heard["s"] == []
    assert [command.code for command, _ in consumer.received if isinstance(command, Ended)] == [
        "journal_corrupt"
    ]
    assert [event[:2] for event in world.told] == [("queue_stopped", True)]
    assert world.told[0].fields == {
        "queue": "work",
        "code": "journal_corrupt",
        "text": "segment 0 is damaged",
    }
    assert (world.look("work").failure, world.look("work").ready) == ("segment 0 is damaged", 2)

    again = consumer.subscribe("again", "work")
    world.settle()
    answer = consumer.answers[again]
    assert isinstance(answer, Ack)
    assert (answer.code, answer.text) == ("journal_corrupt", "segment 0 is damaged")
    other.subscribe("s", "other")
    world.connect("p2").publish("other", [b"3"])
    world.settle()
    assert [heard.body for heard in other.heard["s"]] == [b"3"]
