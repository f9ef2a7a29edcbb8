"""The client protocol machine: logon, calls, answers, lost connections."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.client.peer import START, Named, Peer
from tickertape.base.errors import (
    BadCommand,
    BadFrame,
    BadName,
    Closed,
    Disconnected,
    NameInUse,
    PublishRejected,
    SubscriptionUnknown,
    TickertapeError,
    TopicNotRecorded,
    UsageError,
)
from tickertape.base.interfaces import Now
from tickertape.base.limits import header_bytes_max
from tickertape.client.common.connection_state import ConnectionState
from tickertape.client.common.effects import ConnectionDown, End, EndConnection, ResolveCall, Send, State
from tickertape.client.common.subscribe_arguments import make_request, resolve_command
from tickertape.client.protocol.core import ClientProtocol, ConnectionEnded, ConnectionOpened
from tickertape.wire.commands import (
    Ack,
    Flush,
    Goodbye,
    Heartbeat,
    LoggedOn,
    Persisted,
    Publish,
    Rejected,
    Resolved,
    Subscribe,
    Unsubscribe,
)
from tickertape.wire.commands import Resolve as ResolvePositions


def test_first_bytes_are_the_preface_and_a_logon_frame() -> None:
    core = ClientProtocol("a")
    core.receive(ConnectionOpened(Named("token")), START)
    state, first, second = core.effects()
    assert state == State(ConnectionState.CONNECTED)
    assert first == Send([b"tktape/0"])
    assert isinstance(second, Send)
    assert b"".join(second.buffers)[16:].rstrip(b"\0") == b"\x82\xa1c\xa5logon\xa4name\xa1a"


def test_logon_carries_name_user_and_password() -> None:
    logon = Peer().open()
    assert (logon.name, logon.user, logon.password) == ("pricing-1", "ann", "secret")


def test_logon_is_resolved_with_the_answer_of_the_server() -> None:
    peer = Peer().connect(last_persisted=5)
    answer = peer.outcome("logon")
    assert isinstance(answer, LoggedOn)
    assert answer.last_persisted == 5
    assert peer.core.logon.logged_on is answer


def test_rejected_logon_fails_the_logon_without_connection_down() -> None:
    peer = Peer()
    peer.open()
    peer.say(Goodbye(code="name_in_use", text="taken"))
    assert [type(effect.error) for effect in peer.took(EndConnection)] == [NameInUse]
    peer.lose()
    assert isinstance(peer.outcome("logon"), NameInUse)
    assert peer.took(ConnectionDown) == []


def test_connection_lost_during_logon_fails_the_logon() -> None:
    peer = Peer()
    peer.open()
    peer.lose()
    assert isinstance(peer.outcome("logon"), Disconnected)


def test_invalid_client_name_raises() -> None:
    with pytest.raises(BadName):
        ClientProtocol("")


def test_calls_before_the_logon_raise_disconnected() -> None:
    peer = Peer()
    request = make_request("orders", "s")
    with pytest.raises(Disconnected):
        peer.core.flush(Named("f"), "persisted")
    with pytest.raises(Disconnected):
        peer.core.subscribe(Named("s"), request, Named("sink"))
    with pytest.raises(Disconnected):
        peer.core.resolve(Named("r"), resolve_command("orders", bookmark="0"))
    with pytest.raises(Disconnected):
        peer.core.publishing.publish("orders", b"x")


@pytest.mark.parametrize(
    ("goodbye", "says", "cause"),
    [
        (
            Goodbye(code="name_in_use", text="taken over"),
            r"Cannot continue: the connection was closed \(name_in_use\)\. taken over\.$",
            NameInUse,
        ),
        (None, r"broken\. Call connect\(\) again\.", Disconnected),
    ],
)
def test_calls_after_connection_loss_raise_with_the_reason(
    goodbye: Goodbye | None, says: str, cause: type[TickertapeError]
) -> None:
    peer = Peer().connect()
    if goodbye is not None:
        peer.say(goodbye)
    peer.lose()
    calls: list[Callable[[], object]] = [
        lambda: peer.core.flush(Named("f"), "persisted"),
        lambda: peer.core.resolve(Named("r"), resolve_command("orders", bookmark="0")),
        lambda: peer.core.unsubscribe(Named("u"), ("s",)),
        lambda: peer.core.publishing.publish("orders", b"x"),
    ]
    depths = []
    for call in calls * 3:
        with pytest.raises(Disconnected, match=f"^{says}$") as caught:
            call()
        assert isinstance(caught.value.__cause__, cause)
        depths.append(len(caught.traceback))
    assert depths[:4] == depths[4:8] == depths[8:], "the traceback of a repeated error does not grow"
    peer.connect()
    peer.core.publishing.publish("orders", b"x")
    peer.core.flush(Named("f"), "persisted")


def test_unknown_flush_level_raises() -> None:
    with pytest.raises(UsageError, match="Invalid level 'durable'"):
        Peer().connect().core.flush(Named("f"), "durable")


def test_command_is_sent_after_batched_messages() -> None:
    peer = Peer().connect()
    for body in (b"1", b"2", b"3"):
        peer.core.publishing.publish("orders", body)
    peer.core.subscribe(Named("s"), make_request("orders", "sub", bookmark="0"), Named("sink"))
    kinds = [type(command) for command, _ in peer.sent()]
    assert kinds == [Publish, Publish, Subscribe]


def test_resolve_returns_the_positions() -> None:
    peer = Peer().connect()
    peer.core.resolve(Named("r"), resolve_command("orders", bookmark="0"))
    ((command, _),) = peer.sent()
    assert command == ResolvePositions(id=1, topic="orders", bookmark="0", options="bookmark_not_found=fail")
    answer = Resolved(id=1, journal="j1", start=0, end=9)
    peer.say(answer)
    assert peer.outcome("r") == answer


def test_rejected_subscribe_fails_the_call_and_ends_the_sink() -> None:
    peer = Peer().connect()
    peer.core.subscribe(Named("s"), make_request("quotes", "sub", bookmark="0"), Named("sink"))
    peer.say(Ack(id=1, code="topic_not_recorded", text="quotes is not recorded"))
    assert isinstance(peer.outcome("s"), TopicNotRecorded)
    ((sink, reason, error),) = peer.took(End)
    assert (sink, reason) == ("sink", "topic_not_recorded")
    assert isinstance(error, TopicNotRecorded)
    assert "sub" not in peer.core.subscriptions


def test_unsubscribe_ends_all_given_ids_at_the_answer() -> None:
    peer = Peer().connect()
    for sub_id in ("a", "b", "c"):
        peer.core.subscribe(Named(sub_id), make_request("orders", sub_id), Named(f"sink {sub_id}"))
    peer.sent()
    peer.core.unsubscribe(Named("u"), ("a", "c"))
    ((command, _),) = peer.sent()
    assert command == Unsubscribe(id=4, sub_ids=("a", "c"))
    assert peer.took(End) == []
    peer.say(Ack(id=4))
    assert [(end.sink, end.reason) for end in peer.took(End)] == [
        ("sink a", "unsubscribed"),
        ("sink c", "unsubscribed"),
    ]
    assert "b" in peer.core.subscriptions


def test_unsubscribe_of_unknown_id_raises_and_sends_nothing() -> None:
    peer = Peer().connect()
    peer.core.subscribe(Named("a"), make_request("orders", "a"), Named("sink"))
    peer.sent()
    with pytest.raises(SubscriptionUnknown, match="'x'"):
        peer.core.unsubscribe(Named("u"), ("a", "x"))
    assert peer.sent() == []


def test_command_too_large_for_the_wire_raises_and_changes_nothing() -> None:
    peer = Peer().connect()
    request = make_request("o" * header_bytes_max, "sub")
    with pytest.raises(TickertapeError, match="bytes"):
        peer.core.subscribe(Named("s"), request, Named("sink"))
    assert "sub" not in peer.core.subscriptions
    peer.lose()
    assert peer.took(End) == []


def test_lost_connection_fails_every_call_and_ends_every_subscription() -> None:
    peer = Peer().connect()
    peer.core.subscribe(Named("s"), make_request("orders", "sub"), Named("sink"))
    peer.core.publishing.publish("orders", b"1")
    peer.core.flush(Named("f"), "persisted")
    peer.core.flush(Named("p"), "processed")
    peer.core.resolve(Named("r"), resolve_command("orders", bookmark="0"))
    peer.took(ResolveCall)
    peer.lose()
    assert sorted((type(end.outcome).__name__, str(end.token)) for end in peer.took(ResolveCall)) == [
        ("Disconnected", "f"),
        ("Disconnected", "p"),
        ("Disconnected", "r"),
        ("Disconnected", "s"),
    ]
    ((sink, reason, error),) = peer.took(End)
    assert (sink, reason, type(error)) == ("sink", "disconnected", Disconnected)
    assert len(peer.took(ConnectionDown)) == 1


def test_connection_loss_is_reported_once() -> None:
    peer = Peer().connect()
    peer.lose()
    peer.lose()
    assert len(peer.took(ConnectionDown)) == 1


def test_goodbye_sets_the_reason_of_the_connection_loss() -> None:
    peer = Peer().connect()
    peer.core.subscribe(Named("s"), make_request("orders", "sub"), Named("sink"))
    peer.say(Goodbye(code="name_in_use", text="another connection took over"))
    peer.core.receive(ConnectionEnded(Disconnected("closed")), peer.now)
    ((_, reason, error),) = peer.took(End)
    assert reason == "name_in_use"
    assert isinstance(error, Disconnected)
    assert "another connection took over" in str(error)
    ((down),) = peer.took(ConnectionDown)
    assert isinstance(down.error, NameInUse)


@pytest.mark.parametrize(
    "command",
    [
        Ack(id=99),
        Resolved(id=3, journal="j", start=0, end=1),
        Persisted(frame=1),
        Rejected(frame=2, code="bad_topic", text="no"),
    ],
)
def test_answer_without_request_ends_the_connection(command: Ack | Resolved | Persisted | Rejected) -> None:
    peer = Peer().connect()
    peer.say(command)
    assert [type(effect.error) for effect in peer.took(EndConnection)] == [BadCommand]


def test_invalid_frame_ends_the_connection_and_later_bytes_are_ignored() -> None:
    peer = Peer().connect()
    peer.core.subscribe(Named("s"), make_request("orders", "sub"), Named("sink"))
    peer.took(ResolveCall)
    peer.core.receive(b"\x00" * 32, peer.now)
    peer.say(Ack(id=1))
    assert [type(effect.error) for effect in peer.took(EndConnection)] == [BadFrame]
    assert peer.took(ResolveCall) == []


def test_heartbeat_has_no_effects() -> None:
    peer = Peer().connect()
    peer.took(ResolveCall)
    peer.say(Heartbeat())
    assert peer.core.effects() == []


def test_close_sends_batched_messages_and_ends_without_connection_down() -> None:
    peer = Peer().connect()
    peer.core.publishing.publish("orders", b"1")
    peer.core.publishing.publish("orders", b"2")
    peer.core.subscribe(Named("s"), make_request("orders", "sub"), Named("sink"))
    peer.core.publishing.publish("orders", b"3")
    peer.core.close()
    assert [batch.bodies_list() for _, batch in peer.sent() if batch] == [[b"1"], [b"2"], [b"3"]]
    assert len(peer.took(EndConnection)) == 1
    peer.lose()
    ((_, reason, _),) = peer.took(End)
    assert reason == "closed"
    assert peer.took(ConnectionDown) == []
    with pytest.raises(Closed):
        peer.core.publishing.publish("orders", b"4")
    with pytest.raises(Closed):
        peer.core.flush(Named("f"), "persisted")


def test_close_without_connection_shuts_the_client_down() -> None:
    peer = Peer()
    peer.core.close()
    assert peer.core.effects() == [State(ConnectionState.SHUTDOWN)]
    with pytest.raises(Closed):
        peer.core.publishing.publish("orders", b"4")


@pytest.mark.behaviour(10)
def test_persisted_flush_waits_for_all_sent_frames() -> None:
    peer = Peer().connect()
    peer.core.publishing.publish("orders", b"1")
    peer.core.publishing.publish("orders", b"2")
    peer.core.flush(Named("f"), "persisted")
    commands = [command for command, _ in peer.sent()]
    assert commands == [Publish(frame=1), Publish(frame=2)]
    peer.took(ResolveCall)
    peer.say(Persisted(frame=1))
    assert peer.took(ResolveCall) == []
    peer.say(Persisted(frame=2))
    assert peer.outcome("f") is None


@pytest.mark.behaviour(10)
def test_processed_flush_requests_the_level_and_settles_no_frame() -> None:
    peer = Peer().connect()
    peer.core.publishing.publish("orders", b"1")
    peer.core.flush(Named("f"), "processed")
    assert peer.sent()[-1] == (Flush(id=1, level="processed"), None)
    peer.say(Ack(id=1))
    assert peer.outcome("f") is None
    assert peer.core.publishing.unsettled()


def test_rejected_message_is_reported_once() -> None:
    peer = Peer().connect()
    peer.core.publishing.publish("orders", b"1")
    peer.say(Rejected(frame=1, code="bad_message", text="no JSON"))
    error = peer.core.publishing.rejections.take()
    assert isinstance(error, PublishRejected)
    assert "1 message" in str(error)
    assert "no JSON" in str(error)
    assert peer.core.publishing.rejections.take() is None


def test_protocol_machine_without_subscriptions_has_no_deadline() -> None:
    peer = Peer().connect()
    assert peer.core.next_deadline() is None
    peer.core.wake(Now(1e9, 0))
    assert peer.took(Send) == []


def test_abandoned_subscribe_is_resolved_at_connection_loss() -> None:
    peer = Peer().connect()
    request = make_request("orders", "sub")
    peer.core.subscribe(Named("s"), request, Named("sink"))
    peer.core.leave(request)
    peer.lose()
    assert [effect.token for effect in peer.took(ResolveCall)] == ["logon", "s"]
