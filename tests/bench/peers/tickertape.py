"""Tickertape: the server, and its load programs with the blocking client."""

from __future__ import annotations

import platform
import select
import sys
import threading
import time
from collections import deque
from typing import Final

import tickertape as tt
from tests.bench.peers.loading import (
    WAIT_SECONDS_MAX,
    Arrivals,
    Meter,
    Result,
    Schedule,
    Task,
    go,
    make_bodies,
    run,
    stamp,
)
from tests.bench.peers.serving import PeerServer, load_environment, our_interpreter, wait_for_port
from tickertape.base.version import __version__
from tickertape.client.publish_store.protocol import Stored

QUEUE: Final = '[[queue]]\nname = "work"\nunderlying = "orders"\n'
READ_COUNT: Final = 1_000
STORE_BYTES: Final = 256 << 20


class TickertapeServer(PeerServer):
    """`tickertape serve`. The setting is the value of `sync`."""

    name = "Tickertape"

    @classmethod
    def missing(cls) -> str:
        return ""

    @classmethod
    def version(cls) -> str:
        return f"Tickertape {__version__}, its blocking client, Python {platform.python_version()}"

    def _start(self) -> None:
        port = self.reserve_port()
        config = self.directory / "tickertape.toml"
        config.write_text(f'[journal]\nsync = "{self.setting}"\n{QUEUE}')
        self.address = f"tcp://127.0.0.1:{port}"
        command = [str(our_interpreter()), "-m", "tickertape", "serve", str(config)]
        command += ["--data", str(self.directory / "data"), "--listen", self.address]
        command += ["--admin", "http://127.0.0.1:0"]
        self.run(command, load_environment())
        wait_for_port(port, self)


class WindowStore(tt.MemoryPublishStore):
    """A publish store that limits the messages without an acknowledgement, and measures their times."""

    def __init__(self, depth: int) -> None:
        super().__init__(STORE_BYTES, "block")
        self.meter: Meter | None = None
        self._free = threading.Semaphore(depth)
        self._started: deque[tuple[int, float]] = deque()
        """Messages and start time of each call."""
        self._acknowledged: int | None = None
        """Sequence of the last acknowledged message. The first sequence of a client is a time."""
        self._due = 0
        """Sequence of the last message before the first call in `_started`."""

    def enter(self, count: int) -> None:
        """Wait until `count` more messages may be published, and note the time."""
        for _ in range(count):
            if not self._free.acquire(timeout=WAIT_SECONDS_MAX):
                raise TimeoutError("no acknowledgement arrived")
        self._started.append((count, time.perf_counter()))

    def put(self, stored: Stored) -> None:
        if self._acknowledged is None:
            self._acknowledged = self._due = stored.first - 1
        super().put(stored)

    def discard(self, sequence: int) -> None:
        super().discard(sequence)
        if self._acknowledged is None or sequence <= self._acknowledged:
            return
        count = sequence - self._acknowledged
        self._acknowledged = sequence
        while self._started and self._due + self._started[0][0] <= sequence:
            messages, started = self._started.popleft()
            self._due += messages
            if self.meter is not None:
                self.meter.done(messages, started)
        self._free.release(count)


def publish(task: Task) -> Result:
    """Publish with a window of `depth` messages, `call` of them in one call."""
    store, bodies = WindowStore(task.depth), make_bodies()
    batches = [
        [bodies[(first + n) % len(bodies)] for n in range(task.call)]
        for first in range(0, len(bodies), task.call)
    ]
    with tt.Client(task.name, task.address, publish_store=store) as client:
        go()
        meter = store.meter = Meter(task)
        number = 0
        while meter.running():
            store.enter(task.call)
            if task.call == 1:
                client.publish(task.topic, bodies[number % len(bodies)])
            else:
                client.publish_batch(task.topic, batches[number % len(batches)])
            number += 1
            if task.depth == task.call:
                client.publish_flush(timeout=WAIT_SECONDS_MAX)
        client.publish_flush(timeout=WAIT_SECONDS_MAX)
        return meter.result()


def paced(task: Task) -> Result:
    """Publish stamped messages at a rate, one a call."""
    bodies = make_bodies()
    with tt.Client(task.name, task.address, publish_store=tt.MemoryPublishStore()) as client:
        go()
        meter, schedule = Meter(task), Schedule(task)
        while meter.running():
            due = schedule.due()
            if not due:
                time.sleep(0.0005)
                continue
            for n in range(due):
                client.publish(task.topic, stamp(bodies[n % len(bodies)]))
            meter.done(due)
        client.publish_flush(timeout=WAIT_SECONDS_MAX)
        return meter.result()


def listen(task: Task) -> Result:
    """Read new messages of the topic."""
    with tt.Client(task.name, task.address) as client:
        stream = client.subscribe(task.topic)
        go()
        arrivals = Arrivals(task)
        while arrivals.running():
            try:
                for batch in stream.batches(0.1):
                    arrivals.add([message.data for message in batch] if task.stamped else [b""] * len(batch))
                    if not arrivals.running():
                        break
            except tt.TimedOut:
                continue
        return arrivals.result()


def fill(task: Task) -> Result:
    """Publish `count` messages."""
    bodies = make_bodies()
    with tt.Client(task.name, task.address, publish_store=tt.MemoryPublishStore()) as client:
        go()
        for start in range(0, task.count, READ_COUNT):
            count = min(READ_COUNT, task.count - start)
            client.publish_batch(task.topic, [bodies[n % len(bodies)] for n in range(count)])
        client.publish_flush(timeout=WAIT_SECONDS_MAX)
    return {"count": float(task.count)}


def replay(task: Task) -> Result:
    """Read all messages from the start, as often as the time allows."""
    with tt.Client(task.name, task.address) as client:
        go()
        meter = Meter(task)
        size = 0
        while meter.running():
            with client.replay(task.topic) as stream:
                for batch in stream.batches(WAIT_SECONDS_MAX):
                    for message in batch:
                        size += len(message.data)
                    meter.done(len(batch))
                    if not meter.running():
                        break
        return meter.result()


def consume(task: Task) -> Result:
    """Take `count` messages of a queue, and acknowledge half of the backlog of `depth` at once."""
    with tt.Client(task.name, task.address, publish_store=tt.MemoryPublishStore()) as client:
        client.ack_batch_size = max(1, task.depth // 2)
        client.ack_timeout = 0.02
        go()
        started = time.perf_counter()
        stream = client.subscribe("work", max_backlog=task.depth)
        taken = 0
        for batch in stream.batches(WAIT_SECONDS_MAX):
            taken += len(batch)
            batch.ack()
            if taken >= task.count:
                break
        client.publish_flush(timeout=WAIT_SECONDS_MAX)
        return {"rate": taken / (time.perf_counter() - started), "count": float(taken)}


class _Socket:
    """A plain socket that sends encoded batches, one after the other or in a window."""

    def __init__(self, task: Task, number: int) -> None:
        from tests.helpers.peer import Peer
        from tickertape.batch import batch_from_bodies

        self.peer = Peer(task.address, f"{task.name}-{number}")
        self.waiting: deque[float] = deque()
        self._batch = batch_from_bodies(task.topic, make_bodies()[: task.call])
        self._sent = self._acknowledged = 0

    def send(self) -> None:
        from tests.helpers.peer import frame
        from tickertape.wire.commands import Publish

        self._sent += 1
        self.waiting.append(time.perf_counter())
        self.peer.send(frame(Publish(frame=self._sent), self._batch))

    def receive(self) -> list[float]:
        """Return the start times of frames whose acknowledgement has arrived."""
        from tickertape.wire.commands import Persisted

        acknowledged = self._acknowledged
        for command in self.peer.heard():
            if isinstance(command, Persisted):
                self._acknowledged = command.frame
        return [self.waiting.popleft() for _ in range(self._acknowledged - acknowledged)]


def frames(task: Task) -> Result:
    """Publish on `count` plain sockets in one process, with a window of `depth` messages on each."""
    sockets = [_Socket(task, number) for number in range(task.count)]
    go()
    meter = Meter(task)
    for one in sockets:
        for _ in range(max(1, task.depth // task.call)):
            one.send()
    while any(one.waiting for one in sockets):
        readable, _, _ = select.select([one.peer for one in sockets], [], [], WAIT_SECONDS_MAX)
        if not readable:
            raise TimeoutError("no acknowledgement arrived")
        for one in sockets:
            if one.peer in readable:
                for started in one.receive():
                    meter.done(task.call, started)
                    if meter.running():
                        one.send()
    return meter.result()


ACTIONS = {
    "frames": frames,
    "publish": publish,
    "paced": paced,
    "listen": listen,
    "fill": fill,
    "replay": replay,
    "consume": consume,
}

if __name__ == "__main__":
    run(ACTIONS, sys.argv[1:])
