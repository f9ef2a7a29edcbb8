"""Clock and timeouts for both clients."""

from __future__ import annotations

import enum
import threading
import time
from typing import Final

from tickertape.base.errors import TimedOut
from tickertape.base.interfaces import Now
from tickertape.base.units import parse_interval, within


class Default(enum.Enum):
    """Type of `DEFAULT`."""

    DEFAULT = "see the docstring"


DEFAULT: Final = Default.DEFAULT
"""The `timeout` of the client, of the stream, or of the query, as the docstring of the call states."""

Timeout = float | str | None | Default
"""Seconds, text such as `"500ms"`, None (as long as the connection lasts), or `DEFAULT`."""


LONGEST_SECONDS: Final = threading.TIMEOUT_MAX / 2
"""Upper limit of timeouts: half of the longest wait for a lock (about 292 years)."""
LOOKS: Final = 10
"""Number of checks for a busy handler during a wait."""


def seconds_of(timeout: float | str | None) -> float | None:
    """Return a timeout of the application in seconds, at most `LONGEST_SECONDS`. Raises `BadOption`."""
    return None if timeout is None else min(parse_interval(timeout), LONGEST_SECONDS)


def no_answer(what: str, seconds: float | None) -> TimedOut:
    """Return the error of a call `what` that got no answer in time."""
    return TimedOut(
        f"Cannot complete {what}: no answer {within(seconds)}. The outcome is unknown. Repeat the call."
    )


def no_logon(uri: str, seconds: float | None) -> TimedOut:
    """Return the error of a logon that got no answer in time."""
    return TimedOut(
        f"Cannot log on: no Tickertape server answered at {uri!r} {within(seconds)}. Check host and port."
    )


def now() -> Now:
    """Return the current monotonic and wall-clock time."""
    return Now(time.monotonic(), time.time_ns() // 1000)


def remaining(deadline: float | None) -> float | None:
    """Return the seconds until `deadline` (monotonic clock), or None without a deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
