"""Deletes of records of another topic than a SOW topic: refused by name, without another effect."""

from __future__ import annotations

import pytest

from tests.simulation.engine_world import EngineWorld
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.wire.commands import Publish, Rejected
from tickertape.wire.sow_command import SOW_TOPIC, SowDelete, encode_delete


@pytest.mark.parametrize("sequenced", [True, False])
def test_delete_of_records_of_another_topic_is_refused(sequenced: bool) -> None:
    world = EngineWorld(1)
    peer = world.connect("writer")
    assert peer.logged_on is not None
    builder = BatchBuilder()
    builder.add(SOW_TOPIC, encode_delete(SowDelete(topic="positions", keys=("k",))))
    batch = builder.build(peer.logged_on.publisher, first_sequence=1) if sequenced else builder.build()
    peer.send(Publish(frame=1, sequenced=sequenced), MessageBatch.parse(batch.encode()))
    world.settle()
    (rejected,) = [command for command, _ in peer.received if isinstance(command, Rejected)]
    assert (rejected.frame, rejected.code, rejected.refused) == (1, "bad_topic", ())
    assert "'positions': it is not a SOW topic" in rejected.text
    assert peer.goodbye is None
    assert world.log() == []
