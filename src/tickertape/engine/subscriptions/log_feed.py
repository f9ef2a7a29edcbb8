"""Log feed: one subscription to persistent topics, with its position, boundaries, rate and phase.

A feed selects its messages of a part (`next_portion`). The modules of delivery/ decide when they are sent.

Invariants:
- A feed is sent at most its credit.
- A feed skips no message that its interest covers.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tickertape.base.limits import batch_bytes_max
from tickertape.batch import MessageBatch, slice_batch
from tickertape.batch.format import Int64s
from tickertape.engine.conflation.buffer import ConflationBuffer
from tickertape.engine.limits import positions_per_frame_max
from tickertape.engine.log_reads.selection import Selection
from tickertape.engine.matching.interest import NO_TOPICS, Interest
from tickertape.engine.subscriptions.options import ReplayRate
from tickertape.engine.subscriptions.pacing import RateLimiter
from tickertape.engine.subscriptions.start_position import ReplayRange
from tickertape.engine.subscriptions.subscription import Feed, FeedService, Subscription

if TYPE_CHECKING:  # only servers with synchronous links import it
    from tickertape.engine.runtime.durability import DurableHorizon


class Phase(Enum):
    """Lifecycle phase of a feed."""

    SEARCHING = "its start is being looked up"
    REPLAY = "reads the log by itself"
    SHARED_REPLAY = "reads the log with others"
    TAIL = "is served by the fan-out at the end of the log"
    ENDED = "has ended"


_NOT_AT_END: Final = frozenset({Phase.SEARCHING, Phase.REPLAY, Phase.SHARED_REPLAY})


class DeliveryGroup(Protocol):
    """Several feeds that receive the next messages together."""

    position: int

    def remove(self, sub: LogFeed) -> None:
        """Remove a feed."""

    def reschedule(self, sub: LogFeed) -> None:
        """Update the boundary of a feed after it changed."""


class LogFeedService(FeedService, Protocol):
    """Serves log feeds."""

    def caught_up(self, sub: LogFeed) -> bool:
        """Return whether a feed was sent everything persisted."""


class Portion(NamedTuple):
    """Messages of a part for a feed (or None), and the position after them."""

    batch: MessageBatch | None
    next: int
    blocked: bool
    """Whether the part has more messages, but credit or rate do not permit them."""
    at: float | None = None
    """Monotonic time (seconds) at which its rate permits the next message."""
    positions: bytes = b""
    """See `Deliver.positions`."""


class Replacement(NamedTuple):
    """Another subscription under the same id, from a position on."""

    position: int
    interest: Interest | None
    """None: the feed ends, unless another replacement follows."""
    pace: ReplayRate | None
    conflating: ConflationBuffer | None
    live: bool


class LogFeed(Feed):
    """State of one subscription to persistent topics."""

    def __init__(self, subscription: Subscription, interest: Interest, service: LogFeedService) -> None:
        super().__init__(subscription, interest.topic, service)
        self._log = service
        self.interest = interest
        self.phase = Phase.SEARCHING
        self.position = 0
        """Position of the next message to consider. In a group, the position of the group counts if it is
        higher."""
        self.group: DeliveryGroup | None = None
        """The group that delivers to the feed. None while it has its own cursor."""
        self.solo_until = 0
        """Position up to which it must have its own cursor."""
        self.stop: int | None = None
        self.stop_time: int | None = None
        self.not_before: int | None = None
        self.target: int | None = None
        """Position at which `completed` is due. None after it was sent."""
        self.paused = False
        """Whether delivery is paused."""
        self.held = False
        """Whether it waits for its release. It needs its messages in the log meanwhile, and gets none."""
        self.pace: ReplayRate | None = None
        self.rate_limiter: RateLimiter | None = None
        self.conflating: ConflationBuffer | None = None
        self.horizon: DurableHorizon | None = None
        """Horizon that its messages wait for. None: they are sent when they are persisted here."""
        self.limit: int | None = None
        """Position that delivery may reach now, because of `horizon`."""
        self.live = False
        """Whether it receives accepted messages before they are persisted, once it has caught up."""
        self.pending_replacements: deque[Replacement] = deque()
        """Replacements at later positions."""
        self.replays = False
        """Whether it has a bookmark. It then may be paused, and receives progress notices."""
        self.numbered = False
        """Whether it receives the positions of its messages, so it shares no frames."""
        self.notified_to = 0
        """Position up to which its client has been notified of progress."""
        self.places_to = 0
        """Position up to which its client has been notified of places."""
        self.holes_change = 0
        """Number of the last change of holes in a notice to its client."""
        self.expirations = 0
        """Number of links behind removed rows that its client knows (`LogPlaces.expirations`)."""
        self.known_publishers: frozenset[int] = frozenset()
        """Publishers whose holes its client knew when it subscribed, until the first notice."""

    def begin(self, extent: ReplayRange, target: int | None) -> None:
        """Start the replay of a known range. `target` is the end of the log at the time of the command, or
        None if another feed sends `completed`."""
        self.position = extent.start
        self.not_before = extent.not_before
        self.stop = extent.stop
        self.stop_time = extent.stop_time
        self.target = None if self.has_stop else target
        self.phase = Phase.REPLAY

    @property
    def considered_to(self) -> int:
        """Position of the next message to consider, also in a group."""
        return self.position if self.group is None else max(self.position, self.group.position)

    def apply_replacement(self) -> None:
        """Apply the next replacement."""
        _, interest, pace, self.conflating, self.live = self.pending_replacements.popleft()
        self.numbered = False
        self.horizon = self.limit = None
        self.interest = NO_TOPICS if interest is None else interest
        self.topic = self.interest.topic
        self.set_pace(pace)

    def set_pace(self, pace: ReplayRate | None) -> None:
        """Set the maximum delivery rate. None: no maximum."""
        self.pace = pace
        self.rate_limiter = None if pace is None else RateLimiter(pace.rate, pace.max_gap)

    def pause(self, mono: float) -> None:
        """Pause delivery and its rate limiter."""
        self.paused = True
        if self.rate_limiter is not None:
            self.rate_limiter.pause(mono)

    def resume(self, mono: float) -> None:
        """Resume delivery and its rate limiter."""
        self.paused = False
        if self.rate_limiter is not None:
            self.rate_limiter.resume(mono)

    @property
    def may_combine(self) -> bool:
        """Whether it may share a cursor, because it receives unmodified bodies in log order."""
        content = self.interest.content
        if self.horizon is not None:
            return False
        return not self.held and self.conflating is None and (content is None or content.select is None)

    @property
    def has_own_pace(self) -> bool:
        """Whether it keeps its own cursor after it has caught up."""
        return (
            self.numbered
            or self.rate_limiter is not None
            or self.conflating is not None
            or self.horizon is not None
        )

    @property
    def waits_for_links(self) -> bool:
        """Whether it has everything that synchronous destinations have."""
        return self.limit is not None and self.position >= self.limit

    @property
    def owed(self) -> bool:
        """Whether persisted messages remain that are limited only by its credit and connection."""
        if self.paused or self.rate_limiter is not None or self.waits_for_links:
            return False
        if self.conflating is not None:
            return self.conflating.unsent_position is not None or not self._log.caught_up(self)
        return self.phase in _NOT_AT_END

    def credit_granted(self) -> None:
        """Resume a feed with its own cursor. A group checks the credit with the next messages."""
        if self.group is None:
            self._log.credit(self)

    @property
    def has_stop(self) -> bool:
        """Whether it ends by itself."""
        return self.stop is not None or self.stop_time is not None

    @property
    def simple(self) -> bool:
        """Whether only its interest decides which messages it receives."""
        return (
            self.target is None
            and self.stop is None
            and self.stop_time is None
            and self.not_before is None
            and not self.pending_replacements
        )

    def is_free_to(self, position: int) -> bool:
        """Return whether only its interest decides which messages below `position` it receives."""
        if self.not_before is not None or self.stop_time is not None:
            return False
        boundary = self.boundary()
        return boundary is None or boundary >= position

    def boundary(self) -> int | None:
        """Return the next position that requires an action: `completed`, the end, or a replacement."""
        boundary = self.stop if self.stop is not None else self.target
        if self.pending_replacements and (
            boundary is None or self.pending_replacements[0].position < boundary
        ):
            return self.pending_replacements[0].position
        return boundary

    def next_portion(self, selection: Selection, now: float) -> Portion:
        """Return its messages of `selection` from `position` on, at the monotonic time `now` (seconds).
        Credit, rate and the next boundary limit them."""
        low, high, end = self.bounds(selection)
        batch = selection.batch
        if batch is None or low >= high:
            return Portion(None, end, False)
        chosen, at = self._portion(batch, low, high, now)
        if chosen is None:
            return Portion(None, selection.position(low), True, at)
        reached = low + chosen.count
        positions = selection.encoded_positions(low, reached) if self.numbered else b""
        return Portion(
            chosen, end if reached == high else selection.position(reached), False, positions=positions
        )

    def release(self, now: float) -> Portion:
        """Return the conflated messages that credit and rate permit at the monotonic time `now` (seconds)."""
        assert self.conflating is not None
        batch, _, stamps = self.conflating.first
        chosen, at = self._portion(batch, self.conflating.sent, batch.count, now, stamps)
        if chosen is not None:
            self.conflating.advance(batch, chosen.count)
        unsent = self.conflating.unsent_position
        return Portion(chosen, self.position if unsent is None else unsent, chosen is None, at)

    def _portion(
        self, batch: MessageBatch, low: int, high: int, now: float, stamps: Int64s | None = None
    ) -> tuple[MessageBatch | None, float | None]:
        """Return the first messages of `[low, high)` that credit and rate permit, or None, and when the rate
        permits the next message."""
        if self.rate_limiter is not None:
            count, at = self.rate_limiter.allowed(batch, low, high, now, stamps)
            if not count:
                return None, at
            high = low + count
        fitting = self.allowance.fitting(batch, low, high)
        if not fitting:
            return None, None
        if self.numbered:
            fitting = min(fitting, positions_per_frame_max)
        chosen = slice_batch(batch, low, low + fitting)
        while chosen.nbytes > batch_bytes_max and fitting > 1:
            # A selection with gaps has one more column than its source. A single message always fits.
            fitting //= 2
            chosen = slice_batch(batch, low, low + fitting)
        if self.rate_limiter is not None:
            self.rate_limiter.sent(batch, low, low + fitting, now, stamps)
        return chosen, None

    def clip(self, raw: Selection, low: int, high: int) -> int:
        """Return the message of `raw[low:high]` at which a condition changes. Apply a change at `low`."""
        boundary = self.boundary()
        if boundary is not None:
            high = min(high, max(raw.index_at(boundary), low))
        for at in (self.not_before, self.stop_time):
            if at is not None and raw.last_timestamp >= at:
                index = raw.index_stamped(at)
                if index > low:
                    high = min(high, index)
                elif at == self.not_before:
                    self.not_before = None
                else:
                    self.stop, self.stop_time = raw.position(low), None
                    high = low
        return high

    def bounds(self, selection: Selection) -> tuple[int, int, int]:
        """Return the first and end index of the messages to send, and the position considered after them.

        Converts a stop time into a position.
        """
        low = selection.index_at(self.position)
        if self.not_before is not None and selection.last_timestamp >= self.not_before:
            low = max(low, selection.index_stamped(self.not_before))
            if low < selection.count:
                self.not_before = None
        elif self.not_before is not None:
            low = selection.count
        if self.stop_time is not None and selection.last_timestamp >= self.stop_time:
            stop = selection.position(selection.index_stamped(self.stop_time))
            self.stop = stop if self.stop is None else min(self.stop, stop)
            self.stop_time = None
        boundary = self.boundary()
        if self.limit is not None and (boundary is None or boundary > self.limit):
            boundary = self.limit
        if boundary is None or boundary >= selection.end:
            return low, selection.count, selection.end
        return low, selection.index_at(boundary), max(boundary, self.position)
