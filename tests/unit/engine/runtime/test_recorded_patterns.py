"""Topics recorded by a pattern behave like topics recorded by name."""

from __future__ import annotations

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.journal.format.segment import CONTROL_TOPIC
from tickertape.wire.commands import Ack, Publish, Rejected

RECORDED = frozenset({"orders", "^fx/", "control$"})


def test_logon_answer_lists_recorded_names_and_patterns() -> None:
    peer = EngineWorld(1, recorded=RECORDED).connect("p")
    assert peer.logged_on is not None
    assert peer.logged_on.recorded == ("^fx/", "control$", "orders")


def test_only_topics_that_match_a_recorded_pattern_are_stored_and_replayed() -> None:
    world = EngineWorld(2, recorded=RECORDED)
    publisher, reader = world.connect("p"), world.connect("r")
    for topic in ("fx/eur", "orders", "my/fx/eur"):
        publisher.publish(topic, [topic.encode()], sequenced=topic != "my/fx/eur")
    world.settle()
    assert [heard.topic for heard in world.log()] == ["fx/eur", "orders"]
    answers = [
        reader.subscribe(f"s{n}", topic, bookmark="0") for n, topic in enumerate(("fx/eur", "my/fx/eur"))
    ]
    world.settle()
    codes = [ack.code for n in answers if isinstance(ack := reader.answers[n], Ack)]
    assert codes == ["", "topic_not_recorded"]
    assert [heard.body for heard in reader.heard["s0"]] == [b"fx/eur"]


def test_control_topic_is_not_recorded_by_a_pattern() -> None:
    world = EngineWorld(3, recorded=frozenset({".*"}))
    assert world.broker.catalog.recorded("anything")
    assert not world.broker.catalog.recorded(CONTROL_TOPIC)


def _rejection(peer: Peer) -> str:
    (text,) = [command.text for command, _ in peer.received if isinstance(command, Rejected)]
    return text


def test_frame_with_recorded_and_unrecorded_topics_is_refused() -> None:
    world = EngineWorld(4, recorded=RECORDED)
    peer = world.connect("p")
    builder = BatchBuilder()
    builder.add("fx/eur", b"1")
    builder.add("elsewhere", b"2")
    peer.frames += 1
    peer.send(Publish(frame=1, sequenced=False), MessageBatch.parse(builder.build(0).encode()))
    world.settle()
    assert world.broker.statistics.refused == {"bad_topic": 1}
    assert _rejection(peer).endswith("Send a separate frame for each kind.")
    assert not world.log()


def test_sequenced_frame_with_an_unrecorded_topic_is_refused() -> None:
    world = EngineWorld(4, recorded=RECORDED)
    peer = world.connect("p")
    peer.publish("elsewhere", [b"1"])
    world.settle()
    assert _rejection(peer).endswith("Send messages of non-persistent topics without sequences.")


@pytest.mark.behaviour(13)
@pytest.mark.parametrize("bookmark", ["0", "0|1|"])
@pytest.mark.parametrize("options", ["", "live"])
def test_a_bookmark_covers_recorded_topics_only(bookmark: str, options: str) -> None:
    world = EngineWorld(5, recorded=RECORDED)
    publisher, reader = world.connect("p"), world.connect("r")
    asked = reader.subscribe("s", "e+", bookmark=bookmark, options=options)
    refused = reader.subscribe("t", "elsewhere", bookmark=bookmark, options=options)
    world.settle()
    for topic in ("fx/eur", "elsewhere", "orders"):
        publisher.publish(topic, [topic.encode()], sequenced=topic != "elsewhere")
    world.settle()
    codes = [ack.code for n in (asked, refused) if isinstance(ack := reader.answers[n], Ack)]
    assert codes == ["", "topic_not_recorded"]
    assert [heard.topic for heard in reader.heard["s"]] == ["fx/eur", "orders"]


@pytest.mark.parametrize("pattern", ["^fx/", "e+"])
def test_pattern_subscription_without_bookmark_receives_recorded_and_unrecorded_topics(pattern: str) -> None:
    world = EngineWorld(5, recorded=RECORDED)
    publisher, reader = world.connect("p"), world.connect("r")
    reader.subscribe("s", pattern)
    world.settle()
    for topic in ("fx/eur", "elsewhere", "orders"):
        publisher.publish(topic, [b"1"], sequenced=topic != "elsewhere")
    world.settle()
    topics = {heard.topic for heard in reader.heard["s"]}
    assert topics == ({"fx/eur"} if pattern == "^fx/" else {"fx/eur", "elsewhere", "orders"})


def test_topics_of_a_recorded_pattern_are_counted_as_recorded_after_use() -> None:
    world = EngineWorld(6, recorded=RECORDED)
    assert list(world.broker.statistics.topics) == ["orders"]
    publisher = world.connect("p")
    publisher.publish("fx/eur", [b"1"])
    publisher.publish("elsewhere", [b"1"], sequenced=False)
    world.settle()
    topics = world.broker.statistics.topics
    assert {name: topic.recorded for name, topic in topics.items()} == {
        "orders": True,
        "fx/eur": True,
        "elsewhere": False,
    }
