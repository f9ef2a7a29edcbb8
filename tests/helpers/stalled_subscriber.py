"""A subscriber on a real socket that reads only on request.

Must never grant credit for unread messages.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

from tests.helpers.peer import frame
from tickertape.batch import MessageBatch
from tickertape.wire.commands import PREFACE, Credit, Deliver, Logon, Subscribe
from tickertape.wire.connection import Connection, Received

SECONDS = 60.0


class Stalled:
    """Logs on and subscribes to `topic`. `more` has further fields of `Subscribe`."""

    def __init__(self, uri: str, name: str, topic: str, *, credit: int = 1 << 30, **more: Any) -> None:
        host, port = uri.removeprefix("tcp://").split(":")
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self._socket.settimeout(SECONDS)
        self._socket.connect((host, int(port)))
        self._wire = Connection("client")
        self._wire.logged_on()
        subscribe = Subscribe(id=1, sub_id="s", topic=topic, credit=credit, **more)
        self._socket.sendall(PREFACE + frame(Logon(name=name)) + frame(subscribe))

    def batches(self, count: int) -> Iterator[MessageBatch]:
        """Read batches until they have `count` messages."""
        came = 0
        while came < count:
            data = self._socket.recv(1 << 18)
            assert data, "the server closed"
            for event in self._wire.feed(data):
                assert isinstance(event, Received), event
                if isinstance(event.command, Deliver) and event.batch is not None:
                    yield event.batch
                    came += event.batch.count
                    self._socket.sendall(frame(Credit(sub_id="s", bytes=event.batch.cost)))

    def takes(self, bodies: list[bytes]) -> bool:
        """Return whether the next messages have these bodies."""
        came = 0
        for batch in self.batches(len(bodies)):
            got = batch.bodies_list()
            if got != bodies[came : came + len(got)]:
                return False
            came += len(got)
        return True

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
