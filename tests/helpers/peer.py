"""Peer on a real socket that sends any bytes, and decodes the server's answers.

Must never correct the bytes that it sends.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from types import TracebackType
from typing import Final, Self

from tests.helpers.wire import joined
from tickertape.batch import MessageBatch
from tickertape.wire.commands import PREFACE, Command, LoggedOn, Logon
from tickertape.wire.connection import Connection, Received
from tickertape.wire.frames import encode_frame

PEER_SECONDS: Final = 20.0


def frame(command: Command, batch: MessageBatch | None = None) -> bytes:
    """Return the bytes of one frame."""
    return joined(encode_frame(command, batch))


class Peer:
    """A connection to the server at `uri`, with a logon if it has a `name`."""

    def __init__(self, uri: str, name: str | None = None) -> None:
        host, port = uri.removeprefix("tcp://").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PEER_SECONDS)
        self._core = Connection("client")
        self._said: deque[Command] = deque()
        self.publisher = 0
        if name is not None:
            self.send(PREFACE + frame(Logon(name=name)))
            logged_on = self.until(LoggedOn)[-1]
            assert isinstance(logged_on, LoggedOn)
            self.publisher = logged_on.publisher
            self._core.logged_on()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor of the socket, for `select`."""
        return self._socket.fileno()

    def send(self, data: bytes) -> None:
        """Send the bytes as they are."""
        self._socket.sendall(data)

    def until(self, kind: type[Command]) -> list[Command]:
        """Return the commands of the server up to the next one of this kind."""
        return self.until_any(kind)

    def until_any(self, *kinds: type[Command]) -> list[Command]:
        """Return the commands of the server up to the next one of these kinds."""
        said: list[Command] = []
        while not said or not isinstance(said[-1], kinds):
            while not self._said:
                assert self._read(), f"the server closed after {said}"
            said.append(self._said.popleft())
        return said

    def heard(self) -> list[Command]:
        """Return the commands that have arrived."""
        while select.select([self._socket], [], [], 0)[0] and self._read():
            pass
        said = list(self._said)
        self._said.clear()
        return said

    def until_closed(self) -> list[Command]:
        """Return the commands of the server before it closes."""
        try:
            while self._read():
                pass
        except ConnectionResetError:
            pass  # it closed with unread bytes of ours, after its commands
        said = list(self._said)
        self._said.clear()
        return said

    def _read(self) -> bool:
        data = self._socket.recv(65536)
        events = self._core.feed(data)
        assert all(isinstance(event, Received) for event in events), events
        self._said += [event.command for event in events if isinstance(event, Received)]
        return bool(data)
