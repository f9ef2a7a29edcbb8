"""Lease of a batch from a queue: queue name, end of the lease, and settlement of its messages.

The client sends settlements and decides when. Acknowledging is the hot path: one append without a lock, and
the client takes the whole list.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Final, Literal, NoReturn, Protocol

from tickertape.base.errors import BadOption, UsageError
from tickertape.base.limits import lease_seconds_max
from tickertape.base.units import parse_interval

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Action = Literal["ack", "cancel", "expire", "extend"]
Marks = Iterable[tuple[int, int]]
"""Publisher and sequence of each message."""
Gathered = tuple[str, int, int]
"""Queue, publisher and sequence of a message that was acknowledged."""


class AckAccumulator:
    """Acknowledgements of one subscription that are sent together.

    Any thread appends to `items`; who takes some from the front holds the client's lock.
    """

    __slots__ = ("dropped", "granted", "items", "limit", "timed")

    def __init__(self) -> None:
        self.items: list[Gathered] = []
        self.granted = 0
        """How many unacknowledged messages the server lets the subscription hold; 0 while it is not known."""
        self.limit = 1
        """How many are gathered at most."""
        self.timed = False
        """Whether a timer sends the gathered acknowledgements in time."""
        self.dropped = False
        """Whether a lost connection took some that may not have been reported to the client yet."""

    def gather(self, limit: int) -> None:
        """Gather that many at most from now on."""
        self.limit = limit


class Hold:
    """One subscription on one connection: at-least-once messages that it was given are its while it lasts."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False

    def end(self) -> None:
        """The messages have gone back to their queues."""
        self.over = True


class Settling(Protocol):
    """Receiver of settlements: the client."""

    def acknowledged(self, gathering: AckAccumulator) -> None:
        """As many as allowed are gathered, or the first one is."""

    def settled(self, queue: str, action: Action, marks: Marks, extend_ms: int = 0) -> None:
        """Send a settlement at once, after the gathered acknowledgements."""


class Lease:
    """What holds for all messages of one delivery out of a queue."""

    __slots__ = ("__weakref__", "_hold", "_settling", "ends", "gathering", "once", "queue", "touched")

    def __init__(
        self,
        queue: str,
        ends: int,
        *,
        once: bool,
        hold: Hold,
        gathering: AckAccumulator,
        settling: Settling,
        automatic: bool = False,
    ) -> None:
        self.queue = queue
        self.ends = ends
        """When it ends, microseconds since 1970 UTC; 0 when it has no end."""
        self.once = once
        """Whether the messages have left the queue already."""
        self._hold = hold
        self.gathering = gathering
        """Where acknowledgements of its messages go."""
        self._settling = settling
        self.touched: set[tuple[int, int]] | None = set() if automatic else None
        """Publisher and sequence of settled messages; None unless the rest is settled automatically."""

    @property
    def gone(self) -> bool:
        """Whether its messages have returned to the queue and must not be delivered here."""
        return self._hold.over and not self.once

    @property
    def expires(self) -> datetime | None:
        """When it ends, aware, UTC; None when it has no end."""
        return _EPOCH + timedelta(microseconds=self.ends) if self.ends else None

    def ack(self, publisher: int, sequence: int) -> None:
        """A message is done. Raises what `publish` of the client raises."""
        if self.touched is not None:
            self.touched.add((publisher, sequence))
        gathering = self.gathering
        items = gathering.items
        items.append((self.queue, publisher, sequence))
        if len(items) >= gathering.limit or not gathering.timed:
            self._settling.acknowledged(gathering)

    def settle(self, action: Action, marks: Marks, extend_ms: int = 0) -> None:
        """Something else became of messages, or the same of many. Raises what `publish` raises."""
        marks = list(marks)
        if self.touched is not None and action != "extend":
            self.touched.update(marks)
        gathering = self.gathering
        if action != "ack" or len(marks) + len(gathering.items) >= gathering.limit:
            self._settling.settled(self.queue, action, marks, extend_ms)
        else:
            gathering.items += zip(
                repeat(self.queue), [mark[0] for mark in marks], [mark[1] for mark in marks], strict=False
            )
            if len(gathering.items) >= gathering.limit or not gathering.timed:
                self._settling.acknowledged(gathering)

    def untouched(self, marks: Marks) -> list[tuple[int, int]]:
        """Return which of these messages are still to be settled by themselves."""
        touched = self.touched
        return [] if touched is None else [mark for mark in marks if mark not in touched]


class BrowseLease(Lease):
    """Messages that were only looked at: there is nothing to settle."""

    __slots__ = ()

    @property
    def gone(self) -> bool:
        """Always false: browsed messages are not leased."""
        return False

    def ack(self, publisher: int, sequence: int) -> None:
        """Raises `UsageError`."""
        self._refuse("acknowledge", publisher, sequence)

    def settle(self, action: Action, marks: Marks, extend_ms: int = 0) -> None:
        """Raises `UsageError`."""
        self._refuse(action, *marks, extend_ms)

    def _refuse(self, what: str, *_: object) -> NoReturn:
        raise UsageError(f"cannot {what} messages of the queue {self.queue!r} that were only browsed")


def extension_ms(seconds: float | str) -> int:
    """Milliseconds by which a lease is extended. Raises `BadOption`."""
    length = parse_interval(seconds)
    if not 0 < length <= lease_seconds_max:
        raise BadOption(f"a lease is extended by more than 0 and at most {lease_seconds_max:.0f} seconds")
    return max(1, round(length * 1000))
