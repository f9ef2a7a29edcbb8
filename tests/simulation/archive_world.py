"""Simulated engine that archives and removes its log while clients read.

The archive is a real Delta table, read by the server's code. The oracle is the list of all published
messages. It must never be computed from the archive or from the log at a later time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.helpers.archives import ArchiveWriter
from tests.helpers.logs import Commit
from tests.simulation.engine_peer import Heard
from tests.simulation.engine_world import EngineWorld
from tests.simulation.journal_world import read_log
from tickertape.base.errors import TickertapeError
from tickertape.batch import slice_batch
from tickertape.journal.reading.archive_reader import ArchiveAnswer, ArchiveRequest, ReadArchive
from tickertape.journal.reading.archive_tier import ArchiveCoverage, ArchiveTier
from tickertape.journal.retention import RetentionPolicy
from tickertape.server.config.archive import ArchiveConfig
from tickertape.server.storage.archive_reads import ArchiveReads

SEGMENT_BYTES = 8_192


class ArchiveWorld(EngineWorld):
    """An engine with an archive at `location` and a retention of one hour for archived messages."""

    def __init__(self, seed: int, location: Path, *, require: bool = True, topics: str = "") -> None:
        self.older = ArchiveTier(str(location))
        retention = RetentionPolicy(age_seconds=3600, archive_required=require)
        super().__init__(seed, segment_bytes=SEGMENT_BYTES, retention=retention, archive=self.older)
        self.small_tail()
        journal = self.broker.journal
        self.location = location
        self.topics = topics
        self.reading = ArchiveReads(ArchiveConfig(location=str(location)), journal.identity, self.older)
        self.everything: dict[int, Heard] = {}
        """All messages by position, of all topics."""
        self.archived_end = 0
        self._writer: ArchiveWriter | None = None
        self._kept: list[Commit] = []

    def archive(self, request: ArchiveRequest) -> ArchiveAnswer | TickertapeError:
        if isinstance(request, ReadArchive):  # many small answers instead of a large one
            request = request._replace(size=self.rng.choice((1, 300, 3000)))
        try:
            return self.reading._answer(request)
        except TickertapeError as error:
            return error

    def note(self) -> None:
        """Record the published messages before retention removes any."""
        for first, batch in read_log(self.broker.journal, self.disk, self._known_end):
            low = max(self._known_end - first, 0)
            if low < batch.count:
                positions = np.arange(first + low, first + batch.count)
                self._kept.append(Commit(positions, slice_batch(batch, low, batch.count)))
                for i in range(low, batch.count):
                    if batch.kinds is None or not batch.kinds[i]:
                        self.everything[first + i] = Heard(
                            batch.publisher(i), batch.sequence(i), batch.topic(i), batch.body(i)
                        )

    @property
    def _known_end(self) -> int:
        return int(self._kept[-1].positions[-1]) + 1 if self._kept else 0

    def archive_to(self, end: int) -> None:
        """Archive everything below `end`, in files of a random size."""
        if self._writer is None:
            self._writer = ArchiveWriter(self.location, self.broker.journal.identity, topics=self.topics)
        some = []
        for positions, batch in self._kept:
            low, high = np.searchsorted(positions, (self.archived_end, end)).tolist()
            if low < high:
                some.append(Commit(positions[low:high], slice_batch(batch, low, high)))
        if some:
            self._writer.add(some, end, rows_per_file=self.rng.choice((3, 20, 1000)), rows_per_group=7)
        self.archived_end = end

    def look(self) -> None:
        """Let the server check the end of the archive."""
        covered = self.reading._probe()
        assert isinstance(covered, ArchiveCoverage)
        self.older.cover(covered)
        self.broker.archive_changed(self.now())

    def expire(self) -> None:
        """Let more than an hour pass, and run until all removable segments are removed."""
        self.wake(3_700)
        for _ in range(200):
            self.step()
        self.wake(1.0)
