"""Owns the searches in progress: a generator that asks for reads, and what to do with its outcome.

Must never run more than `searches_per_connection_max` for one connection, or go on for one that is gone.
"""

from __future__ import annotations

from collections.abc import Callable

from tickertape.base.errors import NotReady, TickertapeError
from tickertape.base.limits import searches_per_connection_max
from tickertape.base.ports import Buffer
from tickertape.engine.effects import Effect, Read
from tickertape.engine.points import Extent, ExtentSearch
from tickertape.engine.sessions import Session


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


class Searches:
    """All searches in progress. Appends its reads to the effects it is given."""

    def __init__(self, effects: list[Effect], new_token: Callable[[], int]) -> None:
        self._effects = effects
        self._new_token = new_token
        self._waiting: dict[int, _Search] = {}

    def begin(
        self,
        session: Session,
        steps: ExtentSearch,
        found: Callable[[Extent], None],
        failed: Callable[[TickertapeError], None],
    ) -> None:
        """Run a search; `found` or `failed` is called once, perhaps at once (`NotReady` above the bound)."""
        under_way = session.searches
        if under_way >= searches_per_connection_max:
            failed(NotReady(f"{under_way} searches of this connection are under way: wait for their answers"))
            return
        session.searches += 1
        self._advance(_Search(session, steps, found, failed), None)

    def read_done(self, token: int, data: Buffer | TickertapeError) -> None:
        """The answer to a read; ignored when its search was dropped."""
        search = self._waiting.pop(token, None)
        if search is not None:
            self._advance(search, data)

    def drop(self, session: Session) -> None:
        """The connection is gone."""
        for token in [token for token, search in self._waiting.items() if search.session is session]:
            del self._waiting[token]

    def _advance(self, search: _Search, data: Buffer | TickertapeError | None) -> None:
        try:
            if isinstance(data, TickertapeError):
                raise data
            request = next(search.steps) if data is None else search.steps.send(data)
        except StopIteration as done:
            extent: Extent = done.value
            search.session.searches -= 1
            search.found(extent)
        except TickertapeError as error:
            search.session.searches -= 1
            search.failed(error)
        else:
            token = self._new_token()
            self._waiting[token] = search
            self._effects.append(Read(token, request))
