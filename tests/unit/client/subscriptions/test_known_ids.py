"""Where a subscription is placed again whose id a bookmark store knows from before."""

from __future__ import annotations

import pytest

from tests.unit.client.subscriptions.test_resubscribe import Scene, command
from tickertape.base.bookmarks import MOST_RECENT, NOW, Bookmark
from tickertape.client.bookmark_store import MemoryBookmarkStore
from tickertape.wire.commands import PersistedNotice

RANGE = "(3|6|:3|9|]"


def known() -> Scene:
    """A store that knows of an earlier subscription: ten messages, the first three of them discarded."""
    scene = Scene(MemoryBookmarkStore())
    request = scene.subscribe("a", "0", after="0", handled=False)
    assert request.bookmark == "0"
    scene.deliver("a", *range(1, 11))
    scene.discard(1, 2, 3)
    scene.lose()
    scene.connect()
    return scene


def begins(scene: Scene) -> str:
    """Where it is placed again."""
    return str(command(scene.again()).bookmark)


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
def test_before_the_first_message_it_begins_where_it_began(bookmark: str, after: str, again: str) -> None:
    scene = known()
    scene.subscribe("a", bookmark, after=after)
    for _ in range(2):
        assert begins(scene) == again


@pytest.mark.behaviour(26)
def test_a_notice_moves_the_begin_of_one_that_nothing_came_for() -> None:
    scene = known()
    scene.subscribe("a", NOW, after="3|10|")
    scene.say(PersistedNotice(sub_ids=("a",), publisher=8, sequence=1))
    assert begins(scene) == "8|1|"


@pytest.mark.behaviour(26)
def test_the_begin_of_a_range_moves_forward_only() -> None:
    scene = known()
    scene.subscribe("a", RANGE, after="3|6|")
    scene.deliver("a", 7, 8)
    scene.discard(8)
    assert begins(scene) == RANGE, "messages of before are not discarded, and not of the range"
    scene.deliver("a", 7, 9)
    scene.discard(7)
    assert begins(scene) == RANGE


@pytest.mark.behaviour(28)
def test_what_came_is_counted_with_what_is_known_from_before() -> None:
    scene = known()
    scene.subscribe("a", MOST_RECENT, after="3|3|")
    scene.deliver("a", 4, 5, 6)
    scene.discard(4, 6)
    assert begins(scene) == "3|4|"
    store = scene.core.subscriptions.store
    assert store is not None
    assert store.most_recent("a") == [Bookmark(3, 4)]


def test_a_live_one_that_nothing_came_for_names_its_begin_once() -> None:
    scene = Scene()
    scene.subscribe("a", NOW, after="7|9|", live=True)
    assert begins(scene) == "7|9|"
