"""Clients beside the measured one, each in a process of its own: python -m tests.bench.workers NAME ...

A worker prints `ready`, waits for a line on standard input, works, and prints its result in one line. A
worker without an end of its own works until standard input has another line or ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections import Counter

import tickertape as tt
from tests.bench.stage import BODY, FLUSH_SECONDS, percentile
from tests.helpers.peer import Peer, frame
from tickertape.wire.commands import Ack, Flush

PROBE_SECONDS = 0.005
"""Interval of the flushes of a probe."""
IDLE_SECONDS_MAX = 10.0
"""How long a hand-over waits for the next batch. Its last one may wait for a publisher that has ended."""
REST_SECONDS = 0.02
"""How long a consumer keeps acknowledgements that are too few to travel: only the last ones are."""


def _go() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def _name() -> str:
    return f"bench-worker-{os.getpid()}"


def _wait_for_the_end(over: threading.Event) -> None:
    sys.stdin.readline()
    over.set()


def paced(uri: str, topic: str, count: str, rate: str) -> None:
    """Publish `count` messages at `rate` a second. Each begins with its publish time."""
    with tt.Client(_name(), uri, publish_store=tt.MemoryPublishStore()) as client:
        _go()
        begun = time.monotonic()
        for number in range(int(count)):
            while (ahead := begun + number / float(rate) - time.monotonic()) > 0:
                time.sleep(ahead)
            client.publish(topic, b"%020d" % time.monotonic_ns() + BODY[20:])
        client.publish_flush(timeout=FLUSH_SECONDS)
        print(f"{int(count) / (time.monotonic() - begun):.0f}", flush=True)


def listen(uri: str, topic: str, count: str) -> None:
    """Read the next `count` messages in batches, and print the bytes of their bodies."""
    with tt.Client(_name(), uri) as client:
        stream = client.subscribe(topic)
        _go()
        messages = size = 0
        for batch in stream.batches(FLUSH_SECONDS):
            messages += len(batch)
            size += int(batch.offsets[-1])
            if messages >= int(count):
                break
        print(f"{messages} {size}", flush=True)


def replays(uri: str, topic: str, bytes_per_second: str) -> None:
    """Replay in batches, again and again, at `bytes_per_second` at most (0: unlimited), and print the count.

    Each message must follow the one before.
    """
    over = threading.Event()
    rate, messages, size = float(bytes_per_second), 0, 0
    with tt.Client(_name(), uri) as client:
        _go()
        threading.Thread(target=_wait_for_the_end, args=(over,), daemon=True).start()
        begun = time.monotonic()
        while not over.is_set():
            last = 0
            with client.replay(topic) as stream:
                for batch in stream.batches(FLUSH_SECONDS):
                    first, last_before = batch.sequence(0), last
                    last = batch.sequence(len(batch) - 1)
                    assert last - first == len(batch) - 1, "a gap inside a batch"
                    assert last_before in (0, first - 1), "a gap between batches"
                    messages += len(batch)
                    size += int(batch.offsets[-1])
                    if over.is_set() or (rate and over.wait(begun + size / rate - time.monotonic())):
                        break
        print(messages, flush=True)


class _Counter:
    """Counts messages of many subscriptions, until all have arrived."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self._lock = threading.Lock()
        self.done = threading.Event()

    def handle(self, message: tt.Message) -> None:
        del message
        with self._lock:
            self._left -= 1
            if not self._left:
                self.done.set()


def _await(counter: _Counter) -> None:
    _go()
    assert counter.done.wait(FLUSH_SECONDS), "not everything came"
    print("all", flush=True)


def symbols(uri: str, topic: str, connections: str, each: str, expected: str) -> None:
    """Subscribe `each` symbols on each of `connections` connections. Print when all expected messages have
    arrived.
    """
    counter = _Counter(int(expected))
    with contextlib.ExitStack() as stack:
        for number in range(int(connections)):
            client = stack.enter_context(tt.Client(f"{_name()}-{number}", uri))
            for symbol in range(number * int(each), (number + 1) * int(each)):
                client.subscribe(topic, filter=f"/symbol = 'S{symbol:04}'", on_message=counter.handle)
        _await(counter)


def mixed(uri: str, topic: str, connections: str, each: str, count: str) -> None:
    """Subscribe to price ranges and venue prefixes, in turn, on `connections` connections."""
    filters = []
    expected = 0
    prices: Counter[int] = Counter()
    venues: Counter[str] = Counter()
    for number in range(int(count)):
        prices[number % 1000 // 10] += 1
        for length in range(1, len(str(number % 977)) + 1):
            venues[str(number % 977)[:length]] += 1
    for number in range(int(connections) * int(each)):
        low = number // 2 % 100
        if number % 2:
            filters.append(f"/price >= {10 * low} AND /price < {10 * low + 10}")
            expected += prices[low]
        else:
            filters.append(f"/venue LIKE '^N{number % 977}'")
            expected += venues[str(number % 977)]
    counter = _Counter(expected)
    with contextlib.ExitStack() as stack:
        for number in range(int(connections)):
            client = stack.enter_context(tt.Client(f"{_name()}-{number}", uri))
            for text in filters[number * int(each) : (number + 1) * int(each)]:
                client.subscribe(topic, filter=text, on_message=counter.handle)
        _await(counter)


def listeners(uri: str, topic: str, clients: str, count: str) -> None:
    """Read `count` messages with each of `clients` clients, and print the delay at p99 in microseconds."""
    delays: list[float] = []
    counter = _Counter(int(clients) * int(count))

    def handle(message: tt.Message) -> None:
        delays.append((time.monotonic_ns() - int(message.data[:20])) / 1e3)
        counter.handle(message)

    with contextlib.ExitStack() as stack:
        for number in range(int(clients)):
            client = stack.enter_context(tt.Client(f"{_name()}-{number}", uri))
            client.subscribe(topic, on_message=handle)
        _go()
        assert counter.done.wait(10 * FLUSH_SECONDS), "not everything came"
        print(f"{percentile(delays, 0.99):.0f}", flush=True)


def takers(uri: str, topic: str, clients: str, count: str) -> None:
    """Read `count` messages with each of `clients` clients in batches, which keep up with every rate.

    Print the delay of the first message of each batch at p99 in microseconds.
    """
    delays: list[float] = []

    def take(stream: tt.MessageStream) -> None:
        left = int(count)
        for batch in stream.batches(FLUSH_SECONDS):
            delay = (time.monotonic_ns() - int(bytes(batch.body(0)[:20]))) / 1e3
            delays.extend([delay] * len(batch))
            left -= len(batch)
            if left <= 0:
                break

    with contextlib.ExitStack() as stack:
        threads = []
        for number in range(int(clients)):
            client = stack.enter_context(tt.Client(f"{_name()}-{number}", uri))
            threads.append(threading.Thread(target=take, args=(client.subscribe(topic),), daemon=True))
        _go()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10 * FLUSH_SECONDS)
            assert not thread.is_alive(), "not everything came"
        print(f"{percentile(delays, 0.99):.0f}", flush=True)


def consume(uri: str, topic: str, backlog: str, gathered: str) -> None:
    """Take messages of a queue and acknowledge each until asked to end.

    Print their number when all acknowledgements are persisted.
    """
    taken = 0

    def take(stream: tt.MessageStream) -> None:
        nonlocal taken
        for message in stream:
            message.ack()
            taken += 1

    with tt.Client(_name(), uri, publish_store=tt.MemoryPublishStore()) as client:
        client.ack_batch_size = int(gathered)
        client.ack_timeout = REST_SECONDS
        _go()
        stream = client.subscribe(topic, max_backlog=int(backlog))
        thread = threading.Thread(target=take, args=(stream,), daemon=True)
        thread.start()
        sys.stdin.readline()
        client.publish_flush(timeout=FLUSH_SECONDS)
        stream.close()
        thread.join(FLUSH_SECONDS)
        print(taken, flush=True)


def ranges(uri: str, topic: str, clients: str, count: str) -> None:
    """Divide the prices between `clients` clients. Print when all `count` messages have arrived."""
    counter = _Counter(int(count))
    with contextlib.ExitStack() as stack:
        for number in range(int(clients)):
            client = stack.enter_context(tt.Client(f"{_name()}-{number}", uri))
            low, high = (1_000 * edge // int(clients) for edge in (number, number + 1))
            client.subscribe(topic, filter=f"/price >= {low} AND /price < {high}", on_message=counter.handle)
        _await(counter)


def filters(uri: str, topic: str) -> None:
    """Subscribe with a new filter every second, until asked to end. Print the number of filters."""
    over = threading.Event()
    number = 0
    with tt.Client(_name(), uri) as client:
        _go()
        threading.Thread(target=_wait_for_the_end, args=(over,), daemon=True).start()
        while not over.is_set():
            names = ", ".join(f"'X{number}-{n}'" for n in range(20))
            text = f"/price > {number}.25 AND (/venue LIKE '^X{number}' OR /symbol IN ({names}))"
            client.subscribe(topic, filter=text).close()
            number += 1
            over.wait(1)
    print(number, flush=True)


def probe(uri: str) -> None:
    """Send a flush every 5 ms until asked to end. Print the longest answer in milliseconds.

    The connection has published nothing, so each flush is answered by the next step of the event loop.
    """
    over = threading.Event()
    _go()
    threading.Thread(target=_wait_for_the_end, args=(over,), daemon=True).start()
    taken: list[float] = []
    with Peer(uri, _name()) as peer:
        while not over.is_set():
            sent = time.monotonic()
            peer.send(frame(Flush(id=len(taken) + 1, level="processed")))
            peer.until(Ack)
            taken.append(time.monotonic() - sent)
            over.wait(max(0.0, sent + PROBE_SECONDS - time.monotonic()))
    print(max(taken) * 1e3, flush=True)


def handovers(uri: str, topic: str, keys: str) -> None:
    """Read all `keys` records and then live messages, again and again, until asked to end.

    Print how often all records and at least one live message arrived. Update the topic meanwhile.
    """
    over = threading.Event()
    complete = 0
    with tt.Client(_name(), uri) as client:
        _go()
        threading.Thread(target=_wait_for_the_end, args=(over,), daemon=True).start()
        while not over.is_set():
            received = 0
            with client.sow_and_subscribe(topic) as stream, contextlib.suppress(tt.TimedOut):
                for batch in stream.batches(IDLE_SECONDS_MAX):
                    received += len(batch)
                    complete += received > int(keys)
                    if received > int(keys) or over.is_set():
                        break
    print(complete, flush=True)


def connections(uri: str, topic: str, count: str) -> None:
    """Subscribe with each of `count` asyncio clients. Print each time that all have another message."""

    async def serve() -> None:
        left = int(count)

        def handle(message: tt.Message) -> None:
            nonlocal left
            del message
            left -= 1
            if not left:
                left = int(count)
                print("all", flush=True)

        async with contextlib.AsyncExitStack() as stack:
            for number in range(int(count)):
                client = await stack.enter_async_context(tt.AsyncClient(f"{_name()}-{number}", uri))
                await client.subscribe(topic, on_message=handle)
            print("ready", flush=True)
            await asyncio.Event().wait()

    asyncio.run(serve())


WORKERS = {
    worker.__name__: worker
    for worker in (
        paced,
        listen,
        replays,
        symbols,
        mixed,
        listeners,
        takers,
        consume,
        ranges,
        filters,
        probe,
        handovers,
        connections,
    )
}

if __name__ == "__main__":
    WORKERS[sys.argv[1]](*sys.argv[2:])
