"""Replication records: control records of starts, origins, holes, reports, reporters and levels.

A record of another log carries its `log` and changes no state of this one (`as_foreign`).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple, TypeVar

import msgspec

from tickertape.base.errors import JournalCorrupt
from tickertape.base.limits import link_starts_max
from tickertape.base.text_format import shown
from tickertape.journal.format.control_record import RECORD_ERRORS, LogId

_U64 = Annotated[int, msgspec.Meta(ge=0)]
"""MessagePack integers have at most 64 bits."""
_Sequence = Annotated[int, msgspec.Meta(ge=1)]
_OriginNumber = Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)]


class _ReplicationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    latest_of: str = ""
    """Key of the record: only the last record with this value is kept. Empty: all are kept."""
    log: LogId | None = None
    """Id of the log that wrote the record. None: this log."""


class StartedRecord(_ReplicationRecord, frozen=True, kw_only=True, tag="started"):
    """First record of each run of the server. The newest `link_starts_max` are kept."""

    start: _U64
    """Random number of the run."""
    number: _U64
    """Number of earlier runs."""
    position: _U64
    """Position of the record."""


class OriginRecord(_ReplicationRecord, frozen=True, kw_only=True, tag="origin"):
    """Meaning of an origin number in the runs of this log."""

    number: _OriginNumber
    journal: LogId
    """Id of the log in which a client stored the messages."""
    instance: str
    group: str
    path: list[LogId]
    """The logs that the messages passed, the origin first."""


class AfterRecord(_ReplicationRecord, frozen=True, kw_only=True, tag="after"):
    """The messages of a publisher up to `after` exist in other logs."""

    publisher: _U64
    session: _U64
    """Number of the publisher's session that the record precedes."""
    after: _U64
    unproven: bool = False
    """They may exist: the publisher did not report its acknowledged messages."""


class HoleRange(NamedTuple):
    """An open hole: sequences that other logs may have."""

    first: _Sequence
    last: _Sequence
    opened: _U64
    """Position of the record that opened it."""
    proven: bool
    """The messages exist in other logs. Otherwise they may exist."""


class HolesRecord(_ReplicationRecord, frozen=True, kw_only=True, tag="holes"):
    """All open holes of a publisher at the end of a commit that opened or filled one."""

    publisher: _U64
    highest: _U64
    ranges: list[HoleRange]
    """Ascending and disjoint, at or below `highest`."""

    def __post_init__(self) -> None:
        after = 0
        for first, last, _, _ in self.ranges:
            if not after < first <= last <= self.highest:
                raise ValueError(f"range {first} to {last} is out of order or above {self.highest}")
            after = last


class LogPlace(NamedTuple):
    """A position in another log, in the run of the server that wrote the row before it."""

    log: LogId
    start: _U64
    position: _U64


class CoveredRecord(_ReplicationRecord, frozen=True, kw_only=True, tag="covered"):
    """Report of a log: it has all rows of other logs before `places`."""

    number: _U64
    """Rises with each report of the log."""
    start: _U64
    position: _U64
    """Place of the record in the log that wrote it."""
    places: list[LogPlace]
    members: list[LogId]
    """The logs of the group at the time of the report."""
    stamp: int
    """Highest order stamp of the log, microseconds since 1970 UTC."""


class ReporterRecord(_ReplicationRecord, frozen=True, kw_only=True, tag="reporter"):
    """Another log has reported rows of this log (`covered`). Its later reports may name none."""

    journal: LogId
    """Id of the other log."""


LevelReason = Literal["operator", "policy"]
"""Cause of a downgrade or an upgrade: a command of an operator, or the limits of the configuration."""


class DowngradedRecord(_ReplicationRecord, frozen=True, kw_only=True, tag="downgraded"):
    """Acknowledgements of this log do not wait for a synchronous destination from this record on."""

    destination: str
    position: _U64
    """Position of the record."""
    covered: _U64
    """Position before which the destination had all rows on its disk."""
    reason: LevelReason


class UpgradedRecord(_ReplicationRecord, frozen=True, kw_only=True, tag="upgraded"):
    """Acknowledgements of this log wait for a synchronous destination again, from this record on."""

    destination: str
    position: _U64
    """Position of the record."""
    covered: _U64
    """Position before which the destination had all rows on its disk."""
    reason: LevelReason


LevelRecord = DowngradedRecord | UpgradedRecord
ReplicationRecord = (
    StartedRecord
    | OriginRecord
    | AfterRecord
    | HolesRecord
    | CoveredRecord
    | ReporterRecord
    | DowngradedRecord
    | UpgradedRecord
)
_Record = TypeVar(
    "_Record",
    StartedRecord,
    OriginRecord,
    AfterRecord,
    HolesRecord,
    CoveredRecord,
    ReporterRecord,
    DowngradedRecord,
    UpgradedRecord,
    ReplicationRecord,
)
REPLICATION_TYPES: Final = frozenset(
    ("started", "origin", "after", "holes", "covered", "reporter", "downgraded", "upgraded")
)


def started(start: int, number: int, position: int) -> StartedRecord:
    """Return the record of a run of the server, which is the first row of the run."""
    subject = f"started {number % link_starts_max}"
    return StartedRecord(latest_of=subject, start=start, number=number, position=position)


def origin(number: int, journal: bytes, instance: str, group: str, path: list[bytes]) -> OriginRecord:
    """Return the record of an origin number."""
    return OriginRecord(
        latest_of=f"origin {number}",
        number=number,
        journal=journal,
        instance=instance,
        group=group,
        path=path,
    )


def after(journal: bytes, publisher: int, session: int, last: int, *, proven: bool = True) -> AfterRecord:
    """Return the record about messages of a publisher up to `last`, written by the log `journal`."""
    return AfterRecord(
        latest_of=f"after {publisher} {journal.hex()}",
        publisher=publisher,
        session=session,
        after=last,
        unproven=not proven,
    )


def holes(publisher: int, highest: int, ranges: list[HoleRange]) -> HolesRecord:
    """Return the record of all open holes of a publisher."""
    return HolesRecord(latest_of=f"holes {publisher}", publisher=publisher, highest=highest, ranges=ranges)


def covered(
    number: int, start: int, position: int, places: list[LogPlace], members: list[bytes], stamp: int
) -> CoveredRecord:
    """Return a report at a place of this log."""
    return CoveredRecord(
        latest_of="covered",
        number=number,
        start=start,
        position=position,
        places=places,
        members=members,
        stamp=stamp,
    )


def reporter(journal: bytes) -> ReporterRecord:
    """Return the record of a log that has reported rows of this log."""
    return ReporterRecord(latest_of=f"reporter {journal.hex()}", journal=journal)


def level(
    destination: str, position: int, covered: int, reason: LevelReason, *, downgraded: bool
) -> LevelRecord:
    """Return the record of a downgrade or an upgrade at a position. Only the last one of a destination is
    kept."""
    kind = DowngradedRecord if downgraded else UpgradedRecord
    return kind(
        latest_of=f"level {destination}",
        destination=destination,
        position=position,
        covered=covered,
        reason=reason,
    )


def as_foreign(record: _Record, journal: bytes) -> _Record:
    """Return a record that the log `journal` wrote, as another log stores it."""
    latest_of = f"{journal.hex()} {record.latest_of}" if record.latest_of else ""
    return msgspec.structs.replace(record, log=journal, latest_of=latest_of)


def encode_record(record: ReplicationRecord) -> bytes:
    """Return the body of a record."""
    return msgspec.msgpack.encode(record)


def holes_of(body: bytes) -> HolesRecord | None:
    """Return a record of holes. None for other records, and for unreadable ones."""
    try:
        record = decode_record(body)
    except JournalCorrupt:
        return None
    return record if isinstance(record, HolesRecord) else None


def opened_by(body: bytes) -> tuple[int, int] | None:
    """Return the publisher and the end of the hole that an `after` record may open. None for other records,
    and for unreadable ones."""
    if b"after" not in body:
        return None
    try:
        record = decode_record(body)
    except JournalCorrupt:
        return None
    return (record.publisher, record.after) if isinstance(record, AfterRecord) else None


def decode_record(body: bytes) -> ReplicationRecord:
    """Decode the body of a record. Raises `JournalCorrupt`, without the position."""
    try:
        record: ReplicationRecord = msgspec.msgpack.decode(body, type=ReplicationRecord)
    except RECORD_ERRORS as error:
        raise JournalCorrupt(f"invalid control record: {shown(str(error))}") from None
    return record
