"""Run intake: appends the runs of one link to this log, as this log stores them.

It translates the origin numbers of the source into those of this log, and drops messages that the log has.
Control records of other logs keep their log, and change this log only as their type requires.

Invariants:
- The record of an origin precedes the first run with its number.
- A binding of a publisher id to another name than here ends the link.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from tickertape.base.errors import BadLink, JournalCorrupt, LimitReached, PublisherCollision
from tickertape.base.limits import link_path_logs_max
from tickertape.base.text_format import shown
from tickertape.batch import KIND_CONTROL, BatchBuilder, MessageBatch
from tickertape.batch.format import Int64s
from tickertape.engine.replication.destination.link_places import LinkPlaces
from tickertape.engine.replication.destination.whole_topics import WholeTopics
from tickertape.engine.replication.origins import Origin, Origins
from tickertape.engine.replication.places import LogStart, LogStarts
from tickertape.engine.replication.reports import Reports
from tickertape.engine.replication.routes import TRAVELLING_RECORDS
from tickertape.engine.runtime.exact_append import ExactAppend, LinkedRun
from tickertape.engine.runtime.log_writer import LogWriter
from tickertape.engine.runtime.publisher_ids import (
    CONTROL_PUBLISHER,
    CONTROL_TOPIC,
    PublisherDirectory,
    PublisherNamed,
)
from tickertape.journal.format.control_record import RECORD_ERRORS, decode_head
from tickertape.journal.format.replication_records import (
    AfterRecord,
    CoveredRecord,
    after,
    as_foreign,
    decode_record,
    encode_record,
)
from tickertape.wire.link import LinkOrigin, LinkSide
from tickertape.wire.link_checks import SOURCE_LOG, control_publisher
from tickertape.wire.link_rows import HoleRows, NameRows, decode_starts

_OWN: Final = 0
"""Origin number of this log."""


class ReplicatedLog(NamedTuple):
    """The parts of this log that all links to it share."""

    journal_id: bytes
    level: Literal["local", "written"]
    """Durability of its persisted commits."""
    writer: LogWriter
    exact: ExactAppend
    registry: PublisherDirectory
    origins: Origins
    reports: Reports
    places: LinkPlaces
    whole: WholeTopics


class _RecordOfRun(NamedTuple):
    """A control record of another log."""

    log: bytes
    """Id of the log that wrote it."""
    sequence: int
    origin: int
    """Number of its origin in the frames of the source."""
    order_stamp: int


class RunIntake:
    """Appends the runs of one source."""

    def __init__(self, log: ReplicatedLog, source: LinkSide) -> None:
        self._log = log
        self._exact = log.exact
        self._source = source
        starts = decode_starts(source.starts)
        rows = zip(starts.starts.tolist(), starts.positions.tolist(), strict=True)
        self._starts = LogStarts(source.log, [LogStart(*row) for row in rows])
        own = LinkOrigin(1, source.log, source.instance, source.group, (source.log,))
        self._origins: dict[int, LinkOrigin] = {SOURCE_LOG: own}
        """Origins by their numbers in the frames of the source."""
        self._numbers: dict[int, int] = {}
        """Numbers of the origins in this log, by their numbers in the frames of the source."""

    def add_origins(self, origins: Iterable[LinkOrigin]) -> None:
        """Add the meaning of origin numbers of the source."""
        for origin in origins:
            self._origins[origin.number] = origin

    def append(self, run: MessageBatch) -> None:
        """Append a run, or a part of one.

        Raises `PublisherCollision`, `LimitReached`, or `BadLink` for an invalid control record: the link
        ends."""
        row = run.first_run
        stamp = row.timestamp if run.order_stamps is None else int(run.order_stamps[0])
        if run.topics == (CONTROL_TOPIC,):
            log = self._origins[row.origin].log
            for index in range(run.count):
                self._take_record(
                    bytes(run.body(index)), _RecordOfRun(log, run.sequence(index), row.origin, stamp)
                )
            return
        known = self._exact.known.split(row.publisher, run.sequences, from_link=True)
        if known.duplicates < run.count:
            self._exact.append_linked(run, known, LinkedRun(self._number(row.origin), stamp))
        self._log.writer.duplicates += known.duplicates

    def lacking(self, rows: NameRows) -> Int64s:
        """Return the named runs, ascending, that have messages which the log lacks."""
        publishers = rows.publishers.copy()
        for row in (publishers == np.uint64(CONTROL_PUBLISHER)).nonzero()[0].tolist():
            publishers[row] = control_publisher(self._origins[int(rows.origins[row])].log)
        found = []
        for publisher in np.unique(publishers).tolist():
            if publisher != control_publisher(self._log.journal_id):
                own = (publishers == np.uint64(publisher)).nonzero()[0]
                found.append(own[self._exact.known.lacks(publisher, rows.firsts[own], rows.lasts[own])])
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)

    def open_holes(self, rows: HoleRows) -> None:
        """Open holes up to the highest removed sequences of publishers: other logs may have the messages."""
        records = [
            after(self._log.journal_id, publisher, 0, highest)
            for publisher, highest in zip(rows.publishers.tolist(), rows.highest.tolist(), strict=True)
            if publisher != CONTROL_PUBLISHER and highest > self._exact.known.highest(publisher)
        ]
        if records:
            self._exact.append_after(records, more=True)

    def move_place(self, end: int) -> int:
        """Append the place `end` of the source. Return a position: the record is persisted when the log is
        persisted beyond it."""
        return self._log.places.move(self._starts.place(end))

    # -- origins --------------------------------------------------------------------------------------

    def _number(self, number: int) -> int:
        """Return the number in this log of an origin of the source. A new one is appended first."""
        here = self._numbers.get(number)
        if here is None:
            origin = self._origin(self._origins[number])
            here = _OWN if origin is None else self._log.origins.number_of(origin)
            if here is None:
                assert origin is not None
                here, record = self._log.origins.add(origin)
                self._log.writer.append_control(_record_batch(encode_record(record)))
            self._numbers[number] = here
        return here

    def _origin(self, origin: LinkOrigin) -> Origin | None:
        """Return an origin as it is in this log: with its path to here. None for this log itself.

        Messages that passed this log before, and that it lost, keep the path on which they came first."""
        path = origin.path if self._source.log in origin.path else (*origin.path, self._source.log)
        if self._log.journal_id in path:
            path = path[: path.index(self._log.journal_id)]
        if not path:
            return None
        if len(path) > link_path_logs_max:
            raise LimitReached(
                f"Cannot replicate messages of {shown(origin.instance)}: they passed {len(path)} servers (at "
                f"most {link_path_logs_max}). Add a link from a server that is closer to their origin."
            )
        return Origin(origin.log, origin.instance, origin.group, path)

    # -- control records ------------------------------------------------------------------------------

    def _take_record(self, body: bytes, run: _RecordOfRun) -> None:
        try:
            head = decode_head(body)
            if head.log and head.log != run.log:
                raise JournalCorrupt("it names another log than its origin")
            if head.type == "publisher":
                self._bind(msgspec.msgpack.decode(body, type=PublisherNamed))
            elif head.type in ("after", "covered"):
                record = decode_record(body)
                if isinstance(record, AfterRecord):
                    self._open(record, run)
                elif isinstance(record, CoveredRecord):
                    self._report(record, run)
            elif head.type in TRAVELLING_RECORDS:
                self._store(body if head.log else _with_log(body, run.log), run)
        except (*RECORD_ERRORS, JournalCorrupt) as error:
            raise BadLink(
                f"Invalid link frame: a control record of {shown(self._source.instance)} is invalid "
                f"({shown(str(error))}). Report the defect of its sender."
            ) from None

    def _bind(self, named: PublisherNamed) -> None:
        registry = self._log.registry
        if registry.collides(named.publisher, named.name, derived=named.derived):
            here = registry.name_of(named.publisher)
            raise PublisherCollision(
                f"Cannot replicate from {shown(self._source.instance)}: publisher id {named.publisher} "
                f"belongs to client {shown(named.name)} there and to {shown(here)} here. Rename one of them."
            )
        self._log.writer.bind(named.publisher, named.name, derived=named.derived)

    def _open(self, record: AfterRecord, run: _RecordOfRun) -> None:
        """Open the hole of a record of another log. Records without a hole are not stored."""
        if record.after <= self._exact.known.highest(record.publisher):
            return
        foreign = record if record.log else as_foreign(record, run.log)
        if not self._store(encode_record(foreign), run, opening=record):
            # Written here, or a record that the log has: the messages exist elsewhere nevertheless.
            proven = not record.unproven
            own = after(self._log.journal_id, record.publisher, record.session, record.after, proven=proven)
            self._exact.append_after([own], more=True)

    def _report(self, record: CoveredRecord, run: _RecordOfRun) -> None:
        if self._log.reports.is_news(run.log, record):
            foreign = record if record.log else as_foreign(record, run.log)
            if self._store(encode_record(foreign), run):
                self._log.reports.note(run.log, foreign)

    def _store(self, body: bytes, run: _RecordOfRun, opening: AfterRecord | None = None) -> bool:
        """Append a record of another log. Return False for one of this log, and for a duplicate."""
        if run.log == self._log.journal_id:
            return False
        batch = _record_batch(body, control_publisher(run.log), run.sequence)
        known = self._exact.known.split(batch.first_run.publisher, batch.sequences, from_link=True)
        if known.duplicates:
            return False
        linked = LinkedRun(self._number(run.origin), run.order_stamp)
        self._exact.append_linked(batch, known, linked, opening)
        return True


def _record_batch(body: bytes, publisher: int = 0, sequence: int = 0) -> MessageBatch:
    builder = BatchBuilder()
    builder.add(CONTROL_TOPIC, body, kind=KIND_CONTROL)
    return builder.build(publisher, sequence)


def _with_log(body: bytes, log: bytes) -> bytes:
    """Return a record of any type with the log that wrote it."""
    fields = msgspec.msgpack.decode(body, type=dict[str, msgspec.Raw])
    head = decode_head(body)
    more: dict[str, object] = {"log": log}
    if head.latest_of:
        more["latest_of"] = f"{log.hex()} {head.latest_of}"
    return msgspec.msgpack.encode({**fields, **more})
