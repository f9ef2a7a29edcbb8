"""Publishers with publish stores, one desk per group of carriers, that continue after a server kill."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import tickertape as tt
from examples.demo.screen import Update
from tickertape.testing import RunningServer

STORE_SIZE: Final = "4MB"
"""Limit of a desk's unacknowledged messages."""
PATIENCE_SECONDS: Final = 60.0
"""Time that a desk waits for a reconnect, or for an answer."""
RETRY_SECONDS: Final = 0.05
KILL_AT: Final = 0.4
"""Share of acknowledged messages at which the server is killed."""
HOLD_AT: Final = 0.6
"""Share of its messages after which a desk waits for the kill, so that the kill always interrupts
publishing."""


class Outage(NamedTuple):
    """State of one desk at a lost connection and after the reconnect."""

    waiting: int
    """Unacknowledged messages in the publish store, sent or not."""
    on_disk: int
    """Unacknowledged messages that the server had persisted. Only their acknowledgement was lost."""


class Desk:
    """One publisher on a thread of its own. It publishes its messages in order.

    It reconnects when the connection is lost. The client then sends the messages that the server does not
    have.
    """

    def __init__(self, name: str, topic: str, bodies: Sequence[bytes], uri: str) -> None:
        self.name = name
        self.topic = topic
        self.outages: list[Outage] = []
        self._bodies = bodies
        self._published = 0
        self._server_was_killed = threading.Event()
        self._back = threading.Event()
        self._error: Exception | None = None
        self._store = tt.MemoryPublishStore(STORE_SIZE)
        self._client = tt.Client(name, uri, publish_store=self._store, timeout=PATIENCE_SECONDS)
        self._client.set_disconnect_handler(self._come_back)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start publishing."""
        self._thread.start()

    def server_was_killed(self) -> None:
        """Publish the remaining messages."""
        self._server_was_killed.set()

    @property
    def total(self) -> int:
        """Number of messages of this desk."""
        return len(self._bodies)

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged messages."""
        return max(0, self._published - self._client.unpersisted_count())

    def check(self) -> None:
        """Raise the error of the desk's thread, if any."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait until all messages are acknowledged. Raises the error of the desk's thread."""
        self._thread.join()
        self.check()
        self._client.close()

    def abandon(self) -> None:
        """Stop now and give up unacknowledged messages."""
        self._client.set_exception_listener(lambda _: None)  # the cause is reported elsewhere
        self._client.close(timeout=0)

    # -- on the desk's threads --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            hold = int(self.total * HOLD_AT)
            self._publish(self._bodies[:hold])
            self._server_was_killed.wait()
            self._publish(self._bodies[hold:])
            # A flush needs a connection, so wait for the reconnect.
            if not self._back.wait(PATIENCE_SECONDS):
                raise tt.Disconnected(f"{self.name} did not reconnect within {PATIENCE_SECONDS:g} s.")
            self._client.publish_flush(timeout=PATIENCE_SECONDS)
        except Exception as error:  # noqa: BLE001 -- check() and finish() raise it on the main thread
            self._error = error

    def _publish(self, bodies: Sequence[bytes]) -> None:
        publish, topic = self._client.publish, self.topic
        for body in bodies:
            publish(topic, body)
            self._published += 1

    def _come_back(self, client: tt.Client) -> None:
        """Reconnect, as the disconnect handler."""
        try:
            held = self._store.held()
            newest = self._store.last_sequence
            acknowledged = held[0].first - 1 if held else newest
            reconnect(client)
            if client.server is None:
                return  # the connection is lost again, and this handler is called again
            on_disk = client.server.last_persisted
            self.outages.append(Outage(newest - acknowledged, max(0, on_disk - acknowledged)))
            self._back.set()
        except tt.TickertapeError as error:
            self._error = error
            self._server_was_killed.set()
            self._back.set()


def reconnect(client: tt.Client) -> None:
    """Retry to connect for `PATIENCE_SECONDS`. Raises the error of the last attempt."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            client.connect()
            return
        except (tt.Disconnected, tt.TimedOut):
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)


class Kill(NamedTuple):
    """Result of the server kill."""

    acknowledged: int
    """Acknowledged messages at the kill."""
    seconds_down: float
    """Time until the server was ready again."""


def publish_through_a_kill(server: RunningServer, desks: Sequence[Desk], progress: Update) -> Kill:
    """Publish the messages of all desks. Meanwhile kill the server and start it again.

    Raises the error of a desk, or `ServerNotReady` if the server does not start again.
    """
    total = sum(desk.total for desk in desks)
    try:
        for desk in desks:
            desk.start()
        while (acknowledged := _acknowledged(desks)) < total * KILL_AT:
            progress(acknowledged)
            time.sleep(0.002)
        server.kill()
        killed = time.monotonic()
        for desk in desks:
            desk.server_was_killed()
        server.start()
        down = time.monotonic() - killed
        while (now := _acknowledged(desks)) < total:
            progress(now)
            time.sleep(0.02)
        for desk in desks:
            desk.finish()
    except BaseException:
        for desk in desks:
            desk.abandon()
        raise
    return Kill(acknowledged, down)


def _acknowledged(desks: Sequence[Desk]) -> int:
    for desk in desks:
        desk.check()
    return sum(desk.acknowledged for desk in desks)
