"""Unanswered calls on kept subscriptions when the connection is lost."""

from __future__ import annotations

import pytest

from tests.unit.client.peer import Named
from tests.unit.client.subscriptions.test_resubscribe import Scene
from tickertape.base.errors import Disconnected, SubscriptionUnknown
from tickertape.client.bookmark_store import MemoryBookmarkStore
from tickertape.client.common.effects import End
from tickertape.client.common.subscribe_arguments import make_request


def test_unsubscribe_without_answer_is_final_after_reconnect() -> None:
    store = MemoryBookmarkStore()
    scene = Scene(store)
    for sub_id in ("a", "b", "c"):
        scene.subscribe(sub_id, "0")
    scene.core.unsubscribe(Named("u"), ("a", "c"))
    assert [again.sub_id for again in scene.reconnect()] == ["b"]
    assert isinstance(scene.outcome("u"), Disconnected)
    assert scene.took(End) == [End(Named("a"), "unsubscribed", None), End(Named("c"), "unsubscribed", None)]
    with pytest.raises(SubscriptionUnknown):
        scene.core.unsubscribe(Named("v"), ("a",))


def test_replacement_after_unanswered_unsubscribe_ends_as_disconnected() -> None:
    scene = Scene()
    scene.subscribe("a", "0")
    scene.core.unsubscribe(Named("u"), ("a",))
    scene.core.subscribe(
        Named("s"), make_request("orders", "a", bookmark="0", given={"replace": True}), Named("new a")
    )
    scene.sent()
    assert scene.reconnect() == []
    assert [(end.sink, end.reason) for end in scene.took(End)] == [
        ("a", "unsubscribed"),
        ("new a", "disconnected"),
    ]


@pytest.mark.behaviour(27)
@pytest.mark.parametrize("without", [(), ("plain",)])
def test_unanswered_pause_and_resume_apply_at_resubscription_if_valid(
    without: tuple[str, ...],
) -> None:
    scene = Scene()
    scene.subscribe("running", "0")
    scene.subscribe("waiting", "0", pause=True)
    scene.subscribe("plain")
    scene.core.pause(Named("p"), ("running", *without))
    scene.core.resume(Named("r"), ("waiting", *without))
    paused = [again.sub_id for again in scene.reconnect() if "pause" in again.options.split(",")]
    assert isinstance(scene.outcome("p"), Disconnected)
    assert paused == (["waiting"] if without else ["running"])
