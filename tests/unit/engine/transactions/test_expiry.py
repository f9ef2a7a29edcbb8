"""Transactions at the engine as time passes: what expires, what does not, and what a full disk does."""

from __future__ import annotations

import errno

from tests.helpers.queue_engine import QueueEngine
from tests.simulation.engine_world import EngineWorld
from tests.unit.engine.transactions.test_coordinator import T1, Sink, bodies_of, sink, world
from tickertape.base.limits import MIB, client_name_bytes_max
from tickertape.engine.limits import binding_bytes_max
from tickertape.engine.runtime.publisher_ids import PublisherDirectory
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.journal.commit.active_segment import commit_bytes_of
from tickertape.journal.format.staging_file import StageOpen, find_staged
from tickertape.wire.commands import Commit, Committed, Prepare, Staged, Transaction

__all__ = ["sink", "world"]


def test_what_nobody_touches_expires(world: EngineWorld, sink: Sink) -> None:
    staging = world.broker.transactions.staging
    staging.limits.age_seconds = 600.0
    sink.prepared(b"1")
    world.mono += 400
    spaced = Transaction(publisher="sink", space="q", name="1")
    sink.prepared(b"22", transaction=spaced)
    assert world.broker.next_deadline(world.now()) is not None
    world.mono += 300
    world.broker.wake(world.now())
    world.collect()
    assert staging.transactions == [spaced]
    (told,) = [happened for happened in world.told if happened.name == "transaction_expired"]
    assert told.warning
    assert told.fields["transaction"] == "t1"
    assert "space" not in told.fields
    assert staging.expired == 1
    assert sink.code(Commit, transaction=T1, parts=("0",)) == "transaction_unknown"
    deadline = staging.next_deadline()
    assert deadline is not None
    world.mono = deadline + 1
    world.broker.wake(world.now())
    world.collect()
    assert staging.count == staging.bytes == 0
    assert world.told[-1].fields["space"] == "q"
    world.settle()
    assert world.disk.names("transactions") == []


def test_what_is_added_to_begins_its_time_anew(world: EngineWorld, sink: Sink) -> None:
    staging = world.broker.transactions.staging
    staging.limits.age_seconds = 600.0
    sink.prepared(b"1")
    for part in ("1", "2", "3"):
        world.mono += 400
        world.broker.wake(world.now())
        sink.prepared(b"more", part=part)
    assert staging.count == 4
    assert isinstance(sink.commit("0", "1", "2", "3"), Committed)


def test_what_is_being_committed_does_not_expire(world: EngineWorld, sink: Sink) -> None:
    world.broker.transactions.staging.limits.age_seconds = 600.0
    sink.prepared(b"1")
    number = sink.say(Commit, transaction=T1, parts=("0",))
    assert any(isinstance(job.task, StageOpen) for job in world.staging_jobs)
    world.mono += 10_000
    world.broker.wake(world.now())
    world.settle()
    assert isinstance(sink.peer.answers[number], Committed)
    assert bodies_of(world) == [b"1"]


def test_a_topic_that_is_not_recorded_any_more_refuses_what_was_staged_before_the_start(
    world: EngineWorld, sink: Sink
) -> None:
    sink.prepared(b"0", part="0")
    assert sink.stage(b"1", topic="b", part="1") == ""
    assert isinstance(sink.ask(Prepare, transaction=T1, part="1"), Staged)
    world.recorded = frozenset({"a"})
    world.disk = world.disk.kill_clone()
    world.open()
    again = Sink(world)
    assert again.code(Commit, transaction=T1, parts=("0", "1")) == "bad_topic"
    assert bodies_of(world) == []
    assert isinstance(again.commit("0"), Committed), "what is recorded can be"
    assert bodies_of(world) == [b"0"]


def test_a_topic_that_became_a_queue_over_another_refuses_what_was_staged_before() -> None:
    world = QueueEngine()
    sink = Sink(world)
    sink.prepared(b"1")
    world.reopen(QueueDefinition(name="a", underlying="orders"))
    found, _ = find_staged(world.disk, world.broker.journal.journal_id)
    world.broker.begin_staged(found, world.now())
    again = Sink(world)
    assert again.code(Commit, transaction=T1, parts=("0",)) == "bad_topic"
    assert bodies_of(world) == []


def test_a_full_disk_refuses_the_transaction_and_nobody_else(world: EngineWorld, sink: Sink) -> None:
    bodies = [bytes([n]) * (MIB // 8) for n in range(8)]
    sink.prepared(*bodies)
    world.disk.fail("preallocate", 1, errno.ENOSPC)
    for nth in range(2, 30):
        world.disk.fail("preallocate", nth, errno.ENOSPC)
    assert sink.code(Commit, transaction=T1, parts=("0",)) == "journal_full"
    publisher = world.connect("publisher")
    publisher.publish("a", [b"small"])
    world.settle()
    assert publisher.acked_frame == 1
    assert bodies_of(world) == [b"small"]
    assert world.broker.transactions.staging.count == 1


def test_the_room_that_is_made_sure_of_has_the_binding_of_the_publisher_too() -> None:
    binding = PublisherDirectory().bind(2**64 - 1, "x" * client_name_bytes_max, derived=True)
    assert commit_bytes_of(binding) <= binding_bytes_max
