"""Listen addresses of test servers.

Must never accept a connection.
"""

from __future__ import annotations

import socket
from pathlib import Path


def listening(path: Path | None = None) -> tuple[socket.socket, str]:
    """Return a socket that listens on a free port, or on the Unix socket at `path`, and its address."""
    if path is None:
        listener = socket.create_server(("127.0.0.1", 0))
        return listener, f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    return listener, f"unix://{path}"
