"""Expiry of staged transactions, and commits on a full disk."""

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


def test_untouched_transaction_expires_with_an_event(world: EngineWorld, sink: Sink) -> None:
    staging = world.broker.transactions.staging
    staging.limits.age_seconds = 600.0
    sink.prepared(b"1")
    world.mono += 400
    spaced = Transaction(publisher="sink", space="q", name="1")
    sink.prepared(b"22", transaction=spaced)
    assert world.broker.next_deadline() is not None
    world.mono += 300
    world.broker.wake(world.now())
    world.collect()
    assert staging.transactions == [spaced]
    (event,) = [event for event in world.told if event.name == "transaction_expired"]
    assert event.warning
    assert event.fields["transaction"] == "t1"
    assert "space" not in event.fields
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


def test_staging_another_part_restarts_the_expiry_time(world: EngineWorld, sink: Sink) -> None:
    staging = world.broker.transactions.staging
    staging.limits.age_seconds = 600.0
    sink.prepared(b"1")
    for part in ("1", "2", "3"):
        world.mono += 400
        world.broker.wake(world.now())
        sink.prepared(b"more", part=part)
    assert staging.count == 4
    assert isinstance(sink.commit("0", "1", "2", "3"), Committed)


def test_transaction_in_commit_does_not_expire(world: EngineWorld, sink: Sink) -> None:
    world.broker.transactions.staging.limits.age_seconds = 600.0
    sink.prepared(b"1")
    number = sink.say(Commit, transaction=T1, parts=("0",))
    assert any(isinstance(job.task, StageOpen) for job in world.staging_jobs)
    world.mono += 10_000
    world.broker.wake(world.now())
    world.settle()
    assert isinstance(sink.peer.answers[number], Committed)
    assert bodies_of(world) == [b"1"]


def test_part_staged_for_a_topic_no_longer_recorded_is_refused_after_a_restart(
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
    assert isinstance(again.commit("0"), Committed), "parts of recorded topics can be committed"
    assert bodies_of(world) == [b"0"]


def test_part_staged_for_a_topic_that_became_a_queue_is_refused() -> None:
    world = QueueEngine()
    sink = Sink(world)
    sink.prepared(b"1")
    world.reopen(QueueDefinition(name="a", underlying="orders"))
    found, _ = find_staged(world.disk, world.broker.journal.journal_id)
    world.broker.begin_staged(found, world.now())
    again = Sink(world)
    assert again.code(Commit, transaction=T1, parts=("0",)) == "bad_topic"
    assert bodies_of(world) == []


def test_full_disk_refuses_a_large_transaction_but_accepts_small_publishes(
    world: EngineWorld, sink: Sink
) -> None:
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


def test_reserved_space_includes_the_publisher_binding() -> None:
    binding = PublisherDirectory().bind(2**64 - 1, "x" * client_name_bytes_max, derived=True)
    assert commit_bytes_of(binding) <= binding_bytes_max
