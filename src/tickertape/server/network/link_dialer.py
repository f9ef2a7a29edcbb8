"""Link dialer: decides when an outgoing link connects, and to which address of its destination.

It is a pure machine: times and random numbers are arguments.

Invariant: it never gives up. An attempt, or a lost link, is always followed by a next attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

from tickertape.server.limits import (
    link_refused_seconds,
    link_retry_seconds_max,
    link_retry_seconds_min,
    link_settled_seconds,
)


class LinkDialer:
    """Attempts of one outgoing link. Times are monotonic seconds.

    The addresses are tried in turn. After a round without an open link the next one waits: longer after each
    round, up to `link_retry_seconds_max`, and `link_refused_seconds` after a refusal. A link that was open
    for `link_settled_seconds` counts as good: its address is tried first, after the shortest wait."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)
        self._turn = 0
        self._delay = link_retry_seconds_min
        self._opened_at: float | None = None
        self.due: float | None = None
        """Time of the next attempt. None before the start, during an attempt, and while connected."""

    @property
    def address(self) -> str:
        """Address of this attempt, or of the next one."""
        return self._addresses[self._turn]

    def start(self, now: float) -> None:
        """Make the first attempt due."""
        self.due = now

    def hurry(self, now: float) -> None:
        """Make the next attempt due at once, if one waits: the destination is known to be up."""
        if self.due is not None:
            self.due = min(self.due, now)

    def attempt(self) -> str:
        """Begin the attempt that is due. Return its address."""
        self.due = None
        return self.address

    def opened(self, now: float) -> None:
        """Note that the destination accepted the link."""
        self._opened_at = now

    def ended(self, now: float, jitter: float, *, refused: bool = False) -> None:
        """Schedule the next attempt after a failed attempt or a lost link.

        `jitter`: random number from 0 to 1, so that many links do not connect at the same time. `refused`:
        only an operator can change the cause."""
        opened_at, self._opened_at = self._opened_at, None
        if opened_at is not None and now - opened_at >= link_settled_seconds:
            self._delay = link_retry_seconds_min
            ends_round = True
        else:
            self._turn = (self._turn + 1) % len(self._addresses)
            ends_round = not self._turn
        if refused:
            self.due = now + link_refused_seconds
        elif ends_round or opened_at is not None:
            self.due = now + self._delay * (1 + jitter) / 2
            self._delay = min(2 * self._delay, link_retry_seconds_max)
        else:
            self.due = now
