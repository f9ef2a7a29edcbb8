"""Range searches: look up the replay ranges of subscribe and resolve commands, within limits.

A connection that looks up many bookmarks is not read until they are found. A search does not block retention:
it finds the content of the log at its end.
"""

from __future__ import annotations

from tickertape.base.errors import NotReady
from tickertape.engine.limits import (
    bookmarks_sought_max,
    bookmarks_sought_per_connection_max,
    searches_per_connection_max,
)
from tickertape.engine.log_reads.log_reads import LogReads, ReadTask
from tickertape.engine.sessions.read_throttle import ReadThrottle
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.start_position import ExtentSearch, ReplayRange


class RangeSearch(ReadTask[ReplayRange]):
    """The search for the range of one command that names `bookmarks` bookmarks."""

    def __init__(self, session: Session, steps: ExtentSearch, bookmarks: int) -> None:
        super().__init__(steps, session.conn)
        self.session = session
        self.bookmarks = bookmarks


class RangeSearches:
    """All searches in progress."""

    def __init__(self, reads: LogReads, throttle: ReadThrottle) -> None:
        self._reads = reads
        self._throttle = throttle
        self._by_conn: dict[int, dict[RangeSearch, None]] = {}
        self.bookmarks = 0
        """Number of bookmarks that are being looked up."""

    def check(self, conn: int, bookmarks: int) -> None:
        """Raise `NotReady` if a search for that many bookmarks would exceed the limits."""
        own = self._by_conn.get(conn, {})
        if len(own) >= searches_per_connection_max:
            raise NotReady(
                f"Cannot search for the start point: this connection already has {len(own)} searches "
                "in progress. Wait for their answers."
            )
        if self.bookmarks + bookmarks > bookmarks_sought_max:
            raise NotReady(
                f"Cannot search for the start point: the server already searches for {self.bookmarks:,} "
                f"bookmarks, and its limit is {bookmarks_sought_max:,}. Try again later."
            )

    def begin(self, search: RangeSearch) -> bool:
        """Start a search that `check` allows. Return whether it is done at once."""
        self._by_conn.setdefault(search.conn, {})[search] = None
        self.bookmarks += search.bookmarks
        if self._reads.run(search):
            return True
        if self._is_crowded(search.conn):
            self._throttle.pause(search.conn, "searches")
        return False

    def finished(self, search: RangeSearch) -> None:
        """Remove a search that is done."""
        own = self._by_conn.get(search.conn, {})
        own.pop(search, None)
        self.bookmarks -= search.bookmarks
        if not own:
            self._by_conn.pop(search.conn, None)
        if not self._is_crowded(search.conn):
            self._throttle.resume(search.conn, "searches")

    def drop(self, conn: int) -> None:
        """Drop the searches of a closed connection."""
        for search in self._by_conn.pop(conn, {}):
            self.bookmarks -= search.bookmarks
            self._reads.drop(search)

    def _is_crowded(self, conn: int) -> bool:
        """Return whether a connection looks up too many bookmarks to be read."""
        return sum(search.bookmarks for search in self._by_conn.get(conn, ())) >= (
            bookmarks_sought_per_connection_max
        )
