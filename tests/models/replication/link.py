"""Link: takes rows of the log of a source into the log of a destination."""

from __future__ import annotations

from tests.models.replication.instance import Instance
from tests.models.replication.records import After, Linked, Place, Row, Stored


class Link:
    """The stream from a source to a destination, in the order of the log of the source."""

    def __init__(self, source: Instance, destination: Instance, sync: bool) -> None:
        self.source = source
        self.destination = destination
        self.rules = source.rules
        self.sync = sync
        self.cut = False

    def move(self, rows: int) -> None:
        """Take up to `rows` rows, if the link is connected."""
        source, destination = self.source, self.destination
        if self.cut or not (source.up and destination.up):
            return
        place = destination.places.get(source.log_id, Place(0, 0))
        position = source.position_of(place)
        for row in source.log.rows[position : position + rows]:
            position += 1
            self._take(row)
        reached = source.log.place(position)
        if reached != place and position:
            destination.add(Linked(source.log_id, reached))

    def _take(self, row: Row) -> None:
        destination = self.destination
        if isinstance(row, After):
            above = row.after > destination.sequences.highest[row.publisher]
            if self.rules.filter == "holes" and self.rules.pass_on_after and above:
                destination.add(row)
        elif (
            isinstance(row, Stored)
            and self._sends(row)
            and not destination.knows(row.publisher, row.sequence)
        ):
            destination.add(row._replace(path=(*row.path, destination.log_id)))

    def _sends(self, row: Stored) -> bool:
        if self.destination.log_id in row.path and not self.rules.names:
            return False
        return self.rules.pass_through or row.path[0] == self.source.log_id

    def has(self, end: int) -> bool:
        """Return whether the destination has all rows below `end`."""
        place = self.destination.places.get(self.source.log_id)
        return place is not None and self.source.position_of(place) >= end
