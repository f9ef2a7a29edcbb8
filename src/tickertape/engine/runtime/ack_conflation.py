"""Ack conflation: sends at most one persisted acknowledgement per session and interval.

Invariants:
- An acknowledgement is sent at once if none was sent for an interval, or if it covers
  `ack_conflation_frames_max` frames. Clients keep each frame in memory until it is acknowledged.
- A held acknowledgement is sent before a later `Ack` or `Goodbye`. Other commands may overtake it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tickertape.base.errors import BadOption
from tickertape.base.limits import conflation_seconds_max, conflation_seconds_min
from tickertape.base.units import parse_interval
from tickertape.engine.limits import ack_conflation_frames_max
from tickertape.engine.runtime.scheduling import DeadlineQueue
from tickertape.wire.commands import Persisted, weaker


def ack_conflation_of(value: str | None) -> float:
    """Return the seconds of the logon option `ack_conflation`. Raises `BadOption`."""
    seconds = parse_interval(value or "")
    if not conflation_seconds_min <= seconds <= conflation_seconds_max:
        raise BadOption(
            f"Invalid ack_conflation '{value}'. Use {conflation_seconds_min:g} to "
            f"{conflation_seconds_max:,.0f} seconds."
        )
    return seconds


class Recipient(Protocol):
    """The attributes of a session that acknowledgements need."""

    conn: int
    ack_conflation: float
    """Minimum interval between two acknowledgements, in seconds. 0 disables conflation."""


class AckConflation:
    """Held acknowledgements of the sessions that set `ack_conflation`."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[Recipient, Persisted]] = {}
        """Held acknowledgement of each connection. Callers must not change it."""
        self._free: dict[int, float] = {}
        """Monotonic time from which each connection may receive an acknowledgement at once."""
        self._said: dict[int, int] = {}
        """Last acknowledged frame of each connection."""
        self._deadlines: DeadlineQueue[int] = DeadlineQueue()
        """Connections by the time at which their held acknowledgement is sent."""

    def persisted(self, session: Recipient, command: Persisted, mono: float) -> bool:
        """Return whether to send a cumulative acknowledgement now. If not, it is held and merged with a held
        one."""
        conn = session.conn
        if not session.ack_conflation:
            return True
        before = self.held.get(conn)
        if command.frame - self._said.get(conn, 0) >= ack_conflation_frames_max:
            self.held.pop(conn, None)
            self._deadlines.drop(conn)
        elif before is not None:
            sequence = max(before[1].sequence, command.sequence)
            level = command.level
            if level != before[1].level:
                level = weaker(level, before[1].level)
            merged = Persisted(frame=command.frame, sequence=sequence, level=level)
            self.held[conn] = session, merged
            return False
        elif mono < (leaves := self._free.get(conn, mono)):
            self.held[conn] = session, command
            self._deadlines.put(conn, leaves)
            return False
        self._free[conn] = mono + session.ack_conflation
        self._said[conn] = command.frame
        return True

    def release(self, conn: int) -> Persisted | None:
        """Remove and return the held acknowledgement of a connection, to send it before another command."""
        held = self.held.pop(conn, None)
        if held is None:
            return None
        self._deadlines.drop(conn)
        self._said[conn] = held[1].frame
        return held[1]

    def due(self, mono: float) -> Iterator[tuple[int, Persisted]]:
        """Remove and yield the held acknowledgements that are due, with their connections."""
        for conn in self._deadlines.due(mono):
            session, command = self.held.pop(conn)
            self._free[conn] = mono + session.ack_conflation
            self._said[conn] = command.frame
            yield conn, command

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `due`, or None."""
        return self._deadlines.first()

    def drop(self, conn: int) -> None:
        """Remove the state of a connection."""
        self._deadlines.drop(conn)
        self.held.pop(conn, None)
        self._free.pop(conn, None)
        self._said.pop(conn, None)
