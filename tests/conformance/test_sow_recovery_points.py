"""Recovery points in a SOW topic: the checks of bookmark stores, restarts without files, and bad input."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tickertape.testing import check_bookmark_store
from tickertape.testing.server import RunningServer, running_server, wait_until

CONFIG = """
[[sow]]
name = "tickertape/bookmark_store"
key = ["/clientName", "/subId"]

[[sow]]
name = "points"
key = ["/clientName", "/subId"]
"""
SECONDS = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "data", CONFIG) as running:
        yield running


@pytest.fixture
def points(server: RunningServer) -> Iterator[tt.Client]:
    """The client of the adapters."""
    with tt.HAClient("points", servers=server.uri, reconnect_delay=0.05) as client:
        yield client


@pytest.mark.parametrize("conflating", [False, True], ids=["direct", "conflating"])
def test_store_with_the_adapter_passes_the_checks_without_files(points: tt.Client, conflating: bool) -> None:
    def opened(name: str) -> tt.BookmarkStore:
        adapter: tt.RecoveryPointAdapter = tt.SowRecoveryPointAdapter(points, f"it's {name}")
        if conflating:
            adapter = tt.ConflatingRecoveryPointAdapter(adapter, seconds=0.01)
        return tt.MemoryBookmarkStore(adapter)

    check_bookmark_store(opened, filters_after_restart=False)


@pytest.mark.full
def test_adapter_returns_the_points_of_one_client_and_forgets_purged_ones(points: tt.Client) -> None:
    one, other = (tt.SowRecoveryPointAdapter(points, name, topic="points") for name in ("a", "a' OR TRUE"))
    several = [tt.Bookmark(7, 2), tt.Bookmark(2**64 - 1, 2**64 - 2)]
    one.update("s", [tt.Bookmark(7, 1)])
    one.update("s", several)
    one.update("start", [])
    one.update("quoted \"' id", [tt.Bookmark(1, 1)])
    other.update("s", [tt.Bookmark(9, 9)])
    assert dict(one.load()) == {"s": several, "start": [], "quoted \"' id": [tt.Bookmark(1, 1)]}
    assert dict(other.load()) == {"s": [tt.Bookmark(9, 9)]}
    one.purge("s")
    one.purge("unknown")
    assert set(dict(one.load())) == {"start", "quoted \"' id"}
    one.purge()
    assert list(one.load()) == []
    assert dict(other.load()) == {"s": [tt.Bookmark(9, 9)]}
    one.close()
    assert points.connected


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_ha_client_resumes_on_another_machine_without_files(
    kind: str, server: RunningServer, points: tt.Client
) -> None:
    with tt.Client("source", server.uri) as source:
        source.publish_batch("orders", [{"id": number} for number in range(10)])
        source.publish_flush()
    seen: list[Any] = []
    for machine, last in ((1, 5), (2, 12)):
        front = Front(kind)
        done = threading.Event()

        def handle(message: tt.Message, last: int = last, done: threading.Event = done) -> None:
            if message.json()["id"] <= last:
                seen.append(message.json()["id"])
                message.discard()
            if message.json()["id"] >= last:
                done.set()

        store = tt.MemoryBookmarkStore(tt.SowRecoveryPointAdapter(points, "risk"))
        client = front.make_ha("risk", servers=server.uri, bookmark_store=store, reconnect_delay=0.05)
        client.connect_and_logon()
        client.bookmark_subscribe("orders", tt.MOST_RECENT, sub_id="orders", on_message=handle)
        if machine == 2:
            server.kill()
            server.restart()
            with tt.Client("source", server.uri) as source:
                source.publish_batch("orders", [{"id": number} for number in range(10, 13)])
                source.publish_flush()
        assert done.wait(SECONDS)
        client.close()
        store.close()
        front.close()
    assert seen == [*range(13)]


def test_adapter_publishes_no_point_for_a_notice_of_the_message_of_a_point(
    server: RunningServer, points: tt.Client
) -> None:
    adapter = tt.SowRecoveryPointAdapter(points, "risk", topic="points")
    store = tt.MemoryBookmarkStore(adapter)
    seen = threading.Event()

    def handle(message: tt.Message) -> None:
        message.discard()
        seen.set()

    with tt.HAClient("risk", server.uri, bookmark_store=store) as client:
        client.bookmark_subscribe("orders", tt.EPOCH, sub_id="s", on_message=handle)
        client.publish("orders", {"id": 1})
        assert seen.wait(SECONDS)
        points.publish_flush()
        (last,) = list(client.replay("points", tt.EPOCH))[-1:]
        wait_until(lambda: last.bookmark in [str(point) for point in store.most_recent("s")], SECONDS)
        points.publish_flush()
        assert list(client.replay("points", tt.EPOCH))[-1].bookmark == last.bookmark


def test_point_published_while_the_server_is_down_is_kept(server: RunningServer, points: tt.Client) -> None:
    adapter = tt.SowRecoveryPointAdapter(points, "risk")
    adapter.update("s", [tt.Bookmark(7, 1)])
    server.kill()
    wait_until(lambda: not points.connected)
    adapter.update("s", [tt.Bookmark(7, 2)])
    server.restart()
    assert dict(adapter.load()) == {"s": [tt.Bookmark(7, 2)]}


@pytest.mark.parametrize("sub_id", ["s", pytest.param(None, marks=pytest.mark.full)])
def test_purge_while_the_server_is_down_does_not_wait(
    sub_id: str | None, server: RunningServer, points: tt.Client
) -> None:
    adapter = tt.SowRecoveryPointAdapter(points, "risk")
    adapter.update("s", [tt.Bookmark(7, 1)])
    points.publish_flush()
    server.kill()
    wait_until(lambda: not points.connected)
    done = threading.Event()

    def purge() -> None:
        adapter.purge(sub_id)
        done.set()

    purging = threading.Thread(target=purge)
    purging.start()
    at_once = done.wait(SECONDS / 6)
    server.restart()
    purging.join()
    assert at_once
    assert list(adapter.load()) == []


def test_client_of_the_subscriptions_is_refused(server: RunningServer, points: tt.Client) -> None:
    with pytest.raises(tt.UsageError, match="its own recovery points"):
        tt.SowRecoveryPointAdapter(points, "points")
    adapter = tt.SowRecoveryPointAdapter(points, "risk")
    with pytest.raises(tt.UsageError, match="uses the same client"):
        points.set_bookmark_store(tt.MemoryBookmarkStore(adapter))
    wrong: Any = tt.AsyncClient("async", server.uri)
    with pytest.raises(tt.UsageError, match="Pass a Client or HAClient"):
        tt.SowRecoveryPointAdapter(wrong, "risk")
    with pytest.raises(tt.BadName):
        tt.SowRecoveryPointAdapter(points, "")
    with pytest.raises(tt.BadTopic):
        tt.SowRecoveryPointAdapter(points, "risk", topic="^all/")


@pytest.mark.full
def test_load_from_a_topic_without_recovery_points_raises(points: tt.Client) -> None:
    with pytest.raises(tt.BadTopic):
        tt.MemoryBookmarkStore(tt.SowRecoveryPointAdapter(points, "risk", topic="orders"))
    for wrong in (7, "x", None, "20200101T000000", "1|"):
        points.publish("points", {"clientName": "risk", "subId": "s", "bookmark": wrong})
        with pytest.raises(tt.StoreCorrupt, match="is not a recovery point"):
            tt.MemoryBookmarkStore(tt.SowRecoveryPointAdapter(points, "risk", topic="points"))
    points.publish("points", {"clientName": "risk", "subId": 7, "bookmark": "1|1|"})
    with pytest.raises(tt.StoreCorrupt):
        tt.MemoryBookmarkStore(tt.SowRecoveryPointAdapter(points, "risk", topic="points"))
