"""Persisted places: places of the persisted log and of the logs whose rows it has, for subscriptions.

Invariant: a place names a log only up to a position before which the persisted log has all of its rows.
"""

from __future__ import annotations

from typing import Protocol

from tickertape.base.bookmarks import Bookmark, place_at, position_of_place
from tickertape.base.errors import TickertapeError
from tickertape.base.names import place_id
from tickertape.engine.replication.log_facts import LogFacts
from tickertape.engine.replication.places import KnownPlaces
from tickertape.engine.replication.reports import Group, Reports
from tickertape.engine.subscriptions.log_places import PlaceRowsSearch
from tickertape.journal.format.replication_records import CoveredRecord, LogPlace
from tickertape.journal.journal import Journal
from tickertape.journal.reading.place_search import find_places
from tickertape.wire.link_rows import encode_notice_places


class LinkState(Protocol):
    """State of the links of this log."""

    expirations: int
    """Number of links that started behind removed rows of their sources."""

    @property
    def group(self) -> Group:
        """The logs of the group, as far as they are known here."""
        ...


class PersistedPlaces:
    """Places of the persisted log of one server (`LogPlaces`)."""

    def __init__(self, journal: Journal, facts: LogFacts, links: LinkState) -> None:
        """All rows of `facts` are persisted."""
        self._journal = journal
        self._starts = facts.starts
        self._links = links
        self._places = KnownPlaces()
        for place in facts.places:
            self._places.note(place)
        self._reports = Reports(facts.journal)
        for log, report in facts.reports.newest():
            self._reports.note(log, report)
        self._ids: dict[int, int] = {}
        """Starts of this log by their place ids."""
        self._newest_id: int | None = None
        """Newest start in `_ids`."""

    def note(self, place: LogPlace) -> None:
        """Note the persisted record of a place."""
        self._places.note(place)

    def note_report(self, log: bytes, report: CoveredRecord) -> None:
        """Note the persisted report of another log."""
        self._reports.note(log, report)

    def position(self, place: Bookmark) -> int | None:
        """Implement `LogPlaces.position`."""
        start = self._start_of(place.publisher)
        if start is None:
            return None
        own = LogPlace(self._starts.journal, start, position_of_place(place))
        return self._starts.resume(own, self._journal.commits.persisted_end)

    def at_end(self, position: int) -> bytes:
        """Implement `LogPlaces.at_end`."""
        group = self._links.group._replace(places=self._places)
        return self._rows(position, [*self._places.newest(), *self._reports.reached(group)])

    def before(self, position: int) -> PlaceRowsSearch:
        """Implement `LogPlaces.before`."""
        if position >= self._journal.commits.persisted_end:
            return self.at_end(position)
        view = self._journal.view
        newest = KnownPlaces()
        if position > view.first_position:
            try:
                found = yield from find_places(view, position)
            except TickertapeError:  # subscriptions start at the first row of other logs
                return self._rows(position, [])
            for place in found.places:
                newest.note(place)
        return self._rows(position, newest.newest())

    def _rows(self, position: int, others: list[LogPlace]) -> bytes:
        """Return the rows of the place at a position of this log, which is the first one, and of others."""
        own = LogPlace(self._starts.journal, self._starts.newest, position)  # also for rows before the start
        return encode_notice_places(
            [place_at(place_id(place.log, place.start), place.position) for place in (own, *others)]
        )

    def _start_of(self, publisher: int) -> int | None:
        """Return the start of this log with a place id."""
        if self._newest_id != self._starts.newest:
            self._newest_id = self._starts.newest
            self._ids = {place_id(self._starts.journal, one.start): one.start for one in self._starts}
        return self._ids.get(publisher)
