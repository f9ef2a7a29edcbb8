"""SIGKILL of the real server at random times, again and again, with active publishers and subscribers.

After each kill the log is read by a reader that shares no code with the server. A failure prints the seed and
keeps the directory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from tests.faults.clients import SECONDS, TOPIC, Publisher, Subscriber
from tests.faults.killed_server import Victim
from tests.faults.log_on_disk import Stored, read_log
from tests.helpers.processes import run_tickertape
from tickertape.testing import wait_until

CYCLES = 10
CYCLES_FULL = 20
WORLDS_FULL = 5
"""Number of servers. Each is judged by its whole log after every kill, so each runs briefly."""
PUBLISHERS = 3
CONFIG = '[journal]\nsegment_size = "1MB"\n'
HAPPENS = (
    "killed at work",
    "killed at a roll",
    "killed while stopping",
    "killed before it was ready",
    "killed inside recovery",
    "waiting for an acknowledgement",
)


class Cycles:
    """A server that is killed again and again, its clients, and their acknowledgements."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.counts: Counter[str] = Counter()
        config = directory / "tickertape.toml"
        config.write_text(CONFIG)
        self.victim = Victim(directory / "data", config)
        begun = time.monotonic()
        self.victim.spawn()
        self.victim.wait_ready()
        self.start_seconds = time.monotonic() - begun
        uri = self.victim.uri
        self.publishers = [Publisher(f"publisher-{n}", uri, seed + n) for n in range(PUBLISHERS)]
        self.subscribers = [Subscriber("fast", uri), Subscriber("slow", uri, pause=0.005)]
        self.log: list[Stored] = []
        for client in (*self.publishers, *self.subscribers):
            client.start()

    def cycle(self, number: int) -> None:
        """Work, kill, check, perhaps kill during the start, and start."""
        self.kill_working(number)
        self.judge()
        self.counts["waiting for an acknowledgement"] = sum(p.resent for p in self.publishers)
        for _ in range((0, 1, 0, 2)[number % 4]):
            self.kill_starting(watch=self.rng.random() < 0.7)
            self.judge()
        self.victim.spawn()
        self.victim.wait_ready()

    def kill_working(self, number: int) -> None:
        """Kill the working server, with the kinds of kills in turn, at a random time."""
        victim, rng = self.victim, self.rng
        assert victim.wait_change("writes", rng.choice((1, 10, 100)), SECONDS), "nothing is written"
        kind = ("killed at work", "killed at a roll", "killed while stopping")[number % 3]
        if kind == "killed at work":
            time.sleep(rng.random() * 0.4)
        elif kind == "killed at a roll":
            assert victim.wait_change("sizes", rng.randrange(1, 4), SECONDS), "no segment was rolled"
        else:
            victim.terminate()
            if rng.random() < 0.6:
                victim.wait_change("sizes", 1, 1.0)
            else:
                time.sleep(rng.random() * 0.03)
        self.counts[kind] += victim.kill()

    def kill_starting(self, *, watch: bool) -> None:
        """Kill a starting server: after its first writes, or at a random time."""
        victim = self.victim
        victim.spawn()
        if watch:
            begun = victim.wait_change("writes", self.rng.randrange(1, 4), SECONDS)
        else:
            begun = False
            time.sleep(self.rng.random() * self.start_seconds)
        killed = victim.kill()
        self.counts["killed inside recovery"] += killed and begun and not victim.was_ready
        self.counts["killed before it was ready"] += killed and not victim.was_ready

    def judge(self) -> None:
        """Check the log that the killed process left."""
        stored = [message for message in read_log(self.victim.data) if message.topic == TOPIC]
        assert stored[: len(self.log)] == self.log, "the earlier log stays unchanged"
        self.log = stored
        for publisher in self.publishers:
            mine = [m for m in stored if m.body.startswith(publisher.name.encode() + b" ")]
            # Read the log before the acknowledgements: they may only grow meanwhile.
            acknowledged = publisher.acknowledged()
            assert [m.body for m in mine] == publisher.bodies[: len(mine)], (
                f"{publisher.name}: once, in order"
            )
            assert len(mine) >= acknowledged, (
                f"{publisher.name}: {acknowledged} are acknowledged, {len(mine)} there"
            )
            assert all(a.sequence < b.sequence for a, b in pairwise(mine))
            assert len({m.publisher for m in mine}) <= 1
            self.counts["acknowledged"] = max(self.counts["acknowledged"], acknowledged)
        everything = [(str(m.publisher), m.sequence, m.body) for m in stored]
        for subscriber in self.subscribers:
            heard = subscriber.heard[:]
            assert heard == everything[: len(heard)], (
                f"{subscriber.name}: the log from its beginning, without a gap"
            )

    def finish(self) -> None:
        """Finish all clients, and check that the log and each subscriber have all messages."""
        for publisher in self.publishers:
            publisher.finish()
        total = sum(len(publisher.bodies) for publisher in self.publishers)
        for subscriber in self.subscribers:
            wait_until(lambda s=subscriber: s.error or len(s.heard) >= total, SECONDS)
            subscriber.finish()
        self.victim.terminate()
        assert self.victim.wait() == 0, self.victim.said()
        self.judge()
        assert len(self.log) == total
        assert all(len(subscriber.heard) == total for subscriber in self.subscribers)
        assert min(subscriber.resumed for subscriber in self.subscribers) > 1
        code, output, _ = run_tickertape("journal", "verify", str(self.victim.data))
        # A torn end that a recovery set aside is reported before it.
        assert code == 0, output
        assert any(line.startswith("no corruption:") for line in output.splitlines()), output


def run_cycles(directory: Path, seed: int, cycles: int) -> Counter[str]:
    """Kill one server `cycles` times, then finish."""
    world = Cycles(directory, seed)
    try:
        for number in range(cycles):
            world.counts["cycle"] = number
            world.cycle(number)
        world.finish()
    finally:
        if world.victim.running():
            world.victim.kill()
    return world.counts


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "world", [0, *[pytest.param(n, marks=pytest.mark.full) for n in range(1, WORLDS_FULL)]]
)
def test_server_killed_at_any_time_keeps_acknowledged_messages(full: bool, world: int) -> None:
    given = os.environ.get("TICKERTAPE_FAULT_SEED")
    seed = int(given) if given else Random().getrandbits(32) if full else 7
    directory = Path(tempfile.mkdtemp(prefix="tickertape-sigkill-"))
    try:
        counts = run_cycles(directory, seed, CYCLES_FULL if full else CYCLES)
    except BaseException as error:
        error.add_note(f"TICKERTAPE_FAULT_SEED={seed}, all of it is in {directory}")
        raise
    shutil.rmtree(directory)
    missing = [event for event in HAPPENS if not counts[event]]
    assert not missing, f"these events did not occur: {missing} ({dict(counts)})"
