"""Resend of the publish store in limited windows, in order, before newer messages."""

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
    """Put `count` batches of one message each."""
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
    """Acknowledge frames until no more arrive and return all received sequences."""
    came: list[int] = []
    while frames:
        command, batch = frames.pop(0)
        came += batch.sequences.tolist()
        peer.say(Persisted(frame=command.frame, sequence=came[-1]))
        frames += peer.published()
    return came


def nbytes(frames: Frames) -> int:
    return sum(batch.nbytes for _, batch in frames)


def test_resend_has_at_most_the_window_in_flight(store: PublishStore) -> None:
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
def test_resend_of_large_file_store_uses_bounded_memory(tmp_path: Path) -> None:
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


def test_messages_published_during_a_resend_follow_the_backlog(store: PublishStore) -> None:
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
def test_flush_during_a_resend_waits_for_all_messages(store: PublishStore, level: str) -> None:
    fill(store, 40)
    peer = Peer(store).connect()
    peer.took(ResolveCall)  # of the logon
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


def test_resend_after_another_connection_loss_continues_with_the_rest(store: PublishStore) -> None:
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


def test_persisted_beyond_the_window_skips_messages_in_the_resend(store: PublishStore) -> None:
    fill(store, 40)
    peer = Peer(store).connect()
    frames = peer.published()
    peer.say(Persisted(frame=frames[-1][0].frame, sequence=FIRST + 29))
    assert drain(peer, peer.published()) == list(range(FIRST + 30, FIRST + 40))


def test_rejected_messages_do_not_stop_the_resend(store: PublishStore) -> None:
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


def test_unreadable_backlog_ends_the_connection_with_store_corrupt(tmp_path: Path) -> None:
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
