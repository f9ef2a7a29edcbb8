"""Frames of a result: batches, marks, topics, keys, select lists and sizes."""

from __future__ import annotations

import json

import pytest

from tests.helpers.sow_queries import QueryWorld
from tickertape.base.limits import sow_records_per_frame_max
from tickertape.batch import MessageBatch
from tickertape.batch.format import RUN_BY_SERVER
from tickertape.engine.limits import result_frame_bytes_max
from tickertape.engine.runtime.sow_definition import SowDefinition

PATTERN = SowDefinition("p/all", key=("/id",), pattern="^p/")


def body(number: int, **fields: object) -> bytes:
    return json.dumps({"id": number, **fields}).encode()


def world_of(count: int, pad: int = 0) -> QueryWorld:
    world = QueryWorld()
    for low in range(0, count, 500):
        numbers = range(low, min(count, low + 500))
        world.publish([(one, body(one, pad="x" * pad)) for one in numbers])
    return world


def test_batch_is_one_valid_run_by_the_server_with_marks() -> None:
    world = world_of(10)
    answer = world.query()
    (batch,) = answer.batches
    batch.verify()
    assert MessageBatch.parse(batch.encode()).bodies_list() == [body(one, pad="") for one in range(10)]
    assert (batch.run_count, batch.first_run.flags, batch.topics) == (1, RUN_BY_SERVER, ("orders",))
    assert answer.marks == [(7, 1 + at, 1_000_001) for at in range(10)]
    assert answer.topics == ["orders"] * 10
    assert answer.keys == [None] * 10


def test_frames_have_the_batch_size() -> None:
    batches = world_of(1_050).query(batch_size=100).batches
    assert [batch.count for batch in batches] == [100] * 10 + [50]


def test_frames_without_a_batch_size_have_the_size_of_a_frame() -> None:
    batches = world_of(3_000, pad=200).query().batches
    assert all(batch.body_bytes <= result_frame_bytes_max for batch in batches)
    assert all(batch.body_bytes > result_frame_bytes_max - 1_000 for batch in batches[:-1])
    assert len(batches) > 1
    small = world_of(12_000).query().batches
    assert max(batch.count for batch in small) <= sow_records_per_frame_max
    assert sum(batch.count for batch in small) == 12_000


def test_records_above_the_size_of_a_frame_are_alone() -> None:
    world = QueryWorld()
    for number, size in enumerate((10, result_frame_bytes_max, 2_000_000, 10, 10)):
        world.publish([(number, body(number, pad="x" * size))])
    assert [batch.count for batch in world.query().batches] == [1, 1, 1, 2]
    assert [batch.count for batch in world.query(batch_size=4).batches] == [1, 1, 1, 2]


def test_header_marks_fit_the_header_limit() -> None:
    world = QueryWorld()
    for low in range(0, 24_000, 2_000):
        world.publish([(one, b"%d" % one) for one in range(low, low + 2_000)])
    assert [batch.count for batch in world.query(batch_size=1 << 40).batches] == [10_900, 10_900, 2_200]


def test_records_over_a_pattern_have_topics() -> None:
    world = QueryWorld(PATTERN)
    long = "p/" + "é" * 300
    world.publish(
        [(1, body(1)), (2, body(2)), (1, body(3)), (9, body(4))], topics=["p/a", "p/b", "p/b", long]
    )
    answer = world.query()
    assert answer.topics == ["p/a", "p/b", "p/b", long]
    assert MessageBatch.parse(answer.batches[0].encode()).topics == ("p/a", "p/b", long)
    assert world.query(batch_size=1).topics == answer.topics


@pytest.mark.parametrize("pattern", [None, "^e/"])
def test_explicit_keys_are_in_the_key_column(pattern: str | None) -> None:
    world = QueryWorld(SowDefinition("e/all", pattern=pattern))
    labels = ["a", "b" * 31, "c" * 32, "d" * 255, "e" * 256]
    world.publish([(label, body(0)) for label in labels], topics=["e/" + label[:40] for label in labels])
    answer = world.query()
    assert answer.keys == labels
    if pattern:
        assert answer.topics == ["e/" + label[:40] for label in labels]


def test_select_projects_bodies_after_filter_and_order() -> None:
    world = QueryWorld()
    world.publish([(one, body(one, v=10 - one, w=one % 2)) for one in range(10)])
    answer = world.query("/w = 1", "/v", select="[-/,+/id]")
    assert answer.bodies == [b'{"id":%d}' % one for one in (9, 7, 5, 3, 1)]
    answer.batches[0].verify()


def test_select_projects_bodies_of_each_type() -> None:
    world = QueryWorld(PATTERN, **{"p/fix": "nvfix"})
    world.publish(
        [(1, body(1, a=2)), (1, b"id=1\x01a=3\x01"), (2, body(2, a=4))], topics=["p/x", "p/fix", "p/x"]
    )
    assert world.query(select="+/a").bodies == [b'{"a":2}', b"a=3\x01", b'{"a":4}']
    assert world.query(order_by="/a DESC", select="+/a").bodies == [b'{"a":4}', b"a=3\x01", b'{"a":2}']
