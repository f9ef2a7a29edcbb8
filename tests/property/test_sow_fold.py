"""Random programs on an engine with SOW topics: the states are a function of the log.

The oracle is a dict over the messages of the log, decoded with the standard library.
"""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest

from tests.helpers.sow_engine import SowEngine, labels_in, publish, rejected
from tests.helpers.tiers import parts
from tests.simulation.engine_peer import Peer
from tests.simulation.journal_world import read_log
from tickertape.engine.runtime.sow_definition import SowDefinition

SOW = (
    SowDefinition("orders", key=("/id",)),
    SowDefinition("pairs", key=("/id", "/side"), missing_key="null"),
    SowDefinition("all", key=("/id",), pattern="^p/"),
    SowDefinition("explicit"),
)
TOPICS = ("orders", "pairs", "p/a", "p/b", "all", "explicit", "other")
PROGRAMS = 15
_DECODE = msgspec.msgpack.decode

State = dict[tuple[Any, ...], tuple[bytes, str]]
"""Body and correlation id of each record."""


def states_in(world: SowEngine) -> dict[str, State]:
    """Return the records of each SOW topic by the values of their key, from the log alone."""
    states: dict[str, State] = {definition.name: {} for definition in SOW}
    for _, batch in read_log(world.broker.journal, world.disk):
        for index in range(batch.count):
            topic, body = batch.topic(index), batch.body(index)
            record = body, batch.correlation_id(index) or ""
            if topic == "explicit":
                states["explicit"][(batch.key(index),)] = record
            elif topic == "orders":
                states["orders"][(json.loads(body)["id"],)] = record
            elif topic == "pairs":
                document = json.loads(body)
                states["pairs"][(document.get("id"), document.get("side"))] = record
            elif topic in ("p/a", "p/b", "all"):
                states["all"][(topic, json.loads(body)["id"])] = record
    return states


def states_of(world: SowEngine) -> dict[str, State]:
    """Return the records of each SOW topic of the engine."""
    states: dict[str, State] = {}
    for definition in SOW:
        states[definition.name] = {}
        labels = labels_in(world, definition.name)
        for key, body in world.records(definition.name).items():
            values = _DECODE(key)
            states[definition.name][tuple(values) if isinstance(values, list) else (values,)] = (
                body,
                labels.get(key, ""),
            )
    return states


def random_frame(rng: Random, keys: int, number: int) -> tuple[list[tuple[str, bytes]], list[str]]:
    """Return the messages and message keys of a frame. A few have no valid key."""
    messages: list[tuple[str, bytes]] = []
    labels: list[str] = []
    topics = rng.choices(TOPICS, k=rng.randrange(1, 4))
    for at in range(rng.choice((1, 1, 3, 40, 200))):
        document: dict[str, Any] = {
            "id": rng.choice((rng.randrange(keys), str(rng.randrange(keys)))),
            "n": (number, at),
        }
        if rng.random() < 0.5:
            document["side"] = rng.choice("BS")
        if rng.random() < 0.02:
            del document["id"]
        document["text"] = "x" * rng.choice((0, 5, 300))
        topic = rng.choice(topics)
        messages.append((topic, json.dumps(document, separators=(",", ":")).encode()))
        labels.append(f"k{rng.randrange(keys)}" if topic == "explicit" and rng.random() < 0.98 else "")
    return messages, labels


class Program:
    """One random program."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        self.rng = Random(seed)
        self.counts = counts
        self.world = SowEngine(*SOW, seed=seed, segment_bytes=self.rng.choice((32_768, 262_144)))
        self.keys = self.rng.choice((3, 50, 2_000))
        self.peers: list[Peer] = []
        self.number = 0
        self.labelled = self.rng.choice((0.0, 0.1, 0.8))
        """Part of the frames with correlation ids."""

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choice((self.publish, self.publish, self.publish, self.work, self.check, self.restart))()
        self.check()

    def publish(self) -> None:
        if len(self.peers) < 3:
            self.peers.append(self.world.connect(f"peer {len(self.peers)} {self.number}"))
        peer = self.rng.choice(self.peers)
        messages, labels = random_frame(self.rng, self.keys, self.number)
        ids = self.rng.choices(("", "c", "ü" * 20, f"c{self.number}"), k=len(messages))
        publish(peer, messages, keys=labels, labels=ids if self.rng.random() < self.labelled else ())
        self.number += 1
        self.counts["refused"] += len(rejected(peer))

    def work(self) -> None:
        for _ in range(self.rng.randrange(1, 20)):
            self.world.step()

    def check(self) -> None:
        self.world.settle()
        assert states_of(self.world) == states_in(self.world)
        self.counts["checked"] += 1

    def restart(self) -> None:
        if self.rng.random() < 0.3:
            self.world.reopen()
            self.peers = []
            self.counts["restarted"] += 1


@pytest.mark.parametrize("part", parts(40))
def test_states_after_random_programs_equal_the_fold_of_the_log(part: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(part * PROGRAMS, (part + 1) * PROGRAMS):
        Program(seed, counts).run(30)
    assert all(counts[event] for event in ("refused", "checked", "restarted")), counts
