"""Processes that publish to a queue and work for it until they are killed, and their records.

Must never judge: tests do. Each run has a file of its own. A line is written before the action it records,
and survives the kill.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, NoReturn

import tickertape as tt

SECONDS: Final = 30.0
TOPIC: Final = "orders"
LEASED: Final = "work"
ONCE: Final = "once"
LEASE_SECONDS: Final = 1.0
_AGAIN_SECONDS: Final = 0.01
_FLUSH_SECONDS: Final = 0.05
_HANG_SECONDS: Final = LEASE_SECONDS + 0.3
_HANGS_AT: Final = 25
"""Each worker hangs at this message, and at every fortieth after it."""
_CANCELS: Final = 0.02


def now() -> int:
    """Return microseconds since 1970, on the clock of all processes."""
    return time.time_ns() // 1000


class Entry(NamedTuple):
    """One line of a file.

    `got` (a message, and the end of its lease), `once` (a message of the other queue), `cancel` and `ack`
    (about to be sent), `sure` (the first `number` acknowledgements are on disk).
    """

    what: str
    at: int
    number: int
    end: int = 0


class WorkerProcess:
    """A process that calls `run` and records its actions."""

    def __init__(self, name: str, directory: Path, run: Callable[[WorkerProcess], None]) -> None:
        self.name = name
        self.ended: int | None = None
        """Time at which it was killed, or asked to end."""
        self._path = directory / f"{name}.life"
        self._run = run
        self._said = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._pid = os.fork()
        if not self._pid:
            self._live()

    # -- in it ----------------------------------------------------------------------------------------

    def say(self, what: str, number: int, end: int = 0) -> None:
        """Write something down."""
        os.write(self._said, b"%s %d %d %d\n" % (what.encode(), now(), number, end))

    def over(self, seconds: float) -> bool:
        """Wait for `seconds`, and return whether the process is asked to end."""
        return signal.sigtimedwait({signal.SIGTERM}, seconds) is not None

    def _live(self) -> NoReturn:
        try:
            # `over` waits for the signal: a handler could run while the lock that it needs is held.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            self._run(self)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a forked child never returns
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(1)

    # -- beside it ------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """Return its records, whole lines only."""
        lines = self._path.read_bytes().split(b"\n")[:-1]
        return [Entry(word.decode(), *map(int, rest)) for word, *rest in map(bytes.split, lines)]

    def kill(self) -> None:
        """SIGKILL."""
        self.ended = now()
        os.kill(self._pid, signal.SIGKILL)
        self._reap()

    def finish(self) -> int:
        """Ask the process to end, wait for it, and return its exit code."""
        if self.ended is None:
            self.ended = now()
            os.kill(self._pid, signal.SIGTERM)
            return self._reap()
        return 0

    def _reap(self) -> int:
        os.close(self._said)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def client(name: str, uri: str) -> tt.HAClient:
    """Return a client that reconnects and keeps its settlements."""
    made = tt.HAClient(
        name,
        servers=uri,
        publish_store=tt.MemoryPublishStore(),
        bookmark_store=None,
        reconnect_delay=_AGAIN_SECONDS,
        timeout=SECONDS,
    )
    made.connect_and_logon()
    return made


def _take(made: tt.HAClient, topic: str, handler: Callable[[tt.Message], None], backlog: int) -> None:
    """Read a queue in a thread, so that settlements are sent while the next message is processed."""

    def run() -> None:
        while True:
            with suppress(tt.TickertapeError), made.subscribe(topic, max_backlog=backlog) as stream:
                for message in stream:
                    handler(message)
            time.sleep(_AGAIN_SECONDS)  # a stream ends with its connection

    threading.Thread(target=run, daemon=True).start()


def publisher(uri: str) -> Callable[[WorkerProcess], None]:
    """Publish 0, 1, 2, ... in small bursts. Record the count at the end."""

    def run(life: WorkerProcess) -> None:
        rng, count = Random(1), 0
        made = client(life.name, uri)
        while not life.over(rng.random() * 0.04):
            for _ in range(rng.randrange(1, 6)):
                made.publish(TOPIC, b"%d" % count)
                count += 1
            if count % 50 < 3:
                life.say("published", count)
        made.publish_flush(timeout=SECONDS)
        life.say("published", count)
        made.close()

    return run


def worker(uri: str, seed: int, backlog: int) -> Callable[[WorkerProcess], None]:
    """Take messages from both queues, acknowledge most, cancel some, and hang now and then."""

    def run(life: WorkerProcess) -> None:
        rng, done, count = Random(seed), 0, 0
        made = client(life.name, uri)

        def work(message: tt.Message) -> None:
            nonlocal done, count
            count += 1
            assert message.lease_expires is not None
            number = int(message.data)
            life.say("got", number, round(message.lease_expires.timestamp() * 1_000_000))
            if count % (40 * _HANGS_AT) == _HANGS_AT:
                time.sleep(_HANG_SECONDS)
            if rng.random() < _CANCELS:
                life.say("cancel", number)
                message.cancel()
            else:
                life.say("ack", number)
                message.ack()
                done += 1

        def take(message: tt.Message) -> None:
            life.say("once", int(message.data))
            message.ack()

        _take(made, LEASED, work, backlog)
        _take(made, ONCE, take, backlog)
        while not life.over(_FLUSH_SECONDS):
            before = done
            try:
                made.publish_flush(timeout=SECONDS)
            except (tt.Disconnected, tt.NotReady):
                continue
            life.say("sure", before)
        made.close()

    return run
