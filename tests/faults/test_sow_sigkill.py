"""SIGKILL of a server with a SOW topic, in checkpoints, deletes, merges and starts.

After each restart, the records of each writer are those of a prefix of its operations that includes all
acknowledged ones. They also equal the fold of the log, read without code of the product.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

import tickertape as tt
from tests.faults.clients import SECONDS
from tests.faults.killed_server import Victim
from tests.faults.log_on_disk import Stored, read_log
from tests.faults.sow_writers import TOPIC, Folded, SowWriter, State
from tests.helpers.processes import run_tickertape
from tickertape.testing import running_server, wait_until

CYCLES = 20
WORLDS_FULL = 50
"""Number of servers of the full tier, which together have 1,000 cycles."""
LOOK_CYCLES = 5
"""Every this many cycles, the whole log is compared with the results of all queries since the last time."""
KEYS = 3_000
CONFIG = """
[[sow]]
name = "positions"
key = ["/id"]
checkpoint_interval = "1s"
[[topic]]
name = "positions"
message_type = "json"
[admin]
listen = "off"
[journal]
segment_size = "4MB"
"""
KINDS = (
    "killed at work",
    "killed in a checkpoint",
    "killed at work",
    "killed after a checkpoint",
    "killed at work",
    "killed at work",
)
HAPPENS = (
    *sorted(set(KINDS)),
    "killed before it was ready",
    "killed with a delta file",
    "unacknowledged publish",
    "unacknowledged delta",
    "unacknowledged delete",
    "unacknowledged delete bucket",
)
RARE = frozenset(("killed before it was ready", "unacknowledged delete bucket"))
"""Events that a random seed can lack. The fixed seed of each run has them."""


class SowVictim(Victim):
    """A server whose checkpoint files are watched."""

    def states(self) -> tuple[tuple[str, int], ...]:
        """Return names and inodes of the checkpoint files, which change with each new file."""
        found = []
        for path in (self.data / "sow").glob("*/*"):
            try:
                found.append((str(path), path.stat().st_ino))
            except FileNotFoundError:  # renamed meanwhile
                continue
        return tuple(sorted(found))

    def manifests(self) -> tuple[tuple[str, int], ...]:
        """Return the manifest and its inode, which change with each complete checkpoint."""
        return tuple(entry for entry in self.states() if entry[0].endswith("/manifest"))


class SowCycles:
    """A server that is killed again and again, two writers, and their oracles."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.counts: Counter[str] = Counter()
        config = directory / "tickertape.toml"
        config.write_text(CONFIG)
        self.victim = SowVictim(directory / "data", config)
        begun = time.monotonic()
        self.victim.spawn()
        self.victim.wait_ready()
        self.start_seconds = time.monotonic() - begun
        stores: list[tt.PublishStore] = [
            tt.MemoryPublishStore("4MB"),
            tt.FilePublishStore(directory / "store"),
        ]
        self.writers = [
            SowWriter(name, self.victim.uri, store, KEYS, seed + number)
            for number, (name, store) in enumerate(zip(("ann", "bob"), stores, strict=True))
        ]
        self.stores = stores
        self.queried: list[tuple[tuple[int, int], State]] = []
        """Results of queries since the last look at the log, with the last message before each."""
        for writer in self.writers:
            writer.start()
        for writer in self.writers:
            wait_until(lambda w=writer: w.error or w.acknowledged() >= KEYS, SECONDS)

    def cycle(self, number: int) -> None:
        """Work, kill, compare with the log, perhaps kill during the start, start, and compare the records."""
        self.kill_working(number)
        if number % LOOK_CYCLES == LOOK_CYCLES - 1:
            self.judge_log()
        if number % 6 == 2:
            self.victim.spawn()
            time.sleep(self.rng.random() * self.start_seconds)
            self.counts["killed before it was ready"] += self.victim.kill() and not self.victim.was_ready
        self.victim.spawn()
        self.victim.wait_ready()
        self.judge_records()

    def kill_working(self, number: int) -> None:
        """Kill the working server, at a random write or at a checkpoint."""
        victim, rng = self.victim, self.rng
        before = [len(writer.operations) for writer in self.writers]
        pairs = list(zip(self.writers, before, strict=True))
        wait_until(lambda: all(writer.error or writer.acknowledged() > n for writer, n in pairs), SECONDS)
        kind = KINDS[number % len(KINDS)]
        if kind == "killed at work":
            assert victim.wait_change("writes", rng.choice((1, 10, 30)), SECONDS), "nothing is written"
        else:
            look = "states" if kind == "killed in a checkpoint" else "manifests"
            assert victim.wait_change(look, 1, SECONDS), "no checkpoint is written"
            if rng.random() < 0.5:
                assert victim.wait_change("writes", rng.choice((1, 10)), SECONDS), "nothing is written"
        self.counts[kind] += victim.kill()
        deltas = [path.name for path in (victim.data / "sow").glob("*/delta-*.sow")]
        self.counts["killed with a delta file"] += bool(deltas)
        for kind in set().union(*(writer.unacknowledged() for writer in self.writers)):
            self.counts[f"unacknowledged {kind}"] += 1

    def judge_log(self) -> None:
        """Compare the log that the killed process left with all results since the last look, and oracles."""
        acknowledged = [writer.acknowledged() for writer in self.writers]
        log = read_log(self.victim.data)
        folded = Folded()
        results, found = dict(self.queried), 0
        current: State | None = None
        equal = True
        for stored in folded.steps(log):
            # `as_of` is a message. The position of the result can also be behind the deletes that follow it.
            if not is_delete(stored):
                assert equal, "the result of a query equals the fold of the log"
                current = results.get((stored.publisher, stored.sequence))
                found, equal = found + (current is not None), current is None
            equal = equal or current == folded.state
        assert equal, "the result of the last query equals the fold of the log"
        assert found == len(results), "the last message before each result is in the log"
        self.queried.clear()
        self.counts["messages"], self.counts["deletes"] = len(log), sum(map(is_delete, log))
        self.judge_state(folded.state, acknowledged)

    def judge_records(self) -> None:
        """Query all records, and compare them with the oracles."""
        acknowledged = [writer.acknowledged() for writer in self.writers]
        state: State = {}
        keys: dict[str, dict[str, str]] = {writer.name: {} for writer in self.writers}
        with tt.Client("reader", self.victim.uri, timeout=SECONDS) as reader:
            result = reader.sow(TOPIC)
            for message in result:
                record = message.json()
                assert record["id"] not in state, "each key has one record"
                state[record["id"]] = record
                keys[record["owner"]][record["id"]] = str(message.sow_key)
        assert result.as_of is not None
        publisher, sequence = result.as_of.split("|")[:2]
        self.queried.append(((int(publisher), int(sequence)), state))
        self.counts["records"] = len(state)
        self.judge_state(state, acknowledged)
        for writer in self.writers:
            writer.sow_keys = keys[writer.name]

    def judge_state(self, state: State, acknowledged: list[int]) -> None:
        """Check that all acknowledged operations, and the first of the others, give the records."""
        for writer, count in zip(self.writers, acknowledged, strict=True):
            assert writer.error is None, writer.error
            operations = writer.operations[:]
            mine = {key: record for key, record in state.items() if record["owner"] == writer.name}
            writer.oracle.advance(operations, count)
            prefix = writer.oracle.prefix_with(operations, mine)
            assert prefix is not None, f"{writer.name}: not the records after {count} or more operations"

    def finish(self) -> None:
        """Finish the writers, stop the server, and compare the last records with oracles and log."""
        for writer in self.writers:
            writer.finish()
        for store in self.stores:
            store.close()
        self.judge_records()
        total = sum(len(writer.oracle.state) for writer in self.writers)
        assert all(writer.oracle.applied == len(writer.operations) for writer in self.writers)
        assert self.counts["records"] == total
        self.victim.terminate()
        assert self.victim.wait() == 0, self.victim.said()
        self.judge_log()
        code, output, _ = run_tickertape("journal", "verify", str(self.victim.data))
        assert code == 0, output


def is_delete(stored: Stored) -> bool:
    return stored.topic == "$sow"


def run_cycles(directory: Path, seed: int) -> Counter[str]:
    """Kill one server in cycles, then finish."""
    world = SowCycles(directory, seed)
    try:
        for number in range(CYCLES):
            world.counts["cycle"] = number
            world.cycle(number)
        world.finish()
    finally:
        if world.victim.running():
            world.victim.kill()
    return world.counts


@pytest.mark.full
@pytest.mark.slow
def test_result_after_a_restart_names_the_last_message(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", CONFIG.replace('[admin]\nlisten = "off"\n', "")) as server:
        with tt.Client("writer", server.uri, publish_store=tt.MemoryPublishStore()) as client:
            client.publish(TOPIC, {"id": "a"})
            client.publish_flush()
            wait_until(lambda: list((tmp_path / "data" / "sow").glob("*/manifest")), SECONDS)
            client.sow_delete(TOPIC, data={"id": "b"})
            before = client.sow(TOPIC).as_of
        assert before != tt.EPOCH
        assert server.stop() == 0
        server.start()
        with tt.Client("reader", server.uri) as client:
            assert client.sow(TOPIC).as_of == before


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "world", [0, *[pytest.param(n, marks=pytest.mark.full) for n in range(1, WORLDS_FULL)]]
)
def test_killed_server_keeps_acknowledged_upserts_and_deletes_of_records(full: bool, world: int) -> None:
    given = os.environ.get("TICKERTAPE_FAULT_SEED")
    seed = int(given) if given else Random().getrandbits(32) if full else 7
    directory = Path(tempfile.mkdtemp(prefix="tickertape-sow-sigkill-"))
    try:
        counts = run_cycles(directory, seed)
    except BaseException as error:
        error.add_note(f"TICKERTAPE_FAULT_SEED={seed}, all of it is in {directory}")
        raise
    shutil.rmtree(directory)
    rare = RARE if full else frozenset()
    missing = [event for event in HAPPENS if not counts[event] and event not in rare]
    assert not missing, f"these events did not occur: {missing} ({dict(counts)})"
