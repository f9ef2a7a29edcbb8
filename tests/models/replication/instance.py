"""Instance: a log, and the fold of its rows."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from copy import deepcopy

from tests.helpers.sow_model import Deleted, Published
from tests.models.replication.fold import Fold
from tests.models.replication.log import Log, Places
from tests.models.replication.records import (
    TOPICS,
    After,
    Bookmark,
    Copy,
    Covered,
    Holes,
    Linked,
    Row,
    Started,
    Stored,
    topic_of,
)
from tests.models.replication.rules import Rules
from tests.models.replication.state import Content, is_delete, key_of, log_name


class Connection:
    """Connection of a publisher to an instance."""

    def __init__(self, claim: int | None) -> None:
        self.claim = claim
        """Highest sequence that was acknowledged to the publisher before it connected, if known."""
        self.last: int | None = None
        """The last sequence that the instance stored."""
        self.taken = 0
        """The last sequence that arrived at the instance."""
        self.end = 0
        """The end of the log after it."""


class Instance:
    """One server of the model."""

    def __init__(self, name: int, rules: Rules, ids: Iterator[int]) -> None:
        self.name = name
        self.rules = rules
        self.ids = ids
        self.members: frozenset[int] = frozenset()
        """The logs of the group."""
        self.routed = TOPICS
        """Topics that links bring."""
        self.waiting: set[int] = set()
        """Sources that must send all their rows before this instance takes clients."""
        self.clock = 0
        self.skew = 0
        self.up = True
        self.replaced = False
        """It started with an empty data directory."""
        self.closed = False
        """It takes no clients, and waits to be replaced."""
        self.log = Log(next(ids))
        self.summary = Fold(self.log_id)
        """The fold of removed rows."""
        self.whole = True
        """All rows since the first start are in the log."""
        self.behind = 0
        """The number of links that started behind removed rows of their source."""
        self.removed: set[Bookmark] = set()
        """Messages that retention removed."""
        self.repeated: set[Bookmark] = set()
        """Messages that are in the log more than once, or have a copy that is."""
        self._start()

    @property
    def log_id(self) -> int:
        return self.log.log_id

    @property
    def path_id(self) -> int:
        """Return the element of a path for this instance."""
        return self.log_id if self.rules.paths == "log ids" else -1 - self.name

    def _start(self) -> None:
        self._fold()
        self.add(Started(next(self.ids)))
        self.commit()
        self.sync()

    def _fold(self) -> None:
        self.fold = deepcopy(self.summary)
        self.durable = Places()
        """Places of the links on disk."""
        for log, place in self.summary.places.each():
            self.durable.note(log, place)
        self._unsynced: list[Linked] = []
        self.positions: dict[Bookmark, int] = {}
        self._copies: set[tuple[int, int, int, bytes]] = set()
        for position, row in enumerate(self.log.rows, self.log.first):
            self._enter(row, position)
        self.fold.sequences.changed.clear()

    def _enter(self, row: Row, position: int) -> None:
        self.fold.enter(row, position)
        if isinstance(row, Linked):
            self._unsynced.append(row)
        elif isinstance(row, Copy):
            self._note_copy(row.content)
        elif isinstance(row, Stored):
            self._note_copy(row.content)
            if row.bookmark in self.positions or row.bookmark in self.removed:
                self.repeated.add(row.bookmark)
            self.positions[row.bookmark] = position

    def _note_copy(self, content: Content) -> None:
        copy = content.publisher, content.sequence, content.stamp, content.log
        if copy in self._copies:
            self.repeated.add(copy[:2])
        self._copies.add(copy)

    def add(self, row: Row) -> None:
        """Append a row."""
        self._enter(row, self.log.append(row))

    def commit(self) -> None:
        """End a commit. Its last rows are the open holes of the publishers whose holes changed."""
        sequences = self.fold.sequences
        for publisher in sorted(sequences.changed):
            holes = tuple(sequences.holes[publisher])
            if self.rules.holes_rows == "changes" or len(holes) > 1:
                self.add(Holes(publisher, holes))
        sequences.changed.clear()
        self.log.commit()

    def sync(self) -> None:
        """Write all commits to disk."""
        self.log.sync()
        for row in self._unsynced:
            self.durable.note(row.source, row.place)
        self._unsynced.clear()

    def holds(self, bookmark: Bookmark) -> bool:
        """Return whether a message is on disk."""
        position = self.positions.get(bookmark)
        return bookmark in self.removed or (position is not None and position < self.log.synced)

    def knows(self, publisher: int, sequence: int, client: bool = False) -> bool:
        """Return whether a message of a link, or of a client, is a duplicate."""
        if self.rules.filter == "highest":
            return sequence <= self.fold.sequences.highest[publisher]
        return self.fold.sequences.knows(publisher, sequence, proven=client)

    def accept(self, publisher: int, sequence: int, connection: Connection) -> None:
        """Take a message of a client."""
        if self.rules.filter == "holes" and sequence > self.fold.sequences.highest[publisher]:
            self._open_holes(publisher, sequence, connection)
        if not self.knows(publisher, sequence, client=True) or self._is_unrouted(publisher, sequence):
            self.add(Stored(publisher, sequence, (self.path_id,), self._content(publisher, sequence)))
            connection.last = sequence
            connection.end = self.log.end
        connection.taken = max(connection.taken, sequence)
        if self.rules.duplicates_wait:
            connection.end = self.log.end

    def _is_unrouted(self, publisher: int, sequence: int) -> bool:
        """Return whether no link brings the topic of a message, and the log does not have the message."""
        if self.rules.unrouted == "filtered" or topic_of(sequence) in self.routed:
            return False
        return (publisher, sequence) not in self.positions and (publisher, sequence) not in self.removed

    def _content(self, publisher: int, sequence: int) -> Content:
        """Return the content of a message that a client publishes here, with its order stamp."""
        state, log, key = self.fold.state, log_name(self.log_id), key_of(sequence)
        stamp = max(self.clock + self.skew, state.stamp + 1)
        if is_delete(publisher, sequence):
            return Deleted(publisher, sequence, stamp, log, {key: state.highest(key)})
        return Published(key, publisher, sequence, stamp, log, {})

    def expire(self) -> None:
        """Expire all records that are due by the clock of this instance."""
        for row in self.fold.state.due(self.clock + self.skew):
            self.add(row)
        self.commit()

    def forget(self, members: Collection[int], sources: Container[int]) -> None:
        """Forget candidates that can not change a record of any member."""
        if self.rules.forget == "at once":
            self.fold.state.forget(self.log.end, self.fold.state.stamp)
        elif self.rules.forget == "stable":
            self.fold.state.forget(self.stable(members, sources), self._stable_stamp(members, sources))

    def _stable_stamp(self, members: Iterable[int], sources: Container[int]) -> int:
        """Return an order stamp: all messages that arrive for the first time have a higher one."""
        reports = [self._report(member, sources) for member in members if member != self.log_id]
        return min((report.stamp if report else 0 for report in reports), default=0)

    def _report(self, member: int, sources: Container[int]) -> Covered | None:
        """Return the newest report of a member, if all rows before it are here."""
        report = self.fold.covered.get(member)
        if report and self.rules.reports_count == "direct" and report.members != self.members:
            return None  # a member left, and its last messages may still arrive
        direct = self.rules.reports_count == "direct" and member in sources
        return None if report and direct and not self.fold.places.passed(member, report.place) else report

    def _open_holes(self, publisher: int, sequence: int, connection: Connection) -> None:
        """Write the `After` rows that precede a message above the highest sequence."""
        highest = self.fold.sequences.highest[publisher]
        first = connection.last is None and connection.claim is None and self.rules.unproven != "ignored"
        if first and self.rules.unproven == "only":
            self.add(After(publisher, sequence - 1, proven=False))
            return
        if connection.claim is not None and self.rules.claim and connection.claim > highest:
            self.add(After(publisher, connection.claim))
        elif highest and connection.last != highest and self._continues(connection):
            self.add(After(publisher, highest))
        if first and sequence - 1 > highest:
            self.add(After(publisher, sequence - 1, proven=False))

    def _continues(self, connection: Connection) -> bool:
        continuity = self.rules.continuity
        return continuity == "runs" or (continuity == "logon" and connection.last is None)

    def restart(self, end: int) -> None:
        """Start with the commits up to `end`: after a loss of power, or with an old copy of the log."""
        self.log.cut(end)
        self._start()

    def replace(self) -> None:
        """Start with an empty data directory."""
        self.log = Log(next(self.ids))
        self.summary = Fold(self.log_id)
        self.whole = True
        self.behind = 0
        self.replaced = True
        self.removed.clear()
        self._start()

    def report(self) -> None:
        """Report which rows of other logs this log has."""
        place = self.log.place(self.log.end)
        state = self.fold.state
        reached = self.fold.reached.each()
        self.add(Covered(next(self.ids), self.log_id, place, reached, self.members, state.stamp))
        self.commit()

    def close_holes(self, members: Iterable[int], sources: Container[int]) -> int:
        """Close the holes that no member can fill, and return their number."""
        closed = self.fold.sequences.close(self.stable(members, sources))
        self.commit()
        return closed

    def stable(self, members: Iterable[int], sources: Container[int]) -> int:
        """Return the position below which all members have all rows, and this log all rows of them before.

        The report of a direct source counts when its link has passed it. Over another route it may arrive
        before rows that only this source still has.
        """
        positions = [self.log.synced]
        for member in members:
            if member != self.log_id:
                report = self._report(member, sources)
                place = dict(report.places).get(self.log_id) if report else None
                positions.append((self.log.resume(place) or 0) if place else 0)
        return min(positions)

    def remove(self, first: int) -> set[Bookmark]:
        """Remove rows before `first`, and return their messages."""
        removed = set()
        self.summary.reporters |= self.fold.reporters
        for position, row in enumerate(self.log.remove(first), self.log.first):
            self.summary.summarise(row, position)
            if isinstance(row, Stored):
                removed.add(row.bookmark)
                del self.positions[row.bookmark]
        self.removed |= removed
        self.whole = self.whole and not removed
        return removed

    def position_of(self, places: Places) -> int | None:
        """Return the position at which the reader with these places continues."""
        return places.resume(self.log, self.rules.start_ids)
