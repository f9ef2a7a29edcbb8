"""Clock of the server. Only the drivers read it: sans-I/O state machines get the time as an argument."""

from __future__ import annotations

import time

from tickertape.base.interfaces import Now


def clock() -> Now:
    """Return the monotonic and the wall time."""
    return Now(time.monotonic(), time.time_ns() // 1000)
