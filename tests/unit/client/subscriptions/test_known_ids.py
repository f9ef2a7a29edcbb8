"""Resubscription of an id that the bookmark store knows from an earlier subscription."""

from __future__ import annotations

import pytest

from tests.unit.client.subscriptions.test_resubscribe import Scene, command
from tickertape.base.bookmarks import MOST_RECENT, NOW, Bookmark
from tickertape.client.bookmark_store import MemoryBookmarkStore
from tickertape.wire.commands import PersistedNotice

RANGE = "(3|6|:3|9|]"


def known() -> Scene:
    """Return a scene with an earlier subscription: ten messages, the first three discarded."""
    scene = Scene(MemoryBookmarkStore())
    request = scene.subscribe("a", "0", after="0", handled=False)
    assert request.bookmark == "0"
    scene.deliver("a", *range(1, 11))
    scene.discard(1, 2, 3)
    scene.lose()
    scene.connect()
    return scene


def resume_bookmark(scene: Scene) -> str:
    """Reconnect and return the bookmark of the resubscription."""
    return str(command(scene.reconnect()).bookmark)


@pytest.mark.behaviour(26)
@pytest.mark.parametrize(("bookmark", "after", "again"), [
    (RANGE, "3|6|", RANGE),
    ("[3|7|:3|9|]", "3|6|", RANGE),
    ("[20261120T090000Z:3|9|]", "3|6|", RANGE),
    (RANGE, "", RANGE),
    (NOW, "3|10|", "3|10|"),
    ("20261120T090000Z", "3|6|", "3|6|"),
    (MOST_RECENT, "3|3|", "3|3|"),
    ("0", "0", "3|3|"),
])  # fmt: skip
def test_known_id_without_messages_resumes_at_the_original_start(
    bookmark: str, after: str, again: str
) -> None:
    scene = known()
    scene.subscribe("a", bookmark, after=after)
    for _ in range(2):
        assert resume_bookmark(scene) == again


@pytest.mark.behaviour(26)
def test_persisted_notice_moves_the_start_of_known_id_without_messages() -> None:
    scene = known()
    scene.subscribe("a", NOW, after="3|10|")
    scene.say(PersistedNotice(sub_ids=("a",), publisher=8, sequence=1))
    assert resume_bookmark(scene) == "8|1|"


@pytest.mark.behaviour(26)
def test_start_of_a_range_with_known_id_moves_forward_only() -> None:
    scene = known()
    scene.subscribe("a", RANGE, after="3|6|")
    scene.deliver("a", 7, 8)
    scene.discard(8)
    assert resume_bookmark(scene) == RANGE, "earlier messages are undiscarded and outside the range"
    scene.deliver("a", 7, 9)
    scene.discard(7)
    assert resume_bookmark(scene) == RANGE


@pytest.mark.behaviour(28)
def test_progress_of_known_id_includes_earlier_discards() -> None:
    scene = known()
    scene.subscribe("a", MOST_RECENT, after="3|3|")
    scene.deliver("a", 4, 5, 6)
    scene.discard(4, 6)
    assert resume_bookmark(scene) == "3|4|"
    store = scene.core.subscriptions.store
    assert store is not None
    assert store.most_recent("a") == [Bookmark(3, 4)]


def test_live_subscription_without_messages_resumes_at_one_bookmark() -> None:
    scene = Scene()
    scene.subscribe("a", NOW, after="7|9|", live=True)
    assert resume_bookmark(scene) == "7|9|"
