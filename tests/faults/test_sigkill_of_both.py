"""SIGKILL of publishers with stores on disk, of the server, and of both, in a loop.

Messages of returned publishes are stored once, in the order of each publisher. The log is judged by a reader
that shares no code with the server, against the records of the publishers.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.faults.killed_publisher import (
    TOPIC,
    Connect,
    Publisher,
    highly_available,
    last_flushed,
    read_witness,
    reconnecting,
)
from tests.faults.killed_server import Victim
from tests.faults.log_on_disk import Stored, read_log
from tickertape.testing import wait_until

CYCLES = 10
CYCLES_FULL = 100
"""With each kind of client."""
PUBLISHERS = 2
SECONDS = 30.0
KINDS = ("client", "server", "both")


class World:
    """One server, its publishers, and all their runs."""

    def __init__(self, directory: Path, seed: int, connect: Connect) -> None:
        self.rng = Random(seed)
        config = directory / "tickertape.toml"
        config.write_text('[journal]\nsegment_size = "1MB"\n')
        self.victim = Victim(directory / "data", config)
        self.publishers = [
            Publisher(f"publisher-{n}", directory, self.victim.uri, connect) for n in range(PUBLISHERS)
        ]
        self.log: list[Stored] = []
        self.counts: Counter[str] = Counter()
        self.victim.spawn()
        for publisher in self.publishers:
            publisher.spawn()
        self.victim.wait_ready()

    def cycle(self, kind: str) -> None:
        """Wait until every process works, kill, judge, and restart."""
        before = [last_flushed(p.witness) for p in self.publishers]
        wait_until(
            lambda: all(
                last_flushed(p.witness) > was for p, was in zip(self.publishers, before, strict=True)
            ),
            SECONDS,
        )
        time.sleep(self.rng.random() * 0.05)
        publisher = self.rng.choice(self.publishers)
        if kind != "server":
            assert publisher.kill(signal.SIGKILL) == -signal.SIGKILL, "it ended by itself"
        if kind != "client":
            assert self.victim.kill()
            self.judge()
            self.victim.spawn()
        if kind != "server":
            if self.rng.random() < 0.5:
                time.sleep(self.rng.random() * 0.1)
            publisher.spawn()
        if kind != "client":
            self.victim.wait_ready()
        self.counts[kind] += 1

    def judge(self) -> None:
        """Check the log at any time."""
        # Read the acknowledgements before the log, which the dead server cannot change any more.
        witnesses = [read_witness(p.witness) for p in self.publishers]
        stored = [message for message in read_log(self.victim.data) if message.topic == TOPIC]
        assert stored[: len(self.log)] == self.log, "the earlier log stays unchanged"
        self.log = stored
        for publisher, witness in zip(self.publishers, witnesses, strict=True):
            mine = [m for m in stored if m.body.startswith(publisher.name.encode() + b" ")]
            numbers = [m.sequence for m in mine]
            assert numbers == sorted(set(numbers)), f"{publisher.name}: once, in order"
            places = [tuple(map(int, m.body.split(b" ")[1:3])) for m in mine]
            assert places == sorted(set(places)), f"{publisher.name}: in the order of publishing"
            there = set(numbers)
            lost = [r for r in witness.returned if r.sequence <= witness.flushed and r.sequence not in there]
            assert not lost, f"{publisher.name}: a flush covered {lost[:3]}"
            self.counts["messages"] += len(mine)

    def finish(self) -> None:
        """Send the remaining messages in final runs, and check that every returned publish is stored."""
        for publisher in self.publishers:
            publisher.kill(signal.SIGKILL)
            publisher.spawn(finish=True)
            assert publisher.wait() == 0, f"{publisher.name} has messages left"
        assert self.victim.kill()
        self.judge()
        for publisher in self.publishers:
            mine = [m for m in self.log if m.body.startswith(publisher.name.encode() + b" ")]
            by_life: Counter[int] = Counter()
            for message in mine:
                life, number = map(int, message.body.split(b" ")[1:3])
                assert number == by_life[life], f"{publisher.name}: {number} of life {life} has a gap"
                by_life[life] += 1
            there = {m.sequence for m in mine}
            returned = read_witness(publisher.witness).returned
            lost = [r for r in returned if r.sequence not in there or r.published > by_life[r.life]]
            assert not lost, f"{publisher.name} lost {lost[:3]}"


def run_cycles(directory: Path, seed: int, cycles: int, connect: Connect) -> Counter[str]:
    world = World(directory, seed, connect)
    try:
        for number in range(cycles):
            world.cycle(KINDS[number % 3])
        world.finish()
    finally:
        for each in world.publishers:
            if each.running():
                each.kill(signal.SIGKILL)
        if world.victim.running():
            world.victim.kill()
    return world.counts


@pytest.mark.behaviour(29)
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("connect", [reconnecting, highly_available])
def test_publisher_with_client_server_or_both_killed_loses_and_duplicates_nothing(
    tmp_path: Path, full: bool, connect: Connect
) -> None:
    given = os.environ.get("TICKERTAPE_FAULT_SEED")
    seed = int(given) if given else Random().getrandbits(32) if full else 7
    try:
        counts = run_cycles(tmp_path, seed, CYCLES_FULL if full else CYCLES, connect)
    except BaseException as error:
        error.add_note(f"TICKERTAPE_FAULT_SEED={seed}")
        raise
    assert all(counts[kind] > 2 for kind in KINDS), counts
    assert counts["messages"] > 1_000, counts
