"""Staging area of the engine: usage limits, and removal of files."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tests.simulation.engine_world import EngineWorld
from tests.unit.engine.transactions.test_coordinator import T1, Sink, bodies_of, sink, world
from tickertape.engine.transactions import staging_area as staging_module
from tickertape.journal.commit.group_commit import SyncPolicy
from tickertape.journal.format.staging_file import STAGING_DIRECTORY
from tickertape.wire.commands import Abort, Ack, Commit, Committed, Transaction

__all__ = ["sink", "world"]


@pytest.mark.parametrize(
    ("bound", "code"), [("transaction_bytes", "transaction_too_large"), ("disk_bytes", "staging_full")]
)
def test_stage_replacing_a_part_does_not_count_the_replaced_bytes(
    world: EngineWorld, sink: Sink, bound: str, code: str
) -> None:
    sink.prepared(bytes(4_000))
    setattr(world.broker.transactions.staging.limits, bound, 6_000)
    other = Sink(world, "other")
    assert other.stage(bytes(3_000), part="1") == code, "another part counts beside it"
    other.prepared(b"1" * 3_000)
    assert other.stage(bytes(4_000), part="1") == code, "the replacement counts as well"
    assert isinstance(other.commit("0"), Committed)
    assert bodies_of(world) == [b"1" * 3_000]


def test_stage_replacing_a_part_does_not_count_the_replaced_batches(
    world: EngineWorld, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "transaction_batches_max", 3)
    assert [sink.stage(b"1"), sink.stage(b"1")] == ["", ""]
    sink.prepared(b"1", part="1")
    other = Sink(world, "other")
    assert other.stage(b"2", part="2") == "transaction_too_large"
    assert [other.stage(b"2"), other.stage(b"2")] == ["", ""]
    assert other.stage(b"2") == "transaction_too_large"


def test_stage_refused_for_space_keeps_the_existing_part(world: EngineWorld, sink: Sink) -> None:
    sink.prepared(b"1")
    world.broker.transactions.staging.limits.transaction_bytes = 1_000
    other = Sink(world, "other")
    assert other.stage(bytes(2_000)) == "transaction_too_large"
    assert isinstance(other.commit("0"), Committed)
    assert bodies_of(world) == [b"1"]


def files_of(world: EngineWorld) -> list[str]:
    return world.disk.names(STAGING_DIRECTORY)


def unsynced(policy: SyncPolicy) -> tuple[EngineWorld, Sink]:
    """Return a server that acknowledges written messages before the sync."""
    world = EngineWorld(1, recorded=frozenset({"a"}), policy=policy)
    return world, Sink(world)


@pytest.mark.parametrize("policy", [SyncPolicy.INTERVAL, SyncPolicy.NEVER])
def test_commit_under_a_lazy_policy_keeps_staged_files_until_the_chain_is_synced(policy: SyncPolicy) -> None:
    world, sink = unsynced(policy)
    sink.prepared(b"1")
    assert isinstance(sink.commit("0"), Committed)
    assert len(files_of(world)) == 1
    assert (world.broker.transactions.staging.count, world.broker.transactions.staging.bytes) == (0, 0)
    repeated = sink.commit("0")
    assert isinstance(repeated, Committed)
    assert repeated.repeated
    assert len(files_of(world)) == 1, "also after a repeated commit"
    world.wake(0.5)
    world.settle()
    assert len(files_of(world)) == 1
    if policy is SyncPolicy.INTERVAL:
        world.wake(0.6)
    else:
        world.broker.journal.commits.sync_soon(world.now())
        world.wake()
    world.settle()
    assert files_of(world) == []


def test_commit_under_sync_always_drops_staged_files_at_once(world: EngineWorld, sink: Sink) -> None:
    sink.prepared(b"1")
    sink.commit("0")
    assert files_of(world) == []


def test_power_loss_before_the_sync_leaves_the_transaction_in_the_log_or_staged() -> None:
    seen = set()
    for seed in range(30):
        world, sink = unsynced(SyncPolicy.INTERVAL)
        sink.prepared(b"1")
        sink.prepared(b"2", part="1")
        assert isinstance(sink.commit("0", "1"), Committed)
        world.disk = world.disk.crash_clone(Random(seed))
        world.open()
        lost = not bodies_of(world)
        seen.add(lost)
        answer = Sink(world, "other").commit("0", "1")
        assert isinstance(answer, Committed)
        assert answer.repeated is not lost
        assert bodies_of(world) == [b"1", b"2"]
    assert seen == {True, False}


@pytest.mark.parametrize("bound", ["disk_bytes", "staged_parts_max"])
def test_many_committed_parts_waiting_for_a_sync_trigger_a_sync(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    world, sink = unsynced(SyncPolicy.NEVER)
    if bound == "disk_bytes":
        world.broker.transactions.staging.limits.disk_bytes = 4_000
    else:
        monkeypatch.setattr(staging_module, "staged_parts_max", 8)
    most = 0
    for number in range(20):
        name = Transaction(publisher="sink", name=str(number))
        sink.prepared(bytes(300), transaction=name)
        assert isinstance(sink.commit("0", transaction=name), Committed)
        most = max(most, len(files_of(world)))
    assert most == 1, "the second is a quarter of the bound"


def test_staged_files_of_a_commit_are_removed_at_a_clean_stop_or_the_next_start() -> None:
    world, sink = unsynced(SyncPolicy.NEVER)
    sink.prepared(b"1")
    sink.commit("0")
    world.broker.close(world.now())
    world.collect()
    world.settle()
    assert world.broker.journal.commits.closed
    assert files_of(world) == []
    world.disk = world.disk.kill_clone()
    world.open()
    world.settle()
    assert files_of(world) == []
    assert bodies_of(world) == [b"1"]


# -- aborts -------------------------------------------------------------------------------------------


def test_abort_is_answered_only_when_the_removal_is_durable(world: EngineWorld, sink: Sink) -> None:
    sink.prepared(b"1")
    sink.prepared(b"2", part="1")
    number = sink.say(Abort, transaction=T1)
    assert number not in sink.peer.answers, "the files are still there"
    again = sink.say(Abort, transaction=T1)
    assert again not in sink.peer.answers, "the files still exist for a repeated abort"
    world.settle()
    assert sink.peer.answers[number] == Ack(id=number)
    assert sink.peer.answers[again] == Ack(id=again)
    assert files_of(world) == []
    for seed in range(20):
        disk = world.disk.crash_clone(Random(seed))
        assert disk.names(STAGING_DIRECTORY) == []


def test_abort_of_nothing_is_answered_when_nothing_was_ever_staged(world: EngineWorld, sink: Sink) -> None:
    number = sink.say(Abort, transaction=T1)
    world.settle()
    assert sink.peer.answers[number] == Ack(id=number)
    assert STAGING_DIRECTORY not in world.disk.names(".")


@pytest.mark.parametrize("operation", ["remove", "sync_directory"])
def test_abort_that_the_disk_refuses_is_refused_and_can_be_repeated(
    world: EngineWorld, sink: Sink, operation: str
) -> None:
    sink.prepared(b"1")
    sink.prepared(b"2", part="1")
    world.disk.fail(operation, 1, errno.EIO)
    assert sink.code(Abort, transaction=T1) == "staging_failed"
    assert sink.code(Commit, transaction=T1, parts=("0",)) == "transaction_unknown"
    assert sink.ask(Abort, transaction=T1) == Ack(id=sink.peer.ids)
    assert files_of(world) == []
    assert world.disk.crash_clone(Random(1)).names(STAGING_DIRECTORY) == []


def test_abort_removes_a_file_after_an_earlier_failed_removal(world: EngineWorld, sink: Sink) -> None:
    sink.prepared(b"1")
    world.disk.fail("remove", 1, errno.EIO)
    other = Sink(world, "other")
    other.prepared(b"2")
    assert len(files_of(world)) == 2, "the replaced part is left"
    assert other.ask(Abort, transaction=T1) == Ack(id=other.peer.ids)
    assert files_of(world) == []


def test_expired_transactions_do_not_reappear_after_a_power_loss(world: EngineWorld, sink: Sink) -> None:
    sink.prepared(b"1")
    sink.prepared(b"2", transaction=Transaction(publisher="sink", name="t2"))
    world.wake(4_000)
    world.settle()
    assert files_of(world) == []
    for seed in range(20):
        assert world.disk.crash_clone(Random(seed)).names(STAGING_DIRECTORY) == []


def test_aborts_that_wait_for_the_disk_are_bounded(
    world: EngineWorld, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "staging_jobs_max", 4)
    for number in range(6):
        sink.say(Abort, transaction=Transaction(publisher="sink", name=str(number)))
    assert [type(pause).__name__ for pause in world.pauses] == ["PauseReading"]
    world.settle()
    assert [type(pause).__name__ for pause in world.pauses] == ["PauseReading", "ResumeReading"]
