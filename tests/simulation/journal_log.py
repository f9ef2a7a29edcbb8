"""A small finished log as plain bytes, for tests that damage and reopen it.

Must never share its expectations with the journal: lists here hold the messages and the ends of their
commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple

from tests.simulation.journal_world import read_log
from tickertape.base.interfaces import Disk, Now
from tickertape.batch import Stamp, batch_from_bodies
from tickertape.journal.commit.group_commit import SyncPolicy
from tickertape.journal.commit.jobs import DiskJobExecutor, WriteCommit
from tickertape.journal.format.identity import open_identity
from tickertape.journal.format.segment import JOURNAL_DIRECTORY
from tickertape.journal.journal import Journal
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.testing.disk import StrictDisk

JOURNAL_ID = bytes(range(16))
SEGMENT_BYTES = 8_192


class Message(NamedTuple):
    """A message as its publisher sent it."""

    publisher: int
    sequence: int
    topic: str
    body: bytes


class Log(NamedTuple):
    """The files of a killed server and their messages."""

    files: dict[str, bytes]
    sealed: list[Message]
    """Messages in the segments before the last."""
    last_segment: int
    used: int
    """Offset after the last commit of the last segment."""
    commits: list[tuple[int, list[Message]]]
    """For the last segment: the offset after each commit, and its messages (none for a mark)."""

    def with_file(self, path: str, contents: bytes) -> dict[str, bytes]:
        """Return the files with one of them replaced."""
        return {**self.files, path: contents}


class Driver:
    """A journal on a strict disk, its jobs carried out at once, by a clock of its own."""

    def __init__(self, disk: Disk, *, policy: SyncPolicy = SyncPolicy.ALWAYS) -> None:
        self.disk = disk
        self.mono = 0.0
        identity = open_identity(disk, owner="test", create=True, new_id=JOURNAL_ID)
        self.recovered = recover_journal(disk, identity.journal_id)
        self.journal = Journal(self.recovered, self.now(), policy=policy, segment_bytes=SEGMENT_BYTES)
        salts = Random(1)
        self._executor = DiskJobExecutor(disk, lambda: salts.getrandbits(64))
        self.jobs: list[object] = []
        self.run()

    def now(self) -> Now:
        """Advance the time by a millisecond, and return it."""
        self.mono += 0.001
        return Now(self.mono, 1_700_000_000_000_000 + round(self.mono * 1e6))

    def run(self) -> None:
        """Carry out every job."""
        while jobs := self.journal.commits.jobs():
            for job in jobs:
                self.jobs.append(job)
                self.journal.commits.done(job, None, self._executor.run(job), self.now())
        self.journal.take_persisted()

    def publish(self, messages: Iterable[Message]) -> None:
        """Append the messages that the log does not have yet, by the rule of the duplicate filter."""
        for message in messages:
            if message.sequence > self.journal.highest.get(message.publisher, 0):
                batch = batch_from_bodies(message.topic, [message.body], first_sequence=message.sequence)
                now = self.now()
                stamp = Stamp(message.publisher, message.sequence, self.journal.next_stamp(now))
                self.journal.append(batch, stamp, message.sequence, now)
        self.run()

    def publish_together(self, message: Message, count: int) -> None:
        """Append a message `count` times, with sequences that rise, in one commit."""
        batch = batch_from_bodies(message.topic, [message.body] * count, first_sequence=message.sequence)
        now = self.now()
        stamp = Stamp(message.publisher, message.sequence, self.journal.next_stamp(now))
        self.journal.append(batch, stamp, message.sequence + count - 1, now)
        self.run()

    def idle(self) -> None:
        """Let time pass until the mark is due."""
        self.mono += 0.05
        self.journal.commits.wake(self.now())
        self.run()

    @property
    def offset(self) -> int:
        """Offset after the last commit."""
        writes = [job for job in self.jobs if isinstance(job, WriteCommit)]
        return writes[-1].offset + sum(len(buffer) for buffer in writes[-1].buffers)


def small_log(
    seed: int, *, marks: bool, body: Callable[[int], bytes] | None = None, last_messages: int = 1
) -> Log:
    """Return a log of one sealed segment and an active segment with several commits.

    With `marks`, a mark follows each commit. The last commit has `last_messages` equal messages.
    """
    rng = Random(seed)
    disk = StrictDisk(rng)
    sequences = {11: 0, 12: 0}

    def some(count: int, offset: int) -> list[Message]:
        messages = []
        for _ in range(count):
            publisher = rng.choice((11, 12))
            sequences[publisher] += 1
            data = body(offset) if body else rng.randbytes(rng.choice((0, 5, 60, 200)))
            messages.append(Message(publisher, sequences[publisher], f"topic{publisher}", data))
        return messages

    driver = Driver(disk)
    sealed: list[Message] = []
    while driver.journal.view.segments[-1].number == 1 and len(sealed) < 12:
        sealed += some(3, driver.offset if driver.jobs[-1:] and sealed else 512)
        driver.publish(sealed[-3:])
    driver.journal.commits.close(driver.now())
    driver.run()
    disk.close_all()
    driver = Driver(disk)
    commits: list[tuple[int, list[Message]]] = []
    for number in range(5):
        messages = some(1, driver.offset if commits else 512)
        if number == 4 and last_messages > 1:
            driver.publish_together(messages[0], last_messages)
            messages = [messages[0]._replace(sequence=messages[0].sequence + n) for n in range(last_messages)]
            sequences[messages[0].publisher] += last_messages - 1
        else:
            driver.publish(messages)
        commits.append((driver.offset, messages))
        if marks:
            driver.idle()
            commits.append((driver.offset, []))
    number = driver.journal.view.segments[-1].number
    return Log(disk.contents(), sealed, number, driver.offset, commits)


def disk_with(files: dict[str, bytes]) -> StrictDisk:
    """Return a strict disk that holds `files`, durable."""
    disk = StrictDisk(Random(0))
    for directory in (JOURNAL_DIRECTORY,):
        disk.make_directory(directory)
    for path, contents in files.items():
        handle = disk.open(path, create=True)
        disk.write(handle, 0, [contents])
        disk.sync(handle)
        disk.close(handle)
    for directory in (JOURNAL_DIRECTORY, "."):
        disk.sync_directory(directory)
    return disk


def reopened(
    files: dict[str, bytes], *, publish: Iterable[Message] = ()
) -> tuple[Journal, StrictDisk, list[str]]:
    """Open `files` as the next process does, and publish into it."""
    disk = disk_with(files)
    driver = Driver(disk)
    driver.publish(publish)
    driver.journal.view.tail.clear()  # reads use the disk
    return driver.journal, disk, driver.recovered.report


def messages_in(journal: Journal, disk: Disk) -> list[Message]:
    """Return every message in the log, in its order."""
    found = []
    for _, batch in read_log(journal, disk):
        batch.verify()
        for i in range(batch.count):
            key = int(batch.publishers[i]), int(batch.sequences[i])
            found.append(Message(*key, batch.topic(i), batch.body(i)))
    return found
