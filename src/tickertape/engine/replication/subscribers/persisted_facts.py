"""Persisted facts: places and open holes of the persisted log, which subscriptions get.

Invariant: holes that only accepted rows change stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import JournalCorrupt
from tickertape.base.names import LINK_TOPIC
from tickertape.batch import KIND_CONTROL, MessageBatch
from tickertape.engine.replication.log_facts import LogFacts
from tickertape.engine.replication.subscribers.persisted_holes import PersistedHoles
from tickertape.engine.replication.subscribers.persisted_places import LinkState, PersistedPlaces
from tickertape.engine.runtime.holes import KnownSequences
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC
from tickertape.engine.subscriptions.log_places import PlaceRowsSearch
from tickertape.journal.format.link_records import decode_link
from tickertape.journal.format.replication_records import CoveredRecord, HolesRecord, decode_record
from tickertape.journal.journal import Journal
from tickertape.journal.reading.log_view import LogPart

_TOPICS: Final = frozenset((CONTROL_TOPIC, LINK_TOPIC))


class PersistedFacts:
    """Places and holes of the persisted log of one server (`NoticeFacts`)."""

    def __init__(self, journal: Journal, facts: LogFacts, known: KnownSequences, links: LinkState) -> None:
        """All rows of `facts` and `known` are persisted."""
        self._links = links
        self._places = PersistedPlaces(journal, facts, links)
        self._holes = PersistedHoles(known, journal.persisted_highest)

    def persisted(self, part: LogPart) -> None:
        """Take a persisted commit."""
        batch = part.batch
        if batch.kinds is None or _TOPICS.isdisjoint(batch.topics):
            return
        for row in (batch.kinds == KIND_CONTROL).nonzero()[0].tolist():
            try:
                self._take(batch, row)
            except JournalCorrupt:
                continue  # of a later version

    def _take(self, batch: MessageBatch, row: int) -> None:
        topic = batch.topic(row)
        if topic == LINK_TOPIC:
            self._places.note(decode_link(bytes(batch.body(row))).place)
        elif topic == CONTROL_TOPIC:
            record = decode_record(bytes(batch.body(row)))
            if isinstance(record, CoveredRecord) and record.log is not None:
                self._places.note_report(record.log, record)
            elif isinstance(record, HolesRecord) and record.log is None:
                self._holes.note(record.publisher, record.highest, record.ranges)

    def position(self, place: Bookmark) -> int | None:
        """Implement `LogPlaces.position`."""
        return self._places.position(place)

    def at_end(self, position: int) -> bytes:
        """Implement `LogPlaces.at_end`."""
        return self._places.at_end(position)

    def before(self, position: int) -> PlaceRowsSearch:
        """Implement `LogPlaces.before`."""
        return self._places.before(position)

    @property
    def change(self) -> int:
        """Number of the last change of holes."""
        return self._holes.change

    @property
    def expirations(self) -> int:
        """Number of links that started behind removed rows of their sources."""
        return self._links.expirations

    def holes_since(self, change: int, publishers: Collection[int]) -> bytes:
        """Implement `OpenHolesSource.holes_since`."""
        return self._holes.since(change, publishers)
