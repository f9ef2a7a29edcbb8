"""Handover between replay and live under load: no gap, no duplicate, no reordering in any schedule."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.helpers.tiers import parts, seeds_of
from tests.simulation.engine_peer import Heard, Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.engine.subscriptions.log_feed import LogFeed, Phase

SCHEDULES_A_PART = 20
PARTS = 100
TOPICS = ("a", "b", "c")
HAPPENS = {
    "epoch": 6,
    "now": 6,
    "bookmark": 6,
    "plain": 6,
    "blocked": 6,
    "oversized message": 6,
    "reads": 6,
    "notices": 6,
    "overruns": 1,
    "joined the end": 6,
    "left the end": 6,
}
Sent = dict[tuple[int, bool], list[tuple[str, bytes]]]
"""Published messages in order, by connection and by whether they have sequences."""


def _act(
    world: EngineWorld,
    publishers: list[Peer],
    subscribers: list[Peer],
    asked: dict[tuple[int, str], tuple[str, int, str]],
    sent: Sent,
) -> None:
    rng = world.rng
    choice = rng.random()
    if choice < 0.35:
        publisher = rng.choice(publishers)
        bodies = [rng.randbytes(rng.choice((0, 5, 60, 700, 3000))) for _ in range(rng.choice((1, 1, 3, 12)))]
        topic, sequenced = rng.choice(TOPICS), rng.random() < 0.8
        sent.setdefault((publisher.conn, sequenced), []).extend((topic, body) for body in bodies)
        publisher.publish(topic, bodies, sequenced=sequenced)
    elif choice < 0.42 and len(asked) < 12:
        _subscribe(world, rng.choice(subscribers), asked)
    elif choice < 0.60:
        peer = rng.choice(subscribers)
        for sub_id in list(peer.owed_credit):
            if rng.random() < 0.6:
                peer.give_credit(sub_id)
    elif choice < 0.66:
        peer = rng.choice(subscribers)
        world.broker.blocked(peer.conn)
        world.counts["blocked"] += 1
    elif choice < 0.68:
        world.wake(rng.choice((0.4, 1.1)))
    elif choice < 0.75:
        world.broker.writable(rng.choice(subscribers).conn)
        world.collect()
    else:
        world.step()


def _subscribe(world: EngineWorld, peer: Peer, asked: dict[tuple[int, str], tuple[str, int, str]]) -> None:
    rng = world.rng
    topic = rng.choice(TOPICS)
    kind = rng.choice(("epoch", "now", "bookmark", "plain"))
    sub_id = f"s{len(asked)}"
    accepted = world.broker.journal.commits.accepted_end
    bookmark: str | None = {"epoch": "0", "now": "0|1|", "plain": None}.get(kind)
    start = 0 if kind == "epoch" else accepted
    if kind == "bookmark":
        log = world.positions()
        if not log:
            return
        start = rng.choice(sorted(log))
        bookmark = f"{log[start].publisher}|{log[start].sequence}|"
        start += 1
    asked[(peer.conn, sub_id)] = (topic, start, kind)
    world.counts[kind] += 1
    peer.subscribe(sub_id, topic, bookmark=bookmark, credit=rng.choice((64, 900, 6_000, 200_000)))


def _expected(log: dict[int, Heard], topic: str, start: int) -> list[Heard]:
    return [heard for position, heard in log.items() if position >= start and heard.topic == topic]


def _check_notices(
    subscribers: list[Peer], log: dict[int, Heard], asked: dict[tuple[int, str], tuple[str, int, str]]
) -> None:
    """Check each notice: its message is persisted, and all earlier messages were delivered before it."""
    position_of = {(heard.publisher, heard.sequence): position for position, heard in log.items()}
    for peer in subscribers:
        for sub_id, notice in peer.notices:
            topic, start, kind = asked[(peer.conn, sub_id)]
            assert kind != "plain"
            upto = position_of[notice.publisher, notice.sequence]
            below = {position: heard for position, heard in log.items() if position <= upto}
            assert notice.heard >= len(_expected(below, topic, start))


def _count_crossings(world: EngineWorld, phases: dict[LogFeed, Phase]) -> None:
    """Only counts: that a hand-over happened, in which direction, is nothing an outsider can see."""
    for conn in world.broker.sessions:
        for sub in world.log_feeds(conn).values():
            before = phases.get(sub)
            world.counts["joined the end"] += (before, sub.phase) == (Phase.REPLAY, Phase.TAIL)
            world.counts["left the end"] += (before, sub.phase) == (Phase.TAIL, Phase.REPLAY)
            phases[sub] = sub.phase


def _check_log(log: dict[int, Heard], publishers: list[Peer], sent: Sent, seed: int) -> None:
    """Compare the log with the published messages: no loss, no duplicate, the order of each publisher."""
    found: dict[int, list[tuple[str, bytes]]] = {}
    for heard in log.values():
        found.setdefault(heard.publisher, []).append((heard.topic, heard.body))
    named = {p.conn: p.logged_on.publisher for p in publishers if p.logged_on is not None}
    for conn, publisher in named.items():
        assert found.pop(publisher, []) == sent.get((conn, True), []), f"seed {seed}: with sequences"
    # The server chooses the ids of publishers without sequences: their messages identify them.
    rest = [sent[conn, False] for conn in named if (conn, False) in sent]
    assert sorted(found.values()) == sorted(rest), f"seed {seed}: without sequences"


@pytest.mark.slow
@pytest.mark.parametrize("part", parts(PARTS))
def test_handover_under_load_has_no_gap_and_no_duplicate_and_keeps_the_order(part: int) -> None:
    counts: Counter[str] = Counter()
    seeds = range(part * SCHEDULES_A_PART, (part + 1) * SCHEDULES_A_PART)
    for seed in seeds_of(seeds, counts, HAPPENS):
        world = EngineWorld(seed, counts=counts, segment_bytes=Random(seed).choice((16_384, 65_536)))
        world.small_tail()
        world.small_bounds()
        publishers = [world.connect(f"p{i}") for i in range(3)]
        subscribers = [world.connect(f"s{i}") for i in range(3)]
        asked: dict[tuple[int, str], tuple[str, int, str]] = {}
        sent: Sent = {}
        phases: dict[LogFeed, Phase] = {}
        for _ in range(world.rng.randrange(30, 160)):
            _act(world, publishers, subscribers, asked, sent)
            _count_crossings(world, phases)
        for peer in subscribers:
            world.broker.writable(peer.conn)
            world.collect()
        world.settle()
        log = world.positions()
        _check_log(log, publishers, sent, seed)
        for (conn, sub_id), (topic, start, kind) in asked.items():
            peer = world.peers[conn]
            assert peer.heard[sub_id] == _expected(log, topic, start), f"seed {seed}: {sub_id} {kind} {topic}"
            completed = [m for m in peer.marks[sub_id] if m.startswith("completed")]
            assert len(completed) == 1, f"seed {seed}: {sub_id} {kind} {peer.marks[sub_id]}"
        counts["overruns"] += world.broker._delivery.fanout.overruns
        _check_notices(subscribers, log, asked)
        for publisher in publishers:
            assert publisher.goodbye is None
            assert publisher.acked_frame == publisher.frames, f"seed {seed}: everything is acknowledged"
