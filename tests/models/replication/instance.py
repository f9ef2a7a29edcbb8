"""Instance: a log, and the fold of its rows."""

from __future__ import annotations

from collections.abc import Iterator

from tests.models.replication.holes import SequenceFilter
from tests.models.replication.log import Log
from tests.models.replication.records import After, Bookmark, Linked, Place, Row, Started, Stored
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
        self._fold()
        self.add(Started(next(ids)))

    @property
    def log_id(self) -> int:
        return self.log.log_id

    def _fold(self) -> None:
        self.sequences = SequenceFilter()
        self.places: dict[int, Place] = {}
        self.positions: dict[Bookmark, int] = {}
        for position, row in enumerate(self.log.rows):
            self._enter(row, position)

    def _enter(self, row: Row, position: int) -> None:
        if isinstance(row, Linked):
            self.places[row.source] = row.place
        elif isinstance(row, After):
            self.sequences.open(row.publisher, row.after)
        elif isinstance(row, Stored):
            if row.bookmark in self.positions:
                self.repeated.add(row.bookmark)
            self.sequences.enter(row.publisher, row.sequence)
            self.positions[row.bookmark] = position

    def add(self, row: Row) -> None:
        """Append a row."""
        self._enter(row, self.log.append(row))

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
            self.add(Stored(publisher, sequence, (self.log_id,)))
            connection.last = sequence
        connection.taken = max(connection.taken, sequence)
        connection.end = self.log.end

    def _continues(self, connection: Connection) -> bool:
        continuity = self.rules.continuity
        return continuity == "runs" or (continuity == "logon" and connection.last is None)

    def restore(self, end: int) -> None:
        """Start with an old copy of the log."""
        self.log.cut(max(1, end))
        self._fold()
        self.add(Started(next(self.ids)))

    def position_of(self, place: Place) -> int:
        """Return the position at which the reader of a place continues."""
        if not self.rules.start_ids:
            return place.position
        return self.log.resume(place) or 0
