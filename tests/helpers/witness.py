"""A well-behaved client beside a misbehaving one, and the memory of the server meanwhile.

Must never take part in the test's own traffic.
"""

from __future__ import annotations

import threading
from typing import Final

import tickertape as tt
from tests.helpers.processes import anonymous_bytes
from tickertape.base.limits import MIB, frame_bytes_max, receive_buffer_bytes
from tickertape.journal.limits import commit_gather_bytes_max, tail_cache_bytes
from tickertape.testing import RunningServer, wait_until

SECONDS: Final = 20.0

SERVER_BASE_BYTES_MAX: Final = 48 * MIB
"""Anonymous memory of a server that does nothing: the interpreter, its libraries, our code."""
SERVER_ANONYMOUS_BYTES_MAX: Final = (
    SERVER_BASE_BYTES_MAX
    + tail_cache_bytes
    + commit_gather_bytes_max
    + 2 * frame_bytes_max  # one that is coming in, one that is being judged
    + receive_buffer_bytes
)
"""Upper bounds of the effect of one misbehaving client on the server."""


class Witness:
    """Another client that publishes and reads all the time. Every message has to arrive."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._client = tt.Client("witness", server.uri, timeout=SECONDS)
        self._stream = self._client.subscribe("witness")
        self._stop = threading.Event()
        self._published = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._await(5)

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            self._client.publish("witness", b"%d" % self._published)
            self._published += 1

    def _await(self, more: int) -> None:
        """Wait until `more` further messages are published."""
        goal = self._published + more
        wait_until(lambda: self._published >= goal, SECONDS)

    def check(self) -> None:
        """End the client: all its messages arrived on one connection, and the server stayed small."""
        self._await(5)
        self._stop.set()
        self._thread.join()
        self._client.publish_flush()
        got = [self._stream.get(SECONDS).data for _ in range(self._published)]
        assert got == [b"%d" % n for n in range(self._published)]
        assert self._client.connected
        self._client.close()
        assert anonymous_bytes(self._server.pid) < SERVER_ANONYMOUS_BYTES_MAX
