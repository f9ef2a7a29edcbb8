"""Two processes under one client name: sequences, kept messages, errors and reconnects."""

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

_LAST_USABLE = last_persisted_max - 2 * foreign_sequences_max - 1
"""The highest last persisted sequence that leaves enough sequences for a client."""


def test_takeover_by_publishing_process_discards_and_sends_nothing() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1", b"2", b"3")
    peer.lose()
    publish(peer, b"4")
    peer.sent()
    peer.connect(last_persisted=FRESH + 10**9)
    assert peer.sent() == []
    assert [body for bodies in held_batches(store) for body in bodies] == [b"1", b"2", b"3", b"4"]
    with pytest.raises(PublisherTakenOver, match=f"'pricing-1'.* {FRESH + 10**9},.* 4 message") as reported:
        peer.core.flush(Named("f"), "persisted")
    assert f"sequences {FRESH} to {FRESH + 3}" in str(reported.value)
    with pytest.raises(PublisherTakenOver):
        publish(peer, b"5")
    with pytest.raises(PublisherTakenOver):
        peer.publish_whole("orders", [b"5"])
    assert peer.core.publishing.unsettled(), "a waiting close raises"
    peer.lose()
    with pytest.raises(PublisherTakenOver):
        publish(peer, b"5")
    assert store.unpersisted_count() == 4


def test_takeover_keeps_unsent_messages_when_server_sequence_is_ahead() -> None:
    # Another process used the name, or the clock was set back. The server would drop duplicates.
    store = MemoryPublishStore()
    peer = Peer(store)
    publish(peer, b"1", b"2", b"3")
    peer.connect(last_persisted=FRESH + 1)
    assert peer.sent() == []
    assert peer.took(FailedWrite) == []
    assert store.unpersisted_count() == 3
    with pytest.raises(PublisherTakenOver, match="sent none above 0"):
        peer.core.flush(Named("f"), "processed")


def test_fresh_store_after_takeover_publishes_messages_of_the_old_store() -> None:
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


def test_takeover_with_empty_store_continues_above_foreign_sequences() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1")
    peer.say(Persisted(frame=1, sequence=FRESH))
    peer.lose()
    peer.sent()
    peer.later(10)
    peer.connect(last_persisted=FRESH + 5)
    # Not the next sequence: the other process may still hold messages with it.
    assert publish(peer, b"2") == [FRESH + 10**10]


def test_messages_above_the_last_persisted_sequence_are_sent() -> None:
    peer = Peer(MemoryPublishStore())
    publish(peer, b"1")
    peer.connect(last_persisted=FRESH - 1)
    assert bodies(peer.published()) == [[b"1"]]


def test_client_after_name_takeover_reconnects_only_outside_disconnect_handler() -> None:
    with socket_server() as server:
        displaced(server)


def displaced(server: SocketServer) -> None:
    client = Client("pricing-1", server.uri, publish_store=MemoryPublishStore())
    reported: list[BaseException] = []
    handled = threading.Event()

    def reconnect(lost: Client) -> None:
        try:
            lost.connect()
        finally:
            handled.set()

    client.set_exception_listener(reported.append)
    client.set_disconnect_handler(reconnect)
    server.sessions[0].say(Goodbye(code="name_in_use", text="taken over"))
    assert handled.wait(10)
    assert not client.connected
    assert len(server.logons) == 1
    client.connect()
    assert len(server.logons) == 2
    (error,) = reported
    assert isinstance(error, NameInUse)
    assert "outside of the disconnect handler" in str(error)
    client.close()


@pytest.mark.parametrize("last", [_LAST_USABLE + 1, last_persisted_max, last_persisted_max + 1, 2**64 - 1])
def test_last_persisted_without_sequences_left_ends_the_connection(last: int) -> None:
    store = MemoryPublishStore()
    peer = Peer(store)
    publish(peer, b"1", b"2")
    peer.connect(last_persisted=last)
    assert isinstance(peer.core.logon.ending, BadCommand)
    assert f"The last sequence at the server is {last}" in str(peer.core.logon.ending)
    assert "Use another client name with a fresh publish store" in str(peer.core.logon.ending)
    peer.lose()
    assert isinstance(peer.outcome("logon"), BadCommand)
    peer.connect()
    assert bodies(peer.published()) == [[b"1", b"2"]], "as after a first logon"


@pytest.mark.parametrize("last", [last_persisted_max, 2**64 - 1])
def test_client_name_without_sequences_left_is_usable_without_store(last: int) -> None:
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


def test_highest_usable_last_persisted_leaves_sequences_for_file_store(tmp_path: Path) -> None:
    store = FilePublishStore(tmp_path / "store")
    peer = Peer(store).connect(last_persisted=_LAST_USABLE)
    first = last_persisted_max - foreign_sequences_max
    assert publish(peer, b"1", b"2") == [first, first + 1]
    assert bodies(peer.published()) == [[b"1"]]
    peer.lose()
    assert [held.last for held in store.held()] == [first, first + 1]
    store.close()
