"""Redis or Valkey server with an append-only file, synced before each answer, and a plain connection to it.

The connection sends the bytes of the protocol and has no client library, so its time is the server's.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tickertape.testing.ports import ReservedPort

PROGRAMS: Final = ("redis-server", "valkey-server")
START_SECONDS_MAX: Final = 30.0
ANSWER_SECONDS_MAX: Final = 30.0


def find_redis() -> str | None:
    """Return the path of an installed server, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def version_of(program: str) -> str:
    """Return name and version of a server, such as `Redis 7.0.15`."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return parse_version(said)


def parse_version(text: str) -> str:
    """Return name and version in the output of `--version`."""
    found = re.match(r"(\w+) server v=(\S+)", text)
    return f"{found[1]} {found[2]}" if found else "unknown version"


class RedisConnection:
    """A blocking connection that sends one command and waits for its answer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, command: bytes) -> bytes:
        """Send an encoded command and return its answer, one line or one value. Raises `RuntimeError`."""
        self._socket.sendall(command)
        answer = b""
        while not is_complete(answer):
            data = self._socket.recv(65_536)
            if not data:
                raise RuntimeError("Redis closed the connection")
            answer += data
        if answer.startswith(b"-"):
            raise RuntimeError(f"Redis refused a command: {answer.decode().strip()}")
        return answer

    def close(self) -> None:
        self._socket.close()


def encode_command(*words: bytes) -> bytes:
    """Return a command as an array of values in the protocol of Redis."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def is_complete(answer: bytes) -> bool:
    """Return whether these bytes are a whole answer: one line, or one value with its length."""
    head, end, value = answer.partition(b"\r\n")
    if not end:
        return False
    return not head.startswith(b"$") or len(value) >= int(head[1:]) + 2


@contextlib.contextmanager
def redis_server(program: str, directory: Path) -> Iterator[RedisConnection]:
    """Run a server with its file in `directory` until the end of the block, and connect to it."""
    port = ReservedPort()
    options = {"bind": "127.0.0.1", "dir": str(directory), "save": "", "appendonly": "yes"}
    options |= {"port": str(port.number), "appendfsync": "always"}
    command = [program, *(word for name, value in options.items() for word in (f"--{name}", value))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            connection = _connect(process, port.number)
            try:
                yield connection
            finally:
                connection.close()
        finally:
            process.terminate()
            process.wait()
            port.release()


def _connect(process: subprocess.Popen[bytes], port: int) -> RedisConnection:
    end = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            return RedisConnection(port)
        except ConnectionRefusedError:
            if process.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.01)
