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
from typing import NamedTuple

from tickertape.engine.replication.places import KnownPlaces, LogStarts
from tickertape.journal.format.replication_records import CoveredRecord, LogPlace


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
            self._newest[log] = report
            if any(place.log == self._journal for place in report.places):
                self._reporters.add(log)

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
        if member not in group.sources:
            return report
        # Over another route a report can arrive before rows that only this source still has.
        place = LogPlace(member, report.start, report.position)
        return report if group.places.passed(place) else None


def _place_of(places: Iterable[LogPlace], log: bytes) -> LogPlace | None:
    return next((place for place in places if place.log == log), None)


def _equal(logs: Collection[bytes], members: frozenset[bytes]) -> bool:
    return len(logs) == len(members) and members.issuperset(logs)
