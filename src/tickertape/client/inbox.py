"""Owns what a subscription delivered until the application takes it, and what of it was granted again.

Must never wait, lock or call anyone: a stream of either front guards it and tells the client what it owes.
What lies here is bounded by the credit of the subscription, and by `catch_up_bytes_max` while somebody waits
for the replay to catch up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tickertape.base.errors import StreamEnded, TickertapeError, TimedOut
from tickertape.base.limits import catch_up_bytes_max
from tickertape.base.units import within
from tickertape.batch.layout import MessageBatch
from tickertape.batch.message import Message
from tickertape.batch.select import slice_batch


class Inbox:
    """The batches of one subscription, in log order. Costs are those of the subscription's credit."""

    __slots__ = (
        "_at_hand",
        "_batches",
        "_catching_up",
        "_done",
        "_held_bytes",
        "_notice",
        "_prepaid_bytes",
        "_pushed_batches",
        "_taken_batches",
        "_taken_bytes",
        "caught_up",
        "closed",
        "end_error",
        "end_reason",
        "limited",
        "sub_id",
    )  # fmt: skip

    def __init__(self, sub_id: str, *, limited: bool) -> None:
        self.sub_id = sub_id
        self.limited = limited
        """Whether its end means that everything was read, so that being cut short is an error."""
        self.end_reason: str | None = None
        self.end_error: TickertapeError | None = None
        self.caught_up = False
        self.closed = False
        """Whether the application wants no more; what comes then is dropped."""
        self._batches: deque[MessageBatch] = deque()
        self._held_bytes = 0
        self._prepaid_bytes = 0
        self._taken_bytes = 0
        self._catching_up = 0
        self._at_hand: MessageBatch | None = None
        self._done: MessageBatch | str | None = None
        self._pushed_batches = 0
        self._taken_batches = 0
        self._notice: tuple[int, str] | None = None

    # -- what the client hands in -----------------------------------------------------------------------

    def push(self, batch: MessageBatch) -> int:
        """A batch was delivered; the cost to report as consumed at once."""
        if self.closed:
            return 0
        self._batches.append(batch)
        self._pushed_batches += 1
        self._held_bytes += batch.cost
        return self._prepay() if self._catching_up else 0

    def notice(self, bookmark: str) -> None:
        """Everything up to `bookmark` was delivered: with what is here, a place to resume from."""
        self._notice = (self._pushed_batches, bookmark)
        self._apply_notice()

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """Nothing more comes; what is here can still be taken. The first end counts."""
        if self.end_reason is None:
            self.end_reason, self.end_error = reason, error

    # -- what the application does ----------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether `take` need not wait."""
        return bool(self._batches) or self.end_reason is not None

    def settle(self) -> int:
        """The cost to report for the batch taken last: asking for another one says that it is done with."""
        taken, self._taken_bytes = self._taken_bytes, 0
        if self._at_hand is not None:
            self.done(self._at_hand)
            self._at_hand = None
            self._apply_notice()
        return taken

    def done(self, batch: MessageBatch) -> None:
        """The application is done with `batch` and everything before it."""
        if batch.context is not None and batch.context.with_bookmark:
            self._done = batch

    @property
    def recovery_point(self) -> str | None:
        """The bookmark up to which the application is done with everything; None when none is known."""
        done = self._done
        return done.bookmark(done.count - 1) if isinstance(done, MessageBatch) else done

    def take(self) -> MessageBatch | None:
        """The next batch, when `ready`; None when it is over. Raises what cut a limited reading short."""
        if not self._batches:
            if self.limited and self.end_error is not None:
                raise self.end_error
            return None
        batch = self._at_hand = self._batches.popleft()
        self._taken_batches += 1
        cost = batch.cost
        self._held_bytes -= cost
        # What was granted again while it lay here is not granted twice.
        prepaid = min(cost, self._prepaid_bytes)
        self._prepaid_bytes -= prepaid
        self._taken_bytes = cost - prepaid
        return batch

    def close(self) -> bool:
        """Drop what is here and what comes; whether the subscription was still running."""
        self.closed = True
        self._batches.clear()
        self._held_bytes = self._prepaid_bytes = 0
        return self.end_reason is None

    # -- waiting for the replay to catch up -------------------------------------------------------------

    def begin_catch_up(self) -> int:
        """Somebody waits, and perhaps does not consume: what is held is granted again; the cost to report."""
        self._catching_up += 1
        return self._prepay()

    def end_catch_up(self) -> None:
        """They do not wait any more."""
        self._catching_up -= 1

    @property
    def settled(self) -> bool:
        """Whether it is known if the replay has caught up."""
        return self.caught_up or self.end_reason is not None

    def check_caught_up(self, timeout: float | None) -> None:
        """Say how the waiting ended. Raises `StreamEnded`, `TimedOut`."""
        if self.caught_up:
            return
        if self.end_reason is not None:
            why = self.end_error or self.end_reason
            raise StreamEnded(f"stream {self.sub_id} ended before it had caught up: {why}")
        hint = "; it holds all it may, so consume it meanwhile" if self._full else ""
        raise TimedOut(f"stream {self.sub_id} has not caught up {within(timeout)}{hint}")

    # -- errors of both fronts --------------------------------------------------------------------------

    def over(self) -> StreamEnded:
        """What `get` raises when there are no more."""
        return StreamEnded(f"stream {self.sub_id} is over: {self.end_error or self.end_reason}")

    def late(self, timeout: float | None) -> TimedOut:
        """What is raised when nothing came."""
        return TimedOut(f"no message on stream {self.sub_id} {within(timeout)}")

    # -- inside -----------------------------------------------------------------------------------------

    def _apply_notice(self) -> None:
        if self._notice is not None and self._at_hand is None and self._taken_batches >= self._notice[0]:
            self._done, self._notice = self._notice[1], None

    @property
    def _full(self) -> bool:
        return self._held_bytes >= catch_up_bytes_max

    def _prepay(self) -> int:
        if self._full:
            return 0
        owed = self._held_bytes - self._prepaid_bytes
        self._prepaid_bytes = self._held_bytes
        return owed


def rest_of(current: Iterator[Message]) -> MessageBatch | None:
    """The messages that an iteration has begun and not given yet, as a batch; the iteration is used up."""
    first = next(current, None)
    if first is None:
        return None
    for _ in current:
        pass
    batch = first.batch
    rest = slice_batch(batch, first.index, batch.count)
    rest.context = batch.context
    return rest
