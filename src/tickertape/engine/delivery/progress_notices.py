"""Progress notices: once a second, the resume bookmark for caught-up feeds without messages.

Invariants:
- A notice names a bookmark only after every earlier message of the subscription was sent.
- A step sends at most `notices_step_max` notices.
- Notices are sent only while the log grows.
- A notice names no place and no hole behind the messages that were sent before it.
- No message after the persisted log is sent before a notice with holes: they are those of this log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tickertape.batch import MessageBatch
from tickertape.engine.limits import notice_seconds, notice_subscriptions_max, notices_step_max
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.effects import Send
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.runtime.scheduling import Pending
from tickertape.engine.subscriptions.log_feed import LogFeed, Phase
from tickertape.journal.reading.log_view import LogPart, last_of
from tickertape.wire.commands import PersistedNotice
from tickertape.wire.frames import encode_frame

if TYPE_CHECKING:
    from tickertape.engine.subscriptions.log_places import NoticeFacts

_BEFORE_ALL: Final = float("-inf")


_HolesRows: TypeAlias = dict[tuple[int, frozenset[int]], bytes]
"""Rows of holes since a change, and of publishers."""


class _Last(NamedTuple):
    """Message `at` of a commit, and the position after it."""

    batch: MessageBatch
    at: int
    end: int


class _Notice(NamedTuple):
    """A notice to feeds of one connection that were sent everything up to its bookmark."""

    conn: int
    subs: list[LogFeed]
    last: _Last
    places: bytes
    """See `PersistedNotice.places`."""
    change: int
    """Number of the last change of holes before the notice."""


class ProgressNotices:
    """The time and the bookmark of the next notices."""

    def __init__(self, outbox: Outbox, clock: EngineClock) -> None:
        self._outbox = outbox
        self._clock = clock
        self._facts: NoticeFacts | None = None
        """Places and holes of a server that replicates. None for others."""
        self._end = 0
        """End of the persisted log, once it has grown."""
        self._last: _Last | None = None
        """The last message persisted since the start."""
        self._wanted = False
        """Whether a feed may need a notice."""
        self._at = _BEFORE_ALL
        """Monotonic time (seconds) before which no notice is due."""
        self._waiting: deque[_Notice] = deque()
        """Due notices that are not sent yet."""
        self.pending: Pending = (self._waiting,)
        """Not empty while `step` has notices to send."""

    def use_facts(self, facts: NoticeFacts) -> None:
        """Send places and holes of a server that replicates."""
        self._facts = facts

    def moved(self, part: LogPart) -> None:
        """Record the last message of a persisted commit."""
        self._end = part.end_position
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
        """Send the first due notices to the feeds `caught_up()`, which were sent everything."""
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
            if s.replays and self._lacks(s, last.end) and (s.not_before is None or s.not_before <= stamp)
        ]
        places, change = b"", 0
        if self._facts is not None:
            places, change = self._facts.at_end(last.end), self._facts.change
            self._wanted = any(map(self._sent_more, wanting))
            wanting = [s for s in wanting if not self._sent_more(s)]
        wanting.sort(key=_connection)
        self._waiting.clear()  # the feeds of unsent notices are caught up still, or need none
        for conn, group in groupby(wanting, _connection):
            subs = list(group)
            for at in range(0, len(subs), notice_subscriptions_max):
                self._waiting.append(
                    _Notice(conn, subs[at : at + notice_subscriptions_max], last, places, change)
                )
        self.step()

    def _lacks(self, sub: LogFeed, end: int) -> bool:
        """Return whether the client of a feed has no notice of a position. With places it needs one, even if
        the last message was for the feed."""
        return (sub.notified_to if self._facts is None else sub.places_to) < end

    def _sent_more(self, sub: LogFeed) -> bool:
        """Return whether a live feed was sent messages that are not persisted. The persisted holes do not say
        which of their gaps are holes."""
        return sub.live and sub.considered_to > self._end

    def step(self) -> None:
        """Send the next notices."""
        made: _HolesRows = {}
        for _ in range(min(len(self._waiting), notices_step_max)):
            conn, subs, last, places, change = self._waiting.popleft()
            if self._facts is not None:
                same = self._facts.change == change  # otherwise late messages may not be sent yet
                subs, asked = [sub for sub in subs if same and not self._sent_more(sub)], len(subs)
                if len(subs) < asked:
                    self._wanted = True
                    self._clock.announce(self)
            publisher, sequence = last.batch.publisher(last.at), last.batch.sequence(last.at)
            for (missing, expired), ids in self._by_facts(subs, last.end, made).items():
                notice = PersistedNotice(
                    sub_ids=tuple(ids),
                    publisher=publisher,
                    sequence=sequence,
                    places=places,
                    missing=missing,
                    expired=expired,
                )
                self._outbox.put(Send(conn, encode_frame(notice)))

    def _by_facts(
        self, subs: list[LogFeed], end: int, made: _HolesRows
    ) -> dict[tuple[bytes, bool], list[str]]:
        """Return the ids of the feeds that need a notice of a position, by the rows of their holes and by
        whether messages expired. `made` has the rows of other feeds."""
        facts = self._facts
        found: dict[tuple[bytes, bool], list[str]] = {}
        for sub in subs:
            if sub.phase is Phase.ENDED or not self._lacks(sub, end):
                continue
            missing, expired = b"", False
            if facts is not None:
                expired = sub.expirations != facts.expirations
                sub.expirations = facts.expirations
            if facts is not None and (sub.holes_change != facts.change or sub.known_publishers):
                key = sub.holes_change, sub.known_publishers
                if key not in made:
                    made[key] = facts.holes_since(*key)
                missing = made[key]
                sub.holes_change, sub.known_publishers = facts.change, frozenset()
            sub.notified_to = max(sub.notified_to, end)
            sub.places_to = end
            found.setdefault((missing, expired), []).append(sub.sub_id)
        return found


def _connection(sub: LogFeed) -> int:
    return sub.session.conn
