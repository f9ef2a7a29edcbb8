"""SIGKILL of the real server at random times while clients commit transactions, again and again.

Judged by the results of the clients' calls, with a log reader that shares no code with the server.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

import tickertape as tt
from tests.faults.clients import SECONDS, TOPIC, Publisher
from tests.faults.killed_server import Victim
from tests.faults.log_on_disk import Stored, read_log
from tests.helpers.processes import run_tickertape

CYCLES = 6
CYCLES_FULL = 100
COMMITTERS = 3
CONFIG = '[journal]\nsegment_size = "1MB"\n'


class Committer(threading.Thread):
    """Commits one transaction after the other through all failures, some larger than a segment."""

    def __init__(self, name: str, uri: str, seed: int, *, spaced: bool) -> None:
        super().__init__(name=name, daemon=True)
        self.bodies: list[list[bytes]] = []
        """The bodies of each transaction, in their order."""
        self.committed = 0
        """Number of transactions that the server has reported as committed."""
        self.repeated = 0
        self.error: BaseException | None = None
        self._rng = Random(seed)
        self._spaced = spaced
        self._over = threading.Event()
        self._client = tt.HAClient(name, servers=[uri], reconnect_delay=0.01)

    def run(self) -> None:
        try:
            self._client.connect_and_logon(timeout=SECONDS)
            while not self._over.is_set():
                self._commit(len(self.bodies))
        except BaseException as error:  # noqa: BLE001 - reported by `finish`
            self.error = error

    def _commit(self, number: int) -> None:
        size, count = self._rng.choice(((10, 1), (100, 40), (1_000, 200), (4_000, 600)))
        bodies = [b"%s %d %d " % (self.name.encode(), number, n) + bytes(size) for n in range(count)]
        self.bodies.append(bodies)
        transaction = self._client.transaction(str(number), space="s" if self._spaced else "")
        transaction.publish_batch(TOPIC, bodies)
        result = None
        while result is None:
            try:
                result = transaction.commit(timeout=SECONDS)
            except (tt.Disconnected, tt.NotReady, tt.TimedOut):
                self._over.wait(0.02)
        self.repeated += result.repeated
        self.committed = number + 1

    def finish(self) -> None:
        """Commit the last one and end."""
        self._over.set()
        self.join(SECONDS)
        self._client.close()
        assert self.error is None
        assert not self.is_alive()


class Cycles:
    """One server that is killed, and those who commit."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.counts: Counter[str] = Counter()
        config = directory / "tickertape.toml"
        config.write_text(CONFIG)
        self.victim = Victim(directory / "data", config)
        self.victim.spawn()
        self.victim.wait_ready()
        uri = self.victim.uri
        self.committers = [
            Committer(f"committer-{n}", uri, seed + n, spaced=n % 2 == 0) for n in range(COMMITTERS)
        ]
        self.publisher = Publisher("publisher", uri, seed)
        self.log: list[Stored] = []
        for client in (*self.committers, self.publisher):
            client.start()

    def cycle(self) -> None:
        """Let the server work, kill it, judge, and restart. Sometimes kill it during the start."""
        victim, rng = self.victim, self.rng
        assert victim.wait_change("writes", rng.choice((1, 10, 40)), SECONDS), "nothing is written"
        time.sleep(rng.random() * 0.3)
        assert victim.kill()
        self.judge()
        if rng.random() < 0.4:
            victim.spawn()
            victim.wait_change("writes", 1, SECONDS)
            self.counts["killed while it started"] += victim.kill()
            self.judge()
        victim.spawn()
        victim.wait_ready()

    def judge(self) -> None:
        """Check the log that the killed process left."""
        # Read the results before the log: it may only have more.
        committed = [committer.committed for committer in self.committers]
        stored = [message for message in read_log(self.victim.data) if message.topic == TOPIC]
        assert stored[: len(self.log)] == self.log, "the earlier log stays unchanged"
        self.log = stored
        bodies = [message.body for message in stored]
        for committer, known in zip(self.committers, committed, strict=True):
            prefix = committer.name.encode() + b" "
            mine = [body for body in bodies if body.startswith(prefix)]
            whole = 0
            at = 0
            while at < len(mine):
                expected = committer.bodies[whole]
                assert mine[at : at + len(expected)] == expected, f"{committer.name}: {whole} is not whole"
                at, whole = at + len(expected), whole + 1
            assert whole >= known, f"{committer.name}: {known} are committed, {whole} are there"
            self.counts["stored and not reported yet"] += whole > known
            self.counts["committed"] = sum(committed)
        self._in_a_row(bodies)

    def _in_a_row(self, bodies: list[bytes]) -> None:
        """Check that no other message is within a transaction."""
        before = b""
        seen: set[bytes] = set()
        for body in bodies:
            key = b" ".join(body.split(b" ", 2)[:2]) if body.startswith(b"committer") else b""
            if key != before and key:
                assert key not in seen, f"{key!r} is interrupted, or there twice"
                seen.add(key)
            before = key

    def finish(self) -> None:
        """Finish, and check that every transaction is stored once."""
        for committer in self.committers:
            committer.finish()
        self.publisher.finish()
        self.victim.terminate()
        assert self.victim.wait() == 0, self.victim.said()
        self.judge()
        expected = sum(len(bodies) for committer in self.committers for bodies in committer.bodies)
        assert len(self.log) == expected + len(self.publisher.bodies)
        self.counts["repeated"] = sum(committer.repeated for committer in self.committers)
        staged = self.victim.data / "transactions"
        code, output, _ = run_tickertape("journal", "verify", str(self.victim.data))
        assert code == 0, output
        parts = [*staged.glob("*.part"), *staged.glob("*.prepared")]
        assert not parts, "committed parts are no longer staged"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_committed_transaction_survives_every_server_kill_once_and_whole(full: bool) -> None:
    given = os.environ.get("TICKERTAPE_FAULT_SEED")
    seed = int(given) if given else Random().getrandbits(32) if full else 7
    directory = Path(tempfile.mkdtemp(prefix="tickertape-transactions-"))
    world = Cycles(directory, seed)
    try:
        for _ in range(CYCLES_FULL if full else CYCLES):
            world.cycle()
        world.finish()
    except BaseException as error:
        error.add_note(f"TICKERTAPE_FAULT_SEED={seed}, all of it is in {directory}")
        raise
    finally:
        if world.victim.running():
            world.victim.kill()
    shutil.rmtree(directory)
    missing = [event for event in ("committed", "killed while it started") if not world.counts[event]]
    assert not missing, f"these events did not occur: {missing} ({dict(world.counts)})"
