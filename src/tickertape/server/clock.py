"""Clock: the time of the server, read for machines that read none themselves."""

from __future__ import annotations

import time

from tickertape.base.interfaces import Now


def clock() -> Now:
    """Return the monotonic and the wall time."""
    return Now(time.monotonic(), time.time_ns() // 1000)
