"""Link records: rows on topic `$link` with places up to which this log has the rows of other logs.

A record ends each commit with rows of a link. At least one in `link_snapshot_records`, or one in the number
of places, has all places of this log. So a reader that starts at the end of the log needs a bounded number of
records.

Invariant: the log has all rows of a source before its place, in the commit of the record or earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from tickertape.base.errors import JournalCorrupt
from tickertape.base.limits import link_places_max
from tickertape.base.text_format import shown
from tickertape.journal.format.control_record import RECORD_ERRORS, LogId
from tickertape.journal.format.replication_records import LogPlace

_U64 = Annotated[int, msgspec.Meta(ge=0)]
"""MessagePack integers have at most 64 bits."""


class LinkRecord(msgspec.Struct, frozen=True, array_like=True):
    """This log has all rows of the log `log` before `position`, which the start `start` wrote."""

    log: LogId
    """Id of the log of the source."""
    start: _U64
    """Start of the source that wrote the row before `position`."""
    position: _U64
    """Position in the log of the source."""
    places: list[LogPlace] | None = None
    """All places of this log, the one of this record included: the starts of each source in the order in
    which their places moved last. None: only its own place."""

    @property
    def place(self) -> LogPlace:
        """The place of the source."""
        return LogPlace(self.log, self.start, self.position)


_RECORD_BYTES: Final = 42
"""Size of a record without its list of places, at most."""
_PLACE_BYTES: Final = 37
"""Size of a place in the list, at most."""


def link_record_bytes_max(places: int) -> int:
    """Return the largest size of a body with a number of places."""
    return _RECORD_BYTES + _PLACE_BYTES * places


def encode_link(record: LinkRecord) -> bytes:
    """Return the body of a record."""
    return msgspec.msgpack.encode(record)


def decode_link(body: bytes | memoryview) -> LinkRecord:
    """Decode the body of a record. Raises `JournalCorrupt`, without the position."""
    try:
        return msgspec.msgpack.decode(body, type=LinkRecord)
    except RECORD_ERRORS as error:
        raise JournalCorrupt(f"invalid link record: {shown(str(error))}") from None


class NewestPlaces:
    """Newest places of all sources, from places that are read backwards from the end of the log.

    Has the last place of the `link_places_max` starts of each source that moved last."""

    def __init__(self) -> None:
        self._positions: dict[tuple[bytes, int], int] = {}
        self._starts: dict[bytes, int] = {}

    def add_earlier(self, place: LogPlace) -> None:
        """Add a place that was noted before all others. A later place of its start wins."""
        key = place.log, place.start
        if key in self._positions:
            return
        count = self._starts.get(place.log, 0)
        if count < link_places_max:
            self._starts[place.log] = count + 1
            self._positions[key] = place.position

    def add_all_earlier(self, places: Iterable[LogPlace]) -> None:
        """Add places that were noted before all others, in the order of the log."""
        for place in reversed(list(places)):
            self.add_earlier(place)

    def in_order(self) -> list[LogPlace]:
        """Return the places in the order in which they moved last."""
        return [LogPlace(*key, position) for key, position in reversed(self._positions.items())]
