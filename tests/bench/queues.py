"""Queues: receiving and acknowledging, the way of a message to an idle consumer, memory, and the restart."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic_ns

import tickertape as tt
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import BODY, FLUSH_SECONDS, fill, percentile, publisher, stage, timed, workers
from tests.helpers.admin import stats_of
from tests.helpers.processes import anonymous_bytes
from tickertape.testing import RunningServer, wait_until

BACKLOG = 1_000
GATHERED = 80
"""Acknowledgements that travel together."""
CONSUMERS = 8
RATE = 200
"""Messages a second to a consumer that waits for each of them."""
QUEUED = 10_000_000
SYMBOLS = 10
"""Each symbol has a random tenth of the messages of the large queue, each priority too."""
QUEUE = '[[queue]]\nname = "work"\nunderlying = "orders"\n'
PRIORITY = 'priority = "/priority"\n'
IN_FILE = "file_backed_metadata = true\n"
_consuming = partial(bench, "queues", unit="msg/s", floor=200_000, aim=550_000)
_restarting = partial(bench, "queues", unit="s", repeat=1, floor=10, aim=2)


def _one_consumer(room: Room, consume: Callable[[tt.MessageStream, int], None]) -> Reading:
    count = room.count(500_000)
    with stage(room.directory, config=QUEUE) as server:
        fill(server, count)
        with publisher(server, "bench-consumer") as client:
            client.ack_batch_size = GATHERED
            start = timed()
            consume(client.subscribe("work", max_backlog=BACKLOG), count)
            client.publish_flush(timeout=FLUSH_SECONDS)
            taken = timed() - start
        _all_acknowledged(server, count)
    return Reading(count / taken, f"backlog {BACKLOG:,}, sync always, acknowledgements persisted")


def _all_acknowledged(server: RunningServer, count: int) -> None:
    (look,) = stats_of(server).queues
    assert (look.acknowledged, look.ready, look.leased) == (count, 0, 0), look


@_consuming("one consumer, message.ack() of each, acknowledgements batched by 80")
def one_consumer(room: Room) -> Reading:
    def consume(stream: tt.MessageStream, count: int) -> None:
        size = 0
        for number, message in enumerate(stream, 1):
            size += len(message.data)
            message.ack()
            if number == count:
                break
        assert size == count * len(BODY)

    return _one_consumer(room, consume)


@_consuming("one consumer, batches() and batch.ack(), acknowledgements batched by 80")
def one_consumer_batches(room: Room) -> Reading:
    def consume(stream: tt.MessageStream, count: int) -> None:
        taken = 0
        for batch in stream.batches(FLUSH_SECONDS):
            taken += len(batch)
            batch.ack()
            if taken >= count:
                break

    return _one_consumer(room, consume)


@bench(
    "queues",
    "eight consumers, proportional fairness, message.ack() of each, acknowledgements batched by 80: sum",
    unit="msg/s",
    floor=150_000,
    aim=400_000,
)
def eight_consumers(room: Room) -> Reading:
    count = room.count(500_000)
    with stage(room.directory, config=QUEUE) as server:
        fill(server, count)
        commands = [("consume", server.uri, "work", BACKLOG, GATHERED)] * CONSUMERS
        with workers(*commands) as started:
            start = timed()
            for worker in started:
                worker.tell()
            wait_until(lambda: stats_of(server).queues[0].acknowledged == count, FLUSH_SECONDS)
            for worker in started:
                worker.tell()
            taken = [int(worker.answer()) for worker in started]
            seconds = timed() - start
        _all_acknowledged(server, count)
    assert sum(taken) == count, taken
    note = f"{CONSUMERS} processes, {min(taken):,} to {max(taken):,} messages each"
    return Reading(count / seconds, note)


@bench(
    "queues",
    "publish() to receipt by an idle consumer of a queue, p50, sync always",
    unit="ms",
    floor=1,
    aim=0.5,
)
def delivery_p50(room: Room) -> Reading:
    count = room.count(1_000)
    taken: list[float] = []
    with (
        stage(room.directory, config=QUEUE) as server,
        workers(("paced", server.uri, "orders", count, RATE)) as (worker,),
        publisher(server, "bench-consumer") as client,
    ):
        stream = client.subscribe("work", max_backlog=BACKLOG)
        worker.tell()
        for message in stream:
            taken.append((monotonic_ns() - int(message.data[:20])) / 1e6)
            message.ack()
            if len(taken) == count:
                break
        worker.answer()
    late = percentile(taken[count // 10 :], 0.99)
    note = f"{RATE:,} msg/s from another process, each acknowledged at once, p99 {late:.1f} ms"
    return Reading(percentile(taken[count // 10 :], 0.5), note)


# -- many messages ------------------------------------------------------------------------------------


def _numbers(count: int) -> list[int]:
    """Return the numbers behind the messages of the large queue: symbol and priority, at random."""
    return random.Random(1).choices(range(SYMBOLS * SYMBOLS), k=count)


def _write_queued(path: Path, numbers: list[int]) -> None:
    heads = [
        b'{"symbol":"S%d","priority":%d,"x":"' % (number % SYMBOLS, number // SYMBOLS)
        for number in range(SYMBOLS * SYMBOLS)
    ]
    bodies = [head.ljust(len(BODY) - 2, b"x") + b'"}' for head in heads]
    with stage(path) as server:
        fill(server, len(numbers), body_of=lambda n: bodies[numbers[n]])


def _settled_bytes(server: RunningServer) -> int:
    """Return the anonymous memory of an idle server: filters process all queued messages first."""
    before, now = -1, _ticks(server)
    while now - before not in (0, 1):
        time.sleep(1)
        before, now = now, _ticks(server)
    return anonymous_bytes(server.pid)


def _ticks(server: RunningServer) -> int:
    """Return the processor time of a server in hundredths of a second."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _memory(room: Room, config: str, *filters: str) -> Reading:
    """Return the additional bytes per message of a server with a queue on the same log.

    `filters`: one for each consumer, which holds one message.
    """
    count = room.count(QUEUED)
    directory = room.shared.get("queued", lambda path: _write_queued(path, _numbers(count)))
    with stage(directory) as server:
        without = _settled_bytes(server)
    with stage(directory, config=QUEUE + config) as server, tt.Client("bench-consumer", server.uri) as client:
        (look,) = stats_of(server).queues
        assert look.ready == count
        for text in filters:
            client.subscribe("work", filter=text, max_backlog=1).get(FLUSH_SECONDS)
        used = _settled_bytes(server)
    more = used - without
    return Reading(more / count, f"{count:,} queued after a start, {more / 1e6:.1f} MB more than without")


@bench("queues", "memory for each queued message", unit="bytes", repeat=1, floor=16, aim=1)
def memory_plain(room: Room) -> Reading:
    return _memory(room, "")


@bench(
    "queues",
    "memory for each queued message, with a priority, and consumers with 4 filters",
    unit="bytes",
    repeat=1,
    floor=64,
    aim=32,
)
def memory_with_priority_and_filters(room: Room) -> Reading:
    return _memory(room, PRIORITY, *[f"/symbol = 'S{number}'" for number in range(4)])


def _restart(room: Room, config: str) -> Reading:
    """Return the seconds of a start after a clean stop, with a tenth of the queue acknowledged at random."""
    count = room.count(QUEUED)
    directory = room.shared.get("acknowledged", lambda path: _write_acknowledged(path, count))
    with stage(directory, config=QUEUE + config) as server:
        server.stop()
        start = timed()
        server.start()
        taken = timed() - start
        (look,) = stats_of(server).queues
        highest = _highest_bytes(server)
    left = count - look.ready
    assert 0.09 * count < left < 0.11 * count, look
    return Reading(taken, f"{look.ready:,} ready, {left:,} not; {highest / 1e6:.0f} MB of memory at most")


def _highest_bytes(server: RunningServer) -> int:
    """Return the peak memory of a process, mapped files included."""
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("this system does not report VmHWM")


def _write_acknowledged(path: Path, count: int) -> None:
    """Consume one symbol completely: acknowledged messages are all over the log."""
    numbers = _numbers(count)
    _write_queued(path, numbers)
    left = sum(number % SYMBOLS == 0 for number in numbers)
    with stage(path, config=QUEUE) as server, publisher(server, "bench-consumer") as client:
        stream = client.subscribe("work", filter="/symbol = 'S0'", max_backlog=10 * BACKLOG)
        for batch in stream.batches(FLUSH_SECONDS):
            batch.ack()
            left -= len(batch)
            if left <= 0:
                break
        client.publish_flush(timeout=FLUSH_SECONDS)


@_restarting("restart with 10 million queued, a tenth acknowledged out of order, read from the log")
def restart_from_log(room: Room) -> Reading:
    return _restart(room, "")


@_restarting("restart with 10 million queued, a tenth acknowledged out of order, file_backed_metadata")
def restart_from_file(room: Room) -> Reading:
    return _restart(room, IN_FILE)
