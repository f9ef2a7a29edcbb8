"""Instance: a log, and the fold of its rows."""

from __future__ import annotations

from collections.abc import Iterator

from tests.models.replication.holes import SequenceFilter
from tests.models.replication.log import Log, Places
from tests.models.replication.records import After, Bookmark, Covered, Linked, Row, Started, Stored
from tests.models.replication.rules import Rules


class Connection:
    """Connection of a publisher to an instance."""

    def __init__(self, claim: int) -> None:
        self.claim = claim
        """Highest sequence that was acknowledged to the publisher before it connected."""
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
        self.up = True
        self.log = Log(next(ids))
        self.repeated: set[Bookmark] = set()
        """Messages that are in the log more than once."""
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
        self.sequences = SequenceFilter()
        self.places = Places()
        """Places of the links to this instance."""
        self.reached = Places()
        """Places of all logs."""
        self.covered: dict[int, Covered] = {}
        """The newest report of each other log."""
        self.durable = Places()
        """Places of the links on disk."""
        self._unsynced: list[Linked] = []
        self.positions: dict[Bookmark, int] = {}
        for position, row in enumerate(self.log.rows):
            self._enter(row, position)

    def _enter(self, row: Row, position: int) -> None:
        if isinstance(row, Linked):
            self.places.note(row.source, row.place)
            self._unsynced.append(row)
            self.reached.note(row.source, row.place)
        elif isinstance(row, Covered):
            self._cover(row)
        elif isinstance(row, After):
            self.sequences.open(row.publisher, row.after)
        elif isinstance(row, Stored):
            if row.bookmark in self.positions:
                self.repeated.add(row.bookmark)
            self.sequences.enter(row.publisher, row.sequence)
            self.positions[row.bookmark] = position

    def _cover(self, row: Covered) -> None:
        if row.log == self.log_id:
            return
        self.covered[row.log] = row
        for log, place in (*row.places, (row.log, row.place)):
            if log != self.log_id:
                self.reached.note(log, place)

    def add(self, row: Row) -> None:
        """Append a row."""
        self._enter(row, self.log.append(row))

    def commit(self) -> None:
        """End a commit."""
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
        return position is not None and position < self.log.synced

    def knows(self, publisher: int, sequence: int) -> bool:
        """Return whether a message is a duplicate."""
        if self.rules.filter == "highest":
            return sequence <= self.sequences.highest[publisher]
        return self.sequences.knows(publisher, sequence)

    def accept(self, publisher: int, sequence: int, connection: Connection) -> None:
        """Take a message of a client."""
        highest = self.sequences.highest[publisher]
        if self.rules.filter == "holes" and sequence > highest:
            if self.rules.claim and connection.claim > highest:
                self.add(After(publisher, connection.claim))
            elif highest and connection.last != highest and self._continues(connection):
                self.add(After(publisher, highest))
        if not self.knows(publisher, sequence):
            self.add(Stored(publisher, sequence, (self.path_id,)))
            connection.last = sequence
            connection.end = self.log.end
        connection.taken = max(connection.taken, sequence)
        if self.rules.duplicates_wait:
            connection.end = self.log.end

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
        self._start()

    def report(self) -> None:
        """Report which rows of other logs this log has."""
        self.add(Covered(next(self.ids), self.log_id, self.log.place(self.log.end), self.reached.each()))
        self.commit()

    def position_of(self, places: Places) -> int | None:
        """Return the position at which the reader with these places continues."""
        return places.resume(self.log, self.rules.start_ids)
