"""Heartbeat of a client: the configured interval, and the state of its connection."""

from __future__ import annotations

from tickertape.base.errors import BadOption, HeartbeatMissed
from tickertape.base.limits import heartbeat_missed_intervals, heartbeat_seconds_max, heartbeat_seconds_min
from tickertape.base.units import parse_interval
from tickertape.wire.heartbeat import HeartbeatState, Liveness, Verdict

Interval = float | str
"""Seconds, or text such as `"500ms"`."""


class ClientHeartbeat:
    """Heartbeat of one client. It is disabled until `choose`."""

    def __init__(self) -> None:
        self.interval = 0.0
        """Seconds without output after which each side sends a heartbeat, 0 for no heartbeat."""
        self.idle = 0.0
        """Seconds without input from the server after which it counts as dead."""
        self._pulse: HeartbeatState | None = None

    def choose(self, interval: Interval | None, idle: Interval | None) -> None:
        """Set the heartbeat of the application. None or 0 disables it.

        Raises `BadOption` without any change.
        """
        seconds = 0.0 if interval is None else parse_interval(interval)
        if not seconds:
            if idle is not None:
                raise BadOption(
                    f"Invalid idle '{idle}': it requires an interval. Set an interval, or omit idle."
                )
            self.interval = self.idle = 0.0
            return
        if not heartbeat_seconds_min <= seconds <= heartbeat_seconds_max:
            raise BadOption(
                f"Invalid heartbeat interval '{interval}'. "
                f"Use {heartbeat_seconds_min:g} to {heartbeat_seconds_max:g} seconds."
            )
        seconds = round(seconds * 1000) / 1000  # rounded as on the wire
        limit = heartbeat_missed_intervals * seconds if idle is None else parse_interval(idle)
        if limit <= seconds:
            raise BadOption(
                f"Invalid idle of {limit:g} seconds. "
                f"Use more than the heartbeat interval of {seconds:g} seconds."
            )
        self.interval, self.idle = seconds, limit

    @property
    def interval_ms(self) -> int:
        """Interval in milliseconds for the wire, 0 without a heartbeat."""
        return round(self.interval * 1000)

    def begin(self, now: float) -> None:
        """Start on a new connection, or with a changed interval."""
        self._pulse = HeartbeatState(self.interval, self.idle, now) if self.interval else None

    def end(self) -> None:
        """Stop, because the connection has ended."""
        self._pulse = None

    def next_deadline(self) -> float | None:
        """Return when to call `check` (monotonic seconds), or None."""
        return None if self._pulse is None else self._pulse.deadline

    def check(self, liveness: Liveness, now: float) -> Verdict:
        """Return the state of the connection as seen by the driver."""
        return "alive" if self._pulse is None else self._pulse.look(liveness, now)

    def silence(self) -> HeartbeatMissed:
        """Return the error for a connection without input for `idle` seconds."""
        return HeartbeatMissed(
            f"Cannot reach the server: it sent nothing for {self.idle:g} seconds (heartbeat interval "
            f"{self.interval:g} seconds). Check the network, or use a longer heartbeat interval."
        )
