"""What a publish store holds is sent again piece by piece, in order, before anything newer."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.client.peer import Named, Peer
from tickertape.base.errors import StoreCorrupt
from tickertape.base.limits import KIB, MIB
from tickertape.batch.encode import batch_from_bodies
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.effects import EndConnection, ResolveCall
from tickertape.client.limits import republish_bytes_max
from tickertape.client.publish_store import (
    FilePublishStore,
    HybridPublishStore,
    MemoryPublishStore,
    PublishStore,
    Stored,
)
from tickertape.wire.commands import Persisted, Publish, Rejected

BODY_BYTES = 64 * KIB
FIRST = 1_000
Frames = list[tuple[Publish, MessageBatch]]


def fill(store: PublishStore, count: int, size: int = BODY_BYTES) -> None:
    """`count` batches of one message each."""
    store.attach("pricing-1")
    for number in range(FIRST, FIRST + count):
        body = (b"%d." % number).ljust(size, b"x")
        batch = batch_from_bodies("orders", [body], publisher=7, first_sequence=number)
        store.put(Stored(number, number, batch))


@pytest.fixture(params=["memory", "file", "hybrid"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PublishStore]:
    kinds: dict[str, Callable[[], PublishStore]] = {
        "memory": lambda: MemoryPublishStore("1GB"),
        "file": lambda: FilePublishStore(tmp_path / "s"),
        "hybrid": lambda: HybridPublishStore(tmp_path / "s", "1MB"),
    }
    made = kinds[request.param]()
    yield made
    made.close()


def drain(peer: Peer, frames: Frames) -> list[int]:
    """Answer every frame, one after the other, until no more come; all sequences that came."""
    came: list[int] = []
    while frames:
        command, batch = frames.pop(0)
        came += batch.sequences.tolist()
        peer.say(Persisted(frame=command.frame, sequence=came[-1]))
        frames += peer.published()
    return came


def nbytes(frames: Frames) -> int:
    return sum(batch.nbytes for _, batch in frames)


def test_no_more_than_the_bound_is_on_its_way(store: PublishStore) -> None:
    fill(store, 60)
    peer = Peer(store).connect()
    frames = peer.published()
    came: list[int] = []
    while frames:
        assert nbytes(frames) < republish_bytes_max + 2 * BODY_BYTES
        if len(came) < 40:
            assert nbytes(frames) >= republish_bytes_max
        command, batch = frames.pop(0)
        came += batch.sequences.tolist()
        peer.say(Persisted(frame=command.frame, sequence=came[-1]))
        frames += peer.published()
    assert came == list(range(FIRST, FIRST + 60))
    assert store.unpersisted_count() == 0


@pytest.mark.slow
def test_a_large_backlog_on_disk_is_never_in_memory(tmp_path: Path) -> None:
    total = 48 * MIB
    store = FilePublishStore(tmp_path / "s")
    fill(store, total // BODY_BYTES)
    store.close()
    with FilePublishStore(tmp_path / "s") as again:
        peer = Peer(again)
        tracemalloc.start()
        try:
            peer.connect()
            came = drain(peer, peer.published())
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert len(came) == total // BODY_BYTES
        assert peak < 8 * republish_bytes_max < total // 4


def test_what_is_published_meanwhile_comes_behind_it(store: PublishStore) -> None:
    fill(store, 40)
    peer = Peer(store).connect()
    frames = peer.published()
    published = [peer.core.publishing.publish("orders", b"new %d" % n) for n in range(5)]
    last = peer.publish_whole("orders", [b"a", b"b"])
    assert peer.published() == []
    came = drain(peer, frames)
    assert came == [*range(FIRST, FIRST + 40), *published, (last or 0) - 1, last]
    assert store.unpersisted_count() == 0
    one = peer.core.publishing.publish("orders", b"at once")
    assert [batch.sequences.tolist() for _, batch in peer.published()] == [[one]]


@pytest.mark.parametrize("level", ["persisted", "processed"])
def test_a_flush_waits_for_all_of_it(store: PublishStore, level: str) -> None:
    fill(store, 40)
    peer = Peer(store).connect()
    peer.took(ResolveCall)  # the logon's
    frames = peer.published()
    new = peer.core.publishing.publish("orders", b"new")
    peer.core.flush(Named("flush"), level)
    came: list[int] = []
    while frames:
        assert peer.took(ResolveCall) == []
        assert peer.core.publishing.unsettled()
        command, batch = frames.pop(0)
        came += batch.sequences.tolist()
        peer.say(Persisted(frame=command.frame, sequence=came[-1]))
        frames += peer.published()
    assert came[-1] == new
    assert peer.outcome("flush") is None
    assert not peer.core.publishing.unsettled()


def test_a_connection_that_is_lost_in_between_begins_with_what_is_left(store: PublishStore) -> None:
    fill(store, 40)
    peer = Peer(store).connect()
    frames = peer.published()
    for _ in range(10):
        command, batch = frames.pop(0)
        peer.say(Persisted(frame=command.frame, sequence=int(batch.sequences[-1])))
    peer.lose()
    peer.sent()
    peer.connect(last_persisted=FIRST + 14)
    assert drain(peer, peer.published()) == list(range(FIRST + 15, FIRST + 40))


def test_an_answer_that_covers_more_than_was_sent_again_skips_it(store: PublishStore) -> None:
    fill(store, 40)
    peer = Peer(store).connect()
    frames = peer.published()
    peer.say(Persisted(frame=frames[-1][0].frame, sequence=FIRST + 29))
    assert drain(peer, peer.published()) == list(range(FIRST + 30, FIRST + 40))


def test_what_is_refused_does_not_stop_the_rest(store: PublishStore) -> None:
    fill(store, 40)
    peer = Peer(store).connect()
    frames = peer.published()
    count = 0
    while frames:
        command, _ = frames.pop(0)
        peer.say(Rejected(frame=command.frame, code="bad_message", text="no"))
        frames += peer.published()
        count += 1
    assert count == 40
    assert store.unpersisted_count() == 0


def test_a_backlog_that_cannot_be_read_ends_the_connection_and_says_why(tmp_path: Path) -> None:
    store = FilePublishStore(tmp_path / "s")
    fill(store, 400)
    store.close()
    with FilePublishStore(tmp_path / "s") as again:
        peer = Peer(again)
        for file in sorted((tmp_path / "s").glob("*.segment"))[1:2]:
            os.truncate(file, 100)
        peer.connect()
        frames = peer.published()
        while frames and not (ended := peer.took(EndConnection)):
            command, batch = frames.pop(0)
            peer.say(Persisted(frame=command.frame, sequence=int(batch.sequences[-1])))
            frames += peer.published()
        assert [type(hangup.error) for hangup in ended] == [StoreCorrupt]
        assert again.unpersisted_count() > 100
