"""Plain subscriptions by pattern and filter over recorded and unrecorded topics, and `replace`."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest

from tests.helpers.tiers import parts
from tests.simulation.engine_peer import Heard, Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.base.client_limits import ClientLimits
from tickertape.wire.commands import Ack, Unsubscribe

RECORDED = frozenset({"log/a", "log/b"})
BY_PATTERN = frozenset({"log/a", "^log/b"})
"""The same topics, one of them by a pattern."""
TOPICS = ["log/a", "log/b", "rest/a", "rest/b"]


def _publish(peer: Peer, topic: str, number: int) -> None:
    peer.publish(topic, [b'{"n": %d, "k": %d}' % (number, number % 3)], sequenced=topic in RECORDED)


def _numbers(heard: list[Heard], *, recorded: bool) -> list[int]:
    return [
        int(message.body.split(b":")[1].split(b",")[0])
        for message in heard
        if (message.topic in RECORDED) is recorded
    ]


def test_a_pattern_covers_recorded_and_unrecorded_topics_under_one_id() -> None:
    world = EngineWorld(1, recorded=RECORDED)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    command = peer.subscribe("s", "/a$", filter="/k = 1")
    world.settle()
    assert peer.answers[command] == Ack(id=command, start=0)
    for number in range(24):
        _publish(publisher, TOPICS[number % 4], number)
    world.settle()
    assert _numbers(peer.heard["s"], recorded=True) == [n for n in range(0, 24, 4) if n % 3 == 1]
    assert _numbers(peer.heard["s"], recorded=False) == [n for n in range(2, 24, 4) if n % 3 == 1]
    peer.send(Unsubscribe(id=99, sub_ids=("s",)))
    _publish(publisher, "log/a", 1)
    _publish(publisher, "rest/a", 1)
    world.settle()
    assert len(peer.heard["s"]) == 4
    assert not len(world.broker.subscriptions.of(peer.conn))


def test_pattern_replay_delivers_recorded_topics_only() -> None:
    world = EngineWorld(2, recorded=RECORDED)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    for number in range(8):
        _publish(publisher, TOPICS[number % 4], number)
    world.settle()
    peer.subscribe("s", ".*", bookmark="0")
    world.settle()
    for number in range(8, 16):
        _publish(publisher, TOPICS[number % 4], number)
    world.settle()
    assert _numbers(peer.heard["s"], recorded=False) == []
    assert _numbers(peer.heard["s"], recorded=True) == [n for n in range(16) if n % 4 < 2]


def test_select_list_applies_to_an_unrecorded_topic() -> None:
    world = EngineWorld(3, recorded=RECORDED)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    peer.subscribe("s", "rest/a", options="select=[-/,+/k]")
    _publish(publisher, "rest/a", 4)
    world.settle()
    assert [json.loads(heard.body) for heard in peer.heard["s"]] == [{"k": 1}]


@pytest.mark.behaviour(20)
@pytest.mark.parametrize("seed", parts(120, 40))
def test_repeated_replaces_of_every_kind_lose_nothing(seed: int) -> None:
    """Each message is matched against the subscription at its publish time."""
    rng = Random(seed)
    world = EngineWorld(seed, recorded=BY_PATTERN if seed % 2 else RECORDED)
    world.small_tail()
    world.small_bounds()
    publisher, peer = world.connect("publisher"), world.connect("reader")
    covers = ["log/a", "rest/a", "rest/b", "/a$", "^rest/", "^log/", ".*"]
    current = "rest/a"
    wanted: int | None = None
    peer.subscribe("s", current, credit=rng.choice((100, 400, 4096)))
    expected: list[tuple[str, int]] = []
    for number in range(120):
        topic = rng.choice(TOPICS)
        _publish(publisher, topic, number)
        if re.search(current if any(c in current for c in "^$*") else f"^{current}$", topic) and (
            wanted is None or number % 3 == wanted
        ):
            expected.append((topic, number))
        if rng.random() < 0.15:
            current, wanted = rng.choice(covers), rng.choice((None, 1))
            heard, marks = peer.heard["s"], peer.marks["s"]
            peer.subscribe(
                "s",
                current,
                options="replace",
                filter=None if wanted is None else f"/k = {wanted}",
                credit=rng.choice((100, 400, 4096)),
            )
            peer.heard["s"][:0], peer.marks["s"][:0] = heard, marks
        for _ in range(rng.randrange(4)):
            world.step()
        if rng.random() < 0.3:
            peer.give_credit("s")
    world.settle()
    for recorded in (True, False):
        of_kind = [number for topic, number in expected if (topic in RECORDED) is recorded]
        assert _numbers(peer.heard["s"], recorded=recorded) == of_kind


def test_pattern_over_both_topic_kinds_counts_once_and_the_error_names_the_limit() -> None:
    world = EngineWorld(4, recorded=RECORDED)
    world.broker.compiler.limits = ClientLimits(subscriptions_per_connection_max=3)
    peer = world.connect("reader")
    topics = ["/a$", ".*", "log/a", "rest/a"]
    commands = [peer.subscribe(f"s{number}", topic) for number, topic in enumerate(topics)]
    world.settle()
    answers = [answer for command in commands if isinstance(answer := peer.answers[command], Ack)]
    assert [answer.code for answer in answers] == ["", "", "", "limit_reached"]
    assert "(subscriptions_per_connection_max)" in answers[-1].text
    assert sorted(world.broker.subscriptions.of(peer.conn)) == ["s0", "s1", "s2"]
    again = peer.subscribe("s0", "rest/a", options="replace")
    assert peer.answers[again] == Ack(id=again)
    peer.send(Unsubscribe(id=99, sub_ids=("s0",)))
    last = peer.subscribe("s3", "rest/a")
    assert peer.answers[last] == Ack(id=last)


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        ({"credit": 3}, "bad_command", "Invalid credit of 3 bytes. Use 32 to 1,073,741,824 bytes"),
        ({"options": "resume"}, "bad_option", "Use the command resume"),
        ({"options": "replace,pause"}, "bad_option", "use the command pause"),
    ],
)
def test_refused_subscribe_names_the_remedy(more: dict[str, Any], code: str, text: str) -> None:
    peer = EngineWorld(5, recorded=RECORDED).connect("reader")
    peer.subscribe("s", "rest/a")
    answer = peer.answers[peer.subscribe("s" if "options" in more else "t", "rest/a", **more)]
    assert isinstance(answer, Ack)
    assert answer.code == code
    assert text in answer.text


def test_filter_evaluates_the_client_version() -> None:
    world = EngineWorld(6, recorded=RECORDED)
    publisher = world.connect("publisher")
    readers = [world.connect(f"r{number}", software=f"ours {number}") for number in range(2)]
    for reader in readers:
        reader.subscribe("s", "log/a", filter="CLIENT_VERSION() = 'ours 1' AND /k = 2")
        reader.subscribe("u", "rest/a", filter="CLIENT_VERSION() = 'ours 1' AND /k = 2")
    world.settle()
    for topic in ("log/a", "rest/a"):
        _publish(publisher, topic, 2)
    world.settle()
    assert [len(reader.heard[s]) for reader in readers for s in ("s", "u")] == [0, 0, 1, 1]
