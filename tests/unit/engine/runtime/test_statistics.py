"""Engine statistics against a plain count of the same messages."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.engine_world import EngineWorld
from tickertape.batch import BatchBuilder, MessageBatch, Stamp, merge
from tickertape.engine.runtime import statistics
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC
from tickertape.engine.runtime.statistics import Statistics

TOPICS = ["orders", "fills", "prices", CONTROL_TOPIC]


def commit(runs: list[list[tuple[str, int]]]) -> MessageBatch:
    """Runs of (topic, size of the body) as one stamped batch of the publishers 1, 2, ..."""
    batches, stamps = [], []
    for number, messages in enumerate(runs, 1):
        builder = BatchBuilder()
        for topic, size in messages:
            builder.add(topic, bytes(size))
        batches.append(builder.build())
        stamps.append(Stamp(number, 10 * number, 1_000_000 * number))
    return merge(batches, stamps)


messages = st.tuples(st.sampled_from(TOPICS), st.integers(0, 50))
commits = st.lists(st.lists(st.lists(messages, min_size=1, max_size=6), min_size=1, max_size=4), max_size=4)


@given(commits)
def test_statistics_equal_a_plain_count(given_commits: list[list[list[tuple[str, int]]]]) -> None:
    counted = Statistics()
    count: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    last: dict[str, tuple[str, int]] = {}
    for runs in given_commits:
        batch = commit(runs)
        counted.persisted(batch)
        for i in range(batch.count):
            if batch.topic(i) != CONTROL_TOPIC:
                count[batch.topic(i)] += 1
                sizes[batch.topic(i)] += len(batch.body(i))
                last[batch.topic(i)] = (batch.bookmark(i), batch.timestamp(i))
    assert {name: topic.messages for name, topic in counted.topics.items()} == count
    assert {name: topic.bytes for name, topic in counted.topics.items()} == {n: sizes[n] for n in count}
    assert {name: (t.bookmark, t.timestamp) for name, t in counted.topics.items()} == last
    assert (counted.commits, counted.persisted_messages) == (len(given_commits), count.total())
    assert counted.persisted_bytes == sizes.total()


def test_sequences_with_gaps_give_the_last_bookmark() -> None:
    world = EngineWorld(3)
    peer = world.connect("publisher")
    for topic in ("a", "b", "a"):
        peer.publish(topic, [b"1", b"2"])
    world.settle()
    assert peer.logged_on is not None
    topics = world.broker.statistics.topics
    assert topics["a"].bookmark == f"{peer.logged_on.publisher}|{peer.next_sequence - 1}|"
    assert topics["b"].bookmark == f"{peer.logged_on.publisher}|{peer.next_sequence - 3}|"


def test_topics_beyond_the_bound_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "topics_counted_max", 3)
    counted = Statistics()
    for n in range(10):
        counted.persisted(commit([[(f"topic-{n}", 5)]]))
        counted.unrecorded(commit([[(f"live-{n}", 7)]]))
    assert list(counted.topics) == ["topic-0", "live-0", "topic-1"]
    assert (counted.others[True].messages, counted.others[True].bytes) == (8, 40)
    assert (counted.others[False].messages, counted.others[False].bytes) == (9, 63)
    assert counted.persisted_messages == counted.unrecorded_messages == 10


def test_configured_topics_are_counted_from_the_start() -> None:
    world = EngineWorld(5, recorded=frozenset({"orders", "fills", "^fx/"}))
    world.connect("publisher").publish("orders", [b"1"])
    world.settle()
    topics = world.broker.statistics.topics
    counts = {name: (topic.recorded, topic.messages, topic.bookmark != "") for name, topic in topics.items()}
    assert counts == {"fills": (True, 0, False), "orders": (True, 1, True)}


def test_refusals_and_ends_are_counted_by_code() -> None:
    world = EngineWorld(6)
    peer = world.connect("careless")
    peer.subscribe("s", "orders", bookmark="yesterday")
    peer.publish("orders*", [b"1"], sequenced=False)
    world.connect("careless")
    world.settle()
    assert world.broker.statistics.refused == {"bad_bookmark": 1, "bad_topic": 1}
    assert world.broker.statistics.ended == {"name_in_use": 1}
    assert world.broker.statistics.logons == 2
