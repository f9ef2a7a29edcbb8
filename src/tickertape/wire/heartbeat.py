"""Heartbeat state machine of a connection, in either role.

It decides when to send a heartbeat and when the peer counts as dead. The driver passes the time and what it
saw of the connection. Received bytes prove that the peer is alive, even if nothing has processed them yet.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tickertape.base.limits import unread_bytes_unsure

Verdict = Literal["alive", "beat", "silent"]
"""`beat`: alive, and a beat is to be sent; `silent`: nothing came for too long."""


class Liveness(NamedTuple):
    """State of a connection as its driver sees it. Times are monotonic seconds."""

    heard_at: float
    """When bytes of the peer were last read."""
    read_bytes: int
    """How many were read, all together."""
    said_at: float
    """When something was last given to the connection to be written."""
    unwritten: bool = False
    """Something waits to be written: it shows that we live as soon as the peer takes it."""
    unread_bytes: int = 0
    """What has arrived at the socket and was not read."""
    excused: bool = False
    """We do not read, for a reason that is ours and not the peer's."""


class HeartbeatState:
    """The heartbeat of a connection from `now` on. A beat is due when nothing was sent for `interval`
    seconds; the peer is silent when nothing came for `idle` seconds."""

    __slots__ = ("_arrived_bytes", "_heard_at", "_idle", "_interval", "_said_at")

    def __init__(self, interval: float, idle: float, now: float) -> None:
        self._interval = interval
        self._idle = idle
        self._heard_at = now
        self._said_at = now
        self._arrived_bytes = 0

    @property
    def deadline(self) -> float:
        """When to look at the connection at the latest; later than now once it was looked at."""
        return min(self._said_at + self._interval, self._heard_at + self._idle)

    def look(self, sight: Liveness, now: float) -> Verdict:
        """State of the connection, as its driver sees it now."""
        # Reading late what had arrived at the last look is no new sign of life.
        arrived = sight.read_bytes + sight.unread_bytes
        if sight.excused or sight.unread_bytes >= unread_bytes_unsure:
            self._heard_at = now
        elif arrived > self._arrived_bytes:
            self._heard_at = now if sight.unread_bytes else max(self._heard_at, sight.heard_at)
        self._arrived_bytes = arrived
        if now >= self._heard_at + self._idle:
            return "silent"
        self._said_at = now if sight.unwritten else max(self._said_at, sight.said_at)
        if now < self._said_at + self._interval:
            return "alive"
        self._said_at = now
        return "beat"
