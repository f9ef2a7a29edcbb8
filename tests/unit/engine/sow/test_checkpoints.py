"""Checkpoints of SOW topics in the engine: files, pins, syncs, failures and bounds."""

from __future__ import annotations

import errno
from collections.abc import Callable

import msgspec
import pytest

from tests.helpers.sow_engine import SowEngine, publish
from tests.simulation.engine_peer import Peer
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow import checkpoint_writer, checkpoints
from tickertape.engine.sow.log_fold import LogFold
from tickertape.engine.sow.state.delete import DeleteBuilder
from tickertape.journal.commit.group_commit import SyncPolicy
from tickertape.journal.commit.jobs import PublishState, SyncSegment, WriteState
from tickertape.journal.format.sow_checkpoint import MANIFEST_NAME, UNFINISHED_NAME, state_path
from tickertape.journal.reading.log_view import LogPart
from tickertape.journal.retention import RetentionPolicy

ORDERS = SowDefinition("orders", key=("/id",), checkpoint_interval=10.0)
QUIET = SowDefinition("quiet", key=("/id",), checkpoint_interval=10.0)


def body(key: object, value: object = 0) -> bytes:
    return msgspec.json.encode({"id": key, "v": value})


def names(world: SowEngine, topic: str = "orders") -> list[str]:
    """Return the kinds of files of a topic, in order."""
    found = world.disk.names(state_path(topic, "").rstrip("/"))
    return [name.partition("-")[0] for name in found]


def interval(world: SowEngine) -> None:
    """Let an interval pass, and everything that is due."""
    world.wake(10.1)
    world.settle()


def filled(*, count: int = 50) -> tuple[SowEngine, Peer]:
    """Return an engine with a base."""
    world = SowEngine(ORDERS, QUIET, segment_bytes=1 << 20)
    peer = world.connect("p")
    publish(peer, [("orders", body(key)) for key in range(count)])
    world.settle()
    interval(world)
    assert names(world) == ["base", "manifest"]
    return world, peer


def delete(world: SowEngine, *keys: int) -> None:
    fold = world.state("orders").fold
    packed = [msgspec.msgpack.encode(key) for key in keys]
    rows = fold.records.rows(fold.keys.find(packed))
    builder = DeleteBuilder("orders", world.state("orders").key_fingerprint)
    builder.add(packed, fold.records.publishers.ids(rows.publishers), rows.sequences, rows.order_stamps)
    world.write_delete(builder.build(len(keys), len(keys)))


def test_interval_without_changes_writes_nothing() -> None:
    world, peer = filled()
    written = world.broker.state_checkpoints.written
    publish(peer, [("unkept", b"x")])
    world.settle()
    interval(world)
    interval(world)
    assert world.broker.state_checkpoints.written == written


def test_deltas_have_changes_only_and_become_a_base_above_half_of_the_base() -> None:
    world, peer = filled()
    kinds = []
    for value in range(1, 9):
        publish(peer, [("orders", body(value, value))])
        delete(world, 40 + value)
        interval(world)
        kinds.append(names(world))
    assert kinds[0] == ["base", "delta", "manifest"]
    assert ["base", "manifest"] in kinds
    assert max(map(len, kinds)) < 8
    before = world.records("orders")
    assert len(before) == 42
    world.reopen()
    assert world.records("orders") == before


def test_deleted_keys_above_the_memory_make_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    world, peer = filled()
    monkeypatch.setattr(world.state("orders").fold.deleted_keys, "_bytes_max", 500)
    delete(world, 1, 2, 3, 4)
    publish(peer, [("orders", body(5, 1))])
    world.settle()
    interval(world)
    assert names(world) == ["base", "manifest"]
    assert world.broker.state_checkpoints.written == 3
    before = world.records("orders")
    world.reopen()
    assert world.records("orders") == before
    assert len(before) == 46


@pytest.mark.parametrize("kind", [WriteState, PublishState])
def test_failed_write_of_a_checkpoint_is_reported_and_repeated(kind: type) -> None:
    world, peer = filled()
    publish(peer, [("orders", body(1, 1))])
    world.settle()
    world.wake(10.1)
    run_until(world, lambda: isinstance(world.jobs[0], kind) if world.jobs else False)
    world.disk.fail("sync" if kind is PublishState else "write", 1, errno.EIO)
    world.settle()
    assert world.broker.state_checkpoints.failures == 1
    (event,) = [event for event in world.told if event.name == "sow_checkpoint_failed"]
    assert event.fields["topic"] == "orders"
    publish(peer, [("orders", body(2, 2))])
    world.settle()
    interval(world)
    found = world.disk.names(state_path("orders", "").rstrip("/"))
    manifest = world.broker.state_checkpoints._states["orders"].manifest
    assert manifest is not None
    assert {*found} - {"manifest.new"} == {MANIFEST_NAME, *(entry.name for entry in manifest.files)}
    before = world.records("orders")
    world.reopen()
    assert world.records("orders") == before


def run_until(world: SowEngine, reached: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if reached():
            return
        if world.jobs:
            world.run_job()
        else:
            assert world.broker.has_work
            world.work()
    raise AssertionError("the engine does not reach it")


def test_manifest_waits_for_the_sync_of_the_log() -> None:
    world = SowEngine(ORDERS, segment_bytes=1 << 20, policy=SyncPolicy.NEVER)
    publish(world.connect("p"), [("orders", body(key)) for key in range(50)])
    world.settle()
    world.wake(10.1)
    order = []
    while world.jobs or world.broker.has_work:
        if not world.jobs:
            world.work()
            continue
        job = world.jobs[0]
        order.append(type(job))
        if isinstance(job, PublishState):
            assert world.broker.journal.commits.synced_end == world.broker.journal.commits.persisted_end
        world.run_job()
    assert order.index(SyncSegment) < order.index(PublishState)
    assert world.broker.state_checkpoints.written == 1


def test_pieces_are_bounded_and_synced_regularly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_writer, "sow_piece_bytes", 1_000)
    monkeypatch.setattr(checkpoints, "sow_sync_bytes", 5_000)
    world = SowEngine(ORDERS, segment_bytes=1 << 20)
    publish(world.connect("p"), [("orders", body(key, "x" * 100)) for key in range(500)])
    world.settle()
    world.wake(10.1)
    pieces: list[WriteState] = []
    while world.jobs or world.broker.has_work:
        if world.jobs:
            pieces += [job for job in [world.jobs[0]] if isinstance(job, WriteState)]
            world.run_job()
        else:
            world.work()
    assert len(pieces) > 40
    assert max(piece.bytes for piece in pieces) < 2_000
    unsynced = 0
    for piece in pieces:
        unsynced = 0 if piece.durable else unsynced + piece.bytes
        assert unsynced < 5_000
    assert pieces[-1].durable


def test_quiet_topic_holds_no_segment_of_a_pruned_log() -> None:
    world = SowEngine(
        ORDERS, QUIET, segment_bytes=8_192, retention=RetentionPolicy(size_bytes=30_000), seed=3
    )
    peer = world.connect("p")
    publish(peer, [("quiet", body(key)) for key in range(5)])
    for _ in range(60):
        publish(peer, [("orders", body(key, "x" * 200)) for key in range(10)])
        world.settle()
        world.wake(3.0)
        world.settle()
    first = world.broker.journal.view.first_position
    assert world.broker.journal.commits.persisted_end - first < 300
    assert names(world, "quiet") == ["base", "manifest"]
    retired = world.broker.journal.view.retired
    assert retired is not None
    assert {*retired.manifests} == {"orders", "quiet"}
    before = world.records("quiet"), world.records("orders")
    world.reopen()
    assert (world.records("quiet"), world.records("orders")) == before
    assert len(before[0]) == 5


def test_pin_and_named_checkpoint_are_those_of_the_durable_manifest() -> None:
    world, peer = filled()
    interval(world)
    states = world.broker.state_checkpoints
    durable = states.manifests()
    publish(peer, [("orders", body(1, 1))])
    world.settle()
    world.wake(10.1)
    run_until(world, lambda: isinstance(world.jobs[0], PublishState) if world.jobs else False)
    assert states.manifests() == durable
    world.settle()
    later = states.manifests()["orders"]
    assert later.position > durable["orders"].position
    world.reopen(ORDERS)
    manifest = world.plan.topics["orders"].manifest
    assert manifest is not None
    assert (manifest.end, manifest.chain) == (later.position, later.chain)
    pin = world.broker.state_checkpoints.oldest_needed()
    assert pin is not None
    assert pin.position == manifest.start


def test_states_that_stopped_keep_no_ends_of_commits() -> None:
    world, peer = filled()
    publish(peer, [("orders", body("last"))])
    world.settle()
    world.write_broken_delete()
    assert world.broker.states.fold.failure is not None
    for number in range(50):
        publish(peer, [("orders", body(number))])
        world.settle()
    assert len(world.broker.state_checkpoints._ends) == 0
    written = world.broker.state_checkpoints.written
    interval(world)
    assert world.broker.state_checkpoints.written == written


def test_quiet_topic_with_a_file_to_replace_gets_a_base() -> None:
    world, peer = filled()
    state = world.broker.state_checkpoints._states["orders"]
    before = state.manifest
    assert before is not None
    state.forced = True  # as after a start without a damaged file
    publish(peer, [("quiet", body(1))])
    world.settle()
    interval(world)
    assert state.manifest is not None
    assert state.manifest.files[0].end > before.files[0].end
    assert not state.forced


def test_next_manifest_without_a_new_file_removes_the_file_of_an_ended_scan() -> None:
    world, peer = filled()
    world.disk.close(world.disk.open(state_path("orders", UNFINISHED_NAME), create=True))
    publish(peer, [("quiet", body(1))])
    world.settle()
    world.broker.state_checkpoints.hasten(1 << 40)
    interval(world)
    assert names(world) == ["base", "manifest"]


# -- clean stop ---------------------------------------------------------------------------------------


def stop(world: SowEngine) -> None:
    """Stop the engine cleanly."""
    world.broker.close(world.now())
    world.collect()
    assert world.broker.state_checkpoints.stop_pending
    world.settle()
    assert world.broker.journal.commits.closed
    assert not world.broker.state_checkpoints.stop_pending


def folded_at_start(world: SowEngine, monkeypatch: pytest.MonkeyPatch) -> int:
    """Kill the process, start another, and return the messages that the start folded."""
    counts: list[int] = []
    take = LogFold.take

    def taking(fold: LogFold, part: LogPart) -> None:
        counts.append(part.batch.count)
        take(fold, part)

    with monkeypatch.context() as patched:
        patched.setattr(LogFold, "take", taking)
        world.reopen()
    return sum(counts)


@pytest.mark.parametrize("policy", list(SyncPolicy))
def test_start_after_a_clean_stop_folds_no_message(
    policy: SyncPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SowEngine(ORDERS, QUIET, segment_bytes=1 << 20, policy=policy)
    peer = world.connect("p")
    publish(peer, [("quiet", body(1)), *[("orders", body(key)) for key in range(50)]])
    world.settle()
    interval(world)
    publish(peer, [("orders", body(key, 1)) for key in range(5)])
    world.settle()
    delete(world, 7)
    before = world.records("orders"), world.records("quiet")
    stop(world)
    assert names(world) == ["base", "delta", "manifest"]
    assert names(world, "quiet") == ["base", "manifest"]
    assert folded_at_start(world, monkeypatch) == 0
    assert (world.records("orders"), world.records("quiet")) == before
    stop(world)
    assert folded_at_start(world, monkeypatch) == 0


def test_start_after_a_kill_folds_the_messages_behind_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    world, peer = filled()
    publish(peer, [("orders", body(key, 1)) for key in range(5)])
    world.settle()
    assert folded_at_start(world, monkeypatch) >= 5


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("has_base", [False, True])
def test_start_that_folded_many_messages_writes_a_checkpoint_at_once(
    early: bool, has_base: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SowEngine(ORDERS, segment_bytes=1 << 20)
    peer = world.connect("p")
    if has_base:
        publish(peer, [("orders", body(key)) for key in range(50)])
        world.settle()
        interval(world)
    begin = world.broker.states.fold.folded if has_base else 0
    publish(peer, [("orders", body(key, 1)) for key in range(30, 90)])
    world.settle()
    before = world.records("orders")
    folded = world.broker.states.fold.folded - begin
    monkeypatch.setattr(checkpoints, "sow_early_checkpoint_messages_min", folded + (not early))
    world.reopen()
    world.wake(0.001)
    world.settle()
    assert world.broker.state_checkpoints.written == early
    interval(world)
    assert world.broker.state_checkpoints.written == 1
    world.reopen()
    assert world.records("orders") == before
    world.wake(0.001)
    world.settle()
    assert not world.broker.state_checkpoints.written


@pytest.mark.parametrize("kind", [WriteState, PublishState])
def test_clean_stop_during_a_checkpoint_writes_the_later_messages(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, peer = filled()
    publish(peer, [("orders", body(1, 1))])
    world.settle()
    world.wake(10.1)
    run_until(world, lambda: isinstance(world.jobs[0], kind) if world.jobs else False)
    (slow,) = [job for job in world.jobs if isinstance(job, kind)]
    world.jobs.remove(slow)  # the other thread needs longer than the seal
    publish(peer, [("orders", body(2, 2))])
    world.broker.close(world.now())
    world.collect()
    run_until(world, lambda: world.broker.journal.commits.closed and not world.broker.has_work)
    assert not world.jobs
    pending = world.broker.state_checkpoints.stop_pending
    assert pending
    world.jobs.append(slow)
    world.settle()
    assert not world.broker.state_checkpoints.stop_pending
    before = world.records("orders")
    assert before[msgspec.msgpack.encode(2)] == body(2, 2)
    assert folded_at_start(world, monkeypatch) == 0
    assert world.records("orders") == before


def test_clean_stop_folds_all_commits_before_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SowEngine(ORDERS, segment_bytes=1 << 22)
    peer = world.connect("p")
    for first in (0, 4_000):
        publish(peer, [("orders", body(key)) for key in range(first, first + 4_000)])
    stop(world)
    assert len(world.records("orders")) == 8_000
    assert folded_at_start(world, monkeypatch) == 0


@pytest.mark.parametrize("kind", [WriteState, PublishState])
def test_failed_checkpoint_of_a_clean_stop_is_logged_and_loses_nothing(kind: type) -> None:
    world, peer = filled()
    publish(peer, [("orders", body(1, 1))])
    world.settle()
    before = world.records("orders")
    world.broker.close(world.now())
    world.collect()
    run_until(world, lambda: isinstance(world.jobs[0], kind) if world.jobs else False)
    world.disk.fail("sync" if kind is PublishState else "write", 1, errno.EIO)
    world.settle()
    assert world.broker.journal.commits.closed
    assert not world.broker.state_checkpoints.stop_pending
    assert [event.name for event in world.told].count("sow_checkpoint_failed") == 1
    world.reopen()
    assert world.records("orders") == before


def test_clean_stop_of_an_empty_log_writes_no_checkpoint() -> None:
    world = SowEngine(ORDERS, segment_bytes=1 << 20)
    stop(world)
    assert not world.broker.state_checkpoints.written
