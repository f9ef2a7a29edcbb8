"""Log places: the places of a replicating server, as its subscriptions use them.

A place is a bookmark that means: the subscription has all messages of a log before a position.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import Protocol

from tickertape.base.bookmarks import Bookmark
from tickertape.base.interfaces import Buffer
from tickertape.journal.reading.log_view import ReadRequest

PlaceRowsSearch = Generator[ReadRequest, Buffer, bytes]


class LogPlaces(Protocol):
    """Places of the log of a server, and of other logs whose messages it has."""

    @property
    def expirations(self) -> int:
        """Number of links that started behind removed rows of their sources."""
        ...

    def position(self, place: Bookmark) -> int | None:
        """Return the position of a place of this log, at most its end. None: a place of another log."""
        ...

    def at_end(self, position: int) -> bytes:
        """Return the rows of the places (`Ack.places`) of the persisted log, which ends at `position`."""
        ...

    def before(self, position: int) -> PlaceRowsSearch:
        """Return the rows of the places before a position."""
        ...


class OpenHolesSource(Protocol):
    """Open holes of the persisted log, for notices."""

    def holes_since(self, change: int, publishers: Collection[int]) -> bytes:
        """Return the rows (`PersistedNotice.missing`) of publishers whose holes changed after the change with
        this number, and of `publishers`."""
        ...

    @property
    def change(self) -> int:
        """Number of the last change."""
        ...


class NoticeFacts(LogPlaces, OpenHolesSource, Protocol):
    """Facts about replication that subscriptions get."""
