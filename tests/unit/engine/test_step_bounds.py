"""Frames that one step of the engine sends to 1,000 connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.engine.limits import (
    notice_seconds,
    notices_step_max,
    step_bytes_max,
    step_delivery_bytes,
)
from tickertape.engine.runtime.effects import Effect, Send

CONNECTIONS = 1_000
DELIVERIES_MAX = step_bytes_max // step_delivery_bytes
"""Deliveries that use up the bytes of a step."""


class CountedSends:
    """The frames of each step of an engine."""

    def __init__(self, world: EngineWorld) -> None:
        self.of_steps: list[int] = []
        take: Callable[[], list[Effect]] = world.broker.effects

        def effects() -> list[Effect]:
            taken = take()
            self.of_steps.append(sum(isinstance(effect, Send) for effect in taken))
            return taken

        world.broker.effects = effects  # type: ignore[method-assign]


def world_of(**subscription: Any) -> tuple[EngineWorld, Peer, list[Peer]]:
    """Return an engine with a publisher and caught-up subscribers of topic `news`."""
    world = EngineWorld(1, recorded=frozenset({"news", "other"}))
    publisher = world.connect("publisher")
    subscribers = [world.connect(f"subscriber-{n}") for n in range(CONNECTIONS)]
    for peer in subscribers:
        peer.subscribe("s", **subscription)
    world.settle()
    return world, publisher, subscribers


@pytest.mark.parametrize(
    "subscription",
    [
        {"topic": "news"},
        {"topic": "news", "filter": "/id = 1"},
        {"topic": "news", "bookmark": "0"},
        {"topic": "news", "options": "live", "bookmark": "0"},
        {"topic": "unrecorded"},
    ],
    ids=["plain", "filter", "bookmark", "live", "unrecorded"],
)
def test_message_to_1000_connections_is_delivered_in_bounded_steps(subscription: dict[str, Any]) -> None:
    world, publisher, subscribers = world_of(**subscription)
    sends = CountedSends(world)
    publisher.publish(subscription["topic"], [b'{"id":1}'], sequenced=subscription["topic"] == "news")
    world.settle()
    assert [len(peer.heard["s"]) for peer in subscribers] == [1] * CONNECTIONS
    assert sum(sends.of_steps) >= CONNECTIONS
    assert max(sends.of_steps) <= DELIVERIES_MAX + 1, "the acknowledgement may be in the same step"


def test_notices_to_1000_connections_are_sent_in_bounded_steps() -> None:
    world, publisher, subscribers = world_of(topic="news", bookmark="0")
    publisher.publish("other", [b"1"])
    world.settle()
    world.wake(notice_seconds)
    world.settle()
    sends = CountedSends(world)
    publisher.publish("other", [b"2"])
    world.settle()
    world.wake(notice_seconds)
    world.settle()
    assert sum(sends.of_steps) >= CONNECTIONS
    assert max(sends.of_steps) <= notices_step_max
    for peer in subscribers:
        assert peer.notices[-1][1].sequence == 2
