"""Log facts: starts, places, origins, reports and levels, folded from the records of the log.

A start recovers them, and `note` follows the records that are appended later. All of them are bounded: each
record replaces earlier ones on the same subject, in the log and in `retired.bin`.

Invariants:
- The facts are a function of the records of the log, also of removed ones.
- The first row of each run of a replicating server is the record of the run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

from tickertape.base.errors import JournalCorrupt
from tickertape.base.interfaces import Buffer
from tickertape.engine.replication.origins import Origins
from tickertape.engine.replication.places import KnownPlaces, LogStart, LogStarts
from tickertape.engine.replication.reports import Reports
from tickertape.engine.runtime.publisher_ids import PublisherDirectory
from tickertape.journal.format.link_records import LinkRecord, link_record_bytes_max
from tickertape.journal.format.replication_records import (
    CoveredRecord,
    DowngradedRecord,
    LevelRecord,
    LogPlace,
    OriginRecord,
    ReplicationRecord,
    ReporterRecord,
    StartedRecord,
    UpgradedRecord,
    decode_record,
    reporter,
    started,
)
from tickertape.journal.journal import Journal
from tickertape.journal.limits import link_snapshot_records
from tickertape.journal.reading.log_view import ReadRequest
from tickertape.journal.reading.place_search import find_places

_COVERED: Final = "covered"
_OWN_SUBJECTS: Final = ("started ", "origin ", "reporter ", "level ", _COVERED)
"""Starts of `latest_of` of the records of this log that are facts."""


class LogFacts:
    """The replication facts of one log."""

    def __init__(self, journal: bytes, places: Iterable[LogPlace] = ()) -> None:
        """`places`: places of other logs, in the order in which they moved last."""
        self.journal = journal
        """Id of this log."""
        self.starts = LogStarts(journal)
        self.places = KnownPlaces()
        """Places of other logs: this log has all their rows before them."""
        self.origins = Origins()
        self.reports = Reports(journal)
        """Reports of other logs."""
        self.report_number = 0
        """Number of the newest report of this log. 0 without one."""
        self.levels: dict[str, LevelRecord] = {}
        """The last downgrade or upgrade of each destination that had one."""
        self.damage: list[JournalCorrupt] = []
        """Unreadable records. Their facts are missing."""
        self._runs = 0
        """Number of runs of the server."""
        self._recorded: set[bytes] = set()
        """Reporters with a record."""
        self._since_snapshot: int | None = None
        """Link records since the last one with all places. None before the first one of a run, which has all.
        """
        for place in places:
            self.places.note(place)

    @property
    def reporters(self) -> frozenset[bytes]:
        """Logs that have ever reported rows of this log."""
        return self.reports.reporters

    @staticmethod
    def recover(journal: Journal, registry: PublisherDirectory) -> Generator[ReadRequest, Buffer, LogFacts]:
        """Recover the facts from the control records of the log, and from its newest link records.

        Unreadable records are listed in `damage`."""
        found = yield from find_places(journal.view, journal.view.end_position)
        facts = LogFacts(journal.journal_id, found.places)
        facts.damage += found.damage
        own = [item for item in registry.latest.items() if item[0].startswith(_OWN_SUBJECTS)]
        foreign = [
            (f"report of log {log.hex()}", body)
            for (log, subject), body in registry.foreign.items()
            if subject == f"{log.hex()} {_COVERED}"
        ]
        records = [*facts._decoded(own), *facts._decoded(foreign)]
        records.sort(key=lambda record: record.position if isinstance(record, StartedRecord) else 0)
        for record in records:
            facts.note(record)
        return facts

    def _decoded(self, bodies: Iterable[tuple[str, bytes]]) -> Iterable[ReplicationRecord]:
        for subject, body in bodies:
            try:
                yield decode_record(body)
            except JournalCorrupt as error:
                self.damage.append(JournalCorrupt(f"Cannot restore {subject!r}: {error}"))

    # -- records that are appended ----------------------------------------------------------------------

    def note(self, record: ReplicationRecord | LinkRecord) -> None:
        """Take a record that is in the log now. Other types of records change nothing."""
        if isinstance(record, LinkRecord):
            self.places.note(record.place)
        elif record.log is not None:
            if isinstance(record, CoveredRecord):
                self.reports.note(record.log, record)
        elif isinstance(record, StartedRecord):
            self.starts.add(LogStart(record.start, record.position))
            self._runs = max(self._runs, record.number + 1)
        elif isinstance(record, OriginRecord):
            self.origins.note(record)
        elif isinstance(record, ReporterRecord):
            self.reports.note_reporter(record.journal)
            self._recorded.add(record.journal)
        elif isinstance(record, CoveredRecord):
            self.report_number = max(self.report_number, record.number)
        elif isinstance(record, DowngradedRecord | UpgradedRecord):
            self.levels[record.destination] = record

    # -- records to append ------------------------------------------------------------------------------

    def begin_run(self, start: int, position: int) -> StartedRecord:
        """Return the record of this run of the server, to append as its first row, at `position`. Note it.

        `start` is a random number."""
        record = started(start, self._runs, position)
        self.note(record)
        return record

    def take_reporters(self) -> list[ReporterRecord]:
        """Return records of reporters without one, and note them.

        Append them after the record of this run, and after each report of another log, in the same commit.
        """
        records = [reporter(log) for log in sorted(self.reporters - self._recorded)]
        for record in records:
            self.note(record)
        return records

    @property
    def link_record_bytes_max(self) -> int:
        """Largest size of the body of the next link record."""
        return link_record_bytes_max(self.places.count + 1)

    def move(self, place: LogPlace) -> LinkRecord:
        """Return the record of a place that moved, to append at the end of the commit. Note it.

        From time to time it has all places, so that a start reads a bounded number of records."""
        self.places.note(place)
        if self._since_snapshot is not None:
            self._since_snapshot += 1
            if self._since_snapshot < max(link_snapshot_records, self.places.count):
                return LinkRecord(*place)
        self._since_snapshot = 0
        return LinkRecord(*place, places=list(self.places))
