"""Resending at a server that does not record a topic: the store keeps what was accepted as recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.publish_batches import held_batches
from tests.unit.client.peer import FRESH, Named, Peer, bodies, publish
from tickertape.base.errors import Disconnected, StoreFailed, TopicNotRecorded
from tickertape.client.common.effects import ConnectionDown, EndConnection, ReportError
from tickertape.client.publish_store import FilePublishStore, HybridPublishStore, MemoryPublishStore
from tickertape.wire.commands import Persisted

Opened = FilePublishStore | HybridPublishStore


def held(store: MemoryPublishStore | Opened) -> list[bytes]:
    return [body for batch in held_batches(store) for body in batch]


def test_server_that_does_not_record_a_held_topic_gets_nothing_and_the_store_keeps_all() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1", b"2", b"3")
    peer.lose()
    peer.sent()
    peer.connect(recorded=("other",))
    assert peer.sent() == []
    (hangup,) = peer.took(EndConnection)
    assert isinstance(hangup.error, TopicNotRecorded)
    assert "'orders'" in str(hangup.error)
    assert "all 3 message" in str(hangup.error)
    assert [type(told.error) for told in peer.took(ReportError)] == [TopicNotRecorded]
    assert held(store) == [b"1", b"2", b"3"]
    assert peer.outcome("logon") is not None


def test_what_is_published_while_such_a_server_is_left_is_kept_too() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1")
    peer.lose()
    peer.sent()
    peer.connect(recorded=("other",))
    assert publish(peer, b"2") == [FRESH + 1], "before its end is noticed"
    peer.lose()
    assert publish(peer, b"3") == [FRESH + 2]
    peer.sent()
    peer.connect()
    assert bodies(peer.published()) == [[b"1"], [b"2"], [b"3"]]
    peer.say(Persisted(frame=3, sequence=FRESH + 2))
    assert store.unpersisted_count() == 0


def test_such_a_server_is_told_once_until_the_store_could_be_sent() -> None:
    peer = Peer(MemoryPublishStore()).connect()
    publish(peer, b"1")
    peer.lose()
    for told in (1, 0):
        peer.connect(recorded=("other",))
        assert len(peer.took(ReportError)) == told
        peer.lose()
        (down,) = peer.took(ConnectionDown)[-1:]
        assert isinstance(down.error, TopicNotRecorded)
    peer.connect()
    peer.lose()
    peer.connect(recorded=("other",))
    assert len(peer.took(ReportError)) == 1


def test_calls_after_such_a_logon_say_why() -> None:
    peer = Peer(MemoryPublishStore()).connect()
    publish(peer, b"1")
    peer.lose()
    peer.connect(recorded=("other",))
    peer.lose()
    with pytest.raises(Disconnected, match="does not record topic 'orders'"):
        peer.core.flush(Named("f"), "persisted")


def test_what_lies_before_such_a_message_is_sent_and_what_lies_behind_it_is_not() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    for topic in ("orders", "ticks", "orders"):
        peer.publish_whole(topic, [topic.encode()])
    peer.lose()
    peer.sent()
    peer.connect(recorded=("orders",))
    assert bodies(peer.published()) == [[b"orders"]]
    assert held(store) == [b"orders", b"ticks", b"orders"]


def test_store_of_an_earlier_process_is_not_emptied_at_such_a_server(tmp_path: Path) -> None:
    with FilePublishStore(tmp_path / "store") as store:
        peer = Peer(store).connect()
        publish(peer, b"1", b"2")
        peer.lose()
    with FilePublishStore(tmp_path / "store") as store:
        peer = Peer(store).connect(recorded=("other",))
        assert peer.sent() == []
        assert [type(hangup.error) for hangup in peer.took(EndConnection)] == [TopicNotRecorded]
        assert held(store) == [b"1", b"2"]


def test_messages_from_before_the_first_logon_are_sent_unsequenced_on_a_second_connection_too() -> None:
    store = MemoryPublishStore()
    peer = Peer(store)
    publish(peer, b"t", topic="ticks")
    peer.open()
    peer.lose()
    peer.connect(recorded=("orders",))
    ((command, batch),) = peer.published()
    assert not command.sequenced
    assert batch.bodies_list() == [b"t"]
    assert store.unpersisted_count() == 0


def test_messages_from_before_the_first_logon_are_kept_once_a_server_recorded_their_topic() -> None:
    store = MemoryPublishStore()
    peer = Peer(store)
    publish(peer, b"1")
    peer.connect()
    peer.lose()
    peer.sent()
    peer.connect(recorded=("other",))
    assert peer.sent() == []
    assert held(store) == [b"1"]


def test_store_that_such_a_server_cannot_take_may_be_replaced() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1")
    peer.lose()
    peer.connect(recorded=("other",))
    peer.lose()
    peer.core.set_store(MemoryPublishStore(), peer.now)
    peer.connect(recorded=("other",))
    assert publish(peer, b"2") == [None]
    assert held(store) == [b"1"]


def test_store_that_the_present_server_cannot_take_ends_the_connection() -> None:
    store = MemoryPublishStore()
    first = Peer(store).connect()
    publish(first, b"1")
    first.lose()
    peer = Peer().connect(recorded=("other",))
    peer.core.set_store(store, peer.now)
    assert [type(hangup.error) for hangup in peer.took(EndConnection)] == [TopicNotRecorded]
    assert held(store) == [b"1"]


@pytest.mark.parametrize("kind", [FilePublishStore, HybridPublishStore])
def test_messages_of_a_process_that_never_logged_on_are_sent_unsequenced_by_the_next(
    kind: type[Opened], tmp_path: Path
) -> None:
    with kind(tmp_path / "store") as store:
        peer = Peer(store)
        peer.publish_whole("ticks", [b"t"])
        peer.publish_whole("orders", [b"o"])
    with kind(tmp_path / "store") as store:
        peer = Peer(store).connect(recorded=("orders",))
        sent = [(command.sequenced, batch.bodies_list()) for command, batch in peer.published()]
        assert sent == [(False, [b"t"]), (True, [b"o"])]
        assert peer.took(EndConnection) == []
        assert held(store) == [b"o"]
        (told,) = peer.took(ReportError)
        assert isinstance(told.error, TopicNotRecorded)
        assert "1 message(s) for topic 'ticks'" in str(told.error), "nothing leaves the store in silence"


def test_store_that_was_logged_on_with_once_keeps_messages_for_the_processes_after_it(tmp_path: Path) -> None:
    with FilePublishStore(tmp_path / "store") as store:
        peer = Peer(store)
        publish(peer, b"1")
        peer.connect()
        peer.lose()
    with FilePublishStore(tmp_path / "store") as store:
        publish(Peer(store), b"2")
    with FilePublishStore(tmp_path / "store") as store:
        peer = Peer(store).connect(recorded=("other",))
        assert peer.sent() == []
        assert [type(hangup.error) for hangup in peer.took(EndConnection)] == [TopicNotRecorded]
        assert held(store) == [b"1", b"2"]


def test_store_given_to_a_client_that_was_logged_on_keeps_its_messages_for_the_next_process(
    tmp_path: Path,
) -> None:
    peer = Peer().connect()
    peer.lose()
    with FilePublishStore(tmp_path / "store") as store:
        peer.core.set_store(store, peer.now)
        publish(peer, b"1")
        peer.lose()
    with FilePublishStore(tmp_path / "store") as store:
        Peer(store).connect(recorded=("other",))
        assert held(store) == [b"1"]


@pytest.mark.parametrize("recorded", [("orders",), ()])
def test_store_of_before_the_first_logon_may_be_given_to_a_connected_client(
    recorded: tuple[str, ...],
) -> None:
    store = MemoryPublishStore()
    Peer(store).publish_whole("orders", [b"1", b"2"])
    peer = Peer().connect(recorded=recorded)
    peer.core.set_store(store, peer.now)
    assert peer.took(EndConnection) == []
    assert bodies(peer.published()) == [[b"1", b"2"]]
    assert held(store) == ([b"1", b"2"] if recorded else [])
    assert not store.never_logged_on


def test_logon_that_cannot_be_noted_sends_nothing_and_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: FilePublishStore) -> None:
        raise StoreFailed("the disk is full")

    with FilePublishStore(tmp_path / "store") as store:
        peer = Peer(store)
        publish(peer, b"1")
        peer.lose()
        monkeypatch.setattr(FilePublishStore, "note_logon", full)
        peer.connect(recorded=())
        assert peer.sent() == []
        assert [type(hangup.error) for hangup in peer.took(EndConnection)] == [StoreFailed]
        assert held(store) == [b"1"]
