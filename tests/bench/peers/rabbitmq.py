"""RabbitMQ: the server of Debian with a quorum queue or a stream, and its load programs."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.bench.peers.installed import debian_version, missing_client, package_version
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

INSTALLED: Final = Path("/usr/lib/rabbitmq/lib")
NAME_SERVER: Final = "epmd"
"""Finds the nodes of Erlang, and is installed with it."""
PREFETCH: Final = 1_000
FILL_COUNT: Final = 1_000
TICK_SECONDS: Final = 0.001


def _program() -> Path | None:
    return next(iter(sorted(INSTALLED.glob("*/sbin/rabbitmq-server"))), None)


class RabbitServer(PeerServer):
    """`rabbitmq-server`. The setting is the type of the queues: `quorum` or `stream`."""

    name = "RabbitMQ"
    _name_server: subprocess.Popen[bytes] | None = None

    @classmethod
    def missing(cls) -> str:
        return missing_client("pika") or ("" if _program() else "rabbitmq-server is not installed")

    @classmethod
    def version(cls) -> str:
        number = debian_version("rabbitmq-server") or "of unknown version"
        return f"RabbitMQ {number} of Debian, client pika {package_version('pika')}"

    def _start(self) -> None:
        port, distribution, names = (self.reserve_port() for _ in range(3))
        (self.directory / "plugins").write_text("[].\n")
        config = self.directory / "rabbit.conf"
        config.write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\nloopback_users = none\n")
        environment = {
            "RABBITMQ_NODENAME": f"peers{os.getpid()}-{port}@localhost",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.directory / "logs"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(config),
            "ERL_EPMD_PORT": str(names),
            "HOME": str(self.directory),
        }
        # without a running name server the node would start one that does not end with it
        self._name_server = subprocess.Popen(
            [NAME_SERVER, "-port", str(names), "-address", "127.0.0.1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for_port(names, self)
        self.run([str(_program())], environment)
        wait_for_port(port, self)
        self.address = f"{port}/{self.setting}"

    def stop(self) -> None:
        super().stop()
        if self._name_server is not None:
            self._name_server.kill()
            self._name_server.wait()
            self._name_server = None


def _parameters(task: Task) -> Any:
    import pika

    return pika.ConnectionParameters(
        "127.0.0.1",
        int(task.address.partition("/")[0]),
        heartbeat=0,
        connection_attempts=5,
        retry_delay=1,
        blocked_connection_timeout=WAIT_SECONDS_MAX,
        socket_timeout=WAIT_SECONDS_MAX,
    )


def _arguments(task: Task) -> dict[str, str]:
    return {"x-queue-type": task.address.partition("/")[2]}


def _prepared(task: Task) -> tuple[Any, Any]:
    """Return a connection and a channel, with an exchange of the topic and a queue of the task's name."""
    import pika

    connection = pika.BlockingConnection(_parameters(task))
    channel = connection.channel()
    channel.exchange_declare(task.topic, "fanout", durable=True)
    channel.queue_declare(task.name, durable=True, arguments=_arguments(task))
    channel.queue_bind(task.name, task.topic)
    return connection, channel


def settle(waiting: dict[int, float], tag: int, *, multiple: bool) -> list[float]:
    """Remove confirmed messages and return their start times. `multiple`: all up to `tag`."""
    if not multiple:
        return [waiting.pop(tag)] if tag in waiting else []
    return [waiting.pop(first) for first in list(itertools.takewhile(lambda key: key <= tag, waiting))]


class Publisher:
    """A connection that publishes with confirms, driven by callbacks."""

    def __init__(
        self,
        task: Task,
        feed: Callable[[Publisher], None],
        confirmed: Callable[[list[float]], None] = lambda _: None,
    ) -> None:
        import pika

        self.waiting: dict[int, float] = {}
        """Start times of messages without a confirm, by delivery tag."""
        self._task = task
        self._properties = pika.BasicProperties(delivery_mode=2)
        self._channel: Any = None
        self._sent = 0
        self._feed = feed
        self._confirmed = confirmed
        self.connection = pika.SelectConnection(
            _parameters(task), on_open_callback=lambda opened: opened.channel(on_open_callback=self._open)
        )

    def _open(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._confirm, callback=lambda _: self._feed(self))

    def _confirm(self, frame: Any) -> None:
        self._confirmed(settle(self.waiting, frame.method.delivery_tag, multiple=frame.method.multiple))
        self._feed(self)

    def publish(self, body: bytes) -> None:
        self._sent += 1
        self.waiting[self._sent] = time.perf_counter()
        self._channel.basic_publish(self._task.topic, "", body, self._properties)

    def run(self) -> None:
        """Work until `end()`."""
        self.connection.ioloop.start()

    def end(self) -> None:
        self.connection.ioloop.stop()


def publish(task: Task) -> Result:
    """Publish with a window of `depth` confirms."""
    if task.alone:
        prepared, _ = _prepared(task)
        prepared.close()
    bodies = make_bodies()
    number = 0
    meter: Meter | None = None

    def feed(publisher: Publisher) -> None:
        nonlocal number, meter
        if meter is None:
            go()
            meter = Meter(task)
        while meter.running() and len(publisher.waiting) < task.depth:
            publisher.publish(bodies[number % len(bodies)])
            number += 1
        if not publisher.waiting:
            publisher.end()

    def confirmed(started: list[float]) -> None:
        assert meter is not None
        for time_of_call in started:
            meter.done(1, time_of_call)

    Publisher(task, feed, confirmed).run()
    assert meter is not None
    return meter.result()


def paced(task: Task) -> Result:
    """Publish stamped messages at a rate."""
    bodies = make_bodies()
    meter: Meter
    schedule: Schedule
    started = False

    def feed(publisher: Publisher) -> None:
        nonlocal started, meter, schedule
        if started:
            return
        started = True
        go()
        meter, schedule = Meter(task), Schedule(task)
        tick(publisher)

    def tick(publisher: Publisher) -> None:
        due = schedule.due()
        for n in range(due):
            publisher.publish(stamp(bodies[n % len(bodies)]))
        meter.done(due)
        if meter.running():
            publisher.connection.ioloop.call_later(TICK_SECONDS, lambda: tick(publisher))
        else:
            publisher.end()

    Publisher(task, feed).run()
    return meter.result()


def listen(task: Task) -> Result:
    """Receive new messages of a queue of its own."""
    connection, channel = _prepared(task)
    streamed = task.address.endswith("/stream")
    if streamed:
        channel.basic_qos(prefetch_count=PREFETCH)
    go()
    arrivals = Arrivals(task)
    size = 0
    for method, _, body in channel.consume(task.name, auto_ack=not streamed, inactivity_timeout=0.1):
        if method is not None:
            size += 1
            arrivals.add([body])
            if streamed and size % (PREFETCH // 2) == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
        if not arrivals.running():
            break
    connection.process_data_events(0)
    return arrivals.result()


def fill(task: Task) -> Result:
    """Publish `count` messages into a queue with the name of the topic."""
    task = replace(task, name=task.topic)
    prepared, _ = _prepared(task)
    prepared.close()
    bodies = make_bodies()
    sent = 0
    started = False

    def feed(publisher: Publisher) -> None:
        nonlocal sent, started
        if not started:
            started = True
            go()
        while sent < task.count and len(publisher.waiting) < FILL_COUNT:
            publisher.publish(bodies[sent % len(bodies)])
            sent += 1
        if not publisher.waiting:
            publisher.end()

    Publisher(task, feed).run()
    return {"count": float(task.count)}


def replay(task: Task) -> Result:
    """Read a stream from its start, as often as the time allows."""
    import pika

    go()
    meter = Meter(task)
    size = 0
    opened = []
    while meter.running():
        connection = pika.BlockingConnection(_parameters(task))
        opened.append(connection)  # never closed: a stream refuses the negative acknowledgements of a close
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        offset = {"x-stream-offset": "first"}
        messages = channel.consume(task.topic, arguments=offset, inactivity_timeout=WAIT_SECONDS_MAX)
        for read, (method, _, body) in enumerate(messages, 1):
            if method is None:
                raise TimeoutError("the stream delivered nothing")
            size += len(body)
            meter.done(1)
            if read % (PREFETCH // 2) == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if read == task.count or not meter.running():
                break
    return meter.result()


def consume(task: Task) -> Result:
    """Take `count` messages of a queue, and acknowledge half of the prefetched `depth` at once."""
    import pika

    connection = pika.BlockingConnection(_parameters(task))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=task.depth)
    go()
    started = time.perf_counter()
    taken = 0
    every = max(1, task.depth // 2)
    for method, _, _ in channel.consume(task.topic, inactivity_timeout=WAIT_SECONDS_MAX):
        if method is None:
            raise TimeoutError(f"the queue delivered {taken} of {task.count} messages")
        taken += 1
        if taken % every == 0 or taken == task.count:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if taken == task.count:
            break
    connection.process_data_events(0)
    rate = taken / (time.perf_counter() - started)
    connection.close()
    return {"rate": rate, "count": float(taken)}


ACTIONS = {
    "publish": publish,
    "paced": paced,
    "listen": listen,
    "fill": fill,
    "replay": replay,
    "consume": consume,
}

if __name__ == "__main__":
    run(ACTIONS, sys.argv[1:])
