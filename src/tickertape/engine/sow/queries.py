"""Record queries: all queries of all connections, one step at a time.

Invariants:
- One query at a time takes a step, and connections take turns. A small query takes several steps at once.
- A query that waits for a queue holds back no other query.
- Results keep at most `sow_results_bytes_max`, so a slow reader costs bounded memory.
"""

from __future__ import annotations

from tickertape.base.errors import QueryTooSlow, TickertapeError
from tickertape.engine.limits import sow_results_bytes_max
from tickertape.engine.retention import RetentionPin
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.scheduling import FairQueue, Pending
from tickertape.engine.sessions.session import Session
from tickertape.engine.sow.feed import HeldFeeds, SowFeed
from tickertape.engine.sow.log_fold import LogFold
from tickertape.engine.sow.memory import StateMemory
from tickertape.engine.sow.result_memory import ResultMemory


class RecordQueries:
    """The queries of a server."""

    def __init__(self, fold: LogFold, log: HeldFeeds, clock: EngineClock, state_memory: StateMemory) -> None:
        self._fold = fold
        self._state_memory = state_memory
        self._log = log
        self._clock = clock
        self.results_bytes_max = sow_results_bytes_max
        """Limit of `results_bytes`."""
        self._memory = ResultMemory()
        self.ended: list[SowFeed] = []
        """Queries that ended by themselves, until `take_ended`."""
        self._feeds: dict[SowFeed, None] = {}
        """All queries, oldest first."""
        self._of_connection: dict[int, dict[SowFeed, None]] = {}
        self._early: dict[SowFeed, None] = {}
        """Queries that may start, in the order of their requests or preparations."""
        self._stepped_at: float | None = None
        """Time (monotonic) at which a query last took a step at once. Only one query does so for each reading
        of the clock: many requests that arrive together take turns."""
        self._ready: list[LogFold] = []
        """Not empty while `folded` may start a query."""
        self._run_queue: FairQueue[SowFeed] = FairQueue()
        self.pending: Pending = (self._run_queue.keys, self._ready, self._memory.garbage)
        """Not empty while a query may have work."""

    def __len__(self) -> int:
        return len(self._feeds)

    @property
    def oldest_requested_at(self) -> float | None:
        """Time (monotonic) of the request of the oldest query, or None without queries."""
        return next((feed.requested_at for feed in self._feeds), None)

    @property
    def results_bytes(self) -> int:
        """Memory of all results."""
        return self._memory.nbytes

    def oldest_needed(self) -> RetentionPin | None:
        """Return the lowest position that a query of a queue needs in the log, as a pin."""
        needed = [feed.oldest_needed for feed in self._feeds if feed.queues]
        oldest = min([position for position in needed if position is not None], default=None)
        return None if oldest is None else RetentionPin(oldest, "a query of a queue", brief=True)

    # -- inputs -----------------------------------------------------------------------------------------

    def add(self, feed: SowFeed, persisted_end: int) -> None:
        """Start a query when the log is folded up to `persisted_end`, the end of the log at its request, and
        its queues have considered the log up to there."""
        feed.needed = persisted_end
        feed.requested_at = self._clock.mono
        self._feeds[feed] = None
        self._of_connection.setdefault(feed.session.conn, {})[feed] = None
        if feed.queues:
            feed.wait_for_queues()
            self.credit(feed)
            return
        if self._clock.mono == self._stepped_at:
            self._run(feed)
            return
        self._stepped_at = self._clock.mono
        self._prepare(feed)
        if feed in self._early and len(self._early) == 1:
            self._ready.clear()
            self._begin_oldest()

    def credit(self, feed: SowFeed) -> None:
        """Resume a query that received more credit, or the answer to a read of the log, or whose queues have
        advanced."""
        if feed not in self._early and not feed.late:
            self._run(feed)

    def writable(self, session: Session) -> None:
        """Resume the queries of a connection that is writable again."""
        for feed in self._of_connection.get(session.conn, ()):
            self.credit(feed)

    def remove(self, feed: SowFeed) -> None:
        """End a query, and release the memory of its result."""
        feed.stop()
        self._early.pop(feed, None)
        self._forget(feed)

    def take_ended(self) -> list[SowFeed]:
        """Return the queries that ended by themselves since the last call."""
        ended, self.ended = self.ended, []
        return ended

    # -- steps ------------------------------------------------------------------------------------------

    def folded(self) -> None:
        """Start the oldest query whose position is folded. Called after each step of the fold."""
        self._ready.clear()
        if not self._feeds:
            return
        if self._early:
            self._begin_oldest()
        self._limit_memory()

    def step(self) -> None:
        """Execute one bounded step of one query, and free a part of an ended one."""
        if self._memory.garbage:
            self._memory.free()
        if self._ready:
            self.folded()
        if not self._run_queue:
            return
        feed = self._run_queue.next()
        feed.queued = False
        if feed not in self._feeds or feed.session.ended:
            return
        if not feed.prepared:
            self._prepare(feed)
        else:
            self._execute(feed)

    # -- internals --------------------------------------------------------------------------------------

    def _execute(self, feed: SowFeed) -> None:
        """Execute a step of a query that has begun."""
        try:
            more = feed.step()
        except TickertapeError as error:
            self._fail(feed, error)
            return
        if more:
            self._run(feed)
        elif feed.over:
            self._finished(feed)
        self._limit_memory()

    def _prepare(self, feed: SowFeed) -> None:
        """Execute one step of a query before its start."""
        feed.prepare(self._state_memory)
        if not feed.prepared:
            self._run(feed)
        elif not feed.needs_fold:
            self._begin(feed)
        else:
            self._early[feed] = None
            self._wake_early()

    def _run(self, feed: SowFeed) -> None:
        if not (feed.queued or feed.over or feed.session.ended):
            feed.queued = True
            self._run_queue.put(feed.session.conn, feed)

    def _wake_early(self) -> None:
        if not self._ready:
            self._ready.append(self._fold)

    def _begin_oldest(self) -> None:
        """Begin the oldest query, if its position is folded. A small one takes its first steps at once."""
        fold, feed = self._fold, next(iter(self._early))
        if fold.failure is not None:
            self._fail(feed, fold.failure)
        elif not fold.whole or fold.folded < feed.needed:
            return  # the next step of the fold follows
        elif feed.session.ended:
            self.remove(feed)
        else:
            del self._early[feed]
            feed.begin(fold, self._log, self._memory)
            if feed.is_small:
                self._execute(feed)
            else:
                self._run(feed)
        if self._early:
            self._wake_early()

    def _begin(self, feed: SowFeed) -> None:
        """Begin a query of queues only, or of nothing, which does not wait for the fold."""
        try:
            feed.begin(self._fold, self._log, self._memory)
        except TickertapeError as error:
            self._fail(feed, error)
        else:
            self._run(feed)

    def _forget(self, feed: SowFeed) -> None:
        self._feeds.pop(feed, None)
        of_connection = self._of_connection.get(feed.session.conn)
        if of_connection is not None:
            of_connection.pop(feed, None)
            if not of_connection:
                del self._of_connection[feed.session.conn]

    def _finished(self, feed: SowFeed) -> None:
        self._forget(feed)
        if feed.log_feed is not None:
            self._log.release(feed.log_feed)
        self.ended.append(feed)

    def _fail(self, feed: SowFeed, error: TickertapeError) -> None:
        feed.fail(error, self._log)
        self.remove(feed)
        self.ended.append(feed)

    def _limit_memory(self) -> None:
        """End the oldest queries until the results of the others fit the memory."""
        while self._feeds:
            if self.results_bytes <= self.results_bytes_max:
                return
            oldest = next((feed for feed in self._feeds if feed.begun), None)
            if oldest is None:
                return
            text = "Cannot finish the query: the results of all queries need too much memory"
            self._fail(oldest, QueryTooSlow(f"{text}. Read results faster, or select fewer records."))
