"""Link: takes rows of the log of a source into the log of a destination."""

from __future__ import annotations

from typing import Final

from tests.models.replication.instance import Instance
from tests.models.replication.records import After, Covered, Linked, Row, Stored

TOPICS: Final = frozenset({0, 1})
"""Topics of the model: even and odd sequences."""


def topic_of(sequence: int) -> int:
    """Return the topic of a message."""
    return sequence % 2


class Link:
    """The stream from a source to a destination, in the order of the log of the source."""

    def __init__(
        self, source: Instance, destination: Instance, sync: bool, topics: frozenset[int] = TOPICS
    ) -> None:
        self.source = source
        self.destination = destination
        self.rules = source.rules
        self.sync = sync
        self.topics = topics
        self.cut = False

    def move(self, rows: int) -> None:
        """Take up to `rows` rows, if the link is connected."""
        source, destination = self.source, self.destination
        if self.cut or not (source.up and destination.up):
            return
        before = position = source.position_of(destination.places) or 0
        end = source.log.synced if self.rules.send == "synced" else source.log.end
        sent = source.log.rows[position : min(position + rows, end)]
        position += len(sent)
        if self.rules.place == "before":
            self._note(before, position)
            destination.commit()
        for row in sent:
            self._take(row)
        if self.rules.place == "with":
            self._note(before, position)
        destination.commit()

    def _note(self, before: int, position: int) -> None:
        source, destination = self.source, self.destination
        reached = source.log.place(position)
        if position > before or (position and reached != destination.places.newest(source.log_id)):
            destination.add(Linked(source.log_id, reached))

    def _take(self, row: Row) -> None:
        destination = self.destination
        if isinstance(row, After):
            above = row.after > destination.sequences.highest[row.publisher]
            if self.rules.filter == "holes" and self.rules.pass_on_after and above:
                destination.add(row)
        elif isinstance(row, Covered):
            if self.rules.reports and self._is_newer(row):
                destination.add(row)
        elif (
            isinstance(row, Stored)
            and self._sends(row)
            and not destination.knows(row.publisher, row.sequence)
        ):
            destination.add(row._replace(path=(*row.path, destination.path_id)))

    def _is_newer(self, row: Covered) -> bool:
        known = self.destination.covered.get(row.log)
        return row.log != self.destination.log_id and (known is None or row.number > known.number)

    def _sends(self, row: Stored) -> bool:
        if topic_of(row.sequence) not in self.topics:
            return False
        if self.destination.path_id in row.path and not self.rules.names:
            return False
        return self.rules.pass_through or row.path[0] == self.source.path_id

    def has(self, end: int) -> bool:
        """Return whether the destination has all rows below `end` on disk."""
        synced = self.rules.acknowledge != "received"
        places = self.destination.durable if synced else self.destination.places
        return (self.source.position_of(places) or 0) >= end
