"""exact.md 20: repeated `replace` of every kind of replay loses and duplicates nothing."""

from __future__ import annotations

import json
from random import Random

import pytest

from tests.helpers.tiers import parts
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.wire.commands import Ack

COVERS = ("^[ac]$", "^[bc]$", "^[abc]$", "c")
"""Every pattern covers `c`, and none covers `d`."""
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "rated": ("rate=400", ("rate=100", "rate=3000", "rate=20KB", "rate=50X,rate_max_gap=1s", "")),
    "paused": ("pause", ("", "rate=3000", "select=[-/,+/n]")),
    "combined": ("pause", ("", "rate=3000")),
    "range": ("", ("", "rate=3000", "select=[-/,+/n]")),
    "live": ("live", ("live", "", "live,select=[-/,+/n]")),
    "select": ("select=[-/,+/n]", ("select=[-/,+/n,+/k]", "", "conflation=1ms,conflation_key=[/n]")),
}
"""For each kind: the first options, and the options of replacements."""
LAST = 70
"""Sequence at which the range ends."""


def _publish(publisher: Peer, rng: Random, count: int) -> None:
    for _ in range(count):
        number = publisher.next_sequence
        publisher.publish(rng.choice("abcd"), [b'{"k":%d,"n":%d}' % (number % 2, number)])


def _replace(peer: Peer, sub_id: str, rng: Random, options: str) -> str:
    """Replace the subscription, keep the recorded deliveries, and return the new topic."""
    topic, content = rng.choice(COVERS), rng.choice((None, "/n > 0", "/k = 0 or /n > -1"))
    heard, marks = peer.heard[sub_id], peer.marks[sub_id]
    command = peer.subscribe(
        sub_id, topic, filter=content, options=f"replace,{options}", credit=rng.choice((150, 400, 4096))
    )
    peer.heard[sub_id][:0], peer.marks[sub_id][:0] = heard, marks
    answer = peer.answers[command]
    assert isinstance(answer, Ack)
    assert answer.code == "", answer.text
    return topic


def _finish(world: EngineWorld, peer: Peer, ids: list[str]) -> None:
    known = [sub_id for sub_id in ids if sub_id in world.broker.subscriptions.of(peer.conn)]
    if known and not any(world.log_feeds(peer.conn)[s].live for s in known):
        peer.resume(*known)
    for _ in range(400):
        world.settle()
        if not world.broker.has_work:
            world.wake(0.02)
    world.settle()


@pytest.mark.behaviour(20)
@pytest.mark.parametrize("seed", parts(12, 4))
@pytest.mark.parametrize("kind", KINDS)
def test_of_every_kind_of_replay_nothing_is_lost_or_doubled(kind: str, seed: int) -> None:
    """Topics that all replacements cover are delivered once, uncovered topics never."""
    rng = Random(f"{kind} {seed}")
    world = EngineWorld(seed)
    world.small_tail()
    world.small_bounds()
    publisher, peer = world.connect("publisher"), world.connect("reader")
    _publish(publisher, rng, 80)
    world.settle()
    assert publisher.logged_on is not None
    name = publisher.logged_on.publisher
    begin, others = KINDS[kind]
    ids = ["s", "other"] if kind == "combined" else ["s"]
    bookmark = f"[0:{name}|{LAST}|]" if kind == "range" else "0"
    for sub_id in ids:
        peer.subscribe(sub_id, COVERS[0], bookmark=bookmark, options=begin, credit=rng.choice((150, 400)))
    while not all(sub_id in peer.answers for sub_id in range(1, len(ids) + 1)):
        world.step()
    if kind == "combined":
        peer.resume(*ids)
    covered = {sub_id: set(COVERS[0]) for sub_id in ids}
    replaced = 0
    for _ in range(60):
        _publish(publisher, rng, rng.randrange(2))
        for _ in range(rng.randrange(4)):
            world.step()
        sub_id = rng.choice(ids)
        if rng.random() < 0.2 and sub_id in world.broker.subscriptions.of(peer.conn):
            covered[sub_id] |= set(_replace(peer, sub_id, rng, rng.choice(others)))
            replaced += 1
        if rng.random() < 0.3:
            peer.give_credit(sub_id)
        if kind == "paused":
            assert peer.heard["s"] == [], "it stays paused after each replacement"
    assert replaced
    _finish(world, peer, ids)
    log = world.log()
    for sub_id in ids:
        sequences = [heard.sequence for heard in peer.heard[sub_id]]
        assert sequences == sorted(set(sequences)), "twice, or out of order"
        assert {heard.topic for heard in peer.heard[sub_id]} <= covered[sub_id]
        assert [json.loads(heard.body)["n"] for heard in peer.heard[sub_id]] == sequences
        always = [h.sequence for h in log if h.topic == "c" and (kind != "range" or h.sequence <= LAST)]
        assert [heard.sequence for heard in peer.heard[sub_id] if heard.topic == "c"] == always
        ends = ["completed", "ended"] if kind == "range" else ["completed"]
        assert [mark.split()[0] for mark in peer.marks[sub_id]] == ends
