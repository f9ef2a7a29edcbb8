"""Link places: records of the places of all sources, and the places that are persisted.

Invariants:
- The record of a place is in the commit of the last row before it, or in a later one.
- A place that a destination reports is persisted: after a power loss the log still has all rows before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from tickertape.engine.replication.places import KnownPlaces
from tickertape.engine.runtime.exact_append import ExactAppend, PlaceRecords
from tickertape.journal.format.replication_records import LogPlace

PERSISTED: Final = -1
"""Position of a record that needs no commit."""


class _PlaceInLog(NamedTuple):
    place: LogPlace
    position: int
    """The record is persisted when the log is persisted beyond this position."""


class LinkPlaces:
    """Places of the sources of all links to this log."""

    def __init__(self, exact: ExactAppend, records: PlaceRecords, persisted: Iterable[LogPlace] = ()) -> None:
        """`persisted`: the places in the log at its start, in the order in which they moved last."""
        self.persisted = KnownPlaces()
        """Places with persisted records. Callers must not change it."""
        self._exact = exact
        self._records = records
        self._newest: dict[bytes, _PlaceInLog] = {}
        """The place of each source that moved last."""
        self._waiting: deque[_PlaceInLog] = deque()
        for place in persisted:
            self.persisted.note(place)
            self._newest[place.log] = _PlaceInLog(place, PERSISTED)

    def move(self, place: LogPlace) -> int:
        """Append the record of a place: the log has all rows of the source before it.

        Return a position: the record is persisted when the log is persisted beyond it."""
        newest = self._newest.get(place.log)
        if newest is not None and newest.place.start == place.start:
            if newest.place.position >= place.position:
                return newest.position
        elif not place.position:
            return PERSISTED  # no row precedes it
        position = self._exact.append_place(place, self._records)
        self._newest[place.log] = _PlaceInLog(place, position)
        self._waiting.append(self._newest[place.log])
        return position

    def log_persisted(self, end: int) -> None:
        """Note that the log is persisted up to `end`."""
        while self._waiting and self._waiting[0].position < end:
            self.persisted.note(self._waiting.popleft().place)
