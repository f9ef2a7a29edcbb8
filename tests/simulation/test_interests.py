"""Subscriptions with patterns, filters and select lists get exactly the covered messages, in log order.

They are replayed and live, paused and combined, under any order of events.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Final

import pytest

from tests.helpers.tiers import parts, seeds_of
from tests.simulation.engine_peer import Heard, Peer
from tests.simulation.engine_world import EngineWorld

WORLDS_A_PART: Final = 8
PARTS: Final = 75

_TOPICS: Final[dict[str, Callable[[str], bool]]] = {
    "a": lambda topic: topic == "a",
    "orders/eu": lambda topic: topic == "orders/eu",
    "^orders/": lambda topic: topic.startswith("orders/"),
    "a|c": lambda topic: topic in ("a", "c"),
    "s$": lambda topic: topic.endswith("s"),
    ".*": bool,
}
_FILTERS: Final[dict[str | None, Callable[[Any], bool]]] = {
    None: lambda _: True,
    "/k = 1": lambda body: isinstance(body, dict) and body["k"] == 1,
    "/k IN (0, 2) AND /n > 20": lambda body: (
        isinstance(body, dict) and body["k"] in (0, 2) and body["n"] > 20
    ),
    "/name LIKE '^x.*1$'": lambda body: isinstance(body, dict) and body["name"].endswith("1"),
    "TOPIC_NAME() = 'a' OR /k = 2": lambda body: body == "a" or (isinstance(body, dict) and body["k"] == 2),
    "/nothing = 1": lambda _: False,
    "1 = 1": lambda _: True,
}
_SELECTS: Final = {None: None, "[-/,+/n]": {"n"}, "[-/k]": {"n", "name"}}


def _body(rng: Random, number: int) -> bytes:
    if rng.random() < 0.05:
        return b"no json %d" % number
    return json.dumps({"k": number % 3, "n": number, "name": f"x{number}"}).encode()


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


class _Asked:
    """A subscription and its expected messages."""

    def __init__(self, rng: Random) -> None:
        self.topic = rng.choice(list(_TOPICS))
        self.filter = rng.choice(list(_FILTERS))
        self.select = rng.choice([None, None, *_SELECTS])
        self.options = "" if self.select is None else f"select={self.select}"

    def expected(self, log: list[Heard]) -> list[Heard]:
        return [
            message._replace(body=self._sent(message.body))
            for message in log
            if _TOPICS[self.topic](message.topic) and self._passes(message)
        ]

    def _passes(self, message: Heard) -> bool:
        body = _parsed(message.body)
        if self.filter is not None and "TOPIC_NAME" in self.filter:
            return body is not None and (message.topic == "a" or body["k"] == 2)
        return self.filter in (None, "1 = 1") or _FILTERS[self.filter](body)

    def _sent(self, body: bytes) -> bytes:
        kept, parsed = _SELECTS[self.select], _parsed(body)
        if kept is None or parsed is None:
            return body
        return json.dumps({name: value for name, value in parsed.items() if name in kept}).encode()


def _run(seed: int, counts: Counter[str]) -> None:
    rng = Random(seed)
    world = EngineWorld(seed, counts=counts)
    if rng.random() < 0.8:
        world.small_tail()
        world.small_bounds()
    publishers = [world.connect(f"publisher {n}") for n in range(2)]
    peers = [world.connect(f"reader {n}") for n in range(2)]
    topics = ["a", "c", "orders/eu", "orders/us"]
    for number in range(rng.choice((0, 60))):
        rng.choice(publishers).publish(rng.choice(topics), [_body(rng, number)])
        world.step()
    asked: dict[tuple[Peer, str], _Asked] = {}
    paused: set[tuple[Peer, str]] = set()
    for number in range(rng.randrange(2, 8)):
        peer, sub_id, one = rng.choice(peers), f"s{number}", _Asked(rng)
        asked[peer, sub_id] = one
        options = [one.options, "pause" if rng.random() < 0.4 else ""]
        if options[1]:
            paused.add((peer, sub_id))
        peer.subscribe(
            sub_id,
            one.topic,
            bookmark="0",
            filter=one.filter,
            options=",".join(options),
            credit=rng.choice((60, 500, 4096)),
        )
    for number in range(100, 180):
        rng.choice(publishers).publish(
            rng.choice(topics), [_body(rng, number + i) for i in range(rng.choice((1, 1, 5)))]
        )
        for _ in range(rng.randrange(4)):
            world.step()
        if rng.random() < 0.2:
            _pause_or_resume(rng, asked, paused)
        if rng.random() < 0.3:
            peer, sub_id = rng.choice(list(asked))
            peer.give_credit(sub_id)
    for peer in peers:
        waiting = [sub_id for who, sub_id in paused if who is peer]
        if waiting:
            peer.resume(*waiting)
    world.settle()
    log = world.log()
    for (peer, sub_id), one in asked.items():
        expected = one.expected(log)
        assert _comparable(peer.heard[sub_id]) == _comparable(expected), (one.topic, one.filter, one.select)
        counts["messages"] += len(expected)
        counts[f"filter {one.filter}"] += len(expected) > 0
        counts[f"select {one.select}"] += len(expected) > 0


def _pause_or_resume(
    rng: Random, asked: dict[tuple[Peer, str], _Asked], paused: set[tuple[Peer, str]]
) -> None:
    peer = rng.choice([peer for peer, _ in asked])
    own = [sub_id for who, sub_id in asked if who is peer]
    some = rng.sample(own, rng.randrange(1, len(own) + 1))
    if rng.random() < 0.5:
        peer.pause(*some)
        paused.update((peer, sub_id) for sub_id in some)
    else:
        peer.resume(*some)
        paused.difference_update((peer, sub_id) for sub_id in some)


def _comparable(heard: list[Heard]) -> list[tuple[int, int, str, Any]]:
    return [(h.publisher, h.sequence, h.topic, _parsed(h.body) or h.body) for h in heard]


_MUST_HAPPEN: Final = {
    "frames for several": 21,
    "oversized message": 21,
    "messages": 1,
    **{f"filter {name}": 1 for name in _FILTERS if name != "/nothing = 1"},
    **{f"select {name}": 1 for name in _SELECTS},
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", parts(PARTS))
def test_subscription_with_pattern_filter_and_select_gets_exactly_covered_messages(part: int) -> None:
    counts: Counter[str] = Counter()
    own = range(part * WORLDS_A_PART, (part + 1) * WORLDS_A_PART)
    for seed in seeds_of(own, counts, _MUST_HAPPEN):
        try:
            _run(seed, counts)
        except BaseException:
            print(f"seed {seed}")
            raise
