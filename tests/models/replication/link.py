"""Link: takes rows of the log of a source into the log of a destination."""

from __future__ import annotations

from tests.helpers.sow_model import Deleted
from tests.models.replication.instance import Instance
from tests.models.replication.records import TOPICS, After, Copy, Covered, Linked, Row, Stored, topic_of
from tests.models.replication.state import Content


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
        self.broken = False
        """The source has removed rows that the destination lacks."""
        self.was_broken = False

    def move(self, rows: int) -> None:
        """Take up to `rows` rows, if the link is connected."""
        source, destination = self.source, self.destination
        if not self.connected:
            return
        known = source.position_of(destination.fold.places)
        before = position = source.log.first if known is None else known
        if self.rules.removed_rows == "refused":
            self.broken = self.broken or position < source.log.first or (known is None and self._forgot())
            self.was_broken = self.was_broken or self.broken
        if self.broken:
            return
        if known is None and source.log.first:
            self._begin()
        before = position = max(position, source.log.first)
        end = source.log.synced if self.rules.send == "synced" else source.log.end
        sent = source.log.between(position, min(position + rows, end))
        position += len(sent)
        if position >= source.log.content_end:
            destination.waiting.discard(source.name)
        if position >= end and all(isinstance(row, Linked) for row in sent):
            return  # a place for these rows would be answered by a place, without end
        if self.rules.place == "before":
            self._note(before, position)
            destination.commit()
        for row in sent:
            self._take(row)
        if self.rules.place == "with":
            self._note(before, position)
        destination.commit()

    @property
    def connected(self) -> bool:
        return not self.cut and self.source.up and self.destination.up

    def _forgot(self) -> bool:
        """Return whether the destination reported rows of the source and has none: an old copy."""
        fold, destination = self.source.fold, self.destination.log_id
        report = fold.covered.get(destination)
        reported = destination in fold.reporters
        if self.rules.old_copies == "newest report":
            reported = report is not None and self.source.log_id in dict(report.places)
        unknown = self.source.position_of(self.destination.fold.reached) is None
        return self.source.log.first > 0 and reported and unknown

    def _begin(self) -> None:
        """Open holes for the messages that the source had before its first row."""
        self.destination.whole = False
        self.destination.behind += 1
        summary = self.source.summary
        if self.rules.first_rows == "holes":
            for publisher, highest in summary.sequences.highest.items():
                self._take(After(publisher, highest))
        elif self.rules.first_rows == "after":
            for publisher, after in summary.after.items():
                self._take(After(publisher, after))
        if self.rules.first_records == "candidates":
            for content in summary.state.contents():
                self._take(Stored(content.publisher, content.sequence, (self.source.path_id,), content))

    def pinned(self) -> int:
        """Return the position from which the destination needs the rows of the source."""
        if self.rules.pins == "none" or (self.rules.pins == "connected" and not self.connected):
            return self.source.log.synced
        position = self.source.position_of(self.destination.durable)
        return self.source.log.first if position is None else position

    def _note(self, before: int, position: int) -> None:
        source, destination = self.source, self.destination
        reached = source.log.place(position)
        if position > before or (position and reached != destination.fold.places.newest(source.log_id)):
            destination.add(Linked(source.log_id, reached))

    def _take(self, row: Row) -> None:
        destination = self.destination
        if isinstance(row, After):
            above = row.after > destination.fold.sequences.highest[row.publisher]
            if self.rules.filter == "holes" and self.rules.pass_on_after and above:
                destination.add(row)
        elif isinstance(row, Covered):
            if self.rules.reports and self._is_newer(row):
                destination.add(row)
        elif isinstance(row, Copy):
            self._take_copy(row.content)
        elif isinstance(row, Stored) and self._sends(row):
            if not destination.knows(row.publisher, row.sequence):
                destination.add(row._replace(path=(*row.path, destination.path_id)))
            elif destination.path_id not in row.path or self.rules.named_stamps:
                self._take_copy(row.content)

    def _take_copy(self, content: Content) -> None:
        """Store a copy of a known message if it counts."""
        state = self.destination.fold.state
        if self.rules.copies == "none" or not state.counts(content, unnamed=self.rules.copies == "unnamed"):
            return
        if self.rules.copies != "first" or not (isinstance(content, Deleted) and state.names_more(content)):
            self.destination.add(Copy(content))

    def _is_newer(self, row: Covered) -> bool:
        known = self.destination.fold.covered.get(row.log)
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
        places = self.destination.durable if synced else self.destination.fold.places
        return (self.source.position_of(places) or 0) >= end
