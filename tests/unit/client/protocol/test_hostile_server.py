"""The client protocol machine with a faulty server: exceeded credit, answers of the wrong kind."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tests.unit.client.peer import Named, Peer
from tickertape.base.errors import BadCommand, Disconnected
from tickertape.batch.encode import batch_from_bodies
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.effects import DeliverBatch, DeliverShared, EndConnection, ResolveCall
from tickertape.client.common.subscribe_arguments import make_request, resolve_command
from tickertape.wire import commands
from tickertape.wire.commands import (
    Ack,
    Command,
    Committed,
    Deliver,
    GroupBegin,
    GroupEnd,
    Records,
    Resolved,
    Staged,
    Transaction,
)

BODY = b"x" * 68  # with its 32 bytes of cost, 100
TRANSACTION = Transaction(publisher="pricing-1", name="1")


def messages(count: int, body: bytes = BODY) -> MessageBatch:
    return batch_from_bodies("orders", [body] * count, publisher=3, first_sequence=1, timestamp=1)


def subscribed(*sub_ids: str, depth: int = 1000) -> Peer:
    peer = Peer().connect()
    for call_id, sub_id in enumerate(sub_ids, 1):
        peer.core.subscribe(Named(sub_id), make_request("orders", sub_id, depth=depth), Named(sub_id))
        peer.say(Ack(id=call_id))
    peer.sent()
    peer.took(ResolveCall)
    return peer


def hang_up_reason(peer: Peer) -> str:
    ((error,),) = peer.took(EndConnection)
    assert isinstance(error, BadCommand)
    return str(error)


def test_delivery_beyond_credit_ends_connection() -> None:
    peer = subscribed("sub")
    peer.say(Deliver(sub_id="sub"), messages(6))
    assert not peer.took(EndConnection)
    peer.say(Deliver(sub_id="sub"), messages(5))
    reason = hang_up_reason(peer)
    assert "credit of subscription 'sub'" in reason
    assert "600" in reason
    assert len(peer.took(DeliverBatch)) == 1


def test_memory_held_for_unread_stream_stays_within_credit_and_one_message() -> None:
    peer = subscribed("sub")
    for _ in range(100):
        peer.say(Deliver(sub_id="sub"), messages(1, b"x" * 400))
    held = sum(hand.batch.cost for hand in peer.took(DeliverBatch))
    assert held <= 1000 + 432


def test_one_message_may_exceed_credit_when_nothing_is_outstanding() -> None:
    peer = subscribed("sub")
    peer.say(Deliver(sub_id="sub"), messages(1, b"x" * 5000))
    assert not peer.took(EndConnection)
    peer.say(Deliver(sub_id="sub"), messages(1))
    hang_up_reason(peer)


def test_returned_credit_may_be_used_by_the_server() -> None:
    peer = subscribed("sub")
    for _ in range(20):
        peer.say(Deliver(sub_id="sub"), messages(10))
        peer.core.consumed("sub", 1000)
    assert not peer.took(EndConnection)
    assert len(peer.took(DeliverBatch)) == 20


def test_consumed_cost_before_credit_return_is_outstanding() -> None:
    peer = subscribed("sub")
    peer.say(Deliver(sub_id="sub"), messages(10))
    peer.core.consumed("sub", 400)  # less than half of the window, so no credit is returned yet
    assert peer.sent() == []
    peer.say(Deliver(sub_id="sub"), messages(2))
    hang_up_reason(peer)


def test_shared_delivery_beyond_credit_ends_connection_after_valid_parts() -> None:
    peer = subscribed("a", "b")
    peer.say(Deliver(sub_id="b"), messages(9))
    shared = Deliver(
        sub_ids=("a", "b"),
        counts=np.array([2, 2], "<u4").tobytes(),
        indices=np.array([0, 1, 0, 1], "<u4").tobytes(),
    )
    peer.say(shared, messages(2))
    assert "'b'" in hang_up_reason(peer)
    ((_, parts),) = peer.took(DeliverShared)
    assert [sink for sink, _, _ in parts] == ["a"]


def test_unread_messages_of_lost_connection_reduce_credit_on_the_next() -> None:
    peer = Peer().connect()
    peer.core.subscriptions.keep = True
    request = msgspec.structs.replace(make_request("orders", "sub", depth=1000), handled=True)
    peer.core.subscribe(Named("s"), request, Named("sink"))
    peer.say(Ack(id=1))
    peer.say(Deliver(sub_id="sub"), messages(8))
    peer.lose()
    peer.sent()
    peer.connect()
    peer.core.resubscribe(Named("again"))
    ((subscribe, _),) = peer.sent()
    assert subscribe.credit == 200  # type: ignore[attr-defined]
    peer.say(Ack(id=subscribe.id))  # type: ignore[attr-defined]
    peer.say(Deliver(sub_id="sub"), messages(2))
    assert not peer.took(EndConnection)
    peer.say(Deliver(sub_id="sub"), messages(2))
    hang_up_reason(peer)


ANSWERS: list[Command] = [
    Ack(id=1),
    Resolved(id=1, journal="j1", start=0, end=1),
    Staged(id=1, messages=1),
    Committed(id=1),
]
ASKED: dict[str, type[Command]] = {
    "subscribe": Ack,
    "unsubscribe": Ack,
    "pause": Ack,
    "resume": Ack,
    "flush": Ack,
    "resolve": Resolved,
    "stage": Ack,
    "prepare": Staged,
    "commit": Committed,
    "abort": Ack,
}


def ask(peer: Peer, what: str) -> None:
    core = peer.core
    if what == "subscribe":
        core.subscribe(Named("t"), make_request("orders", "new", bookmark="0"), Named("sink"))
    elif what in ("unsubscribe", "pause", "resume"):
        getattr(core, what)("t", ("sub",))
    elif what == "flush":
        core.flush(Named("t"), "processed")
    elif what == "resolve":
        core.resolve(Named("t"), resolve_command("orders", bookmark="0"))
    elif what == "stage":
        made = lambda number: commands.Stage(id=number, transaction=TRANSACTION, part="p")  # noqa: E731
        core.ask(Named("t"), made, batch_from_bodies("orders", [BODY]))
    elif what == "prepare":
        core.ask(Named("t"), lambda number: commands.Prepare(id=number, transaction=TRANSACTION, part="p"))
    elif what == "commit":
        core.ask(Named("t"), lambda number: commands.Commit(id=number, transaction=TRANSACTION))
    else:
        core.ask(Named("t"), lambda number: commands.Abort(id=number, transaction=TRANSACTION))


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
@pytest.mark.parametrize("what", ASKED)
def test_answer_of_wrong_kind_ends_connection(what: str, answer: Command) -> None:
    peer = subscribed("sub")
    ask(peer, what)
    ((command, _),) = peer.sent()
    peer.say(msgspec.structs.replace(answer, id=command.id))  # type: ignore[attr-defined]
    if type(answer) is ASKED[what]:
        assert not peer.took(EndConnection)
        assert len(peer.took(ResolveCall)) == 1
        return
    assert f"got {type(answer).__name__} instead of" in hang_up_reason(peer)
    assert not peer.took(ResolveCall)
    peer.lose()
    outcome = peer.outcome("t")  # the loss of the connection, never a success
    assert isinstance(outcome, Exception)
    assert isinstance(outcome.__cause__, BadCommand)


@pytest.mark.parametrize("what", ASKED)
def test_error_answer_is_valid_for_every_command(what: str) -> None:
    peer = subscribed("sub")
    ask(peer, what)
    ((command, _),) = peer.sent()
    peer.say(Ack(id=command.id, code="not_ready", text="later"))  # type: ignore[attr-defined]
    assert not peer.took(EndConnection)
    assert getattr(peer.outcome("t"), "code", None) == "not_ready"


@pytest.mark.parametrize(
    "command",
    [
        GroupBegin(sub_id="sub", topic="orders", as_of="0", position=0),
        Records(sub_id="sub", marks=bytes(24)),
        GroupEnd(sub_id="sub", matches=1, topic_matches=1, records=1),
    ],
    ids=lambda command: type(command).__name__,
)
def test_answer_without_a_query_or_delete_ends_connection(command: Command) -> None:
    peer = subscribed("sub")
    peer.say(command, messages(1) if isinstance(command, Records) else None)
    reason = hang_up_reason(peer)
    assert reason.startswith(f"Unexpected {type(command).__name__} from the server: ")
    assert not peer.took(DeliverBatch)


def test_resubscribe_answered_with_wrong_kind_ends_connection() -> None:
    peer = Peer().connect()
    peer.core.subscriptions.keep = True
    request = msgspec.structs.replace(make_request("orders", "sub", depth=1000), handled=True)
    peer.core.subscribe(Named("s"), request, Named("sink"))
    peer.say(Ack(id=1))
    peer.lose()
    peer.sent()
    peer.connect()
    peer.core.resubscribe(Named("again"))
    ((command, _),) = peer.sent()
    peer.say(Resolved(id=command.id, journal="j1", start=0, end=1))  # type: ignore[attr-defined]
    assert "got Resolved instead of Ack" in hang_up_reason(peer)
    peer.lose()
    assert isinstance(peer.outcome("again"), Disconnected)
