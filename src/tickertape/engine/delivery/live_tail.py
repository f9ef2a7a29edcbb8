"""Live tail: delivers accepted messages before they are persisted, to live feeds that have caught up.

Invariants:
- Messages are delivered in order. Persisted messages are not buffered.
- Nothing is buffered for a feed that cannot accept it: it falls back to persisted messages, and returns after
  it has caught up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tickertape.base.text_format import shown
from tickertape.batch import merge
from tickertape.engine.delivery.fanout import Fanout
from tickertape.engine.delivery.fanout_frames import FrameSender
from tickertape.engine.limits import outbox_bytes_max
from tickertape.engine.log_reads.selection import restrict, selections
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.log_feed import LogFeed
from tickertape.journal.journal import AcceptedBatch
from tickertape.journal.reading.log_view import LogPart


class LiveTail:
    """Live feeds that have caught up.

    After a live feed was behind for `age_seconds`, its connection must be closed (None: never)."""

    def __init__(self, end: int, clock: EngineClock, sender: FrameSender, age_seconds: float | None) -> None:
        self.fanout = Fanout(end, sender)
        self._clock = clock
        self._sender = sender
        self._age_seconds = age_seconds
        self._behind_since: dict[LogFeed, float] = {}
        """Feeds that are behind, in order, with the monotonic time (seconds) since when."""
        self.fallbacks = 0
        """How often a feed fell back to the log."""
        self._wanting = 0
        self.known_from: int | None = None
        """Position from which accepted messages are buffered. None if no feed is live."""
        self._parts: deque[LogPart] = deque()

    def begin(self, accepted_end: int) -> None:
        """Register a live feed, and start to buffer accepted messages."""
        self._wanting += 1
        if self.known_from is None:
            self.known_from = accepted_end

    def end(self, sub: LogFeed) -> None:
        """Remove a live feed, and stop buffering after the last one."""
        self._behind_since.pop(sub, None)
        self._wanting -= 1
        if not self._wanting:
            self.known_from = None
            self._parts.clear()

    def accepted(self, batches: Iterable[AcceptedBatch]) -> list[LogFeed]:
        """Offer accepted batches. Return the feeds that fall back to the log.

        For a transaction, all feeds fall back and read the log."""
        fallen: list[LogFeed] = []
        for position, batch, stamp in batches:
            if self.known_from is None or position < self.known_from:
                continue
            if batch is None or stamp is None:
                self.known_from = position
                self._parts.clear()
                fallen += self.fanout.eject_all(position)
                continue
            part = LogPart(position, merge([batch], [stamp]))
            self._parts.append(part)
            if self.fanout.persisted(part):
                fallen += self.fanout.eject_all(part.end_position)
        return self._demoted(fallen)

    def step(self, budget: int) -> tuple[int, list[LogFeed]]:
        """Deliver accepted messages (see `Fanout.step`)."""
        left, ejected = self.fanout.step(budget)
        return left, self._demoted(ejected)

    def persisted(self, end: int) -> None:
        """Drop buffered messages below `end`, which are persisted."""
        while self._parts and self._parts[0].end_position <= end:
            self._parts.popleft()

    # -- slow consumers -------------------------------------------------------------------------------

    def _demoted(self, ejected: list[LogFeed]) -> list[LogFeed]:
        self.fallbacks += len(ejected)
        if ejected:
            self._behind_since.update(dict.fromkeys(ejected, self._clock.mono))
            self._clock.announce(self)
        return ejected

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `overdue`, or None."""
        if self._age_seconds is None:
            return None
        for since in self._behind_since.values():
            return since + self._age_seconds
        return None

    def overdue(self) -> dict[Session, str]:
        """Return sessions with a feed that was behind for too long, with the reason to close them."""
        found: dict[Session, str] = {}
        age = self._age_seconds
        while age is not None and self._behind_since:
            sub, since = next(iter(self._behind_since.items()))
            if since + age > self._clock.mono:
                break
            del self._behind_since[sub]
            found.setdefault(
                sub.session,
                f"live subscription {shown(sub.sub_id)} was behind for {age:g} seconds, "
                "the age_limit of [slow_clients]. Read messages faster, subscribe without live, or raise "
                "age_limit.",
            )
        return found

    # -- return to the tail ---------------------------------------------------------------------------

    def join(self, sub: LogFeed) -> bool:
        """Send buffered messages to a feed that has everything persisted, and add it to the fan-out.

        Return False if it cannot accept all of them. It tries again after the next commit."""
        fell_back = self._behind_since.pop(sub, None) is not None
        if self._join(sub):
            return True
        if fell_back:
            # It has just received everything persisted, so the time behind starts again.
            self._behind_since[sub] = self._clock.mono
            self._clock.announce(self)
        return False

    def _join(self, sub: LogFeed) -> bool:
        if self.known_from is None or sub.position < self.known_from or not sub.session.writable:
            return False
        sent = 0
        for part in self._parts:
            for raw in selections([part], sub.interest):
                if sent >= outbox_bytes_max:
                    return False  # write the frames already sent first
                piece, content = raw, sub.interest.content
                low = raw.index_at(sub.position)
                if content is not None and raw.batch is not None and low < raw.count:
                    if content.piece_end(raw.batch, low) < raw.count:
                        return False  # too much to filter in one step
                    piece = restrict(raw, low, raw.count, content, project=True)
                share = sub.next_portion(piece, self._clock.mono)
                sub.position = max(sub.position, share.next)
                if share.batch is not None:
                    self._sender.deliver(sub, share.batch, share.next)
                    sent += share.batch.nbytes
                if sub.position < piece.end:
                    return False
        self.fanout.add(sub)
        return True
