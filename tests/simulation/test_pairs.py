"""Logs joined by links, through cuts, crashes, old copies and removals, against sets of messages."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.pair_world import PairWorld
from tickertape.engine.replication import log_facts
from tickertape.engine.replication.destination import link_destination
from tickertape.engine.replication.source import named_rows, routed_log
from tickertape.journal.commit import accumulator

SEEDS = 14
SEEDS_FULL = 2_000
FIRST_HOLES_SEED = 926
"""A log joins behind removed rows, and gets later rows before another log sends the removed messages."""


def test_all_logs_have_each_message_once_and_links_become_idle(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()
    for seed in (FIRST_HOLES_SEED, *range(SEEDS_FULL if full else SEEDS)):
        with monkeypatch.context() as patched:
            if seed % 2:  # steps have a few rows, and commits end because of their size
                for module in (routed_log, named_rows):
                    patched.setattr(module, "link_step_bytes", 500)
                patched.setattr(link_destination, "link_step_messages_max", 3)
                patched.setattr(accumulator, "commit_bytes_max", 14_000)
                patched.setattr(log_facts, "link_snapshot_records", 4)
            world = PairWorld(seed, counts)
            world.run(world.rng.choice((100, 250, 400)))
            world.heal()
    for name in (
        "pair", "chain", "mesh", "cuts", "frames lost on the way", "frames held at an end", "kills",
        "power losses", "old copies", "links with lost history", "tiny windows", "pauses", "removals",
        "frames of old connections", "failovers", "resent frames", "duplicates of publishers",
        "skipped sequences", "open holes at the end", "late by a link", "late by a publisher",
        "links behind removed rows", "joins behind removed rows", "messages of two links", "stable rows",
        "frames of names", "requests", "frames of answers", "reports", "reporters", "messages",
    ):  # fmt: skip
        assert counts[name], (name, counts)
