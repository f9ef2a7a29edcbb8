"""A log split between archive and journal, and split anew during reads, replays like the whole log."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.simulation.archive_world import ArchiveWorld
from tests.simulation.engine_peer import Heard, Peer
from tickertape.wire.commands import Ack

PATTERNS = {"t": ("t",), "u": ("u",), "^[tu]$": ("t", "u"), ".*": ("t", "u")}


class Reader:
    """A subscription and its expected messages: some topics, from one position to another."""

    def __init__(self, world: ArchiveWorld, number: int) -> None:
        self.world = world
        rng = world.rng
        self.peer: Peer = world.connect(f"reader-{number}")
        self.topic = rng.choice(list(PATTERNS))
        self.filter = rng.choice((None, None, "/n % 3 = 1", "/n < 0"))
        positions = sorted(world.everything)
        self.start, self.stop, bookmark = 0, None, "0"
        form = rng.choice(("epoch", "after", "list", "range", "range of time"))
        a, b = sorted((rng.choice(positions), rng.choice(positions)))
        first, last = (f"{m.publisher}|{m.sequence}|" for m in (world.everything[a], world.everything[b]))
        if form == "after":
            self.start, bookmark = a + 1, first
        elif form == "list":
            self.start, bookmark = a + 1, f"{last},{first}"
        elif form == "range":
            self.start, self.stop, bookmark = a, b, f"[{first}:{last})"
        elif form == "range of time":
            self.stop, bookmark = b, f"[20200101T000000Z:{last})"
        self.asked = self.peer.subscribe(
            "s", self.topic, bookmark=bookmark, credit=rng.choice((500, 5_000)), filter=self.filter
        )

    def pause(self) -> None:
        self.peer.pause("s")
        self.world.step()
        self.peer.resume("s")

    def expected(self) -> list[Heard]:
        found = []
        for position, heard in sorted(self.world.everything.items()):
            number = int(heard.body[5:-1])
            wanted = self.filter is None or (self.filter == "/n % 3 = 1" and number % 3 == 1)
            below = self.stop is None or position < self.stop
            if wanted and position >= self.start and below and heard.topic in PATTERNS[self.topic]:
                found.append(heard)
        return found

    def check(self) -> None:
        answer = self.peer.answers[self.asked]
        assert isinstance(answer, Ack)
        assert answer.code == "", answer.text
        assert self.peer.heard["s"] == self.expected()
        if self.stop is not None:
            assert self.peer.marks["s"][-1] == "ended"


def life(seed: int, location: Path, counts: Counter[str]) -> None:
    """Publishing, archiving, removing and reading in a random order."""
    world = ArchiveWorld(seed, location)
    world.counts = counts
    rng = Random(seed)
    publishers = [world.connect(name) for name in ("p", "q")]
    readers: list[Reader] = []
    number = 0
    for turn in range(60):
        for _ in range(rng.randint(1, 6)):
            bodies = [b'{"n":%d}' % (number + i) for i in range(rng.randint(1, 8))]
            number += len(bodies)
            publisher = rng.choice(publishers)
            publisher.publish(rng.choice("tu"), bodies)
            world.wake(rng.random())
            for _ in range(rng.randint(0, 12)):
                world.step()
        for reader in readers:
            if rng.random() < 0.8:
                reader.peer.give_credit("s")
        action = rng.choice(("archive", "archive", "look", "expire", "read", "read", "pause"))
        if action == "expire":
            for publisher in publishers:
                publisher.publish("t", [b'{"n":%d}' % number])
            while world.jobs:
                world.run_job()
            world.note()
            world.expire()
        world.note()
        if action == "archive":
            world.archive_to(rng.randint(world.archived_end, world._known_end))
            counts["archived"] += 1
            if rng.random() < 0.7:
                world.look()
        elif action == "read" and turn > 5 and len(readers) < 20:
            readers.append(Reader(world, len(readers)))
        elif action == "look":
            world.look()
        elif action == "pause" and readers:
            rng.choice(readers).pause()
    world.settle()
    world.wake(1.0)
    world.settle()
    world.note()
    for reader in readers:
        reader.check()
    counts["positions below the log"] += world.broker.journal.view.first_position
    assert [budget.held_bytes for budget in world.broker.reads.budgets] == [0, 0]
    assert world.archived_end >= world.broker.journal.view.first_position


def check(seeds: range, home: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        life(seed, home / str(seed), counts)
    for what in ("archived", "archive reads", "segments_removed", "positions below the log"):
        assert counts[what] >= len(seeds), what


@pytest.mark.slow
def test_log_split_into_archive_and_journal_replays_as_one_log(tmp_path: Path) -> None:
    check(range(1), tmp_path)


@pytest.mark.full
@pytest.mark.slow
def test_log_split_with_many_seeds_replays_as_one_log(tmp_path: Path) -> None:
    check(range(1, 60), tmp_path)
