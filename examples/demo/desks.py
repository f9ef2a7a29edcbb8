"""The publishers: one desk a group of carriers, each with a publish store, through a kill of the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import tickertape as tt
from examples.demo.screen import Update
from tickertape.testing import RunningServer

STORE_SIZE: Final = "4MB"
"""Of each desk: it publishes no further ahead of the server's disk than this."""
PATIENCE_SECONDS: Final = 60.0
"""How long a desk waits for a server that does not come back, or does not answer."""
RETRY_SECONDS: Final = 0.05
KILL_AT: Final = 0.4
"""Share of all messages that is acknowledged when the server is killed."""
HOLD_AT: Final = 0.6
"""Share of its messages after which a desk waits for the kill, so that it always comes in mid-publish."""


class Outage(NamedTuple):
    """What one desk knew when its connection was lost, and what the server said when it was back."""

    waiting: int
    """Messages in the store: sent and not acknowledged, or not sent yet."""
    on_disk: int
    """Of these on the server's disk already: only the acknowledgement was lost."""


class Desk:
    """One publisher: its messages in order, on a thread of its own, in its own time.

    It comes back by itself when the connection is lost. The store then sends what the server does not have.
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
        """Begin to publish."""
        self._thread.start()

    def server_was_killed(self) -> None:
        """Publish the rest too."""
        self._server_was_killed.set()

    @property
    def total(self) -> int:
        """Messages that this desk publishes."""
        return len(self._bodies)

    @property
    def acknowledged(self) -> int:
        """Messages that the server has on its disk, as far as this desk was told."""
        return max(0, self._published - self._client.unpersisted_count())

    def check(self) -> None:
        """Raise what went wrong on the desk's thread."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait until everything is acknowledged. Raises what went wrong."""
        self._thread.join()
        self.check()
        self._client.close()

    def abandon(self) -> None:
        """Stop at once; what is not acknowledged is given up."""
        self._client.set_exception_listener(lambda _: None)  # why it is given up is told elsewhere
        self._client.close(timeout=0)

    # -- on the desk's threads --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            hold = int(self.total * HOLD_AT)
            self._publish(self._bodies[:hold])
            self._server_was_killed.wait()
            self._publish(self._bodies[hold:])
            # A flush asks this connection; while there is none, nobody can answer.
            if not self._back.wait(PATIENCE_SECONDS):
                raise tt.Disconnected(f"{self.name}: the server did not come back in {PATIENCE_SECONDS:g} s")
            self._client.publish_flush(timeout=PATIENCE_SECONDS)
        except Exception as error:  # noqa: BLE001 -- check() and finish() raise it on the main thread
            self._error = error

    def _publish(self, bodies: Sequence[bytes]) -> None:
        publish, topic = self._client.publish, self.topic
        for body in bodies:
            publish(topic, body)
            self._published += 1

    def _come_back(self, client: tt.Client) -> None:
        """The disconnect handler: connect again until it works."""
        try:
            held = self._store.held()
            newest = self._store.last_sequence
            acknowledged = held[0].first - 1 if held else newest
            reconnect(client)
            if client.server is None:
                return  # lost again at once: this handler is called again
            on_disk = client.server.last_persisted
            self.outages.append(Outage(newest - acknowledged, max(0, on_disk - acknowledged)))
            self._back.set()
        except tt.TickertapeError as error:
            self._error = error
            self._server_was_killed.set()
            self._back.set()


def reconnect(client: tt.Client) -> None:
    """Connect until it works. Raises what the last attempt raised after `PATIENCE_SECONDS`."""
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
    """What the kill met."""

    acknowledged: int
    """Messages acknowledged at that moment."""
    seconds_down: float
    """Until the server was ready again."""


def publish_through_a_kill(server: RunningServer, desks: Sequence[Desk], progress: Update) -> Kill:
    """Let the desks publish everything; kill the server in the middle and start it again.

    Raises what a desk raised, and `ServerNotReady` when the server does not start again.
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
