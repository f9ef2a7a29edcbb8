"""Reserved TCP ports for tests. No other test uses them while their server is stopped.

An ephemeral port (0) may be assigned to another process after its server has stopped. A client that
reconnects to an ephemeral port may even connect to itself. Reserved ports are below the ephemeral range. An
abstract Unix socket, released with the process, reserves a port against other test processes, but not
against other programs.
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
"""Distance between the first candidates of processes with consecutive ids."""


_tried: Final = itertools.count()
"""Counter of tried ports. Released ports are reused last: a client may still try the previous server."""


class NoPort(RuntimeError):
    """All ports below the ephemeral range are in use."""


class ReservedPort:
    """A reserved port of 127.0.0.1, `number`, until `release()` or the end of the process.

    Raises `NoPort`.
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
        raise NoPort(
            f"Cannot reserve a port: every port from {_FIRST} to {end - 1} is in use. Stop other test runs."
        )

    def release(self) -> None:
        """Release the port. A second call has no effect."""
        self._holder.close()

    def __del__(self) -> None:
        # avoids a ResourceWarning about an internal socket
        if hasattr(self, "_holder"):
            self._holder.close()


def _chosen_by_the_system() -> int:
    """Return the first ephemeral port of the system."""
    try:
        first = int(_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _RANGE_DEFAULT
    return first if first > _FIRST else _RANGE_DEFAULT


def _hold(number: int) -> socket.socket | None:
    """Reserve a port. Return the socket that holds it, or None if the port is in use."""
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
