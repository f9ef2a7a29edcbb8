"""Queues on a real server: publishing, taking, and the state from `/stats`.

Must never judge, nor wait for any other condition than the requested one.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

import tickertape as tt
from tests.helpers.admin import ask
from tickertape.engine.queues.snapshot import QueueSnapshot
from tickertape.server.admin.schema import Stats
from tickertape.testing import RunningServer

SECONDS = 20.0
_QUIET_SECONDS = 0.03
_LOOK_SECONDS = 0.002


def queue(name: str, **options: object) -> str:
    """Return the configuration table of a queue."""
    lines = [f"name = {_toml(name)}", *(f"{key} = {_toml(value)}" for key, value in options.items())]
    return "[[queue]]\n" + "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def publish(server: RunningServer, topic: str, *bodies: Any, **more: Any) -> None:
    """Publish bodies, and wait until they are on disk."""
    with tt.Client(f"to-{topic}", server.uri, timeout=SECONDS) as client:
        for body in bodies:
            client.publish(topic, body, **more)
        client.publish_flush(timeout=SECONDS)


def numbers(server: RunningServer, topic: str, count: int, begin: int = 0) -> None:
    """Publish `{"n": begin}` and the following numbers."""
    publish(server, topic, *({"n": n} for n in range(begin, begin + count)))


def take(stream: tt.MessageStream, count: int) -> list[tt.Message]:
    """Return the next `count` messages."""
    return [stream.get(SECONDS) for _ in range(count)]


def of(messages: list[tt.Message]) -> list[Any]:
    """Return the numbers in messages."""
    return [message.json()["n"] for message in messages]


def nothing(*streams: tt.MessageStream) -> bool:
    """Return whether no message arrives for a short time. The test has checked `state` before."""
    for stream in streams:
        try:
            stream.get(_QUIET_SECONDS)
        except tt.TimedOut:
            continue
        return False
    return True


def state(server: RunningServer, name: str) -> QueueSnapshot:
    """Return the state of a queue from `/stats`."""
    stats = msgspec.json.decode(ask(server, "/stats")[2], type=Stats)
    (found,) = [queue for queue in stats.queues if queue.name == name]
    return found


def wait_state(server: RunningServer, name: str, **wanted: Any) -> QueueSnapshot:
    """Wait until `/stats` has this state of a queue. `AssertionError` with the last state at the timeout."""
    deadline = time.monotonic() + SECONDS
    while True:
        found = state(server, name)
        if all(getattr(found, key) == value for key, value in wanted.items()):
            return found
        assert time.monotonic() < deadline, f"wanted {wanted}, not {found}"
        time.sleep(_LOOK_SECONDS)


def left(server: RunningServer, name: str) -> list[Any]:
    """Return the numbers of the ready messages of a queue, in log order, without taking them."""
    with tt.Client(f"look-{name}", server.uri, timeout=SECONDS) as client:
        return of(list(client.subscribe(name, browse=True)))
