"""Reserved TCP ports for tests; no other test takes them while their server is stopped.

A port that the system chooses (0) can be given to another process once the server on it has stopped, and a
client that reconnects to a port of that range may connect to itself. These ports are below that range. A name
in the kernel, released with the process, reserves them against other processes of a test run, but not against
other programs.
"""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path
from typing import Final

_FIRST: Final = 10_240
_RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_RANGE_DEFAULT: Final = 32_768
_STEP: Final = 611
"""Processes that start together begin to look that far from each other."""


_tried: Final = itertools.count()
"""Released ports, reused last: a client may still try to reach the previous server."""


class NoPort(RuntimeError):
    """No port below the range of the system is free."""


class ReservedPort:
    """A port of 127.0.0.1 held for this object: `number`. Given back by `release()`, or at the latest when
    the process ends. Raises `NoPort`.
    """

    def __init__(self) -> None:
        end = _chosen_by_the_system()
        count = end - _FIRST
        begin = os.getpid() * _STEP
        for _ in range(count):
            number = _FIRST + (begin + next(_tried)) % count
            if (holder := _hold(number)) is not None:
                self.number = number
                self._holder = holder
                return
        raise NoPort(f"every port from {_FIRST} to {end - 1} is taken")

    def release(self) -> None:
        """Let others have it; twice does no harm."""
        self._holder.close()

    def __del__(self) -> None:
        # whoever forgets it in a test does not have to hear of a socket it never saw
        if hasattr(self, "_holder"):
            self._holder.close()


def _chosen_by_the_system() -> int:
    """Return the first port the system gives away by itself."""
    try:
        first = int(_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _RANGE_DEFAULT
    return first if first > _FIRST else _RANGE_DEFAULT


def _hold(number: int) -> socket.socket | None:
    """Return the holder of a free port that no other test process holds; None if it is taken."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(f"\0tickertape-test-port-{number}")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", number))
    except OSError:
        holder.close()
        return None
    return holder
