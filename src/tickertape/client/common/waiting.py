"""Clock and timeouts of both clients."""

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

    DEFAULT = "the client's timeout"


DEFAULT: Final = Default.DEFAULT
"""Wait as long as the client's own `timeout` says."""

Timeout = float | str | None | Default
"""Seconds, text such as `"500ms"`, None = as long as the connection lasts, or `DEFAULT`."""


LONGEST_SECONDS: Final = threading.TIMEOUT_MAX / 2
"""The longest that a lock can be waited for is about 292 years; whoever says more than half of that waits
so long."""
LOOKS: Final = 10
"""How often in its time a wait checks for a busy handler."""


def seconds_of(timeout: float | str | None) -> float | None:
    """A timeout of the application in seconds, at most `LONGEST_SECONDS`. Raises `BadOption`."""
    return None if timeout is None else min(parse_interval(timeout), LONGEST_SECONDS)


def no_answer(what: str, seconds: float | None) -> TimedOut:
    """The error that the call `what` had no answer in that time."""
    return TimedOut(f"no answer to {what} {within(seconds)}; it may still take effect")


def now() -> Now:
    """Return the current time, for the protocol."""
    return Now(time.monotonic(), time.time_ns() // 1000)


def remaining(deadline: float | None) -> float | None:
    """Seconds until `deadline`, a time of the monotonic clock; None without one."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
