"""Transactions on SOW topics: refused at the staging, and at the commit of parts from an earlier run."""

from __future__ import annotations

import pytest

from tests.helpers.sow_engine import SowEngine
from tests.simulation.engine_peer import Peer
from tickertape.base.limits import publish_topics_max
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.wire.commands import Ack, Command, Commit, Committed, Prepare, Stage, Staged, Transaction
from tickertape.wire.sow_command import SOW_TOPIC, SowDelete, encode_delete

ORDERS = SowDefinition("orders", key=("/id",), pattern="^orders/")
T1 = Transaction(publisher="sink", name="t1")


def answer_of(peer: Peer, command: Command, batch: MessageBatch | None = None) -> Command:
    """Send a command with an id, and return its answer."""
    peer.send(command, batch)
    peer.world.settle()
    return peer.answers[command.id]  # type: ignore[attr-defined]


def frame(topic: str, body: bytes) -> MessageBatch:
    builder = BatchBuilder()
    builder.add(topic, body)
    return MessageBatch.parse(builder.build().encode())


def stage(peer: Peer, topic: str, body: bytes = b'{"id":1}') -> Command:
    return answer_of(peer, Stage(id=1, transaction=T1, part="0"), frame(topic, body))


@pytest.mark.parametrize("topic", ["orders", "orders/new"])
def test_stage_on_a_sow_topic_is_refused(topic: str) -> None:
    world = SowEngine(ORDERS)
    answer = stage(world.connect("sink"), topic)
    assert isinstance(answer, Ack)
    assert answer.code == "bad_option"
    assert answer.text == (
        f"Cannot add messages for '{topic}' to a transaction: it is a SOW topic, and a transaction cannot "
        "change its records. Publish them without a transaction."
    )


def test_prepare_with_topics_completes_no_part() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("sink")
    stage(peer, "other")
    checked = answer_of(peer, Prepare(id=2, transaction=T1, part="", topics=("other", "more")))
    assert checked == Staged(id=2, messages=0)
    refused = answer_of(peer, Prepare(id=3, transaction=T1, part="", topics=("other", "orders")))
    assert isinstance(refused, Ack)
    assert (refused.code, "it is a SOW topic" in refused.text) == ("bad_option", True)
    many = tuple(f"t{number}" for number in range(publish_topics_max + 1))
    refused = answer_of(peer, Prepare(id=4, transaction=T1, part="", topics=many))
    assert isinstance(refused, Ack)
    assert "4,097 topics" in refused.text
    assert answer_of(peer, Prepare(id=5, transaction=T1, part="0")) == Staged(id=5, messages=1)


def test_stage_of_a_delete_of_records_is_refused() -> None:
    world = SowEngine(ORDERS)
    delete = encode_delete(SowDelete(topic="orders", canonical=(b"\x01",)))
    answer = stage(world.connect("sink"), SOW_TOPIC, delete)
    assert isinstance(answer, Ack)
    assert answer.code == "bad_option"
    assert "delete of records" in answer.text


def test_commit_of_a_part_from_before_the_configuration_is_refused() -> None:
    world = SowEngine()
    peer = world.connect("sink")
    assert isinstance(stage(peer, "orders"), Ack)
    assert isinstance(answer_of(peer, Prepare(id=2, transaction=T1, part="0")), Staged)
    world.reopen(ORDERS)
    answer = answer_of(world.connect("sink"), Commit(id=1, transaction=T1, parts=("0",)))
    assert isinstance(answer, Ack)
    assert answer.code == "bad_option"
    assert "'orders'" in answer.text
    assert world.records("orders") == {}
    assert not world.log("orders")


def test_transaction_on_other_topics_is_committed_beside_a_sow_topic() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("sink")
    stage(peer, "other")
    answer_of(peer, Prepare(id=2, transaction=T1, part="0"))
    assert isinstance(answer_of(peer, Commit(id=3, transaction=T1, parts=("0",))), Committed)
