"""Random programs of publishes, deltas, deletes and expiry on an engine with a SOW topic.

The oracle executes the requests themselves on a dict, in the order of the log, without product code.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from tests.helpers.sow_engine import SowEngine, deleted, send
from tests.helpers.tiers import parts
from tests.simulation.engine_peer import Peer
from tests.simulation.journal_world import read_log
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.state.delete import decode
from tickertape.wire.sow_command import SOW_TOPIC, SowDelete

ORDERS = SowDefinition("orders", key=("/id",), expiration=60_000)
PROGRAMS = 12
_ENCODE = msgspec.msgpack.encode
_DECODE = msgspec.msgpack.decode

Document = dict[str, Any]
Selects = Callable[[int, Document], bool]


def merged(old: Document, delta: Document) -> Document:
    """Return the document of a record after a delta."""
    new = dict(old)
    for name, value in delta.items():
        before = old.get(name)
        new[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return new


class Oracle:
    """Records by key, and the requests by publisher and sequence."""

    def __init__(self) -> None:
        self.documents: dict[tuple[int, int], tuple[bool, Document]] = {}
        self.selects: dict[tuple[int, int], Selects] = {}

    def replay(self, world: SowEngine, counts: Counter[str]) -> dict[int, Document]:
        """Execute the requests in the order of the log, and check the log against them."""
        state: dict[int, Document] = {}
        owners: dict[int, tuple[int, int]] = {}
        for _, batch in read_log(world.broker.journal, world.disk):
            for row in range(batch.count):
                mark = batch.publisher(row), batch.sequence(row)
                if batch.topic(row) == "orders":
                    delta, document = self.documents[mark]
                    key = document["id"]
                    if delta and key in state:
                        document = merged(state[key], document)
                        counts["merged"] += 1
                    assert json.loads(batch.body(row)) == document
                    state[key], owners[key] = document, mark
                elif batch.topic(row) == SOW_TOPIC:
                    record = decode(batch.body(row))
                    if mark[0] == CONTROL_PUBLISHER:
                        publishers = record.publishers_between(0, record.count).tolist()
                        named = zip(publishers, record.sequences.tolist(), strict=True)
                        keys = map(_DECODE, record.keys())
                        ended = [key for key, one in zip(keys, named, strict=True) if owners.get(key) == one]
                        counts["expired"] += len(ended)
                    else:
                        ended = [key for key, document in state.items() if self.selects[mark](key, document)]
                        assert record.counts.deleted == len(ended)
                        counts["deleted"] += len(ended)
                    for key in ended:
                        del state[key], owners[key]
        return state


class Program:
    """One random program."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        self.rng = Random(seed)
        self.counts = counts
        self.world = SowEngine(ORDERS, seed=seed, segment_bytes=self.rng.choice((32_768, 262_144)))
        self.keys = self.rng.choice((3, 40, 3_000))
        self.oracle = Oracle()
        self.peers: list[Peer] = []
        self.sent: dict[int, tuple[int, list[Any], list[int]]] = {}
        self.started = 0

    def run(self, steps: int) -> None:
        choices = [self.send, self.send, self.send, self.work, self.work, self.check]
        choices += [self.resend, self.pass_time, self.restart]
        for _ in range(steps):
            self.rng.choice(choices)()
        self.check()

    def send(self) -> None:
        if len(self.peers) < 3:
            self.started += 1
            self.peers.append(self.world.connect(f"peer {self.started}"))
        peer = self.rng.choice(self.peers)
        if peer.logged_on is None:
            return
        publisher, sequence = peer.logged_on.publisher, peer.next_sequence
        rows: list[Any] = []
        deltas: list[int] = []
        for at in range(self.rng.choice((1, 1, 2, 6, 60, 400))):
            mark = publisher, sequence + at
            if self.rng.random() < 0.1:
                delete, self.oracle.selects[mark] = self.delete()
                rows.append(delete)
                continue
            document = self.document()
            delta = self.rng.random() < 0.4
            if delta:
                deltas.append(at)
            self.oracle.documents[mark] = delta, document
            rows.append(("orders", json.dumps(document).encode()))
        self.sent[peer.conn] = send(peer, rows, deltas=deltas), rows, deltas

    def document(self) -> Document:
        rng = self.rng
        document: Document = {"id": rng.randrange(self.keys)}
        for name in rng.sample("abcd", rng.randrange(4)):
            document[name] = rng.choice((1, "text", None, [1, 2], {"x": rng.random()}, {"y": rng.random()}))
        document["n"] = rng.randrange(100)
        return document

    def delete(self) -> tuple[SowDelete, Selects]:
        """Return a delete, and the records that it selects."""
        kind, low = self.rng.randrange(3), self.rng.randrange(100)
        chosen = {self.rng.randrange(self.keys) for _ in range(self.rng.randrange(1, 8))}
        if kind == 0:
            canonical = tuple(map(_ENCODE, chosen))
            return SowDelete(topic="orders", canonical=canonical), lambda key, _: key in chosen
        if kind == 1:
            return SowDelete(topic="orders", filter=f"/n < {low}"), lambda _, document: document["n"] < low
        one = min(chosen)
        data = json.dumps({"other": 1, "id": one}).encode()
        return SowDelete(topic="orders", data=data), lambda key, _: key == one

    def resend(self) -> None:
        peer = self.rng.choice(self.peers) if self.peers else None
        if peer is None or peer.conn not in self.sent:
            return
        first, rows, deltas = self.sent[peer.conn]
        send(peer, rows, deltas=deltas, first=first)
        self.counts["resent"] += 1

    def work(self) -> None:
        for _ in range(self.rng.randrange(1, 12)):
            self.world.step()

    def pass_time(self) -> None:
        self.world.wake(self.rng.choice((1, 20, 70)))

    def check(self) -> None:
        self.world.settle()
        assert not [peer.goodbye for peer in self.peers if peer.goodbye is not None]
        state = self.oracle.replay(self.world, self.counts)
        records = {_DECODE(key): json.loads(body) for key, body in self.world.records("orders").items()}
        assert records == state
        self.counts["checked"] += 1
        for peer in self.peers:
            self.counts["answered"] += len(deleted(peer))

    def restart(self) -> None:
        if self.rng.random() < 0.3:
            self.world.reopen()
            self.peers = []
            self.sent = {}
            self.counts["restarted"] += 1


@pytest.mark.parametrize("part", parts(40))
def test_states_after_random_requests_equal_the_requests_in_the_order_of_the_log(part: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(part * PROGRAMS, (part + 1) * PROGRAMS):
        Program(seed, counts).run(30)
    events = ("merged", "deleted", "expired", "resent", "checked", "answered", "restarted")
    assert all(counts[event] for event in events), counts
