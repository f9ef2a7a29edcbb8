"""Whole engines joined by links, through cuts, crashes and retention, against sets of messages."""

from __future__ import annotations

from collections import Counter

from tests.simulation.linked_engines import LinkedEngines

SEEDS = 12
SEEDS_FULL = 600
MESH_SEED = 6
"""A mesh whose links are all synchronous and connected."""
RESENT_SEED = 121
"""A server acknowledges a resent message that no link brings."""


def test_all_engines_have_each_message_once_and_links_become_idle(full: bool) -> None:
    counts: Counter[str] = Counter()
    worlds = [(MESH_SEED, "mesh"), *((seed, "") for seed in range(SEEDS_FULL if full else SEEDS))]
    for seed, topology in worlds:
        world = LinkedEngines(seed, counts, topology)
        world.run(world.rng.choice((100, 250, 400)))
        world.heal()
    for name in (
        "pair", "chain", "mesh", "one way", "cuts", "kills", "power losses", "failovers", "resent frames",
        "link_connected", "link_disconnected", "link_resynced", "blocked", "removed messages", "messages",
        "connections beside a lost one", "segments_removed", "stable messages", "late messages",
        "history_lost", "lost rows of old copies", "claims", "logons without a claim",
        "answers behind a claim", "publisher_behind",
        "durable deliveries", "downgraded links", "pauses", "upgrades refused",
        "link_downgraded", "link_upgraded",
        "level local", "level replicated(1)", "level replicated(2)", "acknowledged by any destination",
    ):  # fmt: skip
        assert counts[name], (name, counts)


def test_links_of_one_topic_leave_all_acknowledged_messages_on_disk(full: bool) -> None:
    counts: Counter[str] = Counter()
    for seed in (RESENT_SEED, *range(SEEDS_FULL if full else SEEDS)):
        world = LinkedEngines(seed, counts, partial=True)
        world.run(world.rng.choice((100, 250, 400)))
        world.heal()
    for name in ("failovers", "resent frames", "power losses", "late messages", "removed messages"):
        assert counts[name], (name, counts)
