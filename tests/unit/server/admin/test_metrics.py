"""Statistics of queues in `/stats` and as metrics."""

from __future__ import annotations

import msgspec
import pytest

from tests.helpers.queue_engine import QueueEngine
from tests.helpers.steps import result_of
from tests.simulation.engine_world import EngineWorld
from tests.unit.server.admin.test_snapshot import instance_of
from tickertape.engine.queues.snapshot import QueueSnapshot
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.server.admin.metrics import exposition
from tickertape.server.admin.schema import Stats
from tickertape.server.admin.snapshot import InstanceSnapshot, with_topics

WORK = QueueSnapshot(
    name="work",
    underlying="^orders/",
    semantics="at-least-once",
    depth=18,
    ready=5,
    leased=2,
    inactive=10,
    dooming=1,
    consumers=3,
    backlog=2,
    oldest_position=77,
    oldest_seconds=12.5,
    oldest_lease_seconds=1.25,
    entered=40,
    acknowledged=20,
    taken=0,
    returned={"cancelled": 1, "lease_expired": 4},
    expired={"max_deliveries": 2},
    deferred=6,
    unrecorded=7,
    filtered=8,
    seconds_behind=0.5,
    target_queue_depth=8,
    max_backlog=None,
)
IDLE = msgspec.structs.replace(
    WORK,
    name="idle",
    semantics="at-most-once",
    depth=0,
    ready=0,
    leased=0,
    inactive=0,
    dooming=0,
    oldest_position=None,
    oldest_seconds=None,
    oldest_lease_seconds=None,
    taken=9,
    returned={},
    expired={},
    max_backlog=100,
    failure="its log is damaged",
)


def stats_of(*snapshots: QueueSnapshot) -> Stats:
    stats = with_topics(result_of(InstanceSnapshot(instance_of(EngineWorld(1)), "test").stats()))
    return msgspec.structs.replace(stats, queues=list(snapshots))


def test_queue_statistics_are_encoded_with_all_fields_and_depth() -> None:
    assert msgspec.json.encode(stats_of(WORK).queues).decode() == (
        '[{"name":"work","underlying":"^orders/","semantics":"at-least-once","depth":18,"ready":5,"leased":2,'
        '"inactive":10,"dooming":1,"consumers":3,"backlog":2,"max_backlog":null,"target_queue_depth":8,'
        '"oldest_position":77,"oldest_seconds":12.5,"oldest_lease_seconds":1.25,"entered":40,'
        '"acknowledged":20,"taken":0,"returned":{"cancelled":1,"lease_expired":4},'
        '"expired":{"max_deliveries":2},"deferred":6,"unrecorded":7,"filtered":8,"failure":null,'
        '"seconds_behind":0.5}]'
    )


def test_stats_without_queues_decode() -> None:
    stats = stats_of()
    assert msgspec.json.decode(msgspec.json.encode(stats), type=Stats).queues == []


def test_exposition_has_metrics_of_each_queue() -> None:
    text, _ = exposition(stats_of(WORK, IDLE), "")
    lines = [line for line in text.decode().splitlines() if line.startswith("tickertape_queue_")]
    assert [line.removeprefix("tickertape_queue_") for line in lines] == [
        'depth{queue="work"} 18.0',
        'depth{queue="idle"} 0.0',
        'ready{queue="work"} 5.0',
        'ready{queue="idle"} 0.0',
        'leased{queue="work"} 2.0',
        'leased{queue="idle"} 0.0',
        'inactive{queue="work"} 10.0',
        'inactive{queue="idle"} 0.0',
        'consumers{queue="work"} 3.0',
        'consumers{queue="idle"} 3.0',
        'backlog{queue="work"} 2.0',
        'backlog{queue="idle"} 2.0',
        'max_backlog{queue="idle"} 100.0',
        'oldest_seconds{queue="work"} 12.5',
        'oldest_lease_seconds{queue="work"} 1.25',
        'seconds_behind{queue="work"} 0.5',
        'seconds_behind{queue="idle"} 0.5',
        'stopped{queue="work"} 0.0',
        'stopped{queue="idle"} 1.0',
        'entered_total{queue="work"} 40.0',
        'entered_total{queue="idle"} 40.0',
        'filtered_total{queue="work"} 8.0',
        'filtered_total{queue="idle"} 8.0',
        'unrecorded_total{queue="work"} 7.0',
        'unrecorded_total{queue="idle"} 7.0',
        'deferred_acknowledgements_total{queue="work"} 6.0',
        'deferred_acknowledgements_total{queue="idle"} 6.0',
        'left_total{queue="work",reason="acknowledged"} 20.0',
        'left_total{queue="work",reason="taken"} 0.0',
        'left_total{queue="work",reason="max_deliveries"} 2.0',
        'left_total{queue="idle",reason="acknowledged"} 20.0',
        'left_total{queue="idle",reason="taken"} 9.0',
        'returned_total{queue="work",reason="cancelled"} 1.0',
        'returned_total{queue="work",reason="lease_expired"} 4.0',
    ]


@pytest.mark.parametrize("version", ["x", "1.x", "\xe9", "2.0\xe9", "2 \x7f"])
@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
def test_exposition_of_an_invalid_version_has_an_ascii_content_type(kind: str, version: str) -> None:
    text, content_type = exposition(stats_of(), f"{kind};version={version}")
    assert text.startswith(b"# HELP tickertape_")
    assert content_type.isascii()


@pytest.mark.parametrize("kept", [False, True])
def test_queue_counters_start_at_zero_after_each_server_start(kept: bool) -> None:
    engine = QueueEngine(QueueDefinition("work", max_deliveries=1, file_backed_metadata=kept))
    engine.connect("p").publish("work", [b"1", b"2", b"3", b"4"])
    engine.settle()
    assert engine.consumed("work", 1, action="cancel") == [b"1"]
    assert [engine.consumed("work", 1, action="expire") for _ in range(2)] == [[b"2"], [b"3"]]
    assert _counts(engine) == (4, 0, {"max_deliveries": 1, "expire": 2})
    engine.reopen(clean=kept)  # without a checkpoint all messages are replayed
    assert _counts(engine) == (0, 0, {"max_deliveries": 0, "expire": 0})
    engine.consumed("work", 1)
    assert _counts(engine) == (0, 1, {"max_deliveries": 0, "expire": 0})


def _counts(engine: QueueEngine) -> tuple[int, int, dict[str, int]]:
    (queue,) = with_topics(result_of(InstanceSnapshot(instance_of(engine), "test").stats())).queues
    return queue.entered, queue.acknowledged, queue.expired
