"""Ack conflation: at most one persisted acknowledgement for each session and interval.

Invariants:
- The first acknowledgement after a quiet interval is sent at once, as is one that covers
  `ack_conflation_frames_max` frames: a client remembers each frame until then.
- An acknowledgement is sent before the answer of a later command.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from tickertape.base.errors import BadOption
from tickertape.base.limits import conflation_seconds_max, conflation_seconds_min
from tickertape.base.units import parse_interval
from tickertape.engine.limits import ack_conflation_frames_max
from tickertape.wire.commands import Persisted

_SWEEP_MIN: Final = 64


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
        self._held: dict[int, tuple[Recipient, Persisted, float]] = {}
        """Held acknowledgement of each connection, and when it is sent (monotonic seconds)."""
        self._free: dict[int, float] = {}
        """When the next acknowledgement of each connection may be sent at once."""
        self._said: dict[int, int] = {}
        """The last acknowledged frame of each connection."""
        self._deadlines: list[tuple[float, int]] = []
        """A heap of times and connections; some entries are out of date."""

    def persisted(self, session: Recipient, command: Persisted, mono: float) -> bool:
        """Return whether an acknowledgement, which covers every earlier one, is sent now; else it is held."""
        conn = session.conn
        if not session.ack_conflation:
            return True
        before = self._held.get(conn)
        if command.frame - self._said.get(conn, 0) >= ack_conflation_frames_max:
            self._held.pop(conn, None)
        elif before is not None:
            _, earlier, leaves = before
            sequence = max(earlier.sequence, command.sequence)
            merged = Persisted(frame=command.frame, sequence=sequence, level=command.level)
            self._held[conn] = session, merged, leaves
            return False
        elif mono < (leaves := self._free.get(conn, mono)):
            self._held[conn] = session, command, leaves
            heappush(self._deadlines, (leaves, conn))
            if len(self._deadlines) > 2 * len(self._held) + _SWEEP_MIN:
                self._sweep()
            return False
        self._free[conn] = mono + session.ack_conflation
        self._said[conn] = command.frame
        return True

    def _sweep(self) -> None:
        """Remove entries that are out of date: intervals are long, and answers end most of them early."""
        self._deadlines = [(leaves, conn) for conn, (_, _, leaves) in self._held.items()]
        heapify(self._deadlines)

    def release(self, conn: int) -> Persisted | None:
        """Take the held acknowledgement of a connection, to be sent before something else."""
        held = self._held.pop(conn, None)
        if held is None:
            return None
        self._said[conn] = held[1].frame
        return held[1]

    def due(self, mono: float) -> Iterator[tuple[int, Persisted]]:
        """Take the held acknowledgements whose time has come, with their connections."""
        while self._deadlines and self._deadlines[0][0] <= mono:
            leaves, conn = heappop(self._deadlines)
            held = self._held.get(conn)
            if held is not None and held[2] == leaves:
                self._free[conn] = mono + held[0].ack_conflation
                self._said[conn] = held[1].frame
                del self._held[conn]
                yield conn, held[1]

    def next_deadline(self) -> float | None:
        """Return when to call `due` (monotonic seconds), or None."""
        while self._deadlines:
            leaves, conn = self._deadlines[0]
            held = self._held.get(conn)
            if held is not None and held[2] == leaves:
                return leaves
            heappop(self._deadlines)
        return None

    def drop(self, conn: int) -> None:
        """Forget a connection."""
        self._held.pop(conn, None)
        self._free.pop(conn, None)
        self._said.pop(conn, None)
