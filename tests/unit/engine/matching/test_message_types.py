"""A pattern that covers topics of several message types: those that cannot have a field never match."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.wire.commands import Ack

TYPES = {"b": "binary", "f": "fix", "n": "nvfix", "j2": "json"}
BODIES = {
    "j": b'{"x":1,"y":"a","35":"D"}',
    "j2": b'{"x":2,"y":"b"}',
    "b": b"x=1",
    "f": b"35=D\x0138=7\x01",
    "n": b"x=1\x01y=c\x01",
}


def _world(*, recorded: bool = True) -> tuple[EngineWorld, Peer, Peer]:
    world = EngineWorld(1, topic_types=TYPES, recorded=None if recorded else frozenset())
    return world, world.connect("p"), world.connect("r")


def _publish_all(peer: Peer, *, sequenced: bool = True) -> None:
    for topic, body in BODIES.items():
        peer.publish(topic, [body], sequenced=sequenced)


def _answer(world: EngineWorld, peer: Peer, command: int) -> Ack:
    world.settle()
    answer = peer.answers[command]
    assert isinstance(answer, Ack)
    return answer


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    ("filter", "topics"),
    [
        ("/x = 1", {"j", "n"}),
        ("NOT /x = 1", {"j2"}),
        ("/35 = 'D'", {"j", "f"}),
        ("/x/z IS NULL", {"j", "j2"}),
        ("TOPIC_NAME() != 'j'", {"j2", "b", "f", "n"}),
    ],
)
def test_a_type_that_cannot_have_a_field_never_matches(filter: str, topics: set[str], recorded: bool) -> None:
    world, publisher, reader = _world(recorded=recorded)
    assert _answer(world, reader, reader.subscribe("s", "^.*", filter=filter)).code == ""
    _publish_all(publisher, sequenced=recorded)
    world.settle()
    assert {heard.topic for heard in reader.heard["s"]} == topics
    assert world.broker.compiler.filter_context.unreadable == 0, "no body was unreadable"


def test_replay_with_many_filters_matches_only_types_with_the_field() -> None:
    world, publisher, reader = _world()
    _publish_all(publisher)
    world.settle()
    for number, condition in enumerate(("/x = 1", "/38 = 7", "/y = 'b'")):
        reader.subscribe(f"s{number}", "^.*", filter=condition, bookmark="0")
    world.settle()
    found = [{heard.topic for heard in reader.heard[f"s{number}"]} for number in range(3)]
    assert found == [{"j", "n"}, {"f"}, {"j2"}]


@pytest.mark.parametrize("recorded", [True, False])
def test_select_list_leaves_bodies_of_types_without_the_fields_unchanged(recorded: bool) -> None:
    world, publisher, reader = _world(recorded=recorded)
    assert _answer(world, reader, reader.subscribe("s", "^.*", options="select=[-/,+/y]")).code == ""
    _publish_all(publisher, sequenced=recorded)
    world.settle()
    assert {heard.topic: heard.body for heard in reader.heard["s"]} == {
        "j": b'{"y":"a"}',
        "j2": b'{"y":"b"}',
        "b": BODIES["b"],
        "f": BODIES["f"],
        "n": b"y=c\x01",
    }


def test_message_type_without_the_conflation_key_is_not_conflated() -> None:
    world, publisher, reader = _world()
    options = "conflation=1s,conflation_key=[/x]"
    assert _answer(world, reader, reader.subscribe("s", "^.*", options=options, bookmark="0")).code == ""
    for _ in range(2):
        _publish_all(publisher)
    world.settle()
    world.wake(2.0)
    world.settle()
    topics = [heard.topic for heard in reader.heard["s"]]
    assert {topic: topics.count(topic) for topic in BODIES} == {"j": 1, "j2": 1, "b": 2, "f": 2, "n": 1}


@pytest.mark.parametrize(
    ("topic", "more", "code", "text"),
    [
        ("b", {"filter": "1 = 1 AND /x = 1"}, "bad_filter", "messages of type binary have no fields"),
        ("f", {"filter": "/x = 1"}, "bad_filter", "fields of fix are numeric tags"),
        (
            "b",
            {"options": "select=[-/,+/x]"},
            "bad_option",
            "Invalid option select: Invalid select list '[-/,+/x]': messages of type binary",
        ),
        (
            "f",
            {"options": "select=[-/,+/x]"},
            "bad_option",
            "select: Invalid field '/x': fields of fix",
        ),
        (
            "b",
            {"options": "conflation=1s,conflation_key=[/x]"},
            "bad_option",
            "Invalid option conflation_key: Invalid field '/x': messages",
        ),
    ],
)
def test_field_option_of_an_unsupported_type_is_refused_with_topic_and_type(
    topic: str, more: dict[str, Any], code: str, text: str
) -> None:
    world, _, reader = _world()
    answer = _answer(world, reader, reader.subscribe("s", topic, **more))
    assert answer.code == code
    assert text in answer.text
    assert answer.text.startswith(f"Cannot read fields of topic '{topic}' (message type {TYPES[topic]}): ")


@pytest.mark.parametrize("topic", ["b", "j", "^.*"])
@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"filter": "/x ="}, "bad_filter"),
        ({"options": "select=[x]"}, "bad_option"),
        ({"options": "conflation=1s,conflation_key=[/x[]"}, "bad_option"),
    ],
)
def test_syntax_error_in_an_option_is_refused_without_the_message_type(
    topic: str, more: dict[str, Any], code: str
) -> None:
    world, _, reader = _world()
    answer = _answer(world, reader, reader.subscribe("s", topic, **more))
    assert answer.code == code
    assert "message type" not in answer.text
