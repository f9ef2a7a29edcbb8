"""Owns the searches in progress: a generator that asks for reads, and what to do with its outcome.

Must never run more than `searches_per_connection_max` for one connection, look up more bookmarks at a time
than their bounds, or go on for a connection that is gone. Who asks for many is not read from until they are
found. A search holds nothing back from retention: it finds what the log has when it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from tickertape.base.errors import NotReady, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.engine.limits import (
    bookmarks_sought_max,
    bookmarks_sought_per_connection_max,
    searches_per_connection_max,
)
from tickertape.engine.log_reads.budget import ReadBudget, ReadBudgets
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.sessions.read_throttle import ReadThrottle
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.start_position import ExtentSearch, ReplayRange
from tickertape.journal.reading.archive_reader import ArchiveAnswer, ArchiveRequest
from tickertape.journal.reading.log_view import ReadRequest


class _Search:
    """One search and where its outcome goes."""

    def __init__(
        self,
        session: Session,
        steps: ExtentSearch,
        found: Callable[[ReplayRange], None],
        failed: Callable[[TickertapeError], None],
        bookmarks: int,
    ) -> None:
        self.session = session
        self.bookmarks = bookmarks
        self.steps = steps
        self.found = found
        self.failed = failed
        self.dropped = False


class Searches:
    """All searches in progress."""

    def __init__(self, outbox: Outbox, budgets: ReadBudgets, pauses: ReadThrottle) -> None:
        self._outbox = outbox
        self._budgets = budgets
        self._reading: dict[int, _Search] = {}
        self._ready: deque[_Search] = deque()
        """Those that let others go first."""
        self._by_conn: dict[int, dict[_Search, None]] = {}
        self.bookmarks = 0
        """Bookmarks that are being looked up."""
        self._pauses = pauses

    def begin(
        self,
        session: Session,
        steps: ExtentSearch,
        found: Callable[[ReplayRange], None],
        failed: Callable[[TickertapeError], None],
        bookmarks: int = 1,
    ) -> None:
        """Run a search for so many bookmarks; `found` or `failed` is called once, perhaps at once (`NotReady`
        above the bounds)."""
        own = self._by_conn.get(session.conn, {})
        if len(own) >= searches_per_connection_max:
            failed(NotReady(f"{len(own)} searches of this connection are under way: wait for their answers"))
            return
        if self.bookmarks + bookmarks > bookmarks_sought_max:
            failed(NotReady(f"{self.bookmarks:,} bookmarks are being looked up: try again later"))
            return
        search = _Search(session, steps, found, failed, bookmarks)
        self._by_conn.setdefault(session.conn, own)[search] = None
        self.bookmarks += bookmarks
        self._advance(search, None)
        if self._crowded(session.conn):
            self._pauses.pause(session.conn, "searches")

    def read_done(self, token: int, data: Buffer | ArchiveAnswer | TickertapeError) -> None:
        """The answer to a read; ignored when its search, or whoever else asked for it, was dropped."""
        search = self._reading.pop(token, None)
        if search is None:
            return
        self._budgets.forget(search)
        if not search.dropped:
            self._advance(search, data)

    def drop(self, session: Session) -> None:
        """The connection is gone."""
        reading = set(self._reading.values())
        for search in self._by_conn.pop(session.conn, {}):
            search.dropped = True
            self.bookmarks -= search.bookmarks
            if search not in reading:
                self._budgets.forget(search)

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return bool(self._ready)

    def step(self) -> None:
        """Let one search that waits for its turn go on."""
        if self._ready:
            search = self._ready.popleft()
            if not search.dropped:
                self._advance(search, b"")

    def _advance(self, search: _Search, data: Buffer | ArchiveAnswer | TickertapeError | None) -> None:
        try:
            if isinstance(data, TickertapeError):
                request = search.steps.throw(data)  # it knows whether it still needs what cannot be read
            else:
                request = next(search.steps) if data is None else search.steps.send(data)
        except StopIteration as done:
            extent: ReplayRange = done.value
            self._finished(search)
            search.found(extent)
        except TickertapeError as error:
            self._finished(search)
            search.failed(error)
        else:
            if request is None:
                self._ready.append(search)
            elif self._budgets.reserve(search, request, lambda: self._read(search, request)):
                self._read(search, request)

    def _read(self, search: _Search, request: ReadRequest | ArchiveRequest) -> None:
        self._reading[self._outbox.read(request, search.session.conn)] = search

    def _finished(self, search: _Search) -> None:
        conn = search.session.conn
        own = self._by_conn.get(conn, {})
        own.pop(search, None)
        self.bookmarks -= search.bookmarks
        if not own:
            self._by_conn.pop(conn, None)
        if not self._crowded(conn):
            self._pauses.resume(conn, "searches")

    def _crowded(self, conn: int) -> bool:
        """Whether so many bookmarks of a connection are looked up that it should ask for no more."""
        own = self._by_conn.get(conn, ())
        return sum(search.bookmarks for search in own) >= bookmarks_sought_per_connection_max


Steps = Generator[ReadRequest | None, Buffer, Any]
"""Asks for reads; None lets others go first, and is answered with nothing (`b""`)."""


class _Lookup:
    def __init__(self, key: int, steps: Steps, done: Callable[[Any], None]) -> None:
        self.key = key
        self.steps = steps
        self.done = done
        self.dropped = False


class LogLookups:
    """All errands under way."""

    def __init__(self, outbox: Outbox, budget: ReadBudget) -> None:
        self._outbox = outbox
        self._budget = budget
        self._by_key: dict[int, _Lookup] = {}
        self._reading: dict[int, _Lookup] = {}
        self._ready: deque[_Lookup] = deque()

    def begin(self, key: int, steps: Steps, done: Callable[[Any], None]) -> None:
        """Run `steps`; `done` is told the outcome, perhaps at once. The steps answer for their errors
        themselves: one that they let out is the outcome."""
        errand = _Lookup(key, steps, done)
        self._by_key[key] = errand
        self._advance(errand, None)

    def drop(self, key: int) -> None:
        """Nobody waits for it any more."""
        errand = self._by_key.pop(key, None)
        if errand is not None:
            errand.dropped = True
            errand.steps.close()
            if errand not in self._reading.values():
                self._budget.forget(errand)

    def read_done(self, token: int, data: Buffer | TickertapeError) -> bool:
        """The answer to a read; False when it is none of ours."""
        errand = self._reading.pop(token, None)
        if errand is None:
            return False
        self._budget.forget(errand)
        if not errand.dropped:
            self._advance(errand, data)
        return True

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return bool(self._ready)

    def step(self) -> None:
        """Let one that let others go first go on."""
        if self._ready:
            errand = self._ready.popleft()
            if not errand.dropped:
                self._advance(errand, b"")

    def _advance(self, errand: _Lookup, data: Buffer | TickertapeError | None) -> None:
        try:
            if isinstance(data, TickertapeError):
                request = errand.steps.throw(data)
            else:
                request = next(errand.steps) if data is None else errand.steps.send(data)
        except StopIteration as outcome:
            self._finish(errand, outcome.value)
        except TickertapeError as error:
            self._finish(errand, error)
        else:
            if request is None:
                self._ready.append(errand)
            elif self._budget.reserve(errand, request.size, lambda: self._read(errand, request)):
                self._read(errand, request)

    def _finish(self, errand: _Lookup, outcome: Any) -> None:
        self._by_key.pop(errand.key, None)
        errand.done(outcome)

    def _read(self, errand: _Lookup, request: ReadRequest) -> None:
        self._reading[self._outbox.read(request)] = errand
