"""Log time: each run of messages has a later timestamp than all runs before it."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from tests.simulation.journal_world import drive, read_log
from tickertape.base.interfaces import Now
from tickertape.batch import batch_from_bodies
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.log_writer import LogWriter
from tickertape.engine.runtime.publisher_ids import load_publishers
from tickertape.journal.commit.active_segment import commit_bytes_of
from tickertape.journal.commit.jobs import DiskJobExecutor
from tickertape.journal.format.identity import open_identity
from tickertape.journal.journal import Journal
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.testing.disk import StrictDisk

NOON = 1_760_000_000_000_000
HOUR = 3_600_000_000
BATCH = batch_from_bodies("orders", [b"1", b"2"])


class FrozenLog:
    """A log whose wall clock changes only when a test sets it."""

    def __init__(self) -> None:
        self.disk = StrictDisk(Random(1))
        self._mono = 1.0
        self.wall = NOON
        self.start()

    def start(self) -> None:
        """Open the log in a new process."""
        self.disk = self.disk.kill_clone()
        identity = open_identity(self.disk, owner="test", create=True, new_id=bytes(16))
        self.journal = Journal(recover_journal(self.disk, identity.journal_id), self.now())
        self._executor = DiskJobExecutor(self.disk, lambda: 1)
        self.work()
        clock = EngineClock()
        clock.set(self.now())
        self.clock = clock
        self.writer = LogWriter(self.journal, drive(self.disk, load_publishers(self.journal)), clock)

    def now(self) -> Now:
        self._mono += 0.001
        return Now(self._mono, self.wall)

    def work(self) -> None:
        """Run all disk jobs."""
        while jobs := self.journal.commits.jobs():
            for job in jobs:
                self.journal.commits.done(job, None, self._executor.run(job), self.now())
        self.journal.take_persisted()

    def publish(self) -> None:
        """Append two messages of a client without sequences."""
        self.clock.set(self.now())
        self.writer.append_derived(7, "feed", BATCH)

    def stamps(self) -> list[int]:
        """Return the timestamps of all runs, in log order."""
        self.work()
        read = read_log(self.journal, self.disk)
        return [stamp for _, batch in read for stamp in batch.runs["timestamp"].tolist()]


def assert_rising(stamps: list[int]) -> None:
    assert all(before < after for before, after in pairwise(stamps)), stamps


def test_runs_of_one_microsecond_have_distinct_ascending_timestamps() -> None:
    log = FrozenLog()
    for _ in range(3):
        log.publish()
    stamps = log.stamps()
    assert len(stamps) == 4, "three runs and the record of the name"
    assert stamps == list(range(NOON, NOON + 4))


def test_parts_and_record_of_a_chain_have_distinct_ascending_timestamps() -> None:
    log = FrozenLog()
    log.publish()
    log.work()
    log.writer.reserve(5 * commit_bytes_of(BATCH))
    log.work()
    log.writer.append_chain(7, "feed", [BATCH] * 3, BATCH)
    log.publish()
    stamps = log.stamps()
    assert len(stamps) == 7
    assert_rising(stamps)


def test_timestamps_ascend_across_a_restart_with_the_wall_clock_set_back() -> None:
    log = FrozenLog()
    for _ in range(3):
        log.publish()
    log.work()
    log.wall -= HOUR
    log.start()
    log.publish()
    log.publish()
    stamps = log.stamps()
    assert len(stamps) == 6
    assert_rising(stamps)


def test_questions_for_the_log_time_move_no_timestamp_ahead_of_the_clock() -> None:
    log = FrozenLog()
    for later in range(1000):
        assert log.journal.log_time(Now(1.0, NOON + later)) == NOON + later
        assert log.journal.log_time(Now(1.0, NOON + later)) == NOON + later
    log.wall = NOON + 1000
    log.publish()
    assert log.stamps() == [NOON + 1000, NOON + 1001]


def test_message_after_a_question_for_the_log_time_has_a_later_timestamp() -> None:
    log = FrozenLog()
    log.publish()
    asked = log.journal.log_time(Now(1.0, NOON + 60))
    log.publish()
    assert log.stamps()[-1] > asked == NOON + 60
