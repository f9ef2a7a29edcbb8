"""Reports of the logs of a group: which rows all members have.

Each log writes a `covered` record from time to time: "all rows of these logs before these places are in this
log before this record". Links pass the records on. Retention, the closing of holes and the removal of old
candidates of records wait for the reports of all members.

Invariants:
- A report counts only if all rows of its log before it are in this log, too.
- The stable position never covers a row that a member lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from math import inf
from typing import Final, NamedTuple

from tickertape.base.errors import JournalCorrupt
from tickertape.base.interfaces import Now
from tickertape.base.names import LINK_TOPIC
from tickertape.batch import MessageBatch
from tickertape.engine.limits import report_seconds_min
from tickertape.engine.replication.places import KnownPlaces, LogStarts
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC
from tickertape.journal.format.control_record import decode_head
from tickertape.journal.format.replication_records import CoveredRecord, LogPlace, covered


class Group(NamedTuple):
    """The logs of a group, as this log knows them."""

    members: frozenset[bytes]
    """The logs of the group, with this one."""
    sources: Container[bytes]
    """Logs with a link to this one."""
    places: KnownPlaces
    """Rows of other logs that this log has."""


class Reports:
    """The newest report of each other log."""

    def __init__(self, journal: bytes) -> None:
        self._journal = journal
        self._newest: dict[bytes, CoveredRecord] = {}
        self._reporters: set[bytes] = set()

    @property
    def reporters(self) -> frozenset[bytes]:
        """Logs that have ever reported rows of this log. Retention keeps them."""
        return frozenset(self._reporters)

    def note_reporter(self, log: bytes) -> None:
        """Note a log that reported rows in a removed segment."""
        self._reporters.add(log)

    def is_news(self, log: bytes, report: CoveredRecord) -> bool:
        """Return whether a report that a link brings is newer than the one here. This log ignores its own."""
        known = self._newest.get(log)
        return log != self._journal and (known is None or report.number > known.number)

    def note(self, log: bytes, report: CoveredRecord) -> None:
        """Take a report of another log that is in this log now."""
        if self.is_news(log, report):
            self._newest.pop(log, None)  # ordered by arrival
            self._newest[log] = report
            if any(place.log == self._journal for place in report.places):
                self._reporters.add(log)

    def newest(self) -> Iterable[tuple[bytes, CoveredRecord]]:
        """Return the newest report of each other log, in the order of arrival."""
        return self._newest.items()

    @property
    def known_logs(self) -> set[bytes]:
        """Logs that reported, and the members that they named."""
        found = {*self._newest, *self._reporters}
        for report in self._newest.values():
            found.update(report.members)
        return found

    def place_in(self, log: bytes) -> LogPlace | None:
        """Return the place of this log that another one reported last. None without one."""
        report = self._newest.get(log)
        return None if report is None else _place_of(report.places, self._journal)

    def forget(self, log: bytes) -> None:
        """Remove a log that never returns."""
        self._newest.pop(log, None)
        self._reporters.discard(log)

    def stable(self, group: Group, starts: LogStarts, end: int) -> int:
        """Return a position: all members have the rows of this log before it, and this log has all rows that
        they had before their report. `end` is the persisted end of this log."""
        positions = [end]
        for member in group.members - {self._journal}:
            report = self._counting(member, group)
            place = None if report is None else _place_of(report.places, self._journal)
            positions.append(0 if place is None else starts.resume(place, end) or 0)
        return min(positions)

    def reached(self, group: Group) -> list[LogPlace]:
        """Return places of logs without a link to this one: this log has their rows by the links of others.

        Each report passed all rows before it, so this log has all rows that the reporter had."""
        found: dict[bytes, LogPlace] = {}
        for log, report in self._newest.items():
            if _has_rows_before(log, report, group):
                for place in (*report.places, LogPlace(log, report.start, report.position)):
                    if place.log != self._journal and place.log not in group.sources:
                        found[place.log] = place
        return [*found.values()]

    def has_reached(self, log: bytes, group: Group) -> bool:
        """Return whether the links of others brought rows of a log."""
        return any(
            _has_rows_before(one, report, group) and _place_of(report.places, log) is not None
            for one, report in self._newest.items()
        )

    def stable_stamp(self, group: Group) -> int:
        """Return an order stamp: each message that arrives for the first time has a higher one.

        Microseconds since 1970 UTC. 0 without a report of each member."""
        return min(
            (
                0 if report is None else report.stamp
                for report in (self._counting(member, group) for member in group.members - {self._journal})
            ),
            default=0,
        )

    def _counting(self, member: bytes, group: Group) -> CoveredRecord | None:
        """Return the newest report of a member, if it counts."""
        report = self._newest.get(member)
        if report is None or not _equal(report.members, group.members):
            return None  # last messages of a log that left may still arrive there
        return report if _has_rows_before(member, report, group) else None


class ReportWriter:
    """Makes the reports of this log: at most one a second, and only after rows that a report is about.

    Their numbers rise, also if the log is a restored copy and others know later reports of it."""

    def __init__(self, number: int) -> None:
        """`number`: number of the newest report in the log, 0 without one."""
        self._number = number
        self._pending = False
        self._next = -inf
        """Monotonic time of the next report, at the earliest."""

    def appended(self, batch: MessageBatch) -> None:
        """Note an appended batch. Places and reports alone need no report: two logs would send each other
        rows without end."""
        self._pending = self._pending or _needs_report(batch)

    def due(self, now: float) -> float | None:
        """Return the seconds until the next report, 0 if it is due. None: none is needed.

        `now` is monotonic."""
        return max(self._next - now, 0.0) if self._pending else None

    def report(
        self, now: Now, at: LogPlace, group: Group, stamp: int, reached: Iterable[LogPlace] = ()
    ) -> CoveredRecord:
        """Return the report to append as the row at the place `at` of this log.

        `stamp` is the highest order stamp in the log, microseconds since 1970 UTC. `reached`: places of logs
        without a link to this one."""
        self._pending, self._next = False, now.mono + report_seconds_min
        self._number = max(self._number + 1, now.wall)
        members = sorted(group.members)
        places = [*group.places.newest(), *reached]
        return covered(self._number, at.start, at.position, places, members, stamp)


_ABOUT_REPORTS: Final = frozenset(("covered", "reporter"))
"""Types of control records that need no report."""


def _needs_report(batch: MessageBatch) -> bool:
    """Return whether a batch has rows other than places, reports, and their reporters."""
    topics = {*batch.topics} - {LINK_TOPIC}
    if topics != {CONTROL_TOPIC}:
        return bool(topics)
    return any(
        batch.topic(row) == CONTROL_TOPIC and _type_of(batch.body(row)) not in _ABOUT_REPORTS
        for row in range(batch.count)
    )


def _type_of(body: bytes | memoryview) -> str:
    try:
        return decode_head(bytes(body)).type
    except JournalCorrupt:
        return ""


def _has_rows_before(log: bytes, report: CoveredRecord, group: Group) -> bool:
    """Return whether this log has all rows of another log before its report.

    Over another route a report can arrive before rows that only a direct source still has."""
    return log not in group.sources or group.places.passed(LogPlace(log, report.start, report.position))


def _place_of(places: Iterable[LogPlace], log: bytes) -> LogPlace | None:
    return next((place for place in places if place.log == log), None)


def _equal(logs: Collection[bytes], members: frozenset[bytes]) -> bool:
    return len(logs) == len(members) and members.issuperset(logs)
