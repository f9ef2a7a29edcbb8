"""Resends to a server that does not record a topic: the store keeps messages accepted as recorded."""

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


def test_server_without_recorded_topic_gets_nothing_and_store_keeps_all() -> None:
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
    assert [type(report.error) for report in peer.took(ReportError)] == [TopicNotRecorded]
    assert held(store) == [b"1", b"2", b"3"]
    assert peer.outcome("logon") is not None


def test_messages_published_while_leaving_an_unfit_server_are_kept() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1")
    peer.lose()
    peer.sent()
    peer.connect(recorded=("other",))
    assert publish(peer, b"2") == [FRESH + 1], "before the end of the connection is detected"
    peer.lose()
    assert publish(peer, b"3") == [FRESH + 2]
    peer.sent()
    peer.connect()
    assert bodies(peer.published()) == [[b"1"], [b"2"], [b"3"]]
    peer.say(Persisted(frame=3, sequence=FRESH + 2))
    assert store.unpersisted_count() == 0


def test_unfit_server_is_reported_once_until_the_store_is_sent() -> None:
    peer = Peer(MemoryPublishStore()).connect()
    publish(peer, b"1")
    peer.lose()
    for reports in (1, 0):
        peer.connect(recorded=("other",))
        assert len(peer.took(ReportError)) == reports
        peer.lose()
        (down,) = peer.took(ConnectionDown)[-1:]
        assert isinstance(down.error, TopicNotRecorded)
    peer.connect()
    peer.lose()
    peer.connect(recorded=("other",))
    assert len(peer.took(ReportError)) == 1


def test_calls_after_logon_at_unfit_server_raise_with_the_reason() -> None:
    peer = Peer(MemoryPublishStore()).connect()
    publish(peer, b"1")
    peer.lose()
    peer.connect(recorded=("other",))
    peer.lose()
    with pytest.raises(Disconnected, match="topic 'orders' is not persistent"):
        peer.core.flush(Named("f"), "persisted")


def test_resend_stops_at_the_first_message_of_an_unrecorded_topic() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    for topic in ("orders", "ticks", "orders"):
        peer.publish_whole(topic, [topic.encode()])
    peer.lose()
    peer.sent()
    peer.connect(recorded=("orders",))
    assert bodies(peer.published()) == [[b"orders"]]
    assert held(store) == [b"orders", b"ticks", b"orders"]


def test_store_of_an_earlier_process_is_kept_at_unfit_server(tmp_path: Path) -> None:
    with FilePublishStore(tmp_path / "store") as store:
        peer = Peer(store).connect()
        publish(peer, b"1", b"2")
        peer.lose()
    with FilePublishStore(tmp_path / "store") as store:
        peer = Peer(store).connect(recorded=("other",))
        assert peer.sent() == []
        assert [type(hangup.error) for hangup in peer.took(EndConnection)] == [TopicNotRecorded]
        assert held(store) == [b"1", b"2"]


def test_messages_from_before_first_logon_are_unsequenced_on_second_connection() -> None:
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


def test_messages_from_before_first_logon_are_kept_after_a_recording_server() -> None:
    store = MemoryPublishStore()
    peer = Peer(store)
    publish(peer, b"1")
    peer.connect()
    peer.lose()
    peer.sent()
    peer.connect(recorded=("other",))
    assert peer.sent() == []
    assert held(store) == [b"1"]


def test_store_unfit_for_the_server_may_be_replaced() -> None:
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


def test_set_store_unfit_for_the_server_ends_the_connection() -> None:
    store = MemoryPublishStore()
    first = Peer(store).connect()
    publish(first, b"1")
    first.lose()
    peer = Peer().connect(recorded=("other",))
    peer.core.set_store(store, peer.now)
    assert [type(hangup.error) for hangup in peer.took(EndConnection)] == [TopicNotRecorded]
    assert held(store) == [b"1"]


@pytest.mark.parametrize("kind", [FilePublishStore, HybridPublishStore])
def test_messages_of_process_without_logon_are_unsequenced_in_the_next(
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
        (report,) = peer.took(ReportError)
        assert isinstance(report.error, TopicNotRecorded)
        assert "1 message(s) for topic 'ticks'" in str(report.error), (
            "messages that leave the store are reported"
        )


def test_store_with_earlier_logon_keeps_messages_for_later_processes(tmp_path: Path) -> None:
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


def test_store_set_on_logged_on_client_keeps_messages_for_next_process(
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
def test_store_without_logon_may_be_set_on_connected_client(
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


def test_logon_that_cannot_be_recorded_sends_nothing_and_ends_connection(
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
