"""Two processes under one client name: what the machine keeps and says, and who connects again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.helpers.publish_batches import held_batches
from tests.unit.client.peer import FRESH, Named, Peer, bodies, publish
from tests.unit.client.socket_server import SocketServer, socket_server
from tickertape.base.errors import BadCommand, NameInUse, PublisherTakenOver
from tickertape.base.limits import last_persisted_max
from tickertape.client.blocking.client import Client
from tickertape.client.common.effects import FailedWrite
from tickertape.client.limits import foreign_sequences_max
from tickertape.client.publish_store import FilePublishStore, MemoryPublishStore
from tickertape.wire.commands import Goodbye, Persisted

_ROOM = last_persisted_max - 2 * foreign_sequences_max - 1
"""The highest sequence of a log above which a client finds enough sequences that the server stores."""


def test_when_another_process_of_the_name_published_nothing_is_discarded_or_sent() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1", b"2", b"3")
    peer.lose()
    publish(peer, b"4")
    peer.sent()
    peer.connect(last_persisted=FRESH + 10**9)
    assert peer.sent() == []
    assert [body for bodies in held_batches(store) for body in bodies] == [b"1", b"2", b"3", b"4"]
    with pytest.raises(PublisherTakenOver, match=f"'pricing-1'.* {FRESH + 10**9},.* 4 message") as told:
        peer.core.flush(Named("f"), "persisted")
    assert f"sequences {FRESH} to {FRESH + 3}" in str(told.value)
    with pytest.raises(PublisherTakenOver):
        publish(peer, b"5")
    with pytest.raises(PublisherTakenOver):
        peer.publish_whole("orders", [b"5"])
    assert peer.core.publishing.unsettled(), "a close that waits is told"
    peer.lose()
    with pytest.raises(PublisherTakenOver):
        publish(peer, b"5")
    assert store.unpersisted_count() == 4


def test_what_was_never_sent_stays_when_the_server_is_beyond_it() -> None:
    # Another process under this name, or a clock that was set back: it would be dropped as a duplicate.
    store = MemoryPublishStore()
    peer = Peer(store)
    publish(peer, b"1", b"2", b"3")
    peer.connect(last_persisted=FRESH + 1)
    assert peer.sent() == []
    assert peer.took(FailedWrite) == []
    assert store.unpersisted_count() == 3
    with pytest.raises(PublisherTakenOver, match="sent none above 0"):
        peer.core.flush(Named("f"), "processed")


def test_after_a_takeover_a_fresh_store_publishes_what_the_old_one_held() -> None:
    old = MemoryPublishStore()
    peer = Peer(old).connect()
    publish(peer, b"1", b"2")
    peer.lose()
    peer.sent()
    peer.connect(last_persisted=FRESH + 10**9)
    peer.core.set_store(MemoryPublishStore(), peer.now)
    first = FRESH + 10**9 + foreign_sequences_max + 1
    assert publish(peer, *[body for bodies in held_batches(old) for body in bodies]) == [first, first + 1]
    assert old.unpersisted_count() == 2


def test_with_an_empty_store_another_process_of_the_name_is_no_loss() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1")
    peer.say(Persisted(frame=1, sequence=FRESH))
    peer.lose()
    peer.sent()
    peer.later(10)
    peer.connect(last_persisted=FRESH + 5)
    # Not the next number: the other process may hold messages with those, and has only lost its connection.
    assert publish(peer, b"2") == [FRESH + 10**10]


def test_what_lies_above_what_another_process_published_is_sent() -> None:
    peer = Peer(MemoryPublishStore())
    publish(peer, b"1")
    peer.connect(last_persisted=FRESH - 1)
    assert bodies(peer.published()) == [[b"1"]]


def test_a_displaced_client_does_not_fight_for_its_name_but_may_be_told_to_connect() -> None:
    with socket_server() as server:
        displaced(server)


def displaced(server: SocketServer) -> None:
    client = Client("pricing-1", server.uri, publish_store=MemoryPublishStore())
    told: list[BaseException] = []
    handled = threading.Event()

    def reconnect(lost: Client) -> None:
        try:
            lost.connect()
        finally:
            handled.set()

    client.set_exception_listener(told.append)
    client.set_disconnect_handler(reconnect)
    server.sessions[0].say(Goodbye(code="name_in_use", text="taken over"))
    assert handled.wait(10)
    assert not client.connected
    assert len(server.logons) == 1
    client.connect()
    assert len(server.logons) == 2
    (error,) = told
    assert isinstance(error, NameInUse)
    assert "outside of the disconnect handler" in str(error)
    client.close()


@pytest.mark.parametrize("last", [_ROOM + 1, last_persisted_max, last_persisted_max + 1, 2**64 - 1])
def test_a_last_persisted_sequence_that_leaves_no_room_ends_the_connection(last: int) -> None:
    store = MemoryPublishStore()
    peer = Peer(store)
    publish(peer, b"1", b"2")
    peer.connect(last_persisted=last)
    assert isinstance(peer.core.logon.ending, BadCommand)
    assert f"holds its sequence {last}" in str(peer.core.logon.ending)
    assert "Use another client name with a fresh publish store" in str(peer.core.logon.ending)
    peer.lose()
    assert isinstance(peer.outcome("logon"), BadCommand)
    peer.connect()
    assert bodies(peer.published()) == [[b"1", b"2"]], "as if nothing had been said"


@pytest.mark.parametrize("last", [last_persisted_max, 2**64 - 1])
def test_client_name_without_room_for_sequences_is_usable_without_a_publish_store(last: int) -> None:
    peer = Peer().connect(last_persisted=last)
    assert peer.core.logon.ending is None
    assert publish(peer, b"1") == [None]
    ((command, _),) = peer.published()
    assert not command.sequenced
    for _ in range(2):
        with pytest.raises(BadCommand, match="Use another client name"):
            peer.core.set_store(MemoryPublishStore(), peer.now)
        peer.lose()
    peer.connect()
    peer.core.set_store(MemoryPublishStore(), peer.now)
    assert publish(peer, b"2") == [FRESH]


def test_the_highest_last_persisted_sequence_leaves_room_in_a_store_on_disk(tmp_path: Path) -> None:
    store = FilePublishStore(tmp_path / "store")
    peer = Peer(store).connect(last_persisted=_ROOM)
    first = last_persisted_max - foreign_sequences_max
    assert publish(peer, b"1", b"2") == [first, first + 1]
    assert bodies(peer.published()) == [[b"1"]]
    peer.lose()
    assert [held.last for held in store.held()] == [first, first + 1]
    store.close()
