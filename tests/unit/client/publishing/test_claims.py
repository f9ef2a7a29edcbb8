"""Claims of clients at the logon, and stored messages at a server that replicates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.client.peer import FRESH, START, Named, Peer, bodies, publish
from tickertape.base.errors import Disconnected, PublisherTakenOver, StoreError
from tickertape.client.common.effects import EndConnection
from tickertape.client.publish_store import (
    FilePublishStore,
    HybridPublishStore,
    MemoryPublishStore,
    PublishStore,
)
from tickertape.client.publishing.store_checks import Claims
from tickertape.wire.commands import LogonReplication, Persisted, Rejected

REPLICATES = LogonReplication(start=5, group="ny")
Make = Callable[[Path], PublishStore]
STORES: dict[str, Make] = {
    "memory": lambda _: MemoryPublishStore(),
    "file": lambda path: FilePublishStore(path / "s"),
    "file with sync": lambda path: FilePublishStore(path / "s", sync="always"),
    "hybrid": lambda path: HybridPublishStore(path / "s"),
}


class WithoutClaims:
    """A store of an application that has only the methods of `PublishStore`."""

    def __init__(self, store: MemoryPublishStore) -> None:
        for name in ("attach", "close", "put", "discard", "replace", "held", "unpersisted_count"):
            setattr(self, name, getattr(store, name))
        self._store = store

    bytes_max = property(lambda self: self._store.bytes_max)
    when_full = property(lambda self: self._store.when_full)
    size_bytes = property(lambda self: self._store.size_bytes)
    last_sequence = property(lambda self: self._store.last_sequence)


def test_client_without_a_store_claims_nothing() -> None:
    logon = Peer().open()
    assert (logon.persisted, logon.session) == (0, 0)


@pytest.mark.parametrize("kind", STORES)
def test_logon_claims_acknowledged_messages_only(kind: str, tmp_path: Path) -> None:
    store = STORES[kind](tmp_path)
    peer = Peer(store)
    logon = peer.open()
    assert (logon.persisted, logon.session) == (0, START.wall), "a fresh store makes no claim"
    peer.lose()
    peer.connect()
    for texts in ((b"1", b"2"), (b"3",), (b"4",), (b"5",)):
        publish(peer, *texts)
    peer.say(Persisted(frame=1, sequence=FRESH))
    peer.say(Rejected(frame=2, sequence=FRESH + 4, code="bad_body", text="no"))
    peer.lose()
    logon = peer.open()
    assert (logon.persisted, logon.session) == (FRESH, START.wall + 2)
    store.close()


@pytest.mark.parametrize("kind", ["file", "file with sync", "hybrid"])
def test_next_process_claims_acknowledged_messages_of_the_store(kind: str, tmp_path: Path) -> None:
    store = STORES[kind](tmp_path)
    peer = Peer(store).connect()
    publish(peer, b"1")
    publish(peer, b"2", b"3")
    peer.say(Persisted(frame=1, sequence=FRESH))
    peer.core.close()
    store.close()
    store = STORES[kind](tmp_path)
    logon = Peer(store).open()
    assert logon.persisted == FRESH
    assert logon.session == START.wall + 1, "the clock is at the same time"
    store.close()


def test_session_rises_with_another_store_and_a_clock_that_was_set_back() -> None:
    claims = Claims()
    now = START
    found = [claims.next(MemoryPublishStore(), now).session]
    for store in (MemoryPublishStore(), WithoutClaims(MemoryPublishStore()), MemoryPublishStore()):
        now = now._replace(wall=now.wall - 1_000_000)
        assert isinstance(store, PublishStore)
        found.append(claims.next(store, now).session)
    assert found == [START.wall, START.wall + 1, START.wall + 2, START.wall + 3]


def test_store_without_the_methods_of_claims_makes_none() -> None:
    store = WithoutClaims(MemoryPublishStore())
    assert isinstance(store, PublishStore)
    peer = Peer(store).connect()
    publish(peer, b"1")
    peer.say(Persisted(frame=1, sequence=FRESH))
    peer.lose()
    logon = peer.open()
    assert (logon.persisted, logon.session) == (0, START.wall + 1)


def test_claim_of_a_custom_store_is_at_most_the_last_sequence() -> None:
    class TooHigh(MemoryPublishStore):
        @property
        def persisted_sequence(self) -> int:
            return 1 << 70

        @persisted_sequence.setter
        def persisted_sequence(self, value: int) -> None:
            pass

    peer = Peer(TooHigh())
    assert peer.open().persisted == 0
    peer.lose()
    peer.connect()
    publish(peer, b"1", b"2")
    peer.lose()
    assert peer.open().persisted == FRESH + 1


def test_store_error_at_the_claim_ends_the_connection_before_the_logon() -> None:
    class Broken(MemoryPublishStore):
        def next_session(self, clock: int) -> int:
            raise OSError(5, "no disk")

    peer = Peer(Broken())
    with pytest.raises(ValueError, match="not enough values"):
        peer.open()
    (end,) = peer.took(EndConnection)
    assert isinstance(end.error, StoreError)
    assert "no disk" in str(end.error)
    peer.lose()
    outcome = peer.outcome("logon")
    assert isinstance(outcome, StoreError)


def test_client_resends_messages_below_the_last_persisted_one_to_a_replicating_server() -> None:
    """The server has a later message of a link, and a hole below it."""
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1")
    publish(peer, b"2", b"3")
    peer.say(Persisted(frame=1, sequence=FRESH))
    publish(peer, b"4")
    peer.lose()
    peer.sent()
    peer.connect(last_persisted=FRESH + 2, replication=REPLICATES)
    assert [text for texts in bodies(peer.published()) for text in texts] == [b"2", b"3", b"4"]
    assert store.unpersisted_count() == 3
    peer.core.flush(Named("f"), "persisted")
    peer.say(Persisted(frame=1, sequence=FRESH + 1))
    assert store.unpersisted_count() == 1
    peer.say(Persisted(frame=2, sequence=FRESH + 3))
    assert store.unpersisted_count() == 0


def test_client_discards_messages_that_a_server_without_replication_has() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1")
    publish(peer, b"2")
    peer.say(Persisted(frame=1, sequence=FRESH))  # sends 2
    publish(peer, b"3")
    peer.lose()
    peer.sent()
    peer.connect(last_persisted=FRESH + 1)
    assert bodies(peer.published()) == [[b"3"]]
    assert store.persisted_sequence == FRESH + 1


def test_other_store_at_a_replicating_server_is_resent_as_a_whole() -> None:
    old = MemoryPublishStore()
    peer = Peer(old).connect()
    publish(peer, b"1", b"2")
    peer.lose()
    peer = Peer().connect(last_persisted=FRESH + 1, replication=REPLICATES)
    peer.core.set_store(old, peer.now)
    assert [text for texts in bodies(peer.published()) for text in texts] == [b"1", b"2"]


def test_takeover_at_a_replicating_server_is_judged_by_the_last_persisted_message() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1")
    peer.lose()
    peer.sent()
    peer.connect(last_persisted=FRESH + 9, replication=REPLICATES)
    assert peer.sent() == []
    with pytest.raises(PublisherTakenOver):
        publish(peer, b"2")
    assert store.unpersisted_count() == 1
    assert store.persisted_sequence == 0


def test_disconnected_client_keeps_the_claim_of_the_store() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1")
    peer.say(Persisted(frame=1, sequence=FRESH))
    peer.lose()
    assert isinstance(peer.core.logon.loss, Disconnected)
    assert peer.open().persisted == FRESH
