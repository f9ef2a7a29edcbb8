"""Heartbeat of a client: the interval that the application chose, and the state of its connection."""

from __future__ import annotations

from tickertape.base.errors import BadOption, HeartbeatMissed
from tickertape.base.limits import heartbeat_missed_intervals, heartbeat_seconds_max, heartbeat_seconds_min
from tickertape.base.units import parse_interval
from tickertape.wire.heartbeat import HeartbeatState, Liveness, Verdict

Interval = float | str
"""Seconds, or text such as `"500ms"`."""


class ClientHeartbeat:
    """The heartbeat of one client; none until `choose`."""

    def __init__(self) -> None:
        self.interval = 0.0
        """Seconds after which each side says something; 0: no heartbeat."""
        self.idle = 0.0
        """Seconds without a word of the server after which it counts as dead."""
        self._pulse: HeartbeatState | None = None

    def choose(self, interval: Interval | None, idle: Interval | None) -> None:
        """Take over what the application wants; None or 0: no heartbeat. Raises `BadOption`; then it stays
        as it is."""
        seconds = 0.0 if interval is None else parse_interval(interval)
        if not seconds:
            if idle is not None:
                raise BadOption("idle has an effect with a heartbeat only, and there is none")
            self.interval = self.idle = 0.0
            return
        if not heartbeat_seconds_min <= seconds <= heartbeat_seconds_max:
            raise BadOption(
                f"a heartbeat of {seconds:g} seconds: an interval is {heartbeat_seconds_min:g} to "
                f"{heartbeat_seconds_max:g} seconds"
            )
        seconds = round(seconds * 1000) / 1000  # as it travels
        limit = heartbeat_missed_intervals * seconds if idle is None else parse_interval(idle)
        if limit <= seconds:
            raise BadOption(
                f"idle={limit:g} seconds must be above the interval of the heartbeat, {seconds:g} seconds: "
                "between two beats nothing need come"
            )
        self.interval, self.idle = seconds, limit

    @property
    def interval_ms(self) -> int:
        """The interval as it travels; 0 without a heartbeat."""
        return round(self.interval * 1000)

    def begin(self, now: float) -> None:
        """Start on a new connection, or with a changed heartbeat."""
        self._pulse = HeartbeatState(self.interval, self.idle, now) if self.interval else None

    def end(self) -> None:
        """Stop: there is no connection any more."""
        self._pulse = None

    def next_deadline(self) -> float | None:
        """When the connection wants to be looked at (monotonic seconds), or None."""
        return None if self._pulse is None else self._pulse.deadline

    def check(self, liveness: Liveness, now: float) -> Verdict:
        """Judge the connection by what the driver sees of it now."""
        return "alive" if self._pulse is None else self._pulse.look(liveness, now)

    def silence(self) -> HeartbeatMissed:
        """Return the error of a connection on which nothing arrived for too long."""
        return HeartbeatMissed(
            f"nothing came from the server for {self.idle:g} seconds (heartbeat of {self.interval:g} seconds)"
        )
