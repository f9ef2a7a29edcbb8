"""Statistics of SOW topics in `/stats` and as metrics."""

from __future__ import annotations

import errno
from typing import Any

import msgspec
import pytest

from tests.helpers.sow_engine import SowEngine, publish, rejected, send
from tests.helpers.sow_peer import QueryWorld
from tests.helpers.steps import result_of, steps_of_each
from tests.simulation.engine_world import EngineWorld
from tests.unit.engine.sow.test_checkpoints import run_until
from tests.unit.server.admin.test_snapshot import STEPS_MAX, instance_of, reads_of_each_step
from tickertape.engine.limits import sow_topics_max
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow import snapshot as sow_snapshot
from tickertape.engine.sow.snapshot import SowCheckpointSnapshot, SowSnapshot
from tickertape.journal.commit.jobs import WriteState
from tickertape.server.admin import snapshot as looking
from tickertape.server.admin.metrics import exposition
from tickertape.server.admin.schema import SowState, Stats
from tickertape.server.admin.snapshot import InstanceSnapshot, with_topics
from tickertape.server.limits import snapshot_step_sow_topics_max
from tickertape.wire.sow_command import SowDelete

ORDERS = SowDefinition("orders", key=("/id",), checkpoint_interval=60.0, expiration=30_000)
SETTINGS = SowDefinition("settings", pattern="^set/", checkpoint_interval=5.0)


def stats_of(world: EngineWorld) -> Stats:
    return with_topics(result_of(InstanceSnapshot(instance_of(world), "test").stats()))


def sow_of(world: EngineWorld) -> SowState:
    sow = stats_of(world).sow
    assert sow is not None
    return sow


def body(key: int, value: int = 0) -> bytes:
    return b'{"id":%d,"value":%d,"text":"%s"}' % (key, value, b"x" * 100)


def test_stats_without_sow_topics_have_no_section() -> None:
    world = EngineWorld(1)
    assert stats_of(world).sow is None
    text, _ = exposition(stats_of(world), "")
    assert b"tickertape_sow_" not in text


def test_stats_have_records_bytes_and_counters_of_each_sow_topic() -> None:
    world = SowEngine(ORDERS, SETTINGS)
    peer = world.connect("p")
    publish(peer, [("orders", body(key)) for key in range(10)])
    publish(peer, [("orders", body(key, 1)) for key in range(5)])
    send(peer, [("orders", b"{}"), ("orders", b"[]")])
    send(peer, [SowDelete(topic="orders", data=body(key)) for key in (1, 2)])
    world.settle()
    assert rejected(peer)
    orders, settings = sow_of(world).topics
    size = len(body(0))
    assert (orders.name, orders.pattern, orders.key) == ("orders", None, ["/id"])
    assert (settings.name, settings.pattern, settings.key) == ("settings", "^set/", [])
    assert (orders.records, orders.deleted, orders.expired, orders.refused) == (8, 2, 0, 2)
    assert (orders.live_bytes, orders.block_bytes, orders.blocks) == (8 * size, 15 * size, 1)
    assert orders.garbage_ratio == pytest.approx(7 / 15, abs=1e-4)
    assert orders.memory_bytes > orders.live_bytes + orders.index_bytes > orders.live_bytes
    assert (orders.held_bytes, orders.changes_bytes, orders.unkeyed) == (0, 0, 0)
    assert orders.position == world.broker.journal.commits.persisted_end == settings.position
    assert (settings.records, settings.live_bytes, settings.garbage_ratio) == (0, 0, 0.0)
    assert (orders.complete, orders.incomplete_because) == (True, None)
    world.wake(40)
    world.settle()
    orders, _ = sow_of(world).topics
    assert (orders.records, orders.expired, orders.deleted) == (0, 8, 2)


def test_memory_of_a_topic_includes_columns() -> None:
    world = QueryWorld(ORDERS, segment_bytes=1 << 22)
    peer, reader = world.connect("p"), world.reader()
    publish(peer, [("orders", body(key)) for key in range(5_000)])
    world.settle()
    (before,) = sow_of(world).topics
    for name in ("first", "second"):
        reader.query(name, "orders", credit=1 << 20, filter="/id > 4990")
        world.settle()
    (after,) = sow_of(world).topics
    assert before.column_bytes == 0
    assert (
        after.column_bytes == after.memory_bytes - before.memory_bytes == world.broker.states.columns.nbytes
    )
    assert after.column_bytes > 5_000 * 8


def test_counters_of_records_start_at_zero_after_each_start() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    publish(peer, [("orders", body(key)) for key in range(3)])
    send(peer, [SowDelete(topic="orders", data=body(1))])
    world.settle()
    (before,) = sow_of(world).topics
    world.reopen()
    (after,) = sow_of(world).topics
    assert (before.deleted, after.deleted, after.records) == (1, 0, 2)


def test_messages_without_a_key_from_before_the_configuration_are_counted() -> None:
    world = SowEngine()
    publish(world.connect("p"), [("orders", body(1)), ("orders", b"{}"), ("orders", b"?")])
    world.settle()
    world.reopen(ORDERS)
    (orders,) = sow_of(world).topics
    assert (orders.records, orders.unkeyed, orders.refused) == (1, 2, 0)


def checkpoint_of(world: SowEngine) -> SowCheckpointSnapshot:
    """Return the checkpoint of the only topic, with the clock of the engine."""
    (topic,) = world.broker.states.topics
    look = world.broker.state_checkpoints.look(topic.name)
    return sow_snapshot.snapshot(topic, look, world.broker.states.fold.folded, world.now().mono).checkpoint


def test_checkpoint_has_position_size_and_age() -> None:
    world = SowEngine(SowDefinition("orders", key=("/id",), checkpoint_interval=60.0))
    publish(world.connect("p"), [("orders", body(key)) for key in range(3)])
    world.settle()
    before = checkpoint_of(world)
    assert (before.position, before.log_position, before.files, before.bytes) == (None, None, 0, 0)
    assert before.interval_seconds == 60.0
    world.wake(20.0)
    world.settle()
    assert checkpoint_of(world).seconds == pytest.approx(20.0, abs=1.0)
    world.wake(41.0)
    world.settle()
    after = checkpoint_of(world)
    end = world.broker.journal.commits.persisted_end
    assert (after.position, after.log_position, after.files) == (end, end, 1)
    assert after.bytes > 3 * len(body(0))
    assert after.seconds < 1.0


def test_age_of_a_checkpoint_without_later_changes_stays_below_the_interval() -> None:
    world = SowEngine(SowDefinition("orders", key=("/id",), checkpoint_interval=5.0))
    publish(world.connect("p"), [("orders", body(1))])
    world.settle()
    for _ in range(12):
        world.wake(5.1)
        world.settle()
        assert checkpoint_of(world).seconds < 5.0


def test_age_without_any_message_stays_below_the_interval() -> None:
    world = SowEngine(SowDefinition("orders", key=("/id",), checkpoint_interval=5.0))
    for _ in range(4):
        world.wake(5.1)
        world.settle()
        assert checkpoint_of(world).seconds < 5.0


def test_failed_checkpoints_are_counted_and_the_age_grows() -> None:
    world = SowEngine(SowDefinition("orders", key=("/id",), checkpoint_interval=5.0))
    peer = world.connect("p")
    for number in range(3):
        publish(peer, [("orders", body(number))])
        world.settle()
        world.wake(5.1)
        run_until(world, lambda: isinstance(world.jobs[0], WriteState) if world.jobs else False)
        world.disk.fail("write", 1, errno.EIO)
        world.settle()
    found = checkpoint_of(world)
    assert (found.failures, found.position) == (3, None)
    assert found.seconds > 15.0


def test_query_is_counted_with_age_and_memory_until_the_end() -> None:
    world = QueryWorld(SowDefinition("orders", key=("/id",)))
    publish(world.connect("publisher"), [("orders", body(key)) for key in range(100)])
    world.settle()
    idle = sow_of(world)
    assert (idle.queries, idle.oldest_query_seconds, idle.results_bytes) == (0, None, 0)
    peer = world.reader()
    peer.query("q", "orders", credit=1_000)
    for _ in range(60):
        world.step()
    running = sow_of(world)
    assert running.queries == 1
    assert running.oldest_query_seconds is not None
    assert running.results_bytes > 0
    world.settle()
    assert (sow_of(world).queries, sow_of(world).results_bytes) == (0, 0)


def test_stats_have_the_memory_that_the_limit_counts() -> None:
    world = SowEngine(ORDERS, SETTINGS)
    publish(world.connect("p"), [("orders", body(key)) for key in range(3)])
    world.settle()
    sow = stats_of(world).sow
    assert sow is not None
    assert sow.memory_limit_bytes == world.sow_bytes_max
    assert sow.memory_bytes == world.broker.states.memory.used
    assert 0 < sow.memory_bytes <= sum(topic.memory_bytes for topic in sow.topics)
    end = world.broker.journal.commits.persisted_end
    assert (sow.folded_position, sow.lag_bytes, sow.failure) == (end, 0, None)


def test_stats_of_a_stopped_fold_have_the_cause() -> None:
    world = SowEngine(ORDERS)
    world.write_broken_delete()
    sow = sow_of(world)
    assert sow.failure
    text, _ = exposition(stats_of(world), "")
    assert b"\ntickertape_sow_stopped 1.0\n" in text


def test_exposition_has_metrics_of_sow_topics() -> None:
    world = SowEngine(ORDERS, SETTINGS)
    publish(world.connect("p"), [("orders", body(key)) for key in range(3)])
    world.settle()
    text, _ = exposition(stats_of(world), "")
    lines = [line for line in text.decode().splitlines() if line.startswith("tickertape_sow_")]
    names = [line.removeprefix("tickertape_sow_").rpartition(" ")[0] for line in lines]
    plain = ["stopped", "folded_position", "lag_bytes", "memory_bytes", "memory_limit_bytes", "queries"]
    assert names[:8] == [*plain, "results_bytes", "memory_refused_frames_total"]
    assert 'tickertape_sow_records{topic="orders"} 3.0' in lines
    assert 'tickertape_sow_refused_messages_total{topic="settings"} 0.0' in lines
    assert 'tickertape_sow_complete{topic="orders"} 1.0' in lines
    assert 'tickertape_sow_checkpoint_interval_seconds{topic="settings"} 5.0' in lines
    assert not [name for name in names if name.startswith("checkpoint_position")]


def test_snapshot_of_many_sow_topics_reads_bounded_topics_in_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 2 * snapshot_step_sow_topics_max + 1
    world = SowEngine(*(SowDefinition(f"t{n}", key=("/id",)) for n in range(count)))
    read = 0
    seen = sow_snapshot.snapshot

    def counted(*arguments: Any) -> SowSnapshot:
        nonlocal read
        read += 1
        return seen(*arguments)

    monkeypatch.setattr(looking, "state_of", counted)
    snapshot = InstanceSnapshot(instance_of(world), "test")
    reads = reads_of_each_step(snapshot, lambda: read)
    assert max(reads) == snapshot_step_sow_topics_max
    assert sum(reads) == count


@pytest.mark.slow
def test_snapshot_of_the_most_sow_topics_takes_bounded_steps() -> None:
    world = SowEngine(*(SowDefinition(f"t{n}", key=("/id",)) for n in range(sow_topics_max)))
    snapshot = InstanceSnapshot(instance_of(world), "test")
    stats = with_topics(result_of(snapshot.stats()))
    assert stats.sow is not None
    assert len(stats.sow.topics) == sow_topics_max
    steps = steps_of_each(snapshot.stats())
    assert max(steps) <= STEPS_MAX, steps
    assert msgspec.json.decode(msgspec.json.encode(stats), type=Stats).sow == stats.sow
