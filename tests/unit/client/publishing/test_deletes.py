"""Deletes of records and deltas: order, stores, resends, answers, and rejections."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.publish_batches import held_batches
from tests.unit.client.peer import FRESH, Named, Peer, bodies, publish
from tickertape.base.errors import (
    BadCommand,
    BadTopic,
    Closed,
    Disconnected,
    PublisherTakenOver,
    PublishRejected,
    UsageError,
)
from tickertape.base.limits import sow_searches_per_frame_max
from tickertape.batch.format import FLAG_DELTA
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.effects import EndConnection, FailedWrite, ResolveCall
from tickertape.client.protocol.core import ClientProtocol
from tickertape.client.publish_store import FilePublishStore, HybridPublishStore, MemoryPublishStore
from tickertape.client.publish_store.protocol import PublishStore
from tickertape.client.publishing import resend
from tickertape.wire.commands import Deleted, Persisted, Processed, Rejected
from tickertape.wire.sow_command import SOW_TOPIC, SowDelete, decode_delete, encode_delete

BODY = encode_delete(SowDelete(topic="orders", filter="/id > 1"))
KINDS = ("none", "memory", "file", "hybrid")


def store_of(kind: str, path: Path) -> PublishStore | None:
    if kind == "memory":
        return MemoryPublishStore()
    if kind == "file":
        return FilePublishStore(path / "store")
    return HybridPublishStore(path / "store") if kind == "hybrid" else None


def deleted(frame: int, sequence: int = 0, *, count: int = 2, more: bool = False) -> Deleted:
    return Deleted(frame=frame, sequence=sequence, matches=count, topic_matches=5, deleted=count, more=more)


def reconnecting(store: PublishStore | None) -> Peer:
    """Return a peer of a client that reconnects."""
    peer = Peer()
    peer.core = ClientProtocol("pricing-1", reconnects=True)
    if store is not None:
        peer.core.set_store(store, peer.now)
    return again(peer)


def again(peer: Peer, last_persisted: int = 0) -> Peer:
    """Connect a client that reconnects."""
    peer.connect(last_persisted=last_persisted)
    peer.core.resume_publishing(peer.now)
    return peer


@pytest.mark.parametrize("kind", KINDS)
def test_delete_is_sent_in_order_in_a_frame_without_other_messages(kind: str, tmp_path: Path) -> None:
    peer = Peer(store_of(kind, tmp_path)).connect()
    publish(peer, b"1", b"2")
    peer.core.delete(Named("d"), BODY)
    publish(peer, b"3")
    frames = peer.published()
    assert bodies(frames) == [[b"1"], [b"2"], [BODY]], "the last one waits for an acknowledgement"
    assert frames[2][1].topics == (SOW_TOPIC,)
    first = 0 if kind == "none" else FRESH
    assert int(frames[2][1].sequences[0]) == (first and first + 2)


@pytest.mark.parametrize("kind", KINDS)
def test_answer_resolves_the_call_before_the_acknowledgement(kind: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path)
    peer = Peer(store).connect()
    peer.core.delete(Named("d"), BODY)
    answer = deleted(1, 0 if store is None else FRESH)
    peer.say(answer)
    assert peer.outcome("d") == answer
    peer.say(Persisted(frame=1, sequence=0 if store is None else FRESH))
    assert not peer.took(ResolveCall)
    assert store is None or store.unpersisted_count() == 0


def test_delete_without_waiter_shares_a_frame_and_needs_no_call(tmp_path: Path) -> None:
    peer = Peer(FilePublishStore(tmp_path / "store")).connect()
    publish(peer, b"1")
    assert peer.core.publishing.delete(BODY) == FRESH + 1
    publish(peer, b"2")
    peer.say(Persisted(frame=1, sequence=FRESH))
    assert bodies(peer.published()) == [[b"1"], [BODY, b"2"]]
    peer.took(ResolveCall)
    peer.say(deleted(2, FRESH + 1))
    assert not peer.took(ResolveCall)
    assert not peer.took(EndConnection)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_have_at_most_as_many_deletes_as_a_server_accepts(kind: str, tmp_path: Path) -> None:
    peer = Peer(store_of(kind, tmp_path)).connect()
    publish(peer, b"1")
    most = sow_searches_per_frame_max
    for _ in range(2 * most + 3):
        peer.core.publishing.delete(BODY)
        publish(peer, b"2")
    peer.say(Persisted(frame=1, sequence=0 if kind == "none" else FRESH))
    counts = [frame.count(BODY) for frame in bodies(peer.published())]
    assert (max(counts), sum(counts)) == (most, 2 * most + 3)


@pytest.mark.parametrize("kind", ["file", "hybrid"])
def test_deletes_of_an_opened_store_are_resent_in_frames_that_a_server_accepts(
    kind: str, tmp_path: Path
) -> None:
    store = store_of(kind, tmp_path)
    assert isinstance(store, FilePublishStore | HybridPublishStore)
    peer = reconnecting(store)
    peer.lose()
    for _ in range(3 * sow_searches_per_frame_max):
        peer.core.publishing.delete(BODY)
    store.close()
    opened = reconnecting(store_of(kind, tmp_path))
    counts = [frame.count(BODY) for frame in bodies(opened.published())]
    assert counts == [sow_searches_per_frame_max] * 3


@pytest.mark.parametrize("kind", KINDS[1:])
def test_lost_answer_is_repeated_after_the_resend_of_a_persisted_delete(kind: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path)
    peer = reconnecting(store)
    publish(peer, b"1")
    peer.core.delete(Named("d"), BODY)
    publish(peer, b"2")
    peer.lose()
    assert not [one for one in peer.took(ResolveCall) if one.token == "d"]
    peer.sent()
    again(peer, last_persisted=FRESH + 1)
    assert bodies(peer.published()) == [[BODY], [b"2"]]
    peer.say(deleted(1, FRESH + 1))
    assert peer.outcome("d") == deleted(1, FRESH + 1)


def test_lost_rejection_is_repeated_after_the_resend_and_raises_in_the_call() -> None:
    store = MemoryPublishStore()
    peer = reconnecting(store)
    peer.core.delete(Named("d"), BODY)
    publish(peer, b"2")
    peer.core.publishing.flush()
    peer.lose()
    peer.sent()
    again(peer, last_persisted=FRESH + 1)
    assert bodies(peer.published()) == [[BODY], [b"2"]]
    peer.say(Rejected(frame=1, sequence=FRESH, code="bad_topic", text="no SOW"))
    assert isinstance(next(one.outcome for one in peer.took(ResolveCall) if one.token == "d"), BadTopic)
    peer.say(Persisted(frame=2, sequence=FRESH + 1))
    assert store.unpersisted_count() == 0


def test_lost_connection_fails_the_call_of_a_client_that_does_not_reconnect() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    peer.core.delete(Named("d"), BODY)
    peer.lose()
    assert isinstance(peer.outcome("d"), Disconnected)
    assert [body for batch in held_batches(store) for body in batch] == [BODY]


def test_lost_connection_fails_the_call_without_a_store() -> None:
    peer = reconnecting(None)
    peer.core.delete(Named("d"), BODY)
    peer.lose()
    assert isinstance(peer.outcome("d"), Disconnected)


def test_end_of_connecting_fails_calls_that_wait_for_a_resend() -> None:
    peer = reconnecting(MemoryPublishStore())
    peer.core.delete(Named("d"), BODY)
    peer.lose()
    peer.took(ResolveCall)
    peer.core.logon.stop(Disconnected("no server"))
    assert isinstance(peer.outcome("d"), Disconnected)


def test_close_while_disconnected_fails_calls_that_wait_for_a_resend() -> None:
    peer = reconnecting(MemoryPublishStore())
    peer.core.delete(Named("d"), BODY)
    peer.lose()
    peer.took(ResolveCall)
    peer.core.close()
    assert isinstance(peer.outcome("d"), Closed)


def test_takeover_of_the_name_fails_calls_that_wait_for_a_resend() -> None:
    peer = reconnecting(MemoryPublishStore())
    peer.core.delete(Named("d"), BODY)
    peer.lose()
    peer.took(ResolveCall)
    again(peer, last_persisted=FRESH + 7)
    assert isinstance(peer.outcome("d"), PublisherTakenOver)
    with pytest.raises(PublisherTakenOver):
        peer.core.delete(Named("e"), BODY)


@pytest.mark.parametrize("kind", KINDS)
def test_rejected_delete_raises_in_the_call_and_not_in_the_next_flush(kind: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path)
    peer = Peer(store).connect()
    peer.core.delete(Named("d"), BODY)
    sequence = 0 if store is None else FRESH
    peer.say(Rejected(frame=1, sequence=sequence, code="bad_topic", text="no SOW", refused=(sequence,)))
    outcome = peer.outcome("d")
    assert isinstance(outcome, BadTopic)
    assert str(outcome) == "no SOW"
    assert not peer.took(FailedWrite)
    assert peer.core.publishing.rejections.take() is None
    assert store is None or store.unpersisted_count() == 0


def test_rejected_delete_without_a_call_is_reported_like_a_publish() -> None:
    peer = Peer(MemoryPublishStore()).connect()
    peer.core.publishing.delete(BODY)
    peer.say(Rejected(frame=1, sequence=FRESH, code="bad_topic", text="no SOW"))
    assert len(peer.took(FailedWrite)) == 1


def test_persisted_delete_without_answer_fails_the_call() -> None:
    for store in (None, MemoryPublishStore()):
        peer = Peer(store).connect()
        peer.core.delete(Named("d"), BODY)
        peer.say(Persisted(frame=1, sequence=0 if store is None else FRESH))
        outcome = peer.outcome("d")
        assert isinstance(outcome, BadCommand)
        assert "without an answer" in str(outcome)


@pytest.mark.parametrize("kind", ["nothing sent", "a publish", "answered"])
def test_answer_without_an_unanswered_delete_ends_the_connection(kind: str) -> None:
    peer = Peer(MemoryPublishStore()).connect()
    if kind == "a publish":
        publish(peer, b"1")
    elif kind == "answered":
        peer.core.delete(Named("d"), BODY)
        peer.say(deleted(1, FRESH))
        peer.say(Persisted(frame=1, sequence=FRESH))
    peer.say(deleted(1, FRESH))
    (end,) = peer.took(EndConnection)
    assert isinstance(end.error, BadCommand)


@pytest.mark.parametrize("kind", KINDS)
def test_delete_topic_counts_as_persistent_on_every_server(kind: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path)
    peer = Peer(store).connect(recorded=("other",))
    peer.core.delete(Named("d"), BODY)
    ((command, batch),) = peer.published()
    assert command.sequenced == (store is not None)
    assert decode_delete(bytes(batch.body(0))).filter == "/id > 1"
    peer.say(Processed(frame=1))
    ended = [end.error for end in peer.took(EndConnection)]
    assert len(ended) == (store is not None), "a stored delete is never settled as a transient message"


def test_delete_stored_before_the_first_logon_keeps_the_sequence(tmp_path: Path) -> None:
    store = FilePublishStore(tmp_path / "store")
    peer = Peer(store)
    peer.core.logon.begin()
    peer.core.publishing.delete(BODY)
    peer.connect(recorded=("other",))
    ((command, batch),) = peer.published()
    assert command.sequenced
    assert batch.topics == (SOW_TOPIC,)
    assert int(batch.sequences[0]) == FRESH


# -- deltas -------------------------------------------------------------------------------------------


def flags_at(batch: MessageBatch, at: int) -> int:
    return 0 if batch.message_flags is None else int(batch.message_flags[at])


def delta(peer: Peer, body: bytes, key: str = "", topic: str = "orders") -> int | None:
    return peer.core.publishing.publish(topic, body, 0, "", key, delta=True)


@pytest.mark.parametrize("kind", KINDS)
def test_delta_has_the_flag_and_a_place_in_the_order(kind: str, tmp_path: Path) -> None:
    peer = Peer(store_of(kind, tmp_path)).connect()
    publish(peer, b"1")
    sequences = [delta(peer, b"2", "k"), *publish(peer, b"3"), delta(peer, b"4")]
    first = None if kind == "none" else FRESH
    assert sequences == [None if first is None else first + at for at in (1, 2, 3)]
    found = []
    for frame in (1, 2, 3, 4):
        for _, batch in peer.published():
            found += [(bytes(batch.body(at)), flags_at(batch, at)) for at in range(batch.count)]
            assert kind != "none" or not batch.has_sequences
            keys = [batch.key(at) or "" for at in range(batch.count)]
            assert keys == ["k" * (bytes(batch.body(at)) == b"2") for at in range(batch.count)]
            peer.say(Persisted(frame=frame, sequence=int(batch.sequences[-1])))
    assert found == [(b"1", 0), (b"2", FLAG_DELTA), (b"3", 0), (b"4", FLAG_DELTA)]


@pytest.mark.parametrize("kind", ["file", "hybrid"])
def test_delta_survives_the_process_with_flag_and_sequence(kind: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path)
    assert isinstance(store, FilePublishStore | HybridPublishStore)
    peer = Peer(store).connect()
    publish(peer, b"1")
    delta(peer, b"2", "k")
    publish(peer, b"3")
    peer.core.close()
    store.close()
    reopened = store_of(kind, tmp_path)
    assert reopened is not None
    found = [
        (bytes(batch.body(at)), int(batch.sequences[at]) - FRESH, batch.key(at) or "", flags_at(batch, at))
        for _, _, batch in reopened.held()
        for at in range(batch.count)
    ]
    assert found == [(b"1", 0, "", 0), (b"2", 1, "k", FLAG_DELTA), (b"3", 2, "", 0)]
    reopened.close()


@pytest.mark.parametrize("kind", KINDS[1:])
def test_deltas_and_deletes_are_resent_in_frames_that_a_server_accepts(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resend, "sow_deltas_per_frame_max", 64)
    peer = reconnecting(store_of(kind, tmp_path))
    publish(peer, b"first")
    sent = []
    for number in range(300):
        body = b"%d" % number
        if number % 100 < 80:
            delta(peer, body)
        elif number % 2:
            peer.core.publishing.delete(BODY)
            body = BODY
        else:
            publish(peer, body)
        sent.append(body)
    peer.lose()
    again(peer)
    frames = peer.published()
    assert [one for frame in bodies(frames) for one in frame] == [b"first", *sent]
    for _, batch in frames:
        flags = batch.message_flags
        deltas = 0 if flags is None else int((flags & FLAG_DELTA != 0).sum())
        deletes = sum(batch.topic(at) == SOW_TOPIC for at in range(batch.count))
        assert deltas <= 64
        assert deletes <= sow_searches_per_frame_max
        assert deltas + 4 * deletes <= 64 + 3


def test_delta_of_a_topic_that_is_not_persistent_keeps_the_flag_when_sent_apart() -> None:
    peer = Peer(MemoryPublishStore())
    peer.core.logon.begin()
    delta(peer, b"1", topic="live")
    publish(peer, b"2", topic="live")
    peer.connect(recorded=("other",))
    ((command, batch),) = peer.published()
    assert not command.sequenced
    assert [flags_at(batch, at) for at in (0, 1)] == [FLAG_DELTA, 0]


def test_waiter_of_the_former_store_fails_with_another_store() -> None:
    peer = reconnecting(MemoryPublishStore())
    publish(peer, b"1")
    peer.core.delete(Named("d"), BODY)
    peer.lose()
    peer.took(ResolveCall)
    peer.connect(recorded=("other",))
    peer.core.resume_publishing(peer.now)
    peer.lose()
    assert [call.token for call in peer.took(ResolveCall)] == ["logon"]
    peer.core.set_store(MemoryPublishStore(), peer.now)
    assert isinstance(peer.outcome("d"), UsageError)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_rejection_of_an_abandoned_delete_is_one_of_a_publish(kind: str, tmp_path: Path) -> None:
    peer = Peer(store_of(kind, tmp_path)).connect()
    waiter = Named("d")
    peer.core.delete(waiter, BODY)
    peer.took(ResolveCall)
    peer.core.publishing.deletes.abandon(waiter)
    peer.say(Rejected(frame=1, sequence=FRESH, code="bad_topic", text="no SOW", refused=(FRESH,)))
    assert not peer.took(ResolveCall)
    assert isinstance(peer.core.publishing.rejections.take(), PublishRejected)
