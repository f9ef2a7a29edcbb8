"""Comparison of two logs: the messages that one of them lacks, or has with another content.

The logs of replicating servers have the messages of each other in different orders. Both are read once for
the sums of all buckets. Buckets with different sums are read again, down to single sequences, as many at a
time as fit into memory.

A link is behind as long as its place is: messages of a log behind the place that the other log has are on the
way, and do not count as differences. Sequences that retention removed from one log are left out in both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from tickertape.base.interfaces import Disk
from tickertape.base.limits import link_starts_max
from tickertape.batch import KIND_CONTROL
from tickertape.batch.format import Bools, Int64s, UInt64s
from tickertape.journal.format.control_record import decode_head
from tickertape.journal.format.identity import read_identity
from tickertape.journal.format.replication_records import LogPlace, StartedRecord, decode_record
from tickertape.journal.format.retired_state import NOTHING_HIGHEST, HighestSequences, record_of
from tickertape.journal.format.segment import CONTROL_TOPIC
from tickertape.journal.limits import compared_differences_max, compared_messages_max
from tickertape.journal.offline.digests import (
    Bucket,
    BucketSums,
    MessageRows,
    MessageSelection,
    buckets_of,
    message_rows,
)
from tickertape.journal.offline.snapshot import Snapshot, SnapshotReader, take_snapshot
from tickertape.journal.reading.log_view import LogPart
from tickertape.journal.reading.place_search import find_places

LogName = Literal["A", "B"]
Advance = Callable[[float], object]
"""Function that takes the number of further bytes that were read."""
_STARTED: Final = "started"


class ComparedLog(msgspec.Struct, kw_only=True):
    """One of the two logs."""

    journal: str
    """Journal id, 32 hexadecimal digits."""
    first_position: int
    end_position: int
    """Position after the last compared message."""
    messages: int
    """Compared messages."""
    publishers: int
    removed: int
    """Messages that were left out, because retention removed messages with these sequences from the other
    log."""
    on_the_way: int
    """Messages that the other log lacks, and that its link has not reached."""


class MessageDifference(msgspec.Struct, kw_only=True, frozen=True):
    """Consecutive sequences of a publisher with the same difference."""

    kind: Literal["missing", "different", "repeated"]
    """`missing`: only the other log has them. `different`: the contents differ. `repeated`: the log has them
    more than once."""
    log: LogName | None
    """The log that lacks or repeats them. None for different contents."""
    publisher: int
    first: int
    last: int


class LogComparison(msgspec.Struct, kw_only=True):
    """Result of `compare_logs`."""

    a: ComparedLog
    b: ComparedLog
    differences: list[MessageDifference]
    more: bool
    """Whether some buckets with differences were not searched."""

    @property
    def equal(self) -> bool:
        """Whether no difference was found. Messages may be on the way."""
        return not self.differences and not self.more


def compare_logs(
    a: Disk, b: Disk, selection: MessageSelection, advance: Advance, *, unsynced: bool = False
) -> LogComparison:
    """Compare the logs in two data directories, which servers may have open. `unsynced` includes commits not
    known to be durable.

    Raises:
        NotAJournal, WrongJournal, JournalVersion: A directory has no usable journal.
        JournalCorrupt: A log is damaged.
        OSError: A disk cannot be read."""
    with contextlib.ExitStack() as stack:

        def opened(disk: Disk) -> _Log:
            log = _Log(disk, take_snapshot(disk, unsynced=unsynced), selection, advance)
            stack.callback(log.reader.close)
            return log

        first, second = opened(a), opened(b)
        if second.has_place_of(first) and not first.has_place_of(second):
            first = opened(a)  # the source may have sent messages after its first snapshot
        return _Comparison(first, second).run()


class _Log:
    """One log, and the facts that decide about its messages."""

    def __init__(self, disk: Disk, snapshot: Snapshot, selection: MessageSelection, advance: Advance) -> None:
        if snapshot.damage is not None:
            raise snapshot.damage
        self.journal = read_identity(disk).journal_id
        self.view = snapshot.view
        self.reader = SnapshotReader(disk, snapshot.view)
        self.places = self.reader.find(find_places(self.view, self.view.end_position)).places
        retired = self.view.retired
        self.highest_removed = NOTHING_HIGHEST if retired is None else retired.highest
        self._selection = selection
        self._advance = advance
        self._starts: dict[int, int] = {}
        """First position of each start of the server, in order."""
        for record in () if retired is None else retired.records:
            if isinstance(record, bytes):
                self._note_start(record)

    def has_place_of(self, other: _Log) -> bool:
        """Return whether a link brings messages of another log to this one."""
        return any(place.log == other.journal for place in self.places)

    def rows(self, removed: HighestSequences) -> Iterator[tuple[MessageRows, int]]:
        """Yield the selected messages above the sequences `removed`, and the number of the others."""
        done = 0
        for part in self.reader.parts(self.view.first_position, self.view.end_position):
            self._note_starts(part)
            rows = message_rows(part, self._selection)
            if rows is not None:
                kept = rows.sequences > _highest_of(removed, rows.publishers)
                yield rows.taken(kept.nonzero()[0]), len(kept) - int(kept.sum())
            passed = self.reader.bytes_before(part.end_position)
            self._advance(passed - done)
            done = passed

    def covered(self, places: list[LogPlace]) -> int | None:
        """Return the position before which another log with these places has all rows of this one. None: it
        has no place. Call it after `rows`."""
        stops = dict(zip(self._starts, [*self._starts.values()][1:], strict=False))
        known = [
            min(place.position, stops.get(place.start, self.view.end_position))
            for place in places
            if place.log == self.journal and place.start in self._starts
        ]
        return max(known, default=None)

    def _note_starts(self, part: LogPart) -> None:
        batch = part.batch
        if batch.kinds is None or CONTROL_TOPIC not in batch.topics:
            return
        for row in (batch.kinds == KIND_CONTROL).nonzero()[0].tolist():
            if batch.topic(row) == CONTROL_TOPIC:
                record = record_of(bytes(batch.body(row)))
                if isinstance(record, bytes):
                    self._note_start(record)

    def _note_start(self, body: bytes) -> None:
        if decode_head(body).type == _STARTED:
            record = decode_record(body)
            assert isinstance(record, StartedRecord)
            self._starts[record.start] = record.position
            if len(self._starts) > link_starts_max:
                del self._starts[next(iter(self._starts))]


class _Comparison:
    """The comparison of two logs."""

    def __init__(self, a: _Log, b: _Log) -> None:
        self._logs: dict[LogName, _Log] = {"A": a, "B": b}
        self._sums: dict[LogName, BucketSums] = {"A": BucketSums(), "B": BucketSums()}
        self._removed: dict[LogName, int] = {"A": 0, "B": 0}
        self._on_the_way: dict[LogName, int] = {"A": 0, "B": 0}
        self._found: list[MessageDifference] = []
        self._highest = a.highest_removed.with_later(
            b.highest_removed.publishers, b.highest_removed.sequences
        )

    def run(self) -> LogComparison:
        """Read both logs, and again for buckets with different sums."""
        for name, log in self._logs.items():
            for rows, removed in log.rows(self._highest):
                self._removed[name] += removed
                self._sums[name].add(rows)
        groups = _groups(self._sums["A"].differing(self._sums["B"]))
        covered = self._covered()
        more = False
        for group in groups:
            if more := len(self._found) >= compared_differences_max:
                break
            a, b = (self._messages(log, group) for log in self._logs.values())
            self._compare(a, b, covered)
        return LogComparison(
            a=self._summary("A"),
            b=self._summary("B"),
            differences=sorted(self._found, key=_place_of),
            more=more,
        )

    def _covered(self) -> dict[LogName, int | None]:
        """Return the position of each log before which the other one has all rows."""
        a, b = self._logs["A"], self._logs["B"]
        if a.journal == b.journal:  # a copy
            return {"A": None, "B": None}
        return {"A": a.covered(b.places), "B": b.covered(a.places)}

    def _messages(self, log: _Log, group: set[Bucket]) -> MessageRows:
        """Return the messages of some buckets, sorted by publisher and sequence."""
        parts = [_NO_ROWS]
        for rows, _ in log.rows(self._highest):
            parts += [rows.taken(at) for bucket, at in buckets_of(rows) if bucket in group]
        found = MessageRows(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        return found.taken(np.lexsort((found.positions, found.sequences, found.publishers)))

    def _compare(self, a: MessageRows, b: MessageRows, covered: dict[LogName, int | None]) -> None:
        """Find the differences between messages of both logs."""
        once_a, once_b = self._once("A", a), self._once("B", b)
        pair = _pairs(once_a, once_b)
        differs = once_a.digests[pair.a] != once_b.digests[pair.b]
        self._note("different", None, once_a.taken(pair.a[differs]))
        self._single("A", once_a, pair.a, covered["A"])
        self._single("B", once_b, pair.b, covered["B"])

    def _single(self, name: LogName, rows: MessageRows, paired: Int64s, covered: int | None) -> None:
        """Note the messages of one log that the other one lacks."""
        single = np.ones(len(rows.sequences), np.bool_)
        single[paired] = False
        if covered is not None:
            outstanding = single & (rows.positions >= covered)
            self._on_the_way[name] += int(outstanding.sum())
            single &= ~outstanding
        self._note("missing", "B" if name == "A" else "A", rows.taken(single.nonzero()[0]))

    def _once(self, name: LogName, rows: MessageRows) -> MessageRows:
        """Return rows without repeated messages, which are differences."""
        again = np.zeros(len(rows.sequences), np.bool_)
        again[1:] = _equal_to_next(rows.publishers, rows.sequences)
        self._note("repeated", name, rows.taken(again.nonzero()[0]))
        return rows.taken((~again).nonzero()[0])

    def _note(
        self, kind: Literal["missing", "different", "repeated"], log: LogName | None, rows: MessageRows
    ) -> None:
        """Add differences of sorted rows."""
        publishers, sequences = rows.publishers, rows.sequences
        if not len(sequences):
            return
        new = np.ones(len(sequences), np.bool_)
        new[1:] = (publishers[1:] != publishers[:-1]) | (sequences[1:] - sequences[:-1] > np.uint64(1))
        begins = new.nonzero()[0]
        ends = np.append(begins[1:], len(sequences)) - 1
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            self._found.append(
                MessageDifference(
                    kind=kind,
                    log=log,
                    publisher=int(publishers[begin]),
                    first=int(sequences[begin]),
                    last=int(sequences[end]),
                )
            )

    def _summary(self, name: LogName) -> ComparedLog:
        log, sums = self._logs[name], self._sums[name]
        return ComparedLog(
            journal=log.journal.hex(),
            first_position=log.view.first_position,
            end_position=log.view.end_position,
            messages=sums.messages,
            publishers=sums.publishers,
            removed=self._removed[name],
            on_the_way=self._on_the_way[name],
        )


_NO_ROWS: Final = MessageRows(
    np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64)
)


class _Pairs(NamedTuple):
    """Rows of two logs with equal publishers and sequences."""

    a: Int64s
    b: Int64s


def _pairs(a: MessageRows, b: MessageRows) -> _Pairs:
    """Return the messages that both logs have."""
    publishers = np.concatenate([a.publishers, b.publishers])
    sequences = np.concatenate([a.sequences, b.sequences])
    order = np.lexsort((sequences, publishers))  # stable: rows of A precede equal rows of B
    first = _equal_to_next(publishers[order], sequences[order]).nonzero()[0]
    return _Pairs(order[first], order[first + 1] - len(a.sequences))


def _equal_to_next(publishers: UInt64s, sequences: UInt64s) -> Bools:
    """Return which rows but the last have the publisher and the sequence of the next one."""
    equal: Bools = (publishers[1:] == publishers[:-1]) & (sequences[1:] == sequences[:-1])
    return equal


def _highest_of(highest: HighestSequences, publishers: UInt64s) -> UInt64s:
    """Return the highest sequences of publishers, 0 for others."""
    if not len(highest):
        return np.zeros(len(publishers), np.uint64)
    at = np.minimum(highest.publishers.searchsorted(publishers), len(highest) - 1)
    return np.where(highest.publishers[at] == publishers, highest.sequences[at], np.uint64(0))


def _place_of(difference: MessageDifference) -> tuple[int, int]:
    return difference.publisher, difference.first


def _groups(buckets: dict[Bucket, int]) -> Iterator[set[Bucket]]:
    """Yield groups of buckets whose messages fit into memory."""
    group: set[Bucket] = set()
    count = 0
    for bucket, messages in buckets.items():
        if group and count + messages > compared_messages_max:
            yield group
            group, count = set(), 0
        group.add(bucket)
        count += messages
    if group:
        yield group
