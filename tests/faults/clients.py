"""Clients of the fault tests: they reconnect to the server, and record their acknowledgements.

Must never judge: tests do.
"""

from __future__ import annotations

import contextlib
import threading
import time
from random import Random

import tickertape as tt

SECONDS = 30.0
ROOM_SECONDS = 600.0
"""Seconds that a publish waits for space in its store. While kills follow each other, a short run may
persist no message, and runs are slow on a busy machine. `finish` waits less.
"""
TOPIC = "orders"
_AGAIN_SECONDS = 0.05


class Publisher(threading.Thread):
    """Publishes numbered bodies in small and large bursts, with a store, until it is stopped."""

    def __init__(self, name: str, uri: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.bodies: list[bytes] = []
        self.resent = 0
        """Messages that waited for an acknowledgement when a connection was lost."""
        self.error: BaseException | None = None
        self._rng = Random(seed)
        self._over = threading.Event()
        self._never = threading.Event()
        self._settled = 0
        self._client = tt.Client(
            name, uri, publish_store=tt.MemoryPublishStore("1MB"), timeout=SECONDS, connect=False
        )
        self._client.set_disconnect_handler(self._reconnect)

    def run(self) -> None:
        try:
            self._reconnect(self._client)
            while not self._over.wait(self._rng.random() * 0.03):
                self._burst()
            self._flush()
        except BaseException as error:
            self.error = error
            raise

    def _flush(self) -> None:
        """Wait until everything is persisted, through a connection that is not back yet."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                self._client.publish_flush(timeout=SECONDS)
                return
            except (tt.Disconnected, tt.NotReady):
                if time.monotonic() > deadline:
                    raise
                self._never.wait(_AGAIN_SECONDS)

    def _burst(self) -> None:
        count = self._rng.choice((1, 1, 3, 10, 60))
        fresh = [self._body(len(self.bodies) + n) for n in range(count)]
        if count < 10:
            for body in fresh:
                self.bodies.append(body)
                self._client.publish(TOPIC, body, timeout=ROOM_SECONDS)
                self._settled += 1
        else:
            self.bodies += fresh
            self._client.publish_batch(TOPIC, fresh, timeout=ROOM_SECONDS)
            self._settled += count

    def _body(self, number: int) -> bytes:
        return b"%s %d " % (self.name.encode(), number) + b"x" * self._rng.choice((0, 100, 1_000, 4_000))

    def acknowledged(self) -> int:
        """Return a lower bound of the number of `bodies`, from the first, that are reported as persisted."""
        settled = self._settled
        return max(0, settled - self._client.unpersisted_count())

    def finish(self) -> None:
        """Publish no more, and wait until everything is persisted."""
        self._over.set()
        self.join(2 * SECONDS)
        assert self.error is None, self.error
        assert not self.is_alive(), f"{self.name} does not come to an end"
        self._client.set_disconnect_handler(None)
        self._client.close()

    def _reconnect(self, client: tt.Client) -> None:
        self.resent += client.unpersisted_count()
        while not client.connected:
            try:
                client.connect(timeout=SECONDS)
            except (tt.Disconnected, tt.NotReady, tt.TimedOut):
                self._never.wait(_AGAIN_SECONDS)


class Subscriber(threading.Thread):
    """Reads the topic from the beginning. After each loss it resumes after its last message."""

    def __init__(self, name: str, uri: str, *, pause: float = 0.0) -> None:
        super().__init__(name=name, daemon=True)
        self.heard: list[tuple[str, int, bytes]] = []
        """(publisher, sequence, body)"""
        self.resumed = 0
        self.error: BaseException | None = None
        self._uri = uri
        self._pause = pause
        self._over = threading.Event()
        self._bookmark: str = tt.EPOCH

    def run(self) -> None:
        try:
            while not self._over.is_set():
                with contextlib.suppress(tt.Disconnected, tt.NotReady, tt.TimedOut):
                    self._read()
                self._over.wait(_AGAIN_SECONDS)
        except BaseException as error:
            self.error = error
            raise

    def _read(self) -> None:
        with tt.Client(self.name, self._uri, timeout=SECONDS) as client:
            stream = client.bookmark_subscribe(TOPIC, self._bookmark, depth="64KB")
            self.resumed += 1
            while not self._over.is_set():
                try:
                    message = stream.get(0.1)
                except tt.TimedOut:
                    continue
                except tt.StreamEnded:
                    return
                assert message.bookmark is not None
                self.heard.append((message.publisher, message.sequence, message.data))
                self._bookmark = message.bookmark
                if self._pause and len(self.heard) % 50 == 0:
                    self._over.wait(self._pause)

    def finish(self) -> None:
        """End it."""
        self._over.set()
        self.join(SECONDS)
        assert self.error is None, self.error
