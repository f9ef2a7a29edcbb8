"""Reporting: the reports of this log, the logs of its group, and the holes that reports make stable.

Invariants:
- No report is written before the log of each configured destination is known: a member that is unknown here
  could lack rows that the others call stable.
- A hole is closed only when all members have the messages before its record.
"""

from __future__ import annotations

from collections.abc import Iterable

from tickertape.batch import KIND_CONTROL, BatchBuilder
from tickertape.engine.limits import link_report_bytes, link_step_holes_max, report_seconds_min
from tickertape.engine.replication.links.parts import LinkParts
from tickertape.engine.replication.log_facts import LogFacts
from tickertape.engine.replication.reports import Group, ReportWriter
from tickertape.engine.runtime.exact_append import ExactAppend
from tickertape.engine.runtime.holes import KnownSequences
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC
from tickertape.journal.format.replication_records import ReplicationRecord, encode_record
from tickertape.journal.journal import AcceptedBatch


class Reporting:
    """The records about this log that all links share."""

    def __init__(
        self, parts: LinkParts, exact: ExactAppend, facts: LogFacts, destinations: Iterable[str]
    ) -> None:
        """`destinations`: names of the configured destinations."""
        self._parts = parts
        self._exact = exact
        self._facts = facts
        self._commits = parts.journal.commits
        self._writer = ReportWriter(facts.report_number)
        self._unknown = {*destinations}
        """Destinations that were not connected since the start of the server."""
        self._logs: dict[str, bytes] = {}
        """Logs of the destinations that were."""
        self._sources: set[bytes] = set()
        """Logs that were connected as sources since the start of the server."""
        self._stamp = 0
        """Highest order stamp that was appended since the start of the server."""
        self._retry = 0.0

    def begin(self, start: int) -> None:
        """Append the record of this run of the server, as its first row."""
        self._append(self._facts.begin_run(start, self._commits.accepted_end))
        self.append_reporters()

    # -- inputs -----------------------------------------------------------------------------------------

    def destination_known(self, name: str, log: bytes) -> None:
        """Note the log of a connected destination."""
        self._unknown.discard(name)
        self._logs[name] = log
        self._parts.clock.announce(self)

    def source_known(self, log: bytes) -> None:
        """Note the log of a connected source."""
        self._sources.add(log)

    def accepted(self, batches: Iterable[AcceptedBatch]) -> None:
        """Note batches that were appended to the log."""
        for _, batch, stamp in batches:
            if batch is None or stamp is None:
                continue
            self._writer.appended(batch)
            self._stamp = max(self._stamp, stamp.timestamp)
            if batch.order_stamps is not None:
                self._stamp = max(self._stamp, int(batch.order_stamps.max()))
        self._parts.clock.announce(self)

    def append_reporters(self) -> None:
        """Append the records of new reporters."""
        for record in self._facts.take_reporters():
            self._append(record)

    # -- reports ----------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) of the next report, or None."""
        now = self._parts.clock.mono
        due = None if self._unknown or self._commits.stopping else self._writer.due(now)
        return None if due is None else max(now + due, self._retry)

    def wake(self) -> None:
        """Write the report that is due."""
        at = self.next_deadline()
        now = self._parts.clock.now
        if at is None or at > now.mono:
            return
        if not self._commits.can_accept(link_report_bytes):
            self._retry = now.mono + report_seconds_min
            self._parts.clock.announce(self)
            return
        self._commits.end_open()
        place = self._facts.starts.place(self._commits.accepted_end)
        group = self.group
        reached = self._facts.reports.reached(group)
        record = self._writer.report(now, place, group, max(self._stamp, now.wall), reached)
        self._facts.note(record)
        self._append(record)
        self._parts.clock.announce(self)

    @property
    def group(self) -> Group:
        """The logs of the group, as far as they are known here."""
        facts = self._facts
        places = {place.log for place in facts.places}
        direct = {*self._logs.values(), *self._sources, *places}
        members = {facts.journal, *direct, *facts.reports.known_logs}
        return Group(frozenset(members), frozenset(direct), facts.places)

    @property
    def known(self) -> KnownSequences:
        """The sequences of all publishers that this log has, and its open holes."""
        return self._exact.known

    # -- holes ------------------------------------------------------------------------------------------

    def close_holes(self) -> None:
        """Close some of the holes before the stable position."""
        known = self._exact.known
        if known.count and not self._commits.stopping and known.has_before(self._commits.persisted_end):
            self._exact.close_holes(self.stable, link_step_holes_max)

    @property
    def stable(self) -> int:
        """Position before which all members have the rows of this log. 0 while a member may be unknown."""
        if self._unknown or not self._logs:
            return 0
        facts = self._facts
        return facts.reports.stable(self.group, facts.starts, self._commits.persisted_end)

    def _append(self, record: ReplicationRecord) -> None:
        builder = BatchBuilder()
        builder.add(CONTROL_TOPIC, encode_record(record), kind=KIND_CONTROL)
        self._parts.writer.append_control(builder.build())
