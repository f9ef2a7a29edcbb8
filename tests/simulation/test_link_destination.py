"""Destination of links through crashes, old copies, requests and late rows, against sets of integers."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from tests.helpers.tiers import parts, seeds_of
from tests.simulation.link_world import LinkWorld
from tickertape.engine.replication.destination import link_destination
from tickertape.journal.commit import accumulator

SEEDS = 8
SEED_OF_PLACES = 30
"""A power loss between a place that was taken and its sync, which few seeds have. Every run has it."""
SEEDS_A_PART = 500
MUST_HAPPEN = (
    "places",
    "acknowledgements",
    "acknowledged places after a start",
    "requested rows",
    "held frames",
    "late by a link",
    "foreign openings",
    "rows of other origins",
    "rows of this log that came back",
    "published here",
    "rows lost",
    "old copies",
    "expired",
    "messages",
)


@pytest.mark.parametrize("part", parts(8, 2))
def test_log_has_each_message_of_all_sources_once_through_crashes_and_old_copies(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part % 2:  # frames are taken in pieces, and commits end because of their size
        monkeypatch.setattr(link_destination, "link_step_messages_max", 3)
        monkeypatch.setattr(link_destination, "link_step_names_max", 2)
        monkeypatch.setattr(link_destination, "link_step_holes_max", 1)
        monkeypatch.setattr(link_destination, "link_unpacked_frames_max", 1)
        monkeypatch.setattr(accumulator, "commit_bytes_max", 14_000)
    counts: Counter[str] = Counter()
    first = part // 2 * SEEDS_A_PART
    seeds = range(first, first + SEEDS_A_PART) if first else range(SEEDS)
    fixed = () if first else (SEED_OF_PLACES,)
    for seed in chain(fixed, seeds_of(seeds, counts, dict.fromkeys(MUST_HAPPEN, 1))):
        world = LinkWorld(seed, counts)
        for _ in range(4):
            for _ in range(world.rng.randrange(20, 200)):
                world.step()
            world.crash()
        world.heal()
