"""Server whose oldest messages are only in the archive: replays continue from archive to log."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.admin import stats_of
from tests.helpers.archived_servers import (
    CONFIG,
    MESSAGES,
    Seen,
    World,
    archive_to,
    archived_world,
    publish,
    seen,
)
from tests.helpers.archives import ArchiveWriter, commits_of
from tests.helpers.positions import resolve
from tickertape.client.blocking.log_client import LogClient
from tickertape.testing import RunningServer, running_server, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Yield one archived server for all tests, which do not change it."""
    with archived_world(tmp_path_factory.mktemp("archived")) as made:
        yield made


def test_replay_starts_in_the_archive_and_ends_in_the_log(world: World) -> None:
    with world.client() as client:
        assert seen(client.replay("^[ab]$")) == world.everything
        assert seen(client.replay("a")) == world.of("a")
        every = [found for found in seen(client.replay(".*")) if found[0] in ("a", "b")]
        assert every == world.everything  # other tests publish to different topics


def test_archive_replay_applies_the_filter(world: World) -> None:
    with world.client() as client:
        found = seen(client.replay("a", filter="/n % 100 = 6"))
        assert found == [one for one in world.of("a") if one[1] % 100 == 6]
        assert seen(client.replay("a", filter="/n < 0")) == []


def test_concurrent_archive_replays_with_filters_are_complete(world: World) -> None:
    """Subscriptions share reads of the log, but not of the archive."""
    with world.client() as client:
        streams = [client.replay("^[ab]$", filter=f"/n % 7 = {rest}") for rest in range(7)]
        for rest, stream in enumerate(streams):
            assert seen(stream) == [one for one in world.everything if one[1] % 7 == rest]


@pytest.mark.parametrize("inside", [True, False])
def test_bounded_replay_across_and_below_the_archive_end(world: World, inside: bool) -> None:
    low, high = (20, world.seam - 30) if inside else (world.seam - 40, world.seam + 40)
    begin, end = world.everything[low][2], world.everything[high][2]
    with world.client() as client:
        assert seen(client.replay("^[ab]$", f"[{begin}:{end}]")) == world.everything[low : high + 1]
        assert seen(client.replay("^[ab]$", f"({begin}:{end})")) == world.everything[low + 1 : high]
        assert seen(client.replay("^[ab]$", f"{end},{begin}")) == world.everything[low + 1 :]


def test_replay_starts_at_a_time_in_the_archive(world: World) -> None:
    with world.client() as client:
        messages = list(client.replay("^[ab]$"))
        at = messages[30].timestamp
        assert at is not None
        later = next(i for i, message in enumerate(messages) if (message.timestamp or at) > at)
        assert seen(client.replay("^[ab]$", at)) == world.everything[later:]


def test_bookmark_subscription_in_the_archive_continues_live(world: World) -> None:
    start = world.everything[9][2]
    with (
        world.client() as client,
        client.bookmark_subscribe("^([ab]|late)$", start, depth="64KB") as stream,
    ):
        assert seen(islice(stream, 500)) == world.everything[10:510]
        with tt.Client("another", world.server.uri) as another:
            another.publish("late", '{"n":0}')
        assert seen(islice(stream, MESSAGES - 510)) == world.everything[510:]
        assert next(stream).topic == "late"


def test_subscription_is_paused_and_resumed_in_the_archive(world: World) -> None:
    with (
        world.client() as client,
        client.bookmark_subscribe("a", tt.EPOCH, sub_id="s", depth="32KB") as stream,
    ):
        found = seen(islice(stream, 5))
        client.pause("s")
        client.resume("s")
        assert found + seen(islice(stream, len(world.of("a")) - 5)) == world.of("a")


def test_archive_replay_applies_rate_select_list_and_conflation(world: World) -> None:
    with world.client() as client:
        wanted = world.everything[: world.seam + 20]
        end = wanted[-1][2]
        assert seen(client.replay("^[ab]$", f"[0:{end}]", rate=20_000)) == wanted
        chosen = client.replay("^[ab]$", f"[0:{end}]", select=["-/", "+/n"])
        assert [m.json() for m in chosen] == [{"n": one[1]} for one in wanted]
        last = client.replay("^[ab]$", f"[0:{end}]", conflation="10s", conflation_key=["/padding"])
        assert {m.json()["n"] for m in last} <= {one[1] for one in wanted}


def test_asyncio_client_replays_the_archive(world: World) -> None:
    async def read() -> list[Seen]:
        async with tt.AsyncClient("async", world.server.uri) as client:
            stream = await client.replay("^[ab]$")
            return seen([message async for message in stream])

    assert asyncio.run(read()) == world.everything


def test_ha_client_resumes_in_the_archive(world: World) -> None:
    """The client resumes after a bookmark in the archive, and then after a lost connection."""
    store = tt.MemoryBookmarkStore()
    found: list[tt.Message] = []

    def handle(message: tt.Message) -> None:
        found.append(message)
        message.discard()

    with tt.HAClient("ha", servers=[world.server.uri], bookmark_store=store) as client:
        client.connect_and_logon()
        client.bookmark_subscribe(
            "^[ab]$", world.everything[19][2], sub_id="s", depth="16KB", on_message=handle
        )
        wait_until(lambda: len(found) > 40, 20)
        with LogClient("ha", world.server.uri):  # takes over the name, which closes the connection
            pass
        wait_until(lambda: len(found) >= MESSAGES - 20, 30)
    assert seen(found) == world.everything[20:]


def test_positions_in_the_archive_are_resolved_and_read(world: World) -> None:
    with world.client() as client:
        journal, start, end = resolve(client, "a", tt.EPOCH)
        assert start == 0
        parts = [(start, 33), (33, world.seam + 5), (world.seam + 5, end)]
        found = [one for low, high in parts for one in seen(client.read_positions("a", low, high, journal))]
        assert found == world.of("a")
        between = f"[{world.everything[50][2]}:{world.everything[99][2]}]"
        _, low, high = resolve(client, "^[ab]$", between)
        assert len(list(client.read_positions("^[ab]$", low, high, journal))) == 50


@pytest.mark.full
def test_restarted_server_replays_the_archive_at_once(world: World) -> None:
    world.server.restart()
    with world.client() as client:
        assert seen(client.replay("^[ab]$")) == world.everything


# -- failures -----------------------------------------------------------------------------------------


def test_missing_archive_file_ends_only_replays_that_need_the_file(tmp_path: Path, world: World) -> None:
    victim = max(world.archive.rglob("*.parquet"), key=lambda path: path.stat().st_size)
    hidden = victim.rename(tmp_path / victim.name)
    try:
        with world.client() as client:
            stream = client.replay("^[ab]$")
            with pytest.raises(tt.TickertapeError, match=victim.name) as failed:
                seen(stream)
            assert failed.value.code == "archive_failed"
            assert seen(client.replay("^[ab]$", world.everything[-9][2])) == world.everything[-8:]
    finally:
        hidden.rename(victim)
    with world.client() as client:
        assert seen(client.replay("^[ab]$")) == world.everything


@contextmanager
def small(home: Path, messages: int = 500) -> Iterator[tuple[RunningServer, str, list[Seen], int]]:
    """Yield a server that removes segments before they are archived, without its first segments."""
    with running_server(home / "data", CONFIG.format(archive=home / "archive", require="false")) as server:
        publish(server, range(100))
        with LogClient("all", server.uri) as client:
            everything = seen(client.replay("^[ab]$"))
            journal, _, _ = resolve(client, "a", tt.EPOCH)
        publish(server, range(100, messages))
        wait_until(lambda: stats_of(server).journal.first_position > 120, 20)
        yield server, journal, everything, stats_of(server).journal.first_position


@pytest.mark.full
def test_gap_between_archive_and_log_raises_bookmark_expired(tmp_path: Path) -> None:
    with small(tmp_path) as (server, journal, everything, _), LogClient("reader", server.uri) as client:
        # Without a table the log is the only source.
        assert next(iter(client.replay("a"))).json()["n"] > 0
        with pytest.raises(tt.BookmarkExpired, match="has no table yet"):
            client.replay("a", everything[0][2])
        ArchiveWriter(tmp_path / "archive", journal).commit([], 60)
        gap = r"has positions 0 to 60 \(exclusive\), and the log begins at position \d+, with "
        for start in (tt.EPOCH, everything[0][2]):
            with pytest.raises(tt.BookmarkExpired, match=gap) as expired:
                client.replay("a", start)
            assert expired.value.available
        with pytest.raises(tt.BookmarkExpired, match=gap):
            client.read_positions("a", 0, 10, journal)
        assert seen(client.replay("^[ab]$", expired.value.available))
        assert resolve(client, "a", tt.NOW)


@pytest.mark.full
def test_restored_log_that_grew_beyond_the_archive_ignores_the_archive(tmp_path: Path) -> None:
    data, archive, copy = tmp_path / "data", tmp_path / "archive", tmp_path / "copy"
    config = CONFIG.format(archive=archive, require="true")
    apart = config[: config.index("[archive]")].replace("3MB", "1GB")
    with running_server(data, apart) as server:
        publish(server, range(50))
        server.stop()
    shutil.copytree(data, copy)
    with running_server(data, apart) as server:
        publish(server, range(50, 200))
        with LogClient("all", server.uri) as client:
            journal, _, end = resolve(client, "^[ab]$", tt.EPOCH)
        archive_to(ArchiveWriter(archive, journal), data, 0, end)
        server.stop()
    shutil.rmtree(data)
    copy.rename(data)
    with running_server(data, apart) as server:
        publish(server, range(50, 600))
        server.stop()
    with running_server(data, config) as server:
        with tt.Client("all", server.uri) as client:
            wait_until(lambda: "archive_failed" in server.errors(), 20)
            publish(server, range(600, 620))
            wait_until(lambda: stats_of(server).journal.retention.held_by == "archive", 20)
            assert stats_of(server).journal.first_position == 0
            found = seen(client.replay("^[ab]$"))
            assert [number for _, number, _ in found] == list(range(620))
        event = next(line for line in server.errors().splitlines() if "archive_failed" in line)
        assert "but the log has " in event
        assert " there, so" in event


@pytest.mark.full
def test_archive_of_another_journal_raises_wrong_journal(tmp_path: Path) -> None:
    with small(tmp_path) as (server, journal, everything, _):
        ArchiveWriter(tmp_path / "archive", "f" * 32).commit([], 1000)
        with tt.Client("reader", server.uri) as client:
            other = f"archive of the journal '{'f' * 32}', not of '{journal}'"
            with pytest.raises(tt.WrongJournal, match=other):
                client.replay("a", everything[0][2])
            wait_until(lambda: "archive_failed" in server.errors(), 20)


@pytest.mark.full
def test_archive_of_some_topics_serves_only_these_topics(tmp_path: Path) -> None:
    """Other topics start with the log, and their earlier bookmarks are expired."""
    with running_server(
        tmp_path / "data", CONFIG.format(archive=tmp_path / "archive", require="true")
    ) as server:
        publish(server, range(500))
        with LogClient("all", server.uri) as client:
            everything = seen(client.replay("^[ab]$"))
            journal, _, end = resolve(client, "a", tt.EPOCH)
            writer = ArchiveWriter(tmp_path / "archive", journal, topics="a")
            writer.add(commits_of(tmp_path / "data", journal, 0, end, "a"), end, rows_per_group=50)
            wait_until(lambda: stats_of(server).journal.first_position > 100, 20)
            assert seen(client.replay("a")) == [one for one in everything if one[0] == "a"]
            others = seen(client.replay("b"))
            assert others == [one for one in everything if one[0] == "b"][-len(others) :]
            with pytest.raises(tt.BookmarkExpired, match="of the topics 'a'"):
                client.replay("b", everything[1][2])
