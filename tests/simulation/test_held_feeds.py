"""Held log feeds under load: every message from the position on, once, though retention wants its segment.

A reader is held at a random time, while publishers fill segments and retention leaves only one. Released, it
gets the log of the oracle from its position on.
"""

from __future__ import annotations

from collections import Counter

from tests.helpers.held_feeds import hold_feed
from tests.simulation.engine_peer import Heard
from tests.simulation.engine_world import EngineWorld
from tickertape.engine.subscriptions.log_feed import LogFeed, Phase
from tickertape.journal.commit.jobs import RetireSegments
from tickertape.journal.retention import RetentionPolicy

SEEDS = range(8)
SEGMENT_BYTES = 8_192
ONE_SEGMENT = RetentionPolicy(age_seconds=1)
TOPICS = ("a", "b")


def _run(seed: int, counts: Counter[str]) -> None:
    world = EngineWorld(seed, counts=counts, segment_bytes=SEGMENT_BYTES, retention=ONE_SEGMENT)
    world.small_tail()
    world.small_bounds()
    rng = world.rng
    publishers = [world.connect(f"publisher {n}") for n in range(2)]
    reader = world.connect("reader")
    expected: dict[int, Heard] = {}
    held: list[tuple[str, str, int, LogFeed]] = []
    releases = 0
    for _ in range(400):
        choice = rng.random()
        if choice < 0.3:
            bodies = [rng.randbytes(rng.choice((5, 60, 700))) for _ in range(rng.choice((1, 3, 12)))]
            rng.choice(publishers).publish(rng.choice(TOPICS), bodies)
        elif choice < 0.33 and len(held) < 4:
            position = world.broker.journal.commits.persisted_end
            sub_id, topic = f"s{len(held)}", rng.choice((*TOPICS, "^[ab]$"))
            held.append(
                (sub_id, topic, position, hold_feed(world, reader, sub_id, topic, position, credit=2_000))
            )
        elif choice < 0.36 and releases < len(held):
            world.broker.services.log.release(held[releases][3])
            world.collect()
            releases += 1
        elif choice < 0.5:
            for sub_id in list(reader.owed_credit):
                reader.give_credit(sub_id)
        elif choice < 0.55:
            world.broker.blocked(reader.conn)
            world.broker.writable(reader.conn)
            world.collect()
        elif choice < 0.6:
            expected.update(world.positions())
            world.wake(60)
        else:
            if any(isinstance(job, RetireSegments) for job in world.jobs):
                expected.update(world.positions())
            world.step()
        for sub_id, _, _, _ in held[releases:]:
            assert reader.heard[sub_id] == [], "a held feed is sent nothing"
    for _, _, _, feed in held[releases:]:
        world.broker.services.log.release(feed)
    world.settle()
    expected.update(world.positions())
    for sub_id, topic, position, feed in held:
        wanted = [
            heard
            for at, heard in sorted(expected.items())
            if at >= position and topic in (heard.topic, "^[ab]$")
        ]
        assert reader.heard[sub_id] == wanted
        assert reader.marks[sub_id] == []
        assert feed.phase is Phase.TAIL
        counts["held"] += 1
        counts["held while the log grew"] += bool(wanted)
    counts["removed"] += world.broker.retention.removed_segments
    world.wake(60)
    world.settle()
    counts["one segment left"] += len(world.broker.journal.view.segments) <= 2


def test_held_feeds_miss_no_message_though_retention_leaves_one_segment() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        _run(seed, counts)
    assert counts["held while the log grew"] > 10
    assert counts["removed"] > 20
    assert counts["one segment left"] > 4
    assert counts["retention_held"] > 0
