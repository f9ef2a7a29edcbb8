"""Progress notices: once a second, the resume bookmark for caught-up feeds without messages.

Invariants:
- A notice names a bookmark only after every earlier message of the subscription was sent.
- Notices are sent only while the log grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Final, NamedTuple

from tickertape.batch import MessageBatch
from tickertape.engine.limits import notice_seconds, notice_subscriptions_max
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.effects import Send
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.subscriptions.log_feed import LogFeed
from tickertape.journal.reading.log_view import LogPart, last_of
from tickertape.wire.commands import PersistedNotice
from tickertape.wire.frames import encode_frame

_BEFORE_ALL: Final = float("-inf")


class _Last(NamedTuple):
    """Message `at` of a commit, and the position after it."""

    batch: MessageBatch
    at: int
    end: int


class ProgressNotices:
    """The time and the bookmark of the next notices."""

    def __init__(self, outbox: Outbox, clock: EngineClock) -> None:
        self._outbox = outbox
        self._clock = clock
        self._last: _Last | None = None
        """The last message persisted since the start."""
        self._wanted = False
        """Whether a feed may need a notice."""
        self._at = _BEFORE_ALL
        """Monotonic time (seconds) before which no notice is sent."""

    def moved(self, part: LogPart) -> None:
        """Record the last message of a persisted commit."""
        index = last_of(part.batch)
        if index is not None:
            self._last = _Last(part.batch, index, part.first_position + index + 1)
            self._wanted = True
            self._clock.announce(self)

    def joined(self, sub: LogFeed) -> None:
        """Record that a subscription has caught up."""
        if sub.replays:
            self._wanted = True
            self._clock.announce(self)

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `settle`, or None."""
        return self._at if self._wanted and self._last is not None else None

    def settle(self, caught_up: Callable[[], Iterable[LogFeed]]) -> None:
        """Send the due notices to the feeds `caught_up()` that were sent everything."""
        last = self._last
        if last is None or not self._wanted or self._clock.mono < self._at:
            return
        self._at = self._clock.mono + notice_seconds
        self._wanted = False
        stamp = last.batch.timestamp(last.at)
        wanting = [
            s
            for s in caught_up()
            # A feed with a future start time would resume too early from this bookmark.
            if s.replays and s.notified_to < last.end and (s.not_before is None or s.not_before <= stamp)
        ]
        wanting.sort(key=_connection)
        publisher, sequence = last.batch.publisher(last.at), last.batch.sequence(last.at)
        for conn, subs in groupby(wanting, _connection):
            ids = []
            for sub in subs:
                sub.notified_to = last.end
                ids.append(sub.sub_id)
            for at in range(0, len(ids), notice_subscriptions_max):
                notice = PersistedNotice(
                    sub_ids=tuple(ids[at : at + notice_subscriptions_max]),
                    publisher=publisher,
                    sequence=sequence,
                )
                self._outbox.put(Send(conn, encode_frame(notice)))


def _connection(sub: LogFeed) -> int:
    return sub.session.conn
