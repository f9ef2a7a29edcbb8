"""An archive reader of a server, with a fake engine that records its calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from types import SimpleNamespace

from tests.helpers.logs import end_of, random_log
from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Now
from tickertape.journal.reading.archive_reader import ArchiveAnswer
from tickertape.journal.reading.archive_tier import ArchiveTier
from tickertape.server.config.archive import ArchiveConfig
from tickertape.server.storage.archive_reads import ArchiveComparison, ArchiveReads

JOURNAL = "0123456789abcdef" * 2
LOG = random_log(Random(1), 40)
END = end_of(LOG)


def reads_of(location: Path, journal: str = JOURNAL, refresh: float = 30.0) -> ArchiveReads:
    config = ArchiveConfig(location=str(location), refresh=refresh)
    return ArchiveReads(config, journal, ArchiveTier(str(location)))


class Broker:
    """The part of the engine that the reader calls."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, object]] = []
        self.freed_times = 0
        self.journal = SimpleNamespace(commits=SimpleNamespace(persisted_end=END), view=None)
        self.reads: ArchiveReads | None = None
        self.found: str | TickertapeError = ""
        """The result of a comparison with the log."""

    def run(self, task: ArchiveComparison) -> None:
        assert self.reads is not None
        task.outcome = self.found
        self.reads.compared(task)

    def read_done(self, token: int, data: ArchiveAnswer | TickertapeError, now: Now) -> None:
        assert now.wall
        self.answers.append((token, data))

    def archive_changed(self, now: Now) -> None:
        self.freed_times += 1


class Driver:
    def __init__(self) -> None:
        self.broker = Broker()
        self.flushed = asyncio.Event()

    def flush(self, began: float | None = None) -> None:
        self.flushed.set()


async def started(reads: ArchiveReads) -> Driver:
    driver = Driver()
    driver.broker.reads = reads
    reads.start(asyncio.get_running_loop(), driver)  # type: ignore[arg-type]
    return driver


async def answered(driver: Driver, count: int) -> None:
    """Wait for `count` answers."""
    while len(driver.broker.answers) < count:
        driver.flushed.clear()
        await driver.flushed.wait()
