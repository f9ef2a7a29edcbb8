"""Clients beside the measured one, each in a process of its own: python -m tests.bench.workers NAME ...

A worker says `ready` on standard output, waits for a line on standard input, works, and says what it did in
one line. One that has no end of its own works until standard input brings another line, or ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import tickertape as tt
from tests.bench.stage import BODY, FLUSH_SECONDS


def _go() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def _name() -> str:
    return f"bench-worker-{os.getpid()}"


def _wait_for_the_end(over: threading.Event) -> None:
    sys.stdin.readline()
    over.set()


def paced(uri: str, topic: str, count: str, rate: str) -> None:
    """Publish `count` messages at `rate` a second; each begins with the moment at which it was published."""
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
    """Take the next `count` messages through batches; say how many bytes of bodies they had."""
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
    """Replay through batches, again and again, at most so many bytes a second (0: flat out); say how many
    messages came, each of which follows the one before.
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


WORKERS = {worker.__name__: worker for worker in (paced, listen, replays)}

if __name__ == "__main__":
    WORKERS[sys.argv[1]](*sys.argv[2:])
