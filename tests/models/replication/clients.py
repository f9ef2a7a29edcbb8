"""Clients: publishers with a publish store, and a subscriber with a bookmark store."""

from __future__ import annotations

from collections import Counter

from tests.models.replication.holes import SequenceFilter
from tests.models.replication.instance import Connection, Instance
from tests.models.replication.link import Link
from tests.models.replication.log import Places
from tests.models.replication.records import After, Bookmark, Covered, Linked, Stored
from tests.models.replication.rules import Rules


class Publisher:
    """A publisher: unacknowledged messages, and the instance that it is connected to."""

    def __init__(self, number: int, messages: int, claims: bool = True) -> None:
        self.number = number
        self.claims = claims
        """Clients of older versions make no claim."""
        self.messages = messages
        self.next = 1
        self.held: list[int] = []
        self.acknowledged: int | None = None
        self.at: Instance | None = None
        self.connection = Connection(None)
        self.sending: list[int] = []

    @property
    def finished(self) -> bool:
        return self.next > self.messages and not self.held

    def publish(self) -> None:
        """Publish the next message into the store."""
        if self.next <= self.messages:
            self.held.append(self.next)
            if self.at is not None:
                self.sending.append(self.next)
            self.next += 1

    def connect(self, instance: Instance) -> None:
        """Connect to an instance, and send all messages of the store again."""
        self.at = instance
        self.connection = Connection(self.acknowledged if self.claims else None)
        self.sending = list(self.held)

    def lose_store(self) -> None:
        """Continue with an empty publish store, which starts above all sequences."""
        self.held.clear()
        self.acknowledged = None
        self.next += 3
        self.messages += 3
        self.disconnect()

    def disconnect(self) -> None:
        self.at = None
        self.sending = []

    def send(self, count: int) -> None:
        """Let up to `count` messages arrive at the instance."""
        if self.at is None or not self.at.up:
            return
        for sequence in self.sending[:count]:
            self.at.accept(self.number, sequence, self.connection)
        self.at.commit()
        del self.sending[:count]

    def acknowledge(self, links: list[Link]) -> list[Bookmark]:
        """Release all messages that are on the instance and on its synchronous destinations."""
        at, connection = self.at, self.connection
        if at is None or not at.up or not connection.taken:
            return []
        if at.rules.acknowledge != "accepted" and at.log.synced < connection.end:
            return []
        if any(link.sync and link.source is at and not link.has(connection.end) for link in links):
            return []
        released = [(self.number, sequence) for sequence in self.held if sequence <= connection.taken]
        self.held = [sequence for sequence in self.held if sequence > connection.taken]
        self.acknowledged = max(self.acknowledged or 0, connection.taken)
        return released


class OldConnection:
    """Bytes of an older connection of a publisher, which arrive later."""

    def __init__(self, publisher: Publisher) -> None:
        assert publisher.at is not None
        self.at = publisher.at
        self.number = publisher.number
        self.connection = publisher.connection
        self.sending = publisher.sending

    def send(self) -> None:
        """Let one message arrive."""
        if self.at.up and self.sending:
            self.at.accept(self.number, self.sending.pop(0), self.connection)
            self.at.commit()


class Subscriber:
    """A subscriber to all messages: delivered messages, bookmarks and places."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.at: Instance | None = None
        self.position = 0
        self.delivered: Counter[Bookmark] = Counter()
        self.sequences = SequenceFilter()
        self.places = Places()
        self.whole_logs = 0
        """Number of subscriptions to a whole log, because no place of it was known."""

        self.behind = 0
        """The number of links behind removed rows that the instance had when the subscriber connected."""
        self.expired = False
        """An instance reported that it lacks removed rows which the subscriber may need."""

    def connect(self, instance: Instance) -> None:
        """Resume the subscription at an instance."""
        self.at, self.behind = instance, instance.behind
        bookmarks = self.sequences.highest.items()
        known = [instance.positions[b] + 1 for b in bookmarks if b in instance.positions]
        known += [instance.positions[b] for b in self._missing() if b in instance.positions]
        place = instance.position_of(self.places) if self.rules.resume == "places" else None
        if place is not None:
            known.append(place)
        elif self.rules.resume == "places" and self.rules.unknown_log == "whole":
            self.whole_logs += bool(bookmarks)
            known.append(instance.log.first)
            self.expired = self.expired or not instance.whole
        elif not known and bookmarks:
            known.append(instance.log.end)
        position = min(known, default=0)
        self.expired = self.expired or position < instance.log.first
        self.position = max(position, instance.log.first)
        if position <= instance.log.first:
            self._open_holes(instance)

    def _open_holes(self, instance: Instance) -> None:
        """Open the holes that an instance has at its first row: their messages are in later rows."""
        if self.rules.first_holes == "sent" and self.rules.filter == "holes":
            for publisher, holes in instance.summary.sequences.holes.items():
                for hole in holes:
                    self.sequences.open(publisher, hole.high)

    def _missing(self) -> list[Bookmark]:
        """Return the messages that the subscriber needs first: those of holes, or at the low end of holes."""
        holes = [(p, hole) for p, of_p in self.sequences.holes.items() for hole in of_p]
        if self.rules.missing == "searched":
            return [(p, s) for p, hole in holes for s in range(hole.low + 1, hole.high + 1)]
        return [(p, hole.low) for p, hole in holes] if self.rules.missing == "held back" else []

    def read(self, rows: int) -> None:
        """Take up to `rows` rows of the log of the instance."""
        if self.at is None or not self.at.up:
            return
        log = self.at.log
        if self.position < log.first:
            self.position, self.expired = log.first, True
            self._open_holes(self.at)
        if self.rules.open_subscriptions == "notified":
            self.expired = self.expired or self.at.behind > self.behind
        for row in log.between(self.position, min(self.position + rows, log.synced)):
            self.position += 1
            if isinstance(row, Linked):
                self.places.note(row.source, row.place)
            elif isinstance(row, Covered):
                for log_id, place in (*row.places, (row.log, row.place)):
                    self.places.note(log_id, place)
            elif isinstance(row, After):
                if self.rules.resume == "places" and (row.proven or self.rules.reported_holes == "all"):
                    self.sequences.open(row.publisher, row.after)
            elif isinstance(row, Stored) and not self.sequences.knows(*row.bookmark):
                self.sequences.enter(*row.bookmark)
                self.delivered[row.bookmark] += 1
        self.places.note(self.at.log_id, self.at.log.place(self.position))
