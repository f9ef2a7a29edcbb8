"""Places: positions of logs that hold when a log lost its end, and the start of a link.

A place is a position and the server start that wrote the row before it. All rows of a start are in one
history: the log can lose the end of a start, but never gets other rows there.

Invariants:
- A place beyond the end of its start means that end: later rows belong to another history.
- A reader never continues above a row that it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from tickertape.base.limits import link_places_max, link_starts_max
from tickertape.journal.format.replication_records import LogPlace

_NO_START: Final = 0
"""Start of the rows before the first `started` record."""


class LogStart(NamedTuple):
    """One server start."""

    start: int
    """Random number of the start."""
    first: int
    """Position of the first row that it wrote."""


class LogStarts:
    """The starts of this log, the newest `link_starts_max` of them."""

    def __init__(self, journal: bytes, starts: Iterable[LogStart] = ()) -> None:
        self.journal = journal
        """Id of this log."""
        self._starts: dict[int, int] = {}
        for start in starts:
            self.add(start)

    def add(self, start: LogStart) -> None:
        """Add the next start. `first` is above the first position of all others."""
        self._starts[start.start] = start.first
        if len(self._starts) > link_starts_max:
            del self._starts[next(iter(self._starts))]

    def __iter__(self) -> Iterator[LogStart]:
        return (LogStart(*item) for item in self._starts.items())

    @property
    def newest(self) -> int:
        """The newest start, 0 without one."""
        return next(reversed(self._starts), _NO_START)

    def place(self, position: int) -> LogPlace:
        """Return the place of a position: its start wrote the row before it."""
        for start, first in reversed(self._starts.items()):
            if first < position:
                return LogPlace(self.journal, start, position)
        return LogPlace(self.journal, _NO_START, position)

    def resume(self, place: LogPlace, end: int) -> int | None:
        """Return the position at which a reader with all rows before `place` continues, at most the end of
        its start. `end` is the end of this log.

        None: this log does not know the start."""
        starts = iter(self._starts.items())
        for start, _ in starts:
            if start == place.start:
                _, stop = next(starts, (0, end))
                return min(place.position, stop)
        return None


class KnownPlaces:
    """Places of other logs: this log has all their rows before them.

    It has the newest `link_places_max` starts of each log."""

    def __init__(self) -> None:
        self._by_log: dict[bytes, dict[int, int]] = {}

    def note(self, place: LogPlace) -> None:
        """Note that this log has all rows before `place`. Its start becomes the newest one of its log.

        The place may be below the last one of its start, after the log has lost the end of the start."""
        starts = self._by_log.setdefault(place.log, {})
        starts.pop(place.start, None)
        starts[place.start] = place.position
        if len(starts) > link_places_max:
            del starts[next(iter(starts))]

    def of(self, log: bytes) -> list[LogPlace]:
        """Return the places of a log, one for each start, the newest start first."""
        starts = self._by_log.get(log, {})
        return [LogPlace(log, start, position) for start, position in reversed(starts.items())]

    def newest(self) -> list[LogPlace]:
        """Return the place of the newest start of each log."""
        return [LogPlace(log, *next(reversed(starts.items()))) for log, starts in self._by_log.items()]

    def __iter__(self) -> Iterator[LogPlace]:
        """Yield all places, so that `note` of one after the other gives the same ones."""
        for log, starts in self._by_log.items():
            yield from (LogPlace(log, start, position) for start, position in starts.items())

    @property
    def count(self) -> int:
        """Number of places."""
        return sum(map(len, self._by_log.values()))

    def passed(self, place: LogPlace) -> bool:
        """Return whether this log has the row at `place`."""
        return self._by_log.get(place.log, {}).get(place.start, 0) > place.position

    def forget(self, log: bytes) -> None:
        """Remove the places of a log that never returns."""
        self._by_log.pop(log, None)


class SourceFacts(NamedTuple):
    """Facts about the log of a source."""

    starts: LogStarts
    first: int
    """First position that retention has kept."""
    end: int
    reporters: frozenset[bytes]
    """Logs that have reported rows of this log."""


class LinkStart(NamedTuple):
    """How a link starts."""

    position: int
    lost: int | None
    """Number of positions that the destination has, and the source lost (`history_lost`). None: the source
    lost nothing."""
    behind_removed: bool
    """The destination lacks removed rows: it first opens holes for their messages."""


class StartRefused(NamedTuple):
    """A link that cannot start: the source removed rows that the destination lacks."""

    position: int | None
    """Position up to which the destination has all rows. None: it has no place of this log."""
    first: int

    def text(self, name: str) -> str:
        """Return the error for the destination `name`."""
        if self.position is None:
            has = "it reported rows of this log earlier, and has none now"
        else:
            has = f"it has only the rows before position {self.position:,}"
        return (
            f"Cannot replicate to {name!r}: {has}, and retention removed the rows before {self.first:,}. "
            f"Drain {name!r}, and start it with an empty data directory."
        )


def link_start(
    source: SourceFacts, destination: bytes, places: Sequence[LogPlace]
) -> LinkStart | StartRefused:
    """Return where the link to the log `destination` starts. `places` are its places of the source's log, the
    newest start first."""
    resumed = [source.starts.resume(place, source.end) for place in places]
    known = [position for position in resumed if position is not None]
    lost = None
    position = max(known, default=source.first)
    if places and (resumed[0] is None or resumed[0] < places[0].position):
        lost = max(places[0].position - position, 0)
    if known:
        return (
            StartRefused(position, source.first)
            if position < source.first
            else LinkStart(position, lost, False)
        )
    if source.first and destination in source.reporters:  # an old copy of its data directory
        return StartRefused(None, source.first)
    return LinkStart(position, lost, source.first > 0)
