"""Filters of records: message types, topics, and inputs of functions."""

from __future__ import annotations

import json

import pytest

from tests.helpers.sow_queries import QueryWorld, encode_key
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.payload.canonical import generated_key

PATTERN = SowDefinition("p/all", key=("/id",), pattern="^p/")


def body(number: int, **fields: object) -> bytes:
    return json.dumps({"id": number, **fields}).encode()


def mixed_world() -> QueryWorld:
    """Return a state over a pattern with topics of two message types."""
    world = QueryWorld(PATTERN, **{"p/fix": "nvfix"})
    for number in range(50):
        bodies = [body(number, a=number), b"id=%d\x01a=%d\x01" % (number, number), b"no json"]
        messages = [(number, one) for one in bodies]
        world.publish(messages, topics=["p/x", "p/fix", "p/bad"])
    return world


def test_topics_are_filtered_by_message_type() -> None:
    world = mixed_world()
    answer = world.query("/a >= 48")
    assert answer.topics == ["p/x", "p/fix"] * 2
    assert (answer.matches, answer.topic_matches) == (4, 150)
    assert world.filter_context.unreadable == 50


def test_only_the_selected_topics_are_in_the_result() -> None:
    world = mixed_world()
    terms = world.terms(only=["p/fix", "p/none"])
    assert world.answer(world.start(terms)).topics == ["p/fix"] * 50
    terms = world.terms("/a < 3", only=["p/x"])
    assert world.answer(world.start(terms)).bodies == [body(number, a=number) for number in range(3)]


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("TOPIC_NAME() = 'orders'", {0, 1, 2}),
        ("BOOKMARK() = '9223372036854775809|2|'", {1}),
        (f"SOW_KEY() = '{generated_key('orders', encode_key(2))}'", {2}),
        ("CORRELATION_ID() IS NULL AND /id > 0", {1, 2}),
        ("USER() = 'ann' AND CLIENT_NAME() = 'desk' AND /id = 0", {0}),
        ("USER() = 'bob'", set()),
    ],
)
def test_functions_read_the_message_of_the_record(filter: str, expected: set[int]) -> None:
    world = QueryWorld()
    world.publish([(number, body(number)) for number in range(3)], publisher=2**63 + 1)
    assert {json.loads(one)["id"] for one in world.query(filter).bodies} == expected


def test_functions_read_topics_and_explicit_keys_over_a_pattern() -> None:
    world = QueryWorld(SowDefinition("e/all", pattern="^e/"), **{"e/fix": "nvfix"})
    world.publish([("k1", body(1)), ("k2", b"id=1\x01"), ("k3", body(3))], topics=["e/a", "e/fix", "e/b"])
    assert world.query("TOPIC_NAME() IN ('e/b', 'e/fix')").topics == ["e/fix", "e/b"]
    assert world.query("SOW_KEY() = 'k2' AND /id = 1").topics == ["e/fix"]


def test_filter_sees_the_whole_body_and_the_time_of_the_start() -> None:
    world = QueryWorld()
    world.publish([(number, body(number, v=number)) for number in range(3_000)])
    assert world.query("/v = 7", select="+/id").bodies == [b'{"id":7}']
    query = world.start(world.terms("UNIX_TIMESTAMP() < 5"))
    for _ in range(2):
        query.step()
    clock = world.filter_context._clock
    clock.set(clock.now._replace(wall=10_000_000))
    assert len(world.answer(query).bodies) == 3_000
    assert world.query("UNIX_TIMESTAMP() < 5").bodies == []
