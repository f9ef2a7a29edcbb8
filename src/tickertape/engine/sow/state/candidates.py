"""Candidates of the keys of a SOW topic: decide which message is the record of a key.

A row of the log names a key and changes its candidates. Each call returns the decision about the record.

The plain case is one live message for each key. It is in the record columns, and callers pass it as
`current`. `Candidates` has only the rest, until it is stable: live messages that lost, deletes, expired
messages, and deletes that name no message. With one origin and without links it is empty after `forget(end of
the commit)`.

The fold needs no call for a row that `published_wins` or `deleted_wins` decides by columns. These need a key
that is not in `Candidates`, rows of one origin, and stable rows: the row itself if it is a delete or loses,
and the record if a row of another publisher replaces it. While ranks rise in the order of the log, the last
one of consecutive published rows of a key decides.

Invariants:
- The record is a function of the set of rows of its key, in any order of arrival.
- `current` is the candidate with the highest rank, and is not in `Candidates`.
- The record of a key in `Candidates` changes only by calls, until `forget` removes the key.
- `forget` changes no record, now or later, if its horizon is stable.
"""

from __future__ import annotations

from enum import Enum
from heapq import heappop, heappush
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tickertape.batch.format import Int64s, UInt64s

T = TypeVar("T")


class Rank(NamedTuple):
    """Order of messages over all instances. A delete has the rank of the message that it names."""

    stamp: int
    """Order stamp that the origin of the run assigned, in microseconds."""
    log: bytes
    """Log id of the origin."""
    publisher: int
    sequence: int
    """Order of the messages of one run, which have one stamp."""


class StateRow(NamedTuple):
    """A row of the log that changes a key: its position in this log, its bookmark, and its origin."""

    position: int
    publisher: int
    sequence: int
    stamp: int
    """Order stamp of the run."""
    log: bytes
    """Log id of the origin."""


class Candidate(NamedTuple, Generic[T]):
    """The message of one publisher with the highest sequence on a key."""

    publisher: int
    sequence: int
    rank: Rank
    stored: tuple[int, bytes]
    """Order stamp and log id of its row. Of two copies of a message, the one with the lower value counts."""
    position: int
    dead: bool
    """It is a delete, has expired, or a later delete of its publisher ended it."""
    content: T | None
    """The message as the caller stores it. None if it is dead."""


class DecisionKind(Enum):
    """Change of the record of a key by a row."""

    NONE = "none"
    """The record, or its absence, is unchanged. A published message is superseded."""
    RECORD = "record"
    """The message of the row is the record."""
    RESTATED = "restated"
    """Another message is the record. A published message is superseded."""
    REMOVED = "removed"
    """The key has no record any more. A published message is superseded."""


class Decision(NamedTuple, Generic[T]):
    """The record of a key after a row."""

    kind: DecisionKind
    record: Candidate[T] | None
    """The record, which belongs into the columns, or None."""


def live_candidate(row: StateRow, content: T) -> Candidate[T]:
    """Return the candidate of a published row, also to describe a record of the columns."""
    rank = Rank(row.stamp, row.log, row.publisher, row.sequence)
    return Candidate(
        row.publisher, row.sequence, rank, (row.stamp, row.log), row.position, dead=False, content=content
    )


class _KeyCandidates(msgspec.Struct, Generic[T]):
    """Candidates of one key outside the record columns."""

    others: dict[int, Candidate[T]]
    """By publisher. The one with the highest rank is dead, unless `recorded`."""
    ended: dict[int, tuple[int, int, int]]
    """By publisher: sequence, position and order stamp of its last delete that names no message."""
    recorded: bool = False
    """The key has a record, which is in the columns."""
    due: int | None = None
    """Position of the entry in the heap of `forget`."""
    unstable: int | None = None
    """Order stamp of the entry in the second heap."""


class Candidates(Generic[T]):
    """Candidates of all keys of one topic outside the record columns. `T` is the content of a message."""

    def __init__(self) -> None:
        self._keys: dict[bytes, _KeyCandidates[T]] = {}
        self._due: list[tuple[int, bytes]] = []
        """Heap: a key, and the position above which `forget` looks at it. Entries of removed keys stay."""
        self._unstable: list[tuple[int, bytes]] = []
        """Heap: a key whose candidates have stable positions, and their highest order stamp."""

    def __len__(self) -> int:
        """Return the number of keys with candidates outside the record columns."""
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        """Return whether rows of `key` need a call."""
        return key in self._keys

    def publish(self, key: bytes, row: StateRow, content: T, current: Candidate[T] | None) -> Decision[T]:
        """Enter a published or merged message.

        A row with the bookmark of the candidate of its publisher is a copy: the lower one counts. Another
        row that was seen before must not be entered.
        """
        return self._enter(key, live_candidate(row, content), current)

    def delete(
        self, key: bytes, row: StateRow, named: Rank | None, current: Candidate[T] | None
    ) -> Decision[T]:
        """Enter one key of a delete, with the rank that its origin named (`highest`)."""
        if named is None:
            return self._end(key, row, current)
        dead: Candidate[T] = Candidate(
            row.publisher, row.sequence, named, (row.stamp, row.log), row.position, dead=True, content=None
        )
        return self._enter(key, dead, current)

    def expire(self, key: bytes, publisher: int, sequence: int, current: Candidate[T] | None) -> Decision[T]:
        """Mark one message as expired. Without effect if it is not a candidate any more."""
        of_key = self._opened(key, current)
        found = of_key.others.get(publisher)
        if found is not None and found.sequence == sequence:
            of_key.others[publisher] = _ended(found)
        return self._decide(key, of_key, current, None)

    def highest(self, key: bytes, current: Candidate[T] | None) -> Rank | None:
        """Return the rank that a delete of `key` names, or None without candidates."""
        if current is not None:
            return current.rank
        of_key = self._keys.get(key)
        return max((c.rank for c in of_key.others.values()), default=None) if of_key is not None else None

    def candidate(self, key: bytes, publisher: int, current: Candidate[T] | None) -> Candidate[T] | None:
        """Return the candidate of a publisher, or None if it has none or `forget` dropped it.

        A duplicate row is entered only if this candidate is a copy of it with a higher `stored` value.
        """
        if current is not None and current.publisher == publisher:
            return current
        of_key = self._keys.get(key)
        return of_key.others.get(publisher) if of_key is not None else None

    def forget(self, stable: int, stamp: int | None = None) -> None:
        """Drop the candidates of rows below position `stable` that can decide nothing any more.

        Rows are stable when each row that can still arrive has a higher rank than they have, and a higher
        sequence than those of its publisher. Without links these are the persisted rows. With links `stable`
        is the position below which all logs have all rows, and all rows that arrive later have higher order
        stamps than `stamp`: a key stays until all of its candidates are at or below both. Callers pass
        `stamp` always, or never. A dead candidate with the highest rank stays until it is the last one of
        its key."""
        while self._due and self._due[0][0] < stable:
            position, key = heappop(self._due)
            of_key = self._keys.get(key)
            if of_key is None or of_key.due != position:
                continue
            if stamp is None:
                self._forget_key(key, of_key, stable)
            elif (last := _last_position(of_key)) >= stable:
                self._plan(key, of_key, last)
            else:
                self._wait(key, of_key)
        while stamp is not None and self._unstable and self._unstable[0][0] <= stamp:
            last, key = heappop(self._unstable)
            of_key = self._keys.get(key)
            if of_key is None or of_key.unstable != last:
                continue
            of_key.unstable = None
            if (position := _last_position(of_key)) >= stable:
                self._plan(key, of_key, position)
            elif _last_stamp(of_key) > stamp:
                self._wait(key, of_key)
            else:
                self._forget_key(key, of_key, stable)

    def _forget_key(self, key: bytes, of_key: _KeyCandidates[T], stable: int) -> None:
        others, ended = of_key.others, of_key.ended
        highest = None if of_key.recorded else max(others.values(), key=_order, default=None)
        for candidate in list(others.values()):
            if candidate.position < stable and candidate is not highest:
                del others[candidate.publisher]
        if highest is not None and highest.position < stable and len(others) == 1:
            others.clear()
        for publisher, (_, position, _) in list(ended.items()):
            if position < stable:
                del ended[publisher]
        self._keep(key, of_key, stable)

    def _opened(self, key: bytes, current: Candidate[T] | None) -> _KeyCandidates[T]:
        """Return all candidates of a key, with its record."""
        of_key = self._keys.get(key)
        if of_key is None:
            of_key = self._keys[key] = _KeyCandidates({}, {})
        if current is not None:
            of_key.others[current.publisher] = current
        return of_key

    def _enter(self, key: bytes, new: Candidate[T], current: Candidate[T] | None) -> Decision[T]:
        of_key = self._opened(key, current)
        old = of_key.others.get(new.publisher)
        copied = old is not None and new.sequence == old.sequence
        if old is None or new.sequence > old.sequence or (copied and new.stored < old.stored):
            until = of_key.ended.get(new.publisher, _NEVER)[0]
            if new.sequence < until or (copied and old is not None and old.dead):
                new = _ended(new)
            of_key.others[new.publisher] = new
        return self._decide(key, of_key, current, new)

    def _end(self, key: bytes, row: StateRow, current: Candidate[T] | None) -> Decision[T]:
        """End the older messages of a publisher. They keep their rank."""
        of_key = self._opened(key, current)
        if row.sequence > of_key.ended.get(row.publisher, _NEVER)[0]:
            of_key.ended[row.publisher] = row.sequence, row.position, row.stamp
        old = of_key.others.get(row.publisher)
        if old is not None and old.sequence < row.sequence:
            of_key.others[row.publisher] = _ended(old)
        return self._decide(key, of_key, current, None)

    def _decide(
        self,
        key: bytes,
        of_key: _KeyCandidates[T],
        current: Candidate[T] | None,
        entered: Candidate[T] | None,
    ) -> Decision[T]:
        """Find the record of a key, leave it to the columns, and compare it with the record before."""
        highest = max(of_key.others.values(), key=_order, default=None)
        record = highest if highest is not None and not highest.dead else None
        of_key.recorded = record is not None
        if record is not None:
            del of_key.others[record.publisher]
        self._keep(key, of_key, 0)
        if record is current:
            return Decision(DecisionKind.NONE, record)
        if record is None:
            return Decision(DecisionKind.REMOVED, record)
        return Decision(DecisionKind.RECORD if record is entered else DecisionKind.RESTATED, record)

    def _keep(self, key: bytes, of_key: _KeyCandidates[T], stable: int) -> None:
        """Remove a key without candidates, and plan when `forget` looks at others."""
        if not of_key.others and not of_key.ended:
            del self._keys[key]
        elif of_key.unstable is None and (of_key.due is None or of_key.due < stable):
            self._plan(key, of_key, min(position for position in _positions(of_key) if position >= stable))

    def _plan(self, key: bytes, of_key: _KeyCandidates[T], position: int) -> None:
        """Let `forget` look at a key when the position is stable."""
        of_key.due = position
        heappush(self._due, (position, key))

    def _wait(self, key: bytes, of_key: _KeyCandidates[T]) -> None:
        """Let `forget` look at a key when its highest order stamp is stable."""
        of_key.unstable = _last_stamp(of_key)
        heappush(self._unstable, (of_key.unstable, key))


_NEVER: Final = (0, 0, 0)
"""In place of a delete of a publisher without one."""


def _positions(of_key: _KeyCandidates[T]) -> list[int]:
    """Return the positions of all candidates and deletes of a key outside the record columns."""
    positions = [candidate.position for candidate in of_key.others.values()]
    return positions + [position for _, position, _ in of_key.ended.values()]


def _last_position(of_key: _KeyCandidates[T]) -> int:
    return max(_positions(of_key))


def _last_stamp(of_key: _KeyCandidates[T]) -> int:
    """Return the highest order stamp of the rows of a key outside the record columns."""
    stamps = [candidate.stored[0] for candidate in of_key.others.values()]
    return max(stamps + [stamp for _, _, stamp in of_key.ended.values()])


def _order(candidate: Candidate[T]) -> tuple[Rank, bool]:
    """Return the key that orders candidates: of equal ranks, a dead one wins."""
    return candidate.rank, candidate.dead


def _ended(candidate: Candidate[T]) -> Candidate[T]:
    return candidate._replace(dead=True, content=None)


class RowColumns(NamedTuple):
    """Order stamps, publishers and sequences of rows of one origin, or of records."""

    stamps: Int64s
    publishers: UInt64s | npt.NDArray[np.uint32]
    """Ids, or numbers that are equal for equal publishers."""
    sequences: UInt64s


def published_wins(rows: RowColumns, records: RowColumns) -> npt.NDArray[np.bool_]:
    """Return which published rows become the record of a key that has this record and no candidates."""
    newer = rows.sequences > records.sequences
    return np.where(rows.publishers == records.publishers, newer, rows.stamps > records.stamps)


def deleted_wins(rows: RowColumns, named: RowColumns, records: RowColumns) -> npt.NDArray[np.bool_]:
    """Return which deletes remove the record of a key that has this record and no candidates.

    `named` has sequence 0 for a delete that names no message.
    """
    newer = rows.sequences > records.sequences
    equal = (named.stamps == records.stamps) & (named.sequences >= records.sequences)
    seen = (named.sequences > 0) & ((named.stamps > records.stamps) | equal)
    return np.where(rows.publishers == records.publishers, newer, seen)
