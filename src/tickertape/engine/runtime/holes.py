"""Holes: sequences at or below the highest one of a publisher that other logs may have.

A message is a duplicate if its sequence is at or below the highest one of its publisher and in no open hole.
Pure. Whole batches are split with arrays.

Invariants:
- The holes of a publisher are disjoint and at or below its highest sequence.
- A sequence leaves a hole when it is stored, and never returns to one.
- Unproven holes admit only messages of links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from tickertape.base.errors import JournalCorrupt
from tickertape.batch.format import I8, U8, Bools, Int64s, UInt64s
from tickertape.engine.limits import holes_max, holes_per_publisher_max
from tickertape.engine.runtime.effects import LogEvent
from tickertape.journal.format.replication_records import (
    AfterRecord,
    HoleRange,
    HolesRecord,
    decode_record,
)

_ONE: Final = np.uint64(1)


class ClosedHole(NamedTuple):
    """A hole that was closed because of a limit. Its messages count as duplicates from now on."""

    publisher: int
    first: int
    last: int


def forgotten_holes(closed: Sequence[ClosedHole]) -> LogEvent | None:
    """Return the event of holes that limits closed, and the first one of them. None without holes.

    Messages of these holes may be lost: links no longer bring them."""
    if not closed:
        return None
    publisher, first, last = closed[0]
    sequences = sum(hole.last - hole.first + 1 for hole in closed)
    return LogEvent(
        "hole_forgotten",
        warning=True,
        fields={
            "holes": len(closed),
            "sequences": sequences,
            "publisher": publisher,
            "first": first,
            "last": last,
        },
    )


class ClaimedHole(NamedTuple):
    """Sequences above the highest one of a publisher that its claim includes."""

    first: int
    last: int

    def event(self, client: str) -> LogEvent:
        """Return the event of the hole of a client."""
        return LogEvent(
            "publisher_behind",
            warning=False,
            fields={
                "client": client,
                "sequences": self.last - self.first + 1,
                "first": self.first,
                "last": self.last,
            },
        )


class SequenceSplit(NamedTuple):
    """Parts of rising sequences of one publisher."""

    late: Int64s
    """Indices of the sequences in holes, ascending."""
    above: int
    """Index of the first sequence above the highest one, or the number of sequences."""
    duplicates: int
    """Number of the others."""


class SearchedSequences(NamedTuple):
    """Rising sequences of a publisher that were searched in the log, at or below its highest one and in no
    hole."""

    sequences: UInt64s
    absent: UInt64s
    """Those that the log lacks."""


class PublisherConnection:
    """Connection of a publisher: the acknowledged messages that it claims, and the last one stored from it.

    `claim` is the highest sequence that any server acknowledged to the publisher before this connection. None
    for clients that do not report it. `session` is the number of its logon."""

    def __init__(self, claim: int | None = None, session: int = 0) -> None:
        self.claim = claim
        self.session = session
        self.last: int | None = None
        """Last sequence that was stored from the connection."""
        self.received = 0
        """Highest sequence that arrived on the connection. Lower ones that follow are duplicates."""
        self.opened: ClaimedHole | None = None
        """Hole that the claim opened, until its event is logged."""
        self.searched: SearchedSequences | None = None
        """Result of the last search for resent messages."""

    def note_searched(self, searched: SearchedSequences) -> None:
        """Note the result of a search. No other connection stores messages of the publisher meanwhile."""
        self.searched = searched

    def stored(self, last: int) -> None:
        """Note the last sequence that was stored from the connection."""
        self.last = last

    def take(self, last: int) -> None:
        """Note the last sequence of a batch that arrived."""
        self.received = max(self.received, last)

    def opens(self, highest: int, first: int) -> list[tuple[int, bool]]:
        """Return the ends of the holes to open before the message `first`, and whether they are proven.

        `highest` is the highest sequence of the publisher, below `first`. Messages up to the claim exist in
        other logs. So do messages that came over links meanwhile, whose order another log does not know. A
        client without a claim may have skipped messages below its first one."""
        found = []
        if self.claim is not None and self.claim > highest:
            found.append((self.claim, True))
        elif highest and self.last != highest:
            found.append((highest, True))
        if self.claim is None and self.last is None and first - 1 > highest:
            found.append((first - 1, False))
        return found


class _OpenHoles(NamedTuple):
    """Holes of one publisher, by their sequences. Never changed."""

    firsts: UInt64s
    lasts: UInt64s
    opened: Int64s
    """Positions of the records that opened them."""
    proven: Bools

    def taken(self, which: Int64s | Bools | slice) -> _OpenHoles:
        return _OpenHoles(self.firsts[which], self.lasts[which], self.opened[which], self.proven[which])

    def with_range(self, hole: HoleRange) -> _OpenHoles:
        """Return these and a hole above them."""
        return _OpenHoles(
            np.append(self.firsts, np.uint64(hole.first)),
            np.append(self.lasts, np.uint64(hole.last)),
            np.append(self.opened, np.int64(hole.opened)),
            np.append(self.proven, np.bool_(hole.proven)),
        )

    def contain(self, sequences: UInt64s, *, from_link: bool) -> Bools:
        """Return which sequences are in a hole that admits them."""
        at: Int64s = self.firsts.searchsorted(sequences, side="right").astype(I8) - 1
        inside: Bools = (at >= 0) & (sequences <= self.lasts[at])
        return inside if from_link else inside & self.proven[at]

    def without(self, sequences: UInt64s) -> _OpenHoles:
        """Return the rest without rising sequences, which are in holes."""
        new = np.flatnonzero(sequences[1:] - sequences[:-1] > _ONE)
        begins = sequences[np.concatenate(([0], new + 1))]
        ends = sequences[np.concatenate((new, [len(sequences) - 1]))]
        # Each cut ends one range and starts another one. A range of neither holes nor cuts is empty.
        firsts = np.sort(np.concatenate((self.firsts, ends + _ONE)))
        lasts = np.sort(np.concatenate((self.lasts, begins - _ONE)))
        if not firsts[0]:  # no sequence follows the highest possible one
            firsts, lasts = firsts[1:], lasts[:-1]
        left = firsts <= lasts
        firsts, lasts = firsts[left], lasts[left]
        of = self.firsts.searchsorted(firsts, side="right").astype(I8) - 1
        return _OpenHoles(firsts, lasts, self.opened[of], self.proven[of])

    def ranges(self) -> list[HoleRange]:
        """Return them as stored in records."""
        columns = (column.tolist() for column in self)
        return [HoleRange(*row) for row in zip(*columns, strict=True)]


def _of_ranges(ranges: Iterable[HoleRange]) -> _OpenHoles:
    firsts, lasts, opened, proven = zip(*ranges, strict=True)
    return _OpenHoles(
        np.array(firsts, U8), np.array(lasts, U8), np.array(opened, I8), np.array(proven, np.bool_)
    )


class KnownSequences:
    """Sequences of all publishers that the log has, or does not expect.

    `highest` has the highest sequence of each publisher. It is shared with the journal, which raises it for
    messages that are appended."""

    def __init__(
        self,
        highest: dict[int, int],
        *,
        per_publisher_max: int = holes_per_publisher_max,
        total_max: int = holes_max,
    ) -> None:
        self._highest = highest
        self._per_publisher_max = per_publisher_max
        self._total_max = total_max
        self._holes: dict[int, _OpenHoles] = {}
        self._order: dict[tuple[int, int], None] = {}
        """Opening position and publisher of all holes, the oldest first."""
        self.count = 0
        """Open holes of all publishers."""
        self.changed: dict[int, None] = {}
        """Publishers whose holes changed since `take_changed`. Callers must not change it."""
        self.closed: list[ClosedHole] = []
        """Holes that limits closed since `take_closed`. Callers must not change it."""

    # -- questions --------------------------------------------------------------------------------------

    def __contains__(self, publisher: int) -> bool:
        """Return whether a publisher has open holes."""
        return publisher in self._holes

    def publishers(self) -> list[int]:
        """Return the publishers with open holes."""
        return [*self._holes]

    def holes(self, publisher: int) -> list[HoleRange]:
        """Return the open holes of a publisher, ascending."""
        own = self._holes.get(publisher)
        return [] if own is None else own.ranges()

    def all_holes(self) -> Iterator[tuple[int, int, list[HoleRange]]]:
        """Yield the publishers with open holes, each with its highest sequence and its holes."""
        for publisher, own in self._holes.items():
            yield publisher, self.highest(publisher), own.ranges()

    def holes_of(self, publisher: int) -> int:
        """Return the number of open holes of a publisher."""
        own = self._holes.get(publisher)
        return 0 if own is None else len(own.firsts)

    def highest(self, publisher: int) -> int:
        """Return the highest sequence of a publisher, 0 for none."""
        return self._highest.get(publisher, 0)

    def admitted(self, publisher: int, sequences: UInt64s, received: int) -> Bools:
        """Return which of the rising sequences of a client are stored, not dropped as duplicates. Its
        connection has sent the sequence `received` before."""
        late, above, _ = self.split(publisher, sequences, from_link=False)
        wanted = np.zeros(len(sequences), np.bool_)
        wanted[late] = True
        wanted[above:] = True
        return wanted & (sequences > np.uint64(received))

    def inside(self, publisher: int, sequences: UInt64s, *, from_link: bool) -> Bools:
        """Return which sequences are in a hole that admits them."""
        own = self._holes.get(publisher)
        if own is None:
            return np.zeros(len(sequences), np.bool_)
        return own.contain(sequences, from_link=from_link)

    def has_before(self, position: int) -> bool:
        """Return whether the record of an open hole is before a position."""
        return bool(self._order) and next(iter(self._order))[0] < position

    def split(self, publisher: int, sequences: UInt64s, *, from_link: bool) -> SequenceSplit:
        """Split rising sequences of a publisher into those to append and duplicates."""
        highest = self._highest.get(publisher, 0)
        above = int(sequences.searchsorted(np.uint64(highest), side="right"))
        late = np.empty(0, I8)
        own = self._holes.get(publisher)
        if own is not None and above:
            late = own.contain(sequences[:above], from_link=from_link).nonzero()[0]
        return SequenceSplit(late, above, above - len(late))

    def lacks_claimed(self, publisher: int, claim: int) -> bool:
        """Return whether messages up to the claim of a publisher exist in other logs only.

        Unproven holes do not count: the messages of another store may have been there."""
        if claim > self._highest.get(publisher, 0):
            return True
        own = self._holes.get(publisher)
        return own is not None and bool((own.proven & (own.firsts <= np.uint64(claim))).any())

    def lacks(self, publisher: int, firsts: UInt64s, lasts: UInt64s) -> Bools:
        """Return which ranges of sequences have one that a link must still bring: above the highest one, or
        in an open hole."""
        lacking: Bools = lasts > np.uint64(self._highest.get(publisher, 0))
        own = self._holes.get(publisher)
        if own is not None:
            at = own.lasts.searchsorted(firsts)
            below = (at < len(own.lasts)).nonzero()[0]
            lacking[below] |= own.firsts[at[below]] <= lasts[below]
        return lacking

    # -- changes ----------------------------------------------------------------------------------------

    def open(self, publisher: int, after: int, position: int, *, proven: bool = True) -> None:
        """Open a hole from the highest sequence up to `after`, if that is above it.

        `position` is the position of the record that opens it."""
        highest = self._highest.get(publisher, 0)
        if after <= highest:
            return
        hole = HoleRange(highest + 1, after, position, proven)
        own = self._holes.get(publisher)
        self._holes[publisher] = _of_ranges([hole]) if own is None else own.with_range(hole)
        self._order[position, publisher] = None
        self._highest[publisher] = after
        self.count += 1
        self.changed[publisher] = None
        self._limit(publisher)

    def fill(self, publisher: int, sequences: UInt64s) -> None:
        """Remove rising sequences from the holes of a publisher. All of them are in holes."""
        own = self._holes[publisher]
        self._replace(publisher, own, own.without(sequences))
        self._limit(publisher)

    def close_before(self, position: int, count_max: int) -> int:
        """Close about `count_max` holes, the oldest first, whose records are before a position. Return their
        number."""
        count = 0
        while count < count_max and self.has_before(position):
            opened, publisher = next(iter(self._order))
            own = self._holes[publisher]
            left = own.opened != opened
            count += len(left) - int(left.sum())
            self._replace(publisher, own, own.taken(left))
        return count

    def recover(self, latest: Mapping[str, bytes], damage: list[JournalCorrupt]) -> bool:
        """Restore the holes from the newest control records, by `latest_of`. Return whether the log had any.

        The newest `holes` record of a publisher has all of its holes. An `after` record above the highest
        sequence opens a hole, if corruption left it without one. Unreadable records are added to
        `damage`."""
        found = False
        newest: list[AfterRecord] = []
        for subject, body in latest.items():
            if not subject.startswith(("holes ", "after ")):
                continue
            try:
                record = decode_record(body)
            except JournalCorrupt as error:
                damage.append(JournalCorrupt(f"Cannot restore {subject!r}: {error}"))
                continue
            found = True
            if isinstance(record, HolesRecord):
                self.restore(record.publisher, record.highest, record.ranges)
            elif isinstance(record, AfterRecord):
                newest.append(record)
        self._settle()
        for opening in newest:
            self.open(opening.publisher, opening.after, 0, proven=not opening.unproven)
        return found

    def restore(self, publisher: int, highest: int, ranges: list[HoleRange]) -> None:
        """Add the recovered holes of a publisher without any. `settle` must follow."""
        if highest > self._highest.get(publisher, 0):
            self._highest[publisher] = highest
        if ranges:
            self._holes[publisher] = _of_ranges(ranges)
            self.count += len(ranges)
            self._order.update(((hole.opened, publisher), None) for hole in ranges)

    def _settle(self) -> None:
        """Order the recovered holes of all publishers by age."""
        self._order = dict.fromkeys(sorted(self._order))

    # -- outputs ----------------------------------------------------------------------------------------

    def take_changed(self) -> list[int]:
        """Remove and return the publishers whose holes changed."""
        changed = [*self.changed]
        self.changed.clear()
        return changed

    def take_closed(self) -> list[ClosedHole]:
        """Remove and return the holes that limits closed."""
        closed, self.closed = self.closed, []
        return closed

    # -- limits -----------------------------------------------------------------------------------------

    def _replace(self, publisher: int, before: _OpenHoles, after: _OpenHoles) -> None:
        self.count += len(after.firsts) - len(before.firsts)
        for position in np.setdiff1d(before.opened, after.opened).tolist():
            del self._order[position, publisher]
        if len(after.firsts):
            self._holes[publisher] = after
        else:
            del self._holes[publisher]
        self.changed[publisher] = None

    def _limit(self, publisher: int) -> None:
        """Close the oldest holes above the limits."""
        own = self._holes.get(publisher)
        if own is not None and len(own.firsts) > self._per_publisher_max:
            self._close(publisher, len(own.firsts) - self._per_publisher_max)
        while self.count > self._total_max:
            self._close(next(iter(self._order))[1], 1)

    def _close(self, publisher: int, count: int) -> None:
        """Close the oldest holes of a publisher, of equal ones the lowest first."""
        own = self._holes[publisher]
        oldest = np.argsort(own.opened, kind="stable")[:count]
        self.closed += [ClosedHole(publisher, hole.first, hole.last) for hole in own.taken(oldest).ranges()]
        left = np.ones(len(own.firsts), np.bool_)
        left[oldest] = False
        self._replace(publisher, own, own.taken(left))
