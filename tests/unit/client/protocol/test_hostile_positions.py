"""Invalid positions from a server: every call gets an outcome."""

from __future__ import annotations

import msgspec

from tests.unit.client.peer import Named
from tests.unit.client.subscriptions.test_resubscribe import Scene
from tickertape.base.bookmarks import NOW
from tickertape.base.errors import BadCommand
from tickertape.client.common.effects import End, EndConnection, ReportError, ResolveCall, WillRedeliver
from tickertape.client.common.subscribe_arguments import make_request
from tickertape.client.protocol.core import ConnectionEnded
from tickertape.wire.commands import Ack, Ended, Subscribe, Unsubscribe


def test_subscribe_answered_with_invalid_position_fails_and_is_not_kept() -> None:
    scene = Scene()
    request = make_request("orders", "a", bookmark=NOW)
    scene.core.subscribe(Named("call"), msgspec.structs.replace(request, handled=True), Named("a"))
    scene.placed(after="garbage|x")
    assert isinstance(scene.outcome("call"), BadCommand)
    (hangup,) = scene.took(EndConnection)
    assert isinstance(hangup.error, BadCommand)
    scene.core.receive(ConnectionEnded(hangup.error), scene.now)
    assert not [effect for effect in scene.took(ResolveCall) if effect.token == "call"]
    assert [end.sink for end in scene.took(End)] == ["a"]
    scene.connect()
    scene.core.resubscribe(Named("round"))
    assert scene.placed() == []


def test_resubscribe_answered_with_invalid_position_ends_only_one_subscription() -> None:
    for others in ("", "b"):
        scene = Scene()
        for sub_id in "a" + others:
            scene.subscribe(sub_id, NOW, after="7|9|")
        scene.lose()
        scene.took(WillRedeliver)
        scene.connect()
        scene.core.resubscribe(Named("round"))
        first, *rest = [command for command, _ in scene.sent()]
        assert isinstance(first, Subscribe)
        scene.say(Ack(id=first.id, start=1, after="garbage|x"))
        assert [(end.sink, type(end.error)) for end in scene.took(End)] == [("a", BadCommand)]
        assert [type(report.error) for report in scene.took(ReportError)] == [BadCommand]
        ((leave, _),) = scene.sent()
        assert isinstance(leave, Unsubscribe)
        assert leave.sub_ids == ("a",), "the subscription exists at the server"
        for command in rest:
            assert isinstance(command, Subscribe)
            scene.say(Ack(id=command.id, start=1, after="7|9|"))
        scene.say(Ack(id=leave.id))
        assert scene.refused() == [("a", BadCommand)]
        assert scene.took(EndConnection) == []
        assert [one.sub_id for one in scene.reconnect()] == list(others), (
            "reported once, and not on every connection"
        )


def test_invalid_position_for_ended_subscription_is_not_reported() -> None:
    scene = Scene()
    scene.subscribe("a", NOW, after="7|9|")
    scene.lose()
    scene.connect()
    scene.core.resubscribe(Named("round"))
    ((asked, _),) = scene.sent()
    assert isinstance(asked, Subscribe)
    scene.say(Ended(sub_id="a"))
    scene.say(Ack(id=asked.id, start=1, after="garbage|x"))
    assert [end.reason for end in scene.took(End)] == ["complete"]
    assert scene.took(ReportError) == []
    assert scene.refused() == [("a", BadCommand)]
