"""Lease of a batch from a queue: queue name, end of the lease, and settlement of its messages.

The client sends settlements and decides when. Acknowledging is the hot path: one append without a lock. The
client takes the whole list.
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
"""Queue, publisher and sequence of an acknowledged message."""


class AckAccumulator:
    """Acknowledgements of one subscription that are sent together.

    Any thread may append to `items`. Removing items requires the client's lock.
    """

    __slots__ = ("dropped", "granted", "items", "limit", "timed")

    def __init__(self) -> None:
        self.items: list[Gathered] = []
        self.granted = 0
        """Unacknowledged messages that the server allows the subscription to hold, or 0 if unknown."""
        self.limit = 1
        """Number of acknowledgements that triggers sending."""
        self.timed = False
        """Whether a timer also sends the gathered acknowledgements."""
        self.dropped = False
        """Whether a lost connection discarded items that may not have been reported to the client yet."""

    def gather(self, limit: int) -> None:
        """Set the number of acknowledgements that triggers sending."""
        self.limit = limit


class Hold:
    """Ownership of at-least-once messages by one subscription on one connection."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False

    def end(self) -> None:
        """Record that the messages have returned to their queues."""
        self.over = True


class Settling(Protocol):
    """Receiver of settlements: the client."""

    def acknowledged(self, gathering: AckAccumulator) -> None:
        """Handle gathered acknowledgements: `limit` is reached, or no timer sends them."""

    def settled(self, queue: str, action: Action, marks: Marks, extend_ms: int = 0) -> None:
        """Send a settlement at once, after the gathered acknowledgements."""


class Lease:
    """Properties of all messages of one delivery from a queue."""

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
        """End of the lease in microseconds since 1970 UTC, 0 for no end."""
        self.once = once
        """Whether the messages have already left the queue (at-most-once)."""
        self._hold = hold
        self.gathering = gathering
        """Accumulator for acknowledgements of its messages."""
        self._settling = settling
        self.touched: set[tuple[int, int]] | None = set() if automatic else None
        """Publisher and sequence of settled messages, or None unless the rest is settled automatically."""

    @property
    def gone(self) -> bool:
        """Whether its messages have returned to the queue and must not be delivered here."""
        return self._hold.over and not self.once

    @property
    def expires(self) -> datetime | None:
        """End of the lease as an aware UTC time, or None for no end."""
        return _EPOCH + timedelta(microseconds=self.ends) if self.ends else None

    def ack(self, publisher: int, sequence: int) -> None:
        """Acknowledge a message. Raises the errors of `publish` of the client."""
        if self.touched is not None:
            self.touched.add((publisher, sequence))
        gathering = self.gathering
        items = gathering.items
        items.append((self.queue, publisher, sequence))
        if len(items) >= gathering.limit or not gathering.timed:
            self._settling.acknowledged(gathering)

    def settle(self, action: Action, marks: Marks, extend_ms: int = 0) -> None:
        """Settle messages in another way, or acknowledge many. Raises the errors of `publish`."""
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
        """Return the messages that the application has not settled."""
        touched = self.touched
        return [] if touched is None else [mark for mark in marks if mark not in touched]


class BrowseLease(Lease):
    """Lease of browsed messages, which cannot be settled."""

    __slots__ = ()

    @property
    def gone(self) -> bool:
        """Always False, because browsed messages are not leased."""
        return False

    def ack(self, publisher: int, sequence: int) -> None:
        """Raise `UsageError`."""
        self._refuse("acknowledge", publisher, sequence)

    def settle(self, action: Action, marks: Marks, extend_ms: int = 0) -> None:
        """Raise `UsageError`."""
        self._refuse(action, *marks, extend_ms)

    def _refuse(self, what: str, *_: object) -> NoReturn:
        raise UsageError(
            f"Cannot {what} messages of queue {self.queue!r}: they were only browsed. "
            "Subscribe without browse=True to process them."
        )


def extension_ms(seconds: float | str) -> int:
    """Return the milliseconds by which a lease is extended. Raises `BadOption`."""
    length = parse_interval(seconds)
    if not 0 < length <= lease_seconds_max:
        raise BadOption(
            f"Invalid lease extension {seconds!r}. "
            f"Use more than 0 and at most {lease_seconds_max:.0f} seconds."
        )
    return max(1, round(length * 1000))
