"""Heartbeat monitor: sends heartbeats to all connections, and detects silent ones.

Deadlines are in a queue, and one step probes a limited number of connections. The driver answers a
`ProbeConnection` with `Broker.probed`.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from tickertape.base.errors import BadOption, HeartbeatMissed
from tickertape.base.limits import heartbeat_missed_intervals, heartbeat_seconds_max, heartbeat_seconds_min
from tickertape.engine.limits import beats_a_step_max
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.effects import ProbeConnection
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.runtime.scheduling import DeadlineQueue
from tickertape.wire.commands import Heartbeat
from tickertape.wire.heartbeat import HeartbeatState, Liveness

_TICKS: Final = 1_000_000
"""Units of the deadline queue per second."""


class HeartbeatMonitor:
    """Connections with heartbeats enabled."""

    def __init__(self, outbox: Outbox, clock: EngineClock) -> None:
        self._outbox = outbox
        self._clock = clock
        self._pulses: dict[int, HeartbeatState] = {}
        self._intervals: dict[int, float] = {}
        self._links: set[int] = set()
        """Connections of replication links."""
        self._due: DeadlineQueue[int] = DeadlineQueue()

    def __len__(self) -> int:
        return len(self._pulses)

    def begin(self, conn: int, interval_ms: int, *, link: bool = False) -> None:
        """Start heartbeats of a connection at an interval in milliseconds. 0 stops them. Raises `BadOption`.

        `link`: it is the connection of a replication link."""
        interval = heartbeat_seconds(interval_ms)
        if not interval:
            self.drop(conn)
            return
        self._intervals[conn] = interval
        if link:
            self._links.add(conn)
        silence = heartbeat_missed_intervals * interval
        pulse = self._pulses[conn] = HeartbeatState(interval, silence, self._clock.mono)
        self._schedule(conn, pulse)

    def drop(self, conn: int) -> None:
        """Stop heartbeats of a connection."""
        if self._pulses.pop(conn, None) is not None:
            del self._intervals[conn]
            self._links.discard(conn)
            self._due.drop(conn)

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `wake`, or None."""
        first = self._due.first()
        return None if first is None else first / _TICKS

    def wake(self) -> None:
        """Probe up to `beats_a_step_max` connections that are due. The others remain due."""
        for conn in self._due.due(round(self._clock.mono * _TICKS), beats_a_step_max):
            self._outbox.put(ProbeConnection(conn))

    def probed(self, conn: int, sight: Liveness) -> HeartbeatMissed | None:
        """Handle the answer to a `ProbeConnection`. Return an error if the client was silent for too long."""
        pulse = self._pulses.get(conn)
        if pulse is None:
            return None
        verdict = pulse.look(sight, self._clock.mono)
        if verdict == "silent":
            interval = self._intervals[conn]
            silent = heartbeat_missed_intervals * interval
            peer = "server at the other end of the link" if conn in self._links else "client"
            text = (
                f"Cannot reach the {peer}: it sent nothing for {silent:g} seconds (heartbeat interval "
                f"{interval:g} seconds). Check the network, or use a longer heartbeat interval."
            )
            return HeartbeatMissed(text)
        if verdict == "beat":
            self._outbox.send(conn, Heartbeat())
        self._schedule(conn, pulse)
        return None

    def _schedule(self, conn: int, pulse: HeartbeatState) -> None:
        # One tick late: a connection that is probed too early would be due again at once.
        self._due.put(conn, ceil(pulse.deadline * _TICKS) + 1)
        self._clock.announce(self)


def heartbeat_seconds(interval_ms: int) -> float:
    """Return the requested interval in seconds, 0 for none. Raises `BadOption`."""
    seconds = interval_ms / 1000
    if interval_ms and not heartbeat_seconds_min <= seconds <= heartbeat_seconds_max:
        raise BadOption(
            f"Invalid heartbeat interval of {interval_ms} ms. Use {heartbeat_seconds_min:g} to "
            f"{heartbeat_seconds_max:g} seconds, or 0 for none."
        )
    return seconds
