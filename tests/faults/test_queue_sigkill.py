"""SIGKILL of a server with queues and of its workers, in a loop, under load.

No message is lost or leased to two workers at once. Acknowledged messages are not redelivered, and
unprocessed ones are redelivered in time. Judged by the records of publishers and workers against the ends of
leases that came with the messages, not by any process's own view.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

import tickertape as tt
from tests.faults.killed_server import Victim
from tests.faults.queue_processes import (
    LEASE_SECONDS,
    LEASED,
    ONCE,
    SECONDS,
    TOPIC,
    WorkerProcess,
    now,
    publisher,
    worker,
)
from tests.helpers.queues import queue
from tickertape.testing import wait_until

CYCLES = 10
CYCLES_FULL = 100
BACKLOGS = (1, 5, 20)
"""Of each worker at a time."""
KINDS = ("worker", "server", "worker", "both", "worker", "server")
LEASE = round(LEASE_SECONDS * 1_000_000)
CLOCK = 50_000
"""Maximum difference in microseconds between the times of a record and of the server."""
STUCK = 20_000_000
"""Microseconds after the end of a lease from which on a message that is not redelivered counts as stuck."""
CONFIG = (
    '[journal]\nsegment_size = "1MB"\n'
    + queue(LEASED, underlying=TOPIC, lease_period=f"{LEASE_SECONDS:g}s")
    + queue(ONCE, underlying=TOPIC, semantics="at-most-once")
)


class Delivery(NamedTuple):
    """A lease of a message by a worker, from `begin` to the end of the lease."""

    begin: int
    end: int
    number: int
    life: WorkerProcess
    given_back: int | None
    """Time at which that worker recorded its return."""
    sure: int | None
    """When that worker knew that its acknowledgement was on disk."""


class World:
    """One server, its publisher and workers, all their runs, and the times of kills."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.rng = Random(seed)
        self.counts: Counter[str] = Counter()
        config = directory / "tickertape.toml"
        config.write_text(CONFIG)
        self.victim = Victim(directory / "data", config)
        self.kills: list[int] = []
        """Of the server."""
        self.ready: list[int] = []
        self.victim.spawn()
        self.victim.wait_ready()
        self.publisher = WorkerProcess("publisher", directory, publisher(self.victim.uri))
        self.lives: list[WorkerProcess] = []
        self.workers = [self.start_worker(backlog) for backlog in BACKLOGS]

    def start_worker(self, backlog: int) -> WorkerProcess:
        """Start a worker with a name of its own, which identifies its leases."""
        number = len(self.lives)
        life = WorkerProcess(f"worker-{number}", self.directory, worker(self.victim.uri, number, backlog))
        self.lives.append(life)
        return life

    def cycle(self, kind: str) -> None:
        """Wait until a worker works, kill, and restart."""
        place = self.rng.randrange(len(BACKLOGS))
        chosen = self.workers[place]
        wait_until(lambda: any(entry.what == "sure" and entry.number for entry in chosen.entries()), SECONDS)
        time.sleep(self.rng.random() * 0.3)
        if kind != "server":
            chosen.kill()
        if kind != "worker":
            self.kills.append(now())
            assert self.victim.kill()
            self.victim.spawn()
            self.victim.wait_ready()
            self.ready.append(now())
        if kind != "server":
            self.workers[place] = self.start_worker(BACKLOGS[place])
        self.counts[kind] += 1

    def finish(self) -> None:
        """End all processes, and take the remaining messages."""
        assert self.publisher.finish() == 0
        published = self.publisher.entries()[-1].number
        wait_until(lambda: len(self.acknowledged()) == published, SECONDS)
        with tt.Client("last", self.victim.uri, timeout=SECONDS) as client:
            wait_until(lambda: not list(client.subscribe(ONCE, browse=True)), SECONDS)
            for life in self.workers:
                assert life.finish() == 0
            left = {int(message.data) for message in client.subscribe(LEASED, browse=True)}
            self.counts["left"] = len(left)
            assert left <= self.acknowledged(), "a message left in the queue was never acknowledged"
        self.victim.terminate()
        assert self.victim.wait() == 0, self.victim.said()
        self.counts["published"] = published

    def acknowledged(self) -> set[int]:
        """Return the messages that a worker recorded as acknowledged."""
        return {entry.number for life in self.lives for entry in life.entries() if entry.what == "ack"}

    def end(self) -> None:
        """End all processes."""
        for life in (self.publisher, *self.workers):
            if life.ended is None:
                life.kill()
        if self.victim.running():
            self.victim.kill()


# -- the judge ----------------------------------------------------------------------------------------


def deliveries_of(life: WorkerProcess) -> list[Delivery]:
    """Return the messages of a worker, each with its next action on it."""
    sure = [
        entry for entry in life.entries() if entry.what == "sure"
    ]  # its flushes have a thread of their own
    entries = [entry for entry in life.entries() if entry.what in ("got", "ack", "cancel")]
    cancels: defaultdict[int, list[int]] = defaultdict(list)
    for entry in entries:
        if entry.what == "cancel":
            cancels[entry.number].append(entry.at)
    found: list[Delivery] = []
    done = 0
    for got, said in zip(entries, [*entries[1:], None], strict=True):
        if got.what != "got":
            continue
        confirmed, begin = None, got.end - LEASE
        if said is not None and said.what == "ack":
            done += 1
            confirmed = next((entry.at for entry in sure if entry.number >= done), None)
        # A worker that hung returns the message by now, although its lease has ended: the bookmark is the
        # same.
        given_back = next((at for at in cancels[got.number] if at >= begin - CLOCK), None)
        found.append(Delivery(begin, got.end, got.number, life, given_back, confirmed))
    return found


class Judge:
    """Judges all deliveries of one message in order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.counts = world.counts
        by_number: defaultdict[int, list[Delivery]] = defaultdict(list)
        for life in world.lives:
            for delivery in deliveries_of(life):
                by_number[delivery.number].append(delivery)
        self.deliveries = {n: sorted(some, key=lambda d: (d.begin, d.end)) for n, some in by_number.items()}

    def all(self) -> None:
        """Look at everything."""
        missing = set(range(self.counts["published"])) - set(self.deliveries)
        assert not missing, f"never delivered: {sorted(missing)[:20]}"
        for some in self.deliveries.values():
            for before, after in pairwise(some):
                self.one_at_a_time(before, after)
                self.in_time(before, after)
            self.counts["delivered again"] += len(some) > 1
            for delivery in some:
                self.stays_done(delivery, some[-1])
        once = Counter(e.number for life in self.world.lives for e in life.entries() if e.what == "once")
        assert not [number for number, times in once.items() if times > 1], "at most once"
        self.counts["at most once"] = len(once)

    def ends(self, delivery: Delivery, *, for_certain: bool = False) -> dict[str, int]:
        """Why a delivery may have been over, or was for certain, and when."""
        begin = delivery.begin + (CLOCK if for_certain else -CLOCK)
        found = {"lease end": delivery.end}
        if delivery.given_back is not None and delivery.given_back >= begin:
            found["cancel"] = delivery.given_back
        if delivery.life.ended is not None and delivery.life.ended >= begin:
            found["holder gone"] = delivery.life.ended
        kill = next((kill for kill in self.world.kills if kill >= begin), None)
        if kill is not None:
            found["server killed"] = kill
        return found

    def one_at_a_time(self, before: Delivery, after: Delivery) -> None:
        """Check that the earlier lease was over when the later one started."""
        why = [reason for reason, at in self.ends(before).items() if at <= after.begin + CLOCK]
        assert why, f"leased twice at once: {_shown(before)} and {_shown(after)}"
        first = min(why, key=self.ends(before).__getitem__)
        self.counts[f"again after {first}"] += 1

    def in_time(self, before: Delivery, after: Delivery) -> None:
        """Check that redelivery was in time, except after a worker that was killed before it recorded its
        return.
        """
        over = min(self.ends(before, for_certain=True).values())
        hidden = [life.ended for life in self.world.lives if life.ended is not None]
        later = [at for at in (*hidden, *self.world.ready) if over <= at <= after.begin]
        late = after.begin - max([over, *later])
        self.counts["latest ms"] = max(self.counts["latest ms"], late // 1000)
        assert late <= STUCK, f"{late} us late: {_shown(before)} and {_shown(after)}"

    def stays_done(self, delivery: Delivery, last: Delivery) -> None:
        """Check that no delivery starts after an acknowledgement confirmed within its lease."""
        if delivery.sure is None or delivery.sure > min(self.ends(delivery).values()):
            return
        self.counts["sure"] += 1
        assert last.begin <= delivery.sure, f"done, and again: {_shown(delivery)} and {_shown(last)}"


def _shown(delivery: Delivery) -> str:
    return f"{delivery[:3]} of {delivery.life.name}, over at {delivery.life.ended}, {delivery[4:]}"


HAPPENS = (
    "worker",
    "server",
    "both",
    "delivered again",
    "again after lease end",
    "again after cancel",
    "again after holder gone",
    "again after server killed",
    "sure",
    "at most once",
)


WORLDS_MAX = 3
"""Maximum number of runs until each of `HAPPENS` occurred: the effect of a kill depends on the machine."""


@pytest.mark.slow
@pytest.mark.timeout(900 * WORLDS_MAX)
def test_queue_with_server_and_workers_killed_loses_nothing_and_leases_to_one_worker(full: bool) -> None:
    given = os.environ.get("TICKERTAPE_FAULT_SEED")
    seed = int(given) if given else Random().getrandbits(32) if full else 3
    counts: Counter[str] = Counter()
    for number in range(WORLDS_MAX):
        counts += _lived(seed + number, CYCLES_FULL if full else CYCLES)
        if all(counts[event] for event in HAPPENS):
            return
    missing = [event for event in HAPPENS if not counts[event]]
    pytest.fail(f"these events did not occur: {missing} ({dict(counts)})")


def _lived(seed: int, cycles: int) -> Counter[str]:
    directory = Path(tempfile.mkdtemp(prefix="tickertape-queue-sigkill-"))
    world = World(directory, seed)
    try:
        for number in range(cycles):
            world.cycle(KINDS[number % len(KINDS)])
        world.finish()
        Judge(world).all()
    except BaseException as error:
        error.add_note(f"TICKERTAPE_FAULT_SEED={seed}, all of it is in {directory}, {dict(world.counts)}")
        raise
    finally:
        world.end()
    shutil.rmtree(directory)
    return world.counts
