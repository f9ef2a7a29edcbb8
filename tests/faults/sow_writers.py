"""Writers of SOW topics for the fault tests, with an oracle of their own records, and the fold of a log.

A writer owns the records whose field `owner` is its name. So its operations alone decide them.
Must never judge: tests do.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

import tickertape as tt
from tests.faults.clients import ROOM_SECONDS, SECONDS
from tests.faults.log_on_disk import Stored

TOPIC: Final = "positions"
BUCKETS: Final = 16
"""A delete by filter removes about one part of this many of a writer's records."""
COLD_SHARE: Final = 0.03
"""Part of the operations that choose from all records of a writer. The others choose from one twentieth."""
WAITING_MAX: Final = 500
"""Unacknowledged operations above which a writer pauses, so that each cycle has about as many."""

Record = dict[str, Any]
State = dict[str, Record]
"""Records by their field `id`."""


class Operation(NamedTuple):
    """One message or delete of a writer, which takes one sequence number."""

    kind: str
    """`publish`, `delta`, `delete` of `ids`, or `delete bucket`."""
    body: Record
    ids: tuple[str, ...] = ()

    def touched(self, state: State) -> tuple[str, ...]:
        """Return the ids of all records that it may change."""
        if self.kind == "delete bucket":
            bucket = self.body["bucket"]
            return tuple(key for key, record in state.items() if record.get("bucket") == bucket)
        return self.ids if self.kind == "delete" else (self.body["id"],)

    def apply(self, state: State, ids: tuple[str, ...]) -> None:
        """Apply it to the records `ids` that it touches."""
        if self.kind == "publish":
            state[ids[0]] = self.body
        elif self.kind == "delta":
            state[ids[0]] = state.get(ids[0], {}) | self.body
        else:
            for key in ids:
                state.pop(key, None)


class Oracle:
    """Records of a writer after its first `applied` operations."""

    def __init__(self) -> None:
        self.state: State = {}
        self.applied = 0

    def advance(self, operations: list[Operation], end: int) -> None:
        """Apply the operations before `end`."""
        for operation in operations[self.applied : end]:
            operation.apply(self.state, operation.touched(self.state))
        self.applied = max(self.applied, end)

    def prefix_with(self, operations: list[Operation], found: State) -> int | None:
        """Return how many operations give the records `found`, at least `applied`. None: no number does."""
        state = dict(self.state)
        different = {key for key in state.keys() | found.keys() if state.get(key) != found.get(key)}
        for number, operation in enumerate(operations[self.applied :], self.applied):
            if not different:
                return number
            ids = operation.touched(state)
            operation.apply(state, ids)
            for key in ids:
                (different.discard if state.get(key) == found.get(key) else different.add)(key)
        return None if different else len(operations)


class SowWriter(threading.Thread):
    """Publishes, merges and deletes its own records through an HA client, until it is stopped."""

    def __init__(self, name: str, uri: str, store: tt.PublishStore, keys: int, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.operations: list[Operation] = []
        self.oracle = Oracle()
        """For the test: the records after the acknowledged operations."""
        self.sow_keys: dict[str, str] = {}
        """For deletes by keys: keys of records by id, from earlier queries."""
        self.error: BaseException | None = None
        self._keys = keys
        self._rng = Random(seed)
        self._over = threading.Event()
        self._settled = 0
        self._client = tt.HAClient(
            name, servers=uri, publish_store=store, reconnect_delay=0.02, timeout=SECONDS
        )

    def run(self) -> None:
        try:
            self._client.connect_and_logon()
            self._publish_all()
            while not self._over.wait(self._rng.random() * 0.02):
                if self._client.unpersisted_count() < WAITING_MAX:
                    self._step()
            self._client.publish_flush(timeout=SECONDS)
        except BaseException as error:
            self.error = error
            raise

    def acknowledged(self) -> int:
        """Return a lower bound of the number of operations, from the first, that are persisted."""
        settled = self._settled
        return max(0, settled - self._client.unpersisted_count())

    def unacknowledged(self) -> set[str]:
        """Return the kinds of the operations that may be unacknowledged."""
        return {operation.kind for operation in self.operations[self.acknowledged() :]}

    def finish(self) -> None:
        """Stop it, and wait until everything is persisted."""
        self._over.set()
        self.join(2 * SECONDS)
        assert self.error is None, self.error
        assert not self.is_alive(), f"{self.name} does not come to an end"
        self._client.close()

    # -- operations -----------------------------------------------------------------------------------

    def _publish_all(self) -> None:
        for first in range(0, self._keys, 500):
            self._publish([self._record(number) for number in range(first, first + 500)])

    def _step(self) -> None:
        rng = self._rng
        kind = rng.choice(("publish", "publish", "batch", "delta", "delta", "data", "keys", "filter"))
        if kind == "filter" and rng.random() < 0.15:
            bucket = rng.randrange(BUCKETS)
            self._delete_records(
                Operation("delete bucket", {"bucket": bucket}),
                filter=f"/owner = '{self.name}' AND /bucket = {bucket}",
            )
        elif kind == "keys" and (known := self.sow_keys):
            ids = tuple(rng.sample(sorted(known), min(len(known), rng.choice((1, 5, 50)))))
            self._delete_records(Operation("delete", {}, ids), keys=[known[key] for key in ids])
        elif kind == "data":
            body = self._record(self._number())
            self._delete_records(Operation("delete", {}, (body["id"],)), data=body)
        elif kind == "delta":
            body = self._record(self._number())
            del body["bucket"]
            self.operations.append(Operation("delta", body | {f"extra{rng.randrange(3)}": body["n"]}))
            self._client.delta_publish(TOPIC, self.operations[-1].body, timeout=ROOM_SECONDS)
            self._settled += 1
        else:
            count = 1 if kind == "publish" else rng.choice((10, 50, 100))
            self._publish([self._record(self._number()) for _ in range(count)])

    def _number(self) -> int:
        """Return a random number of a record. Most operations change few records, so deltas are small."""
        rng = self._rng
        return rng.randrange(self._keys if rng.random() < COLD_SHARE else self._keys // 20)

    def _record(self, number: int) -> Record:
        rng = self._rng
        return {
            "id": f"{self.name}-{number}",
            "owner": self.name,
            "bucket": rng.randrange(BUCKETS),
            "n": len(self.operations) + rng.randrange(1_000),
            "text": "x" * rng.choice((0, 10, 100)),
        }

    def _publish(self, bodies: list[Record]) -> None:
        self.operations += [Operation("publish", body) for body in bodies]
        if len(bodies) == 1:
            self._client.publish(TOPIC, bodies[0], timeout=ROOM_SECONDS)
        else:
            self._client.publish_batch(TOPIC, bodies, timeout=ROOM_SECONDS)
        self._settled += len(bodies)

    def _delete_records(self, operation: Operation, **selection: Any) -> None:
        self.operations.append(operation)
        self._client.sow_delete(TOPIC, wait=False, timeout=ROOM_SECONDS, **selection)
        self._settled += 1


# -- fold -----------------------------------------------------------------------------------------------


class Folded:
    """Records of the topic after each message of a log (docs/formats/sow-records.md)."""

    def __init__(self) -> None:
        self.state: State = {}
        self.at: dict[tuple[int, int], int] = {}
        """Index of each message by (publisher, sequence)."""
        self._key_of: dict[tuple[int, int], str] = {}
        self._current: dict[str, tuple[int, int]] = {}

    def steps(self, log: list[Stored]) -> Iterator[Stored]:
        """Apply the messages of a log, and yield each one afterwards."""
        for stored in log:
            if stored.topic == "$sow":
                self._delete(stored)
            elif stored.topic == TOPIC:
                self._upsert(stored)
            yield stored

    def _upsert(self, stored: Stored) -> None:
        record = msgspec.json.decode(stored.body)
        message, key = (stored.publisher, stored.sequence), record["id"]
        self.state[key], self._current[key], self._key_of[message] = record, message, key

    def _delete(self, stored: Stored) -> None:
        for message in named_messages(stored.body):
            key = self._key_of.get(message)
            if key is not None and self._current.get(key) == message:
                self.state.pop(key)
                del self._current[key]


def named_messages(body: bytes) -> list[tuple[int, int]]:
    """Return (publisher, sequence) of each message that a delete names."""
    row = msgspec.msgpack.decode(body)
    assert row[:2] == [TOPIC, 1]
    publishers = struct.unpack(f"<{len(row[6]) // 8}Q", row[6])
    sequences = struct.unpack(f"<{len(row[7]) // 8}Q", row[7])
    numbers = struct.unpack(f"<{len(row[9]) // 4}I", row[9])
    return [(publishers[n], s) for n, s in zip(numbers, sequences, strict=True) if s]
