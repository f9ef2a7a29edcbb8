"""Heartbeat state machine of a connection, in either role.

It decides when to send a heartbeat and when the peer counts as dead. The driver passes the time and the state
of the connection. Received bytes prove that the peer is alive, even before they are processed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tickertape.base.limits import unread_bytes_unsure

Verdict = Literal["alive", "beat", "silent"]
"""`beat`: alive, and a heartbeat is due. `silent`: no bytes arrived within the timeout."""


class Liveness(NamedTuple):
    """State of a connection as seen by its driver. Times are monotonic seconds."""

    heard_at: float
    """Time of the last read of bytes from the peer."""
    read_bytes: int
    """Total number of bytes read."""
    said_at: float
    """Time of the last write to the connection."""
    unwritten: bool = False
    """Whether output is waiting. It proves this side alive once the peer reads it."""
    unread_bytes: int = 0
    """Bytes that arrived at the socket but were not read."""
    excused: bool = False
    """Whether this side pauses reading for a reason that is not the peer's fault."""


class HeartbeatState:
    """Heartbeat state of a connection from `now` on.

    A heartbeat is due after `interval` seconds without output. The peer is silent after `idle` seconds
    without input.
    """

    __slots__ = ("_arrived_bytes", "_heard_at", "_idle", "_interval", "_said_at")

    def __init__(self, interval: float, idle: float, now: float) -> None:
        self._interval = interval
        self._idle = idle
        self._heard_at = now
        self._said_at = now
        self._arrived_bytes = 0

    @property
    def deadline(self) -> float:
        """Latest time for the next `look`. After a `look` it is later than now."""
        return min(self._said_at + self._interval, self._heard_at + self._idle)

    def look(self, sight: Liveness, now: float) -> Verdict:
        """Return the state of the connection."""
        # A late read of bytes that had arrived at the last look proves nothing new.
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
