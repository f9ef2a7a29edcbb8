"""Owns the searches in progress: a generator that asks for reads, and what to do with its outcome.

Must never run more than `searches_per_connection_max` for one connection, or go on for one that is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tickertape.base.errors import NotReady, TickertapeError
from tickertape.base.limits import searches_per_connection_max
from tickertape.base.ports import Buffer
from tickertape.engine.effects import Effect, Read
from tickertape.engine.points import Extent, ExtentSearch
from tickertape.engine.read_budget import ReadBudget
from tickertape.engine.session import Session
from tickertape.journal.reading import ReadRequest


class _Search:
    """One search and where its outcome goes."""

    def __init__(
        self,
        session: Session,
        steps: ExtentSearch,
        found: Callable[[Extent], None],
        failed: Callable[[TickertapeError], None],
    ) -> None:
        self.session = session
        self.steps = steps
        self.found = found
        self.failed = failed
        self.dropped = False


class Searches:
    """All searches in progress. Appends its reads to the effects it is given."""

    def __init__(self, effects: list[Effect], new_token: Callable[[], int], budget: ReadBudget) -> None:
        self._effects = effects
        self._new_token = new_token
        self._budget = budget
        self._reading: dict[int, _Search] = {}
        self._ready: deque[_Search] = deque()
        """Those that let others go first."""
        self._by_conn: dict[int, dict[_Search, None]] = {}

    def begin(
        self,
        session: Session,
        steps: ExtentSearch,
        found: Callable[[Extent], None],
        failed: Callable[[TickertapeError], None],
    ) -> None:
        """Run a search; `found` or `failed` is called once, perhaps at once (`NotReady` above the bound)."""
        own = self._by_conn.setdefault(session.conn, {})
        if len(own) >= searches_per_connection_max:
            failed(NotReady(f"{len(own)} searches of this connection are under way: wait for their answers"))
            return
        search = _Search(session, steps, found, failed)
        own[search] = None
        self._advance(search, None)

    def read_done(self, token: int, data: Buffer | TickertapeError) -> None:
        """The answer to a read; ignored when its search was dropped."""
        search = self._reading.pop(token)
        self._budget.forget(search)
        if not search.dropped:
            self._advance(search, data)

    def drop(self, session: Session) -> None:
        """The connection is gone."""
        reading = set(self._reading.values())
        for search in self._by_conn.pop(session.conn, {}):
            search.dropped = True
            if search not in reading:
                self._budget.forget(search)

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

    def _advance(self, search: _Search, data: Buffer | TickertapeError | None) -> None:
        try:
            if isinstance(data, TickertapeError):
                raise data
            request = next(search.steps) if data is None else search.steps.send(data)
        except StopIteration as done:
            extent: Extent = done.value
            self._finished(search)
            search.found(extent)
        except TickertapeError as error:
            self._finished(search)
            search.failed(error)
        else:
            if request is None:
                self._ready.append(search)
            elif self._budget.reserve(search, request.size, lambda: self._read(search, request)):
                self._read(search, request)

    def _read(self, search: _Search, request: ReadRequest) -> None:
        token = self._new_token()
        self._reading[token] = search
        self._effects.append(Read(token, request))

    def _finished(self, search: _Search) -> None:
        own = self._by_conn.get(search.session.conn, {})
        own.pop(search, None)
        if not own:
            self._by_conn.pop(search.session.conn, None)
