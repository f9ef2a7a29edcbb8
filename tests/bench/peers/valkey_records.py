"""Load programs of the SOW benches: records in Valkey, as fields of a hash and as strings."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

from tests.bench.peers.loading import WAIT_SECONDS_MAX, Result, Task, at, go
from tests.bench.record_bodies import body_of, key_of, numbers_of

HASH: Final = "orders"
CALL: Final = 512
"""Records of one command or pipeline."""


@dataclass(frozen=True)
class RecordTask(Task):
    """The work of one turn."""

    keys: int = 0
    """Number of all records."""
    turn: int = 0
    """0 writes each record, in order. A later turn updates `count` of them."""


def _client(task: RecordTask) -> Any:
    import redis

    return redis.Redis(port=int(task.address), socket_timeout=WAIT_SECONDS_MAX)


def _parts(task: RecordTask) -> list[dict[str, bytes]]:
    """Return the records that the turn writes, in parts of one call."""
    numbers = numbers_of(task.turn, task.count, task.keys) if task.turn else list(range(task.keys))
    return [
        {key_of(number): body_of(number, task.keys, task.turn) for number in numbers[first : first + CALL]}
        for first in range(0, len(numbers), CALL)
    ]


def hset(task: RecordTask) -> Result:
    """Write fields of one hash, 512 with each command."""
    client, parts = _client(task), _parts(task)
    go()
    started = time.perf_counter()
    for part in parts:
        client.hset(HASH, mapping=part)
    taken = time.perf_counter() - started
    assert client.hlen(HASH) == task.keys
    return {"seconds": taken}


def set_strings(task: RecordTask) -> Result:
    """Write strings with SET, 512 in each pipeline."""
    client, parts = _client(task), _parts(task)
    go()
    started = time.perf_counter()
    for part in parts:
        pipeline = client.pipeline(transaction=False)
        for key, body in part.items():
            pipeline.set(key, body)
        pipeline.execute()
    taken = time.perf_counter() - started
    assert client.dbsize() == task.keys
    return {"seconds": taken}


def hgetall(task: RecordTask) -> Result:
    """Read all fields of the hash with one command."""
    client = _client(task)
    go()
    started = time.perf_counter()
    found = client.hgetall(HASH)
    taken = time.perf_counter() - started
    assert len(found) == task.keys
    return {"seconds": taken}


def get(task: RecordTask) -> Result:
    """Read `count` strings, one after the other, and return the median."""
    client, numbers = _client(task), numbers_of(task.turn, task.count, task.keys)
    client.ping()
    go()
    taken = []
    for number in numbers:
        started = time.perf_counter()
        body = client.get(key_of(number))
        taken.append(time.perf_counter() - started)
        assert body is not None
    return {"seconds": at(sorted(taken), 0.5)}


ACTIONS = {"hset": hset, "set": set_strings, "hgetall": hgetall, "get": get}

if __name__ == "__main__":
    action, text = sys.argv[1:]
    print(json.dumps(ACTIONS[action](RecordTask(**json.loads(text)))), flush=True)
