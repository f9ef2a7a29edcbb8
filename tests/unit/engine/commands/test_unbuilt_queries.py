"""Queries and deletes of records before the engine has them: refused by name, without another effect."""

from __future__ import annotations

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.wire.commands import Ack, Publish, Rejected, Sow
from tickertape.wire.sow_command import SOW_TOPIC, SowDelete, encode_delete


def _query(peer: Peer, **fields: object) -> Ack:
    peer.send(Sow(id=7, sub_id="q", topic="positions", credit=4096, **fields))  # type: ignore[arg-type]
    peer.world.settle()
    answer = peer.answers[7]
    assert isinstance(answer, Ack)
    return answer


@pytest.mark.parametrize(
    "fields", [{}, {"follow": True}, {"bookmark": "0"}, {"keys": ("k",), "canonical": (b"k",)}]
)
def test_query_is_refused_as_not_built(fields: dict[str, object]) -> None:
    peer = EngineWorld(1).connect("reader")
    answer = _query(peer, **fields)
    assert answer.code == "not_built"
    assert answer.text == (
        "Cannot query records of 'positions': this version of the server cannot answer sow. "
        "Subscribe with a bookmark to read the messages of the topic."
    )
    assert peer.goodbye is None


def test_subscription_may_use_the_id_of_a_refused_query() -> None:
    world = EngineWorld(1)
    peer = world.connect("reader")
    assert _query(peer).code == "not_built"
    number = peer.subscribe("q", "positions", bookmark="0")
    world.settle()
    assert peer.answers[number] == Ack(id=number, start=0, after="0")


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
