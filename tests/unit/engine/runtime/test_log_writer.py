"""Publish sequences at their limit, and resent frames with large sequences."""

from __future__ import annotations

import pytest

from tests.simulation.engine_world import EngineWorld
from tickertape.base.errors import BadBatch
from tickertape.base.limits import last_persisted_max
from tickertape.batch import MessageBatch, Stamp, batch_from_bodies, merge
from tickertape.wire.commands import Publish


def publish(world: EngineWorld, first: int, count: int = 1) -> str:
    """Publish messages from sequence `first` and return the goodbye code, or an empty text."""
    world.acknowledged = lambda _: None  # type: ignore[assignment,method-assign]  # it counts one by one
    peer = world.connect("pub")
    assert peer.logged_on is not None
    batch = batch_from_bodies("t", [b"x"] * count, first_sequence=1)
    stamped = MessageBatch.parse(merge((batch,), (Stamp(peer.logged_on.publisher, first, 0),)).encode())
    peer.send(Publish(frame=1, sequenced=True), stamped)
    world.settle()
    if peer.goodbye is None:
        return ""
    assert peer.goodbye.text.endswith("Use another client name with a fresh publish store.")
    return peer.goodbye.code


def test_publish_up_to_the_last_sequence_that_a_client_accepts_is_stored() -> None:
    world = EngineWorld(1)
    assert publish(world, last_persisted_max - 1, 2) == ""
    peer = world.connect("pub")
    assert peer.logged_on is not None
    assert peer.logged_on.last_persisted == last_persisted_max


@pytest.mark.parametrize(
    ("first", "count"), [(last_persisted_max, 2), (last_persisted_max + 1, 1), (2**64 - 1, 1)]
)
def test_publish_beyond_the_last_sequence_that_a_client_accepts_is_refused(first: int, count: int) -> None:
    world = EngineWorld(1)
    assert publish(world, first, count) == BadBatch.code
    assert world.log() == []
    peer = world.connect("pub")
    assert peer.logged_on is not None
    assert peer.logged_on.last_persisted == 0, "the name can still be used"


@pytest.mark.parametrize("first", [1, 1_767_225_600_000_000_020, last_persisted_max - 9])
def test_resent_frame_is_stored_without_the_messages_that_the_log_has(first: int) -> None:
    """Sequences of a clock differ only in digits that a float does not have."""
    world = EngineWorld(1)
    assert publish(world, first, 8) == ""
    assert publish(world, first, 9) == ""
    assert publish(world, first + 7, 3) == ""
    assert world.broker.duplicates == 10
    peer = world.connect("pub")
    assert peer.logged_on is not None
    assert peer.logged_on.last_persisted == first + 9
