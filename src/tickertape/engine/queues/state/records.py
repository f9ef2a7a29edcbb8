"""Queue records: outcomes as control records on the topic `$queue`, and the start position of a queue.

An outcome names messages by position, so that recovery works on arrays. The bookmarks that a client named are
stored with it. The format is documented in docs/formats/queue-records.md.

Invariants:
- A record can be applied from the log alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import msgspec
import numpy as np
from pyroaring import BitMap64

from tickertape.base.errors import JournalCorrupt
from tickertape.base.text_format import shown
from tickertape.batch.format import Int64s
from tickertape.engine.limits import record_ranges_bytes_max
from tickertape.journal.format.control_record import decode_head

_I8: Final = np.dtype("<i8")


class OutcomeKind(IntEnum):
    """Kinds of outcomes."""

    DONE = 1
    """A consumer acknowledged the messages."""
    RETURNED = 2
    """A delivery ended without success. The messages may be redelivered."""
    EXPIRED = 3
    """The messages left the queue unprocessed."""
    TAKEN = 4
    """The messages left the queue on delivery (at-most-once)."""
    DEAD_LETTERED = 5
    """The dead letters of the messages are in the log."""


class Reason(IntEnum):
    """Why messages were returned or expired."""

    NONE = 0
    CANCELLED = 1
    LEASE_EXPIRED = 2
    HOLDER_GONE = 3
    EXPIRATION = 4
    MAX_DELIVERIES = 5
    MAX_CANCELS = 6
    EXPIRE = 7

    @property
    def text(self) -> str:
        """Text for logs and dead letters."""
        return self.name.lower()


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """Outcome of the messages at `ranges` (little-endian i64: first, count, ascending)."""

    what: OutcomeKind
    ranges: bytes
    reason: Reason = Reason.NONE
    doomed: bool = False
    """Whether dead letters will be published. The messages must stay in the log until then."""
    delivered: bool = False
    """Whether a consumer held the messages."""

    @property
    def positions(self) -> BitMap64:
        """Positions of the messages."""
        return positions_in(self.ranges)


class QueueRecord(msgspec.Struct, frozen=True, array_like=True):
    """Outcomes of one queue that take effect together."""

    queue: str
    outcomes: list[Outcome]
    runs: bytes = b""
    """The bookmarks with which a client named the messages (see `wire/settlement.py`)."""


class QueueBegun(msgspec.Struct, frozen=True, kw_only=True, tag="queue"):
    """Control record of a queue: messages at or above `position` enter it."""

    queue: str
    recovery_point: str
    position: int


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_RECORD: Final = msgspec.msgpack.Decoder(QueueRecord).decode
_BEGUN: Final = msgspec.msgpack.Decoder(QueueBegun).decode
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


def encode_record(record: QueueRecord | QueueBegun) -> bytes:
    """Return the body of a control record."""
    return _ENCODE(record)


def record_bodies(queue: str, outcomes: Sequence[Outcome], runs: bytes = b"") -> list[bytes]:
    """Encode outcomes as one record, or as several if their ranges are too large. `runs` is stored in the
    last record."""
    pieces = [piece for outcome in outcomes for piece in _pieces(outcome)]
    groups: list[list[Outcome]] = [[]]
    size = 0
    for piece in pieces:
        if size and size + len(piece.ranges) > record_ranges_bytes_max:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += len(piece.ranges)
    last = groups.pop()
    bodies = [encode_record(QueueRecord(queue, group)) for group in groups]
    return [*bodies, encode_record(QueueRecord(queue, last, runs))]


def _pieces(outcome: Outcome) -> list[Outcome]:
    ranges, step = outcome.ranges, record_ranges_bytes_max
    if len(ranges) <= step:
        return [outcome]
    return [
        msgspec.structs.replace(outcome, ranges=ranges[at : at + step]) for at in range(0, len(ranges), step)
    ]


def decode_record(body: bytes) -> QueueRecord:
    """Decode an outcome record. Raises `JournalCorrupt`, without the position, for an invalid record."""
    try:
        record = _RECORD(body)
        for outcome in record.outcomes:
            _check(outcome.ranges)
    except _ERRORS as error:
        raise JournalCorrupt(f"invalid queue record: {shown(str(error))}") from None
    return record


def begun_in(bodies: Sequence[bytes]) -> list[QueueBegun]:
    """Return the `QueueBegun` records among control records. Other kinds, and records of other logs, are
    skipped."""
    found = []
    for body in bodies:
        try:
            begun = _BEGUN(body)
            if not decode_head(body).log:
                found.append(begun)
        except (*_ERRORS, JournalCorrupt):
            continue
    return found


def ranges_of(positions: BitMap64) -> bytes:
    """Encode positions as ranges."""
    count = len(positions)
    if not count:
        return b""
    low, high = positions.min(), positions.max()
    if high - low == count - 1:  # the common case
        return np.array([low, count], _I8).tobytes()
    at = array_of(positions)
    starts = np.flatnonzero(np.concatenate(([True], np.diff(at) != 1)))
    ranges = np.empty((len(starts), 2), _I8)
    ranges[:, 0] = at[starts]
    ranges[:, 1] = np.diff(starts, append=count)
    return ranges.tobytes()


def positions_in(ranges: bytes) -> BitMap64:
    """Decode ranges to positions."""
    found = BitMap64()
    for first, count in np.frombuffer(ranges, _I8).reshape(-1, 2).tolist():
        found.add_range(first, first + count)
    return found


def array_of(positions: BitMap64) -> Int64s:
    """Return positions as an ascending array."""
    return np.array(positions.to_array(), np.uint64).astype(np.int64)


def bitmap_of(positions: Int64s) -> BitMap64:
    """Return an ascending array as a set."""
    count = len(positions)
    if not count:
        return BitMap64()
    first, last = int(positions[0]), int(positions[-1])
    if last - first == count - 1:
        found = BitMap64()
        found.add_range(first, last + 1)
        return found
    return BitMap64(positions.astype(np.uint64))


def _check(ranges: bytes) -> None:
    if len(ranges) % 16:
        raise ValueError("ranges of positions are incomplete")
    table = np.frombuffer(ranges, _I8).reshape(-1, 2)
    ends = table[:, 0] + table[:, 1]
    if (table[:, 0] < 0).any() or (table[:, 1] < 1).any() or (ends < 0).any():
        raise ValueError("ranges of positions are invalid")
    if (table[1:, 0] < ends[:-1]).any():
        raise ValueError("ranges of positions are not ascending")
