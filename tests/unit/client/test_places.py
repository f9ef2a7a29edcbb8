"""A server that names a place that is none: every call gets its outcome."""

from __future__ import annotations

import msgspec

from tests.unit.client.test_resubscription import Scene
from tickertape.base.bookmarks import NOW
from tickertape.base.errors import BadCommand, Disconnected
from tickertape.client.core import Lost
from tickertape.client.effects import End, Hangup, Resolve
from tickertape.client.requests import make_request
from tickertape.wire.commands import Ack, Subscribe


def test_a_call_whose_answer_names_no_place_gets_its_outcome_and_is_not_kept() -> None:
    scene = Scene()
    request = make_request("orders", "a", bookmark=NOW)
    scene.core.subscribe("call", msgspec.structs.replace(request, handled=True), "a")
    scene.placed(after="garbage|x")
    assert isinstance(scene.outcome("call"), BadCommand)
    (hangup,) = scene.took(Hangup)
    assert isinstance(hangup.error, BadCommand)
    scene.core.receive(Lost(hangup.error), scene.now)
    assert not [effect for effect in scene.took(Resolve) if effect.token == "call"]
    assert [end.sink for end in scene.took(End)] == ["a"]
    scene.connect()
    scene.core.resubscribe("round")
    assert scene.placed() == []


def test_a_round_in_which_an_answer_names_no_place_gets_its_outcome_once() -> None:
    for others in ("", "b"):
        scene = Scene()
        for sub_id in "a" + others:
            scene.subscribe(sub_id, NOW, after="7|9|")
        scene.lose()
        scene.connect()
        scene.core.resubscribe("round")
        asked = [command for command, _ in scene.sent()]
        assert isinstance(asked[0], Subscribe)
        scene.say(Ack(id=asked[0].id, start=1, after="garbage|x"))
        (hangup,) = scene.took(Hangup)
        assert isinstance(hangup.error, BadCommand)
        scene.core.receive(Lost(hangup.error), scene.now)
        assert isinstance(scene.outcome("round"), Disconnected)
        assert [one.bookmark for one in scene.again()] == ["7|9|"] * (1 + len(others))
