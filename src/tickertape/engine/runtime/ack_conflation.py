"""Ack conflation: at most one persisted acknowledgement for each session and interval.

Invariants:
- The first acknowledgement after a quiet interval is sent at once, as is one that covers
  `ack_conflation_frames_max` frames: a client remembers each frame until then.
- An acknowledgement is sent before the answer of a later command.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tickertape.base.errors import BadOption
from tickertape.base.limits import conflation_seconds_max, conflation_seconds_min
from tickertape.base.units import parse_interval
from tickertape.engine.limits import ack_conflation_frames_max
from tickertape.engine.runtime.scheduling import DeadlineQueue
from tickertape.wire.commands import Persisted


def ack_conflation_of(value: str | None) -> float:
    """Return the seconds of the logon option `ack_conflation`. Raises `BadOption`."""
    seconds = parse_interval(value or "")
    if not conflation_seconds_min <= seconds <= conflation_seconds_max:
        raise BadOption(
            f"Cannot use ack_conflation={value}: it is {conflation_seconds_min:g} to "
            f"{conflation_seconds_max:,.0f} seconds."
        )
    return seconds


class Recipient(Protocol):
    """A session: what an acknowledgement needs of it."""

    conn: int
    ack_conflation: float
    """Seconds between two acknowledgements; 0: they are not held back."""


class AckConflation:
    """Held acknowledgements of sessions with an `ack_conflation`."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[Recipient, Persisted]] = {}
        """Held acknowledgement of each connection; not to be changed."""
        self._free: dict[int, float] = {}
        """When the next acknowledgement of each connection may be sent at once."""
        self._said: dict[int, int] = {}
        """The last acknowledged frame of each connection."""
        self._deadlines: DeadlineQueue[int] = DeadlineQueue()
        """Connections by the time at which their held acknowledgement is sent."""

    def persisted(self, session: Recipient, command: Persisted, mono: float) -> bool:
        """Return whether an acknowledgement, which covers every earlier one, is sent now; else it is held."""
        conn = session.conn
        if not session.ack_conflation:
            return True
        before = self.held.get(conn)
        if command.frame - self._said.get(conn, 0) >= ack_conflation_frames_max:
            self.held.pop(conn, None)
            self._deadlines.drop(conn)
        elif before is not None:
            sequence = max(before[1].sequence, command.sequence)
            merged = Persisted(frame=command.frame, sequence=sequence, level=command.level)
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
        """Take the held acknowledgement of a connection, to be sent before something else."""
        held = self.held.pop(conn, None)
        if held is None:
            return None
        self._deadlines.drop(conn)
        self._said[conn] = held[1].frame
        return held[1]

    def due(self, mono: float) -> Iterator[tuple[int, Persisted]]:
        """Take the held acknowledgements whose time has come, with their connections."""
        for conn in self._deadlines.due(mono):
            session, command = self.held.pop(conn)
            self._free[conn] = mono + session.ack_conflation
            self._said[conn] = command.frame
            yield conn, command

    def next_deadline(self) -> float | None:
        """Return when to call `due` (monotonic seconds), or None."""
        return self._deadlines.first()

    def drop(self, conn: int) -> None:
        """Forget a connection."""
        self._deadlines.drop(conn)
        self.held.pop(conn, None)
        self._free.pop(conn, None)
        self._said.pop(conn, None)
