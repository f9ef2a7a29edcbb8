"""Failing syncs, writes and truncations (R4, R5) on real servers and a real kernel, at any time of a run.

strace lets the n-th call of each thread fail, once or from then on. A limit of the kernel makes a write
short, and later ones fail. No message is acknowledged after the failure, the server ends with the documented
exit code, and the messages acknowledged before are in the files and after the next start.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest

import tickertape as tt
from tests.faults.log_on_disk import read_log
from tests.helpers.failing_syscalls import Call, TracedServer, why_not
from tickertape.testing.server import ServerNotReady, wait_until

SECONDS: Final = 30.0
EXIT_DISK_FAILED: Final = 4
ROUNDS_MAX: Final = 60
ERRORS: Final = ("EIO", "ENOSPC", "EDQUOT")
CALLS_MAX: Final = {"fdatasync": 30, "pwritev2,pwritev": 30, "fsync": 8, "ftruncate": 4}
"""Failing calls, and the highest number of a call in a thread: a run has few of the last two."""
WORLDS_FULL: Final = 10
FAULTS_FULL: Final = 30
"""Number of faults of each simulation."""
EVENTS_BYTES: Final = 10_000
"""More bytes than a server logs until it ends."""
CONFIG: Final = '[journal]\nsegment_size = "1MB"\n'


class Fault(NamedTuple):
    """These calls fail with this error: the n-th of each thread, or with `+` that one and all later ones."""

    calls: str
    error: str
    when: str


EVERY_RUN: Final = (
    Fault("fdatasync", "EIO", "12"),
    Fault("fdatasync", "EDQUOT", "2"),  # of the start
    Fault("pwritev2,pwritev", "ENOSPC", "6+"),
)


class DirectoryRun:
    """A data directory from one failure to the next, with its clients and their messages."""

    def __init__(self, directory: Path, rng: Random) -> None:
        self.rng = rng
        self.counts: Counter[str] = Counter()
        config = directory / "tickertape.toml"
        config.write_text(CONFIG)
        self.server = TracedServer(directory / "data", config)
        self.one: list[bytes] = []
        """Published one by one, without a store, each with a flush."""
        self.acknowledged: set[bytes] = set()
        """Those of these that were acknowledged."""
        self.many: list[bytes] = []
        """Published in bursts, with a store, without waiting."""
        self._store = tt.MemoryPublishStore()
        self._clients: list[tt.Client] = []

    def fail(self, fault: Fault) -> bool:
        """Run a server whose calls fail. Return False when it made fewer of these calls."""
        server = self.server
        server.fault = f"{fault.calls}:error={fault.error}:when={fault.when}"
        refused = ""
        try:
            server.start()
        except ServerNotReady as error:
            refused = str(error)
        if refused:
            assert f"(exit code {EXIT_DISK_FAILED})" in refused
            assert " start_refused code=journal_failed " in refused
            self.counts["at the start"] += 1
        elif not self.work_until_it_fails():
            return False
        self.judge_calls(server.calls(), at_work=not refused)
        self.judge(server.data)
        self.counts[f"{fault.calls} {fault.error}"] += 1
        return True

    def fall_short(self) -> None:
        """Run a server with a limit on the size of files: a write ends at the limit, and later ones fail."""
        server = self.server
        server.fault = ""
        server.start()
        place = self.rng.randrange(
            len(server.errors()) + EVENTS_BYTES, 300_000
        )  # the output of the server is a file too
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (place, resource.RLIM_INFINITY))
        if self.work_until_it_fails():
            segments = sorted((server.data / "journal").glob("*.segment"))
            self.counts["short"] += any(
                segment.read_bytes().rstrip(b"\0")[place:] == b"" for segment in segments
            )
            self.judge(server.data)

    def work_until_it_fails(self) -> bool:
        """Publish until the server ends. Return False when no call failed."""
        server = self.server
        before = len(server.errors())
        with self._connected():
            failed = not self.work(ROUNDS_MAX)
            if not failed:
                self.counts["never"] += 1
                server.kill()
                return False
            assert server.wait() == EXIT_DISK_FAILED, server.errors()[-2000:]
        assert server.errors()[before:].count(" failure code=journal_failed ") == 1
        self.counts["at work"] += 1
        return True

    @contextmanager
    def _connected(self) -> Iterator[None]:
        one = tt.Client("one", self.server.uri, timeout=SECONDS)
        many = tt.Client("many", self.server.uri, publish_store=self._store, timeout=SECONDS)
        self._clients = [one, many]
        try:
            yield
            wait_until(lambda: not (one.connected or many.connected), SECONDS)
        finally:
            for client in self._clients:
                client.close()

    def work(self, rounds: int) -> bool:
        """Publish for `rounds` rounds. Return False when a connection was lost."""
        one, many = self._clients
        for _ in range(rounds):
            size = self.rng.choice((10, 1_000, 60_000))
            burst = [b"many %d " % (len(self.many) + n) + b"y" * size for n in range(4)]
            self.many += burst
            self.one.append(b"one %d " % len(self.one) + b"x" * 100)
            try:
                many.publish_batch("orders", burst)
                one.publish("orders", self.one[-1])
                one.publish_flush()
            except tt.Disconnected:
                return False
            self.acknowledged.add(self.one[-1])
        return True

    def judge(self, data: Path) -> None:
        """Check the files: acknowledged messages are there, once, in the order of each publisher."""
        stored = read_log(data) if (data / "identity.json").exists() else []
        self.judge_bodies([message.body for message in stored if message.topic == "orders"])

    def judge_bodies(self, bodies: Iterable[bytes]) -> None:
        """Check the bodies that were read, likewise."""
        found = [body.split(b" ", 2)[:2] for body in bodies]
        one = [int(number) for name, number in found if name == b"one"]
        assert all(a < b for a, b in pairwise(one)), "once, in order"
        assert self.acknowledged <= {self.one[number] for number in one}, "an acknowledged message is lost"
        many = [int(number) for name, number in found if name == b"many"]
        assert many == list(range(len(many))), "once, in order, from the first on"
        assert len(many) >= len(self.many) - self._store.unpersisted_count(), "acknowledged, and lost"

    def judge_calls(self, calls: list[Call], *, at_work: bool) -> None:
        """Check that the file is left alone after its failure, and acknowledged messages precede the
        failure.

        A start may fail while it rewrites durable data.
        """
        place, failed = next((place, call) for place, call in enumerate(calls) if call.injected)
        later = [call for call in calls[place + 1 :] if call.path == failed.path and failed.name != "fsync"]
        assert not later, f"tried again after {failed}: {later}"
        mine = [call for call in calls[: place + 1] if call.thread == failed.thread]
        written = [call for call in mine if call.name.startswith("pwritev")]
        in_log = failed.name != "fsync" and failed.path.endswith(".segment")
        if at_work and in_log and written and written[-1].path == failed.path:
            data = self.server.data
            synced = data.with_name("synced")
            shutil.copytree(data, synced)
            os.truncate(synced / "journal" / Path(failed.path).name, written[-1].offset)
            self.judge(synced)
            shutil.rmtree(synced)
            self.counts["a commit or seal"] += 1

    def finish(self) -> None:
        """Repair the disk, and check that acknowledged messages are there, and stored ones are published
        once.
        """
        self.server.fault = ""
        self.server.start()
        with tt.Client("many", self.server.uri, publish_store=self._store, timeout=SECONDS) as many:
            many.publish_flush()
            self.judge_bodies([message.data for message in many.replay("orders")])
            assert self._store.unpersisted_count() == 0
        assert self.server.stop() == 0
        self.judge(self.server.data)


@contextmanager
def directory_run(directory: Path, seed: int) -> Iterator[DirectoryRun]:
    """Run a life with its final checks, and describe it if they fail."""
    life = DirectoryRun(directory, Random(seed))
    try:
        yield life
        life.finish()
    except BaseException as failure:
        failure.add_note(
            f"TICKERTAPE_FAULT_SEED={seed}, {dict(life.counts)}; last: {life.server.fault or 'none'}"
        )
        raise
    finally:
        life.server.kill()
        life.server.release()


@pytest.fixture(scope="module")
def strace() -> None:
    """Skip without it."""
    if reason := why_not():
        pytest.skip(reason)


def _seed() -> int:
    given = os.environ.get("TICKERTAPE_FAULT_SEED")
    return int(given) if given else Random().getrandbits(32)


@pytest.mark.slow
@pytest.mark.usefixtures("strace")
def test_server_with_a_failing_disk_call_ends_and_loses_nothing(tmp_path: Path) -> None:
    with directory_run(tmp_path, 7) as life:
        for fault in EVERY_RUN:
            life.fail(fault)
    assert life.counts["at work"] == 2
    assert life.counts["at the start"] == 1
    assert life.counts["a commit or seal"] >= 2


def _when(rng: Random, latest: int) -> str:
    """Return which call fails, and whether later ones do too."""
    return f"{rng.randint(1, latest)}{rng.choice(('', '+'))}"


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("world", range(WORLDS_FULL))
def test_server_with_any_disk_call_failing_at_any_time_ends_and_loses_nothing(
    tmp_path: Path, world: int
) -> None:
    kinds = [(calls, error) for calls in CALLS_MAX for error in ERRORS]
    with directory_run(tmp_path, _seed()) as life:
        for number in range(FAULTS_FULL):
            calls, error = kinds[number % len(kinds)]
            latest = CALLS_MAX[calls]
            while not life.fail(Fault(calls, error, _when(life.rng, latest))):
                latest = max(1, latest // 2)
    happens = ["at the start", "at work", "a commit or seal", *(f"{calls} {error}" for calls, error in kinds)]
    missing = [event for event in happens if not life.counts[event]]
    assert not missing, f"these events did not occur: {missing} ({dict(life.counts)})"


@pytest.mark.slow
@pytest.mark.full
def test_server_with_a_write_cut_short_at_any_byte_ends_and_loses_nothing(tmp_path: Path) -> None:
    with directory_run(tmp_path, _seed()) as life:
        for _ in range(FAULTS_FULL):
            life.fall_short()
    assert life.counts["short"] > FAULTS_FULL // 3, dict(life.counts)
