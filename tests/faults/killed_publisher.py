"""Publisher process that is killed again and again, with one store and one name.

Must never judge: tests do. It writes returned calls and covering flushes to a file of its own, which survives
the kill.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, NoReturn

import tickertape as tt

SECONDS: Final = 30.0
TOPIC: Final = "orders"
_AGAIN_SECONDS: Final = 0.01
_BURSTS_A_FLUSH: Final = 5
_ENTRY: Final = struct.Struct("<QQQ")
_FLUSHED: Final = 1 << 63

Connect = Callable[[str, str, tt.FilePublishStore], tt.Client | tt.HAClient]


class Returned(NamedTuple):
    """A publish returned: the number of its message, and how many messages that life had published."""

    life: int
    sequence: int
    published: int


class Witness(NamedTuple):
    """The results of a publisher's calls, over all its runs."""

    returned: list[Returned]
    flushed: int
    """A flush has confirmed everything up to this sequence as persisted."""


def read_witness(path: Path) -> Witness:
    """Return the whole entries of the file."""
    data = path.read_bytes() if path.exists() else b""
    returned, flushed = [], 0
    for life, sequence, count in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]):
        if life & _FLUSHED:
            flushed = max(flushed, sequence)
        else:
            returned.append(Returned(life, sequence, count))
    return Witness(returned, flushed)


def last_flushed(path: Path) -> int:
    """Return `flushed` of the last flush that returned, from the end of the file."""
    if not path.exists():
        return 0
    with open(path, "rb") as file:
        entries = file.seek(0, os.SEEK_END) // _ENTRY.size
        for at in range(entries - 1, -1, -1):
            file.seek(at * _ENTRY.size)
            life, sequence, _ = _ENTRY.unpack(file.read(_ENTRY.size))
            if life & _FLUSHED:
                return int(sequence)
    return 0


def reconnecting(name: str, uri: str, store: tt.FilePublishStore) -> tt.Client:
    """Return a plain client that reconnects after each loss."""
    client = tt.Client(name, uri, publish_store=store, timeout=SECONDS, connect=False)
    client.set_disconnect_handler(_reconnect)
    threading.Thread(target=_reconnect, args=(client,), daemon=True).start()
    return client


def highly_available(name: str, uri: str, store: tt.FilePublishStore) -> tt.HAClient:
    """Return an HA client, which reconnects by itself."""
    client = tt.HAClient(
        name,
        servers=uri,
        publish_store=store,
        bookmark_store=None,
        reconnect_delay=_AGAIN_SECONDS,
        timeout=SECONDS,
    )
    threading.Thread(target=client.connect_and_logon, daemon=True).start()
    return client


def _reconnect(client: tt.Client) -> None:
    while not client.connected:
        try:
            client.connect(timeout=SECONDS)
        except (tt.Disconnected, tt.NotReady, tt.TimedOut):
            time.sleep(_AGAIN_SECONDS)


class Publisher:
    """One name, one store, one witness. `life` is the number of the process."""

    def __init__(self, name: str, directory: Path, uri: str, connect: Connect = reconnecting) -> None:
        self.name = name
        self.witness = directory / f"{name}.witness"
        self.store = directory / f"{name}.store"
        self.lives = 0
        self._uri = uri
        self._connect = connect
        self._pid = 0

    def spawn(self, finish: bool = False) -> None:
        """Start a process. With `finish` it only sends the rest of its messages, and ends by itself."""
        self.lives += 1
        self._pid = os.fork()
        if not self._pid:
            self._live(finish)

    def kill(self, signal: int) -> int:
        """Kill the process, and return its exit status, negative for a signal."""
        os.kill(self._pid, signal)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end of the process, and return its exit status."""
        pid, self._pid = self._pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def running(self) -> bool:
        """Return whether a process runs."""
        return self._pid > 0

    def _live(self, finish: bool) -> NoReturn:
        try:
            with tt.FilePublishStore(self.store) as store:
                client = self._connect(self.name, self._uri, store)
                if finish:
                    self._flush(client)
                    os._exit(0 if store.unpersisted_count() == 0 else 3)
                self._publish(client, store)
        except BaseException:  # noqa: BLE001 - a forked child never returns
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(1)

    def _flush(self, client: tt.Client | tt.HAClient) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                client.publish_flush(timeout=SECONDS)
                return
            except (tt.Disconnected, tt.NotReady):
                if time.monotonic() > deadline:
                    raise
                time.sleep(_AGAIN_SECONDS)

    def _publish(self, client: tt.Client | tt.HAClient, store: tt.FilePublishStore) -> NoReturn:
        rng, count = Random(self.lives), 0
        said = os.open(self.witness, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        while True:
            for _ in range(_BURSTS_A_FLUSH):
                bodies = [self._body(count + n, rng) for n in range(rng.choice((1, 3, 10, 20)))]
                if len(bodies) == 10:
                    sequence = client.publish_batch(TOPIC, bodies)
                    count += len(bodies)
                    os.write(said, _ENTRY.pack(self.lives, sequence or 0, count))
                else:
                    for body in bodies:
                        sequence = client.publish(TOPIC, body)
                        count += 1
                        os.write(said, _ENTRY.pack(self.lives, sequence or 0, count))
                time.sleep(rng.random() * 0.02)
            try:
                client.publish_flush(timeout=SECONDS)
                os.write(said, _ENTRY.pack(_FLUSHED, sequence or 0, 0))
            except tt.Disconnected:
                pass  # the outcome is not known yet

    def _body(self, number: int, rng: Random) -> bytes:
        return b"%s %d %d " % (self.name.encode(), self.lives, number) + b"x" * rng.choice((0, 100, 2_000))
