"""Publishing in the protocol machine: batching, sequences, acknowledgements, store, reconnection."""

from __future__ import annotations

import itertools
import re
import struct
from functools import partial

import pytest

from tests.helpers.publish_batches import held_batches
from tests.unit.client.peer import FRESH, START, Named, Peer, bodies, publish
from tickertape.base.errors import (
    BadCommand,
    BadMessage,
    BadTopic,
    Closed,
    Disconnected,
    MessageTooLarge,
    StoreFull,
    UsageError,
)
from tickertape.base.limits import batch_bytes_target, message_bytes_max
from tickertape.base.names import publisher_id
from tickertape.batch.encode import EncodedBodies, batch_from_bodies
from tickertape.client.common.effects import EndConnection, FailedWrite, ResolveCall, StoreHasRoom
from tickertape.client.limits import foreign_sequences_max
from tickertape.client.publish_store import MemoryPublishStore, Stored
from tickertape.wire.commands import Persisted, Processed, Publish, Rejected

ME = publisher_id("pricing-1")


def fill(peer: Peer, body: bytes) -> int:
    """Publish until the store is full and return the number of accepted messages."""
    for accepted in itertools.count():
        try:
            peer.core.publishing.publish("orders", body)
        except StoreFull:
            return accepted
    raise AssertionError


# -- batching -----------------------------------------------------------------------------------------


def test_first_message_is_sent_at_once_and_later_ones_are_batched() -> None:
    peer = Peer().connect()
    assert publish(peer, b"1", b"2", b"3") == [None, None, None]
    assert bodies(peer.published()) == [[b"1"]]
    peer.say(Persisted(frame=1))
    assert bodies(peer.published()) == [[b"2", b"3"]]
    peer.say(Persisted(frame=2))
    assert publish(peer, b"4") == [None]
    assert bodies(peer.published()) == [[b"4"]]


def test_batching_ends_at_the_batch_target() -> None:
    peer = Peer().connect()
    publish(peer, b"first")
    peer.sent()
    body = b"x" * 1000
    publish(peer, *[body] * 200)
    frames = peer.published()
    assert len(frames) == 1
    assert batch_bytes_target - 2100 < frames[0][1].cost <= batch_bytes_target
    assert peer.core.publishing.unsettled()


def test_large_message_is_sent_at_once_in_a_separate_frame() -> None:
    peer = Peer().connect()
    publish(peer, b"1", b"2")
    large = b"x" * (batch_bytes_target + 1)
    publish(peer, large, b"3")
    assert bodies(peer.published()) == [[b"1"], [b"2"], [large]]
    peer.say(Persisted(frame=3))
    assert bodies(peer.published()) == [[b"3"]]


def test_message_above_the_limit_raises_and_others_are_sent() -> None:
    peer = Peer().connect()
    publish(peer, b"1", b"2")
    with pytest.raises(MessageTooLarge, match="16,777,217"):
        publish(peer, bytes(message_bytes_max + 1))
    peer.say(Persisted(frame=1))
    assert bodies(peer.published()) == [[b"1"], [b"2"]]


def test_publish_to_pattern_raises_bad_topic() -> None:
    with pytest.raises(BadTopic):
        publish(Peer().connect(), b"1", topic="orders/.*")


def test_messages_of_several_topics_share_a_frame_in_order() -> None:
    peer = Peer().connect()
    publish(peer, b"0")
    for topic, body in (("a", b"1"), ("a", b"2"), ("b", b"3"), ("a", b"4")):
        publish(peer, body, topic=topic)
    peer.say(Persisted(frame=1))
    _, (_, batch) = peer.published()
    assert [(message.topic, message.data) for message in batch] == [
        ("a", b"1"),
        ("a", b"2"),
        ("b", b"3"),
        ("a", b"4"),
    ]


@pytest.mark.behaviour(11)
def test_expiration_correlation_id_and_key_are_sent_with_the_message() -> None:
    peer = Peer().connect()
    publish(peer, b"0", b"1")
    peer.core.publishing.publish("orders", b"2", 1500, "c-2", "k-2")
    publish(peer, b"3")
    peer.say(Persisted(frame=1))
    _, (_, batch) = peer.published()
    assert [(m.data, m.correlation_id, m.sow_key) for m in batch] == [
        (b"1", None, None),
        (b"2", "c-2", "k-2"),
        (b"3", None, None),
    ]
    assert batch.expirations is not None
    assert batch.expirations.tolist() == [0, 1500, 0]


def test_publish_whole_sends_one_frame_behind_batched_messages() -> None:
    peer = Peer(MemoryPublishStore()).connect()
    publish(peer, b"0", b"1")
    assert peer.publish_whole("orders", [b"2", b"3"]) == FRESH + 3
    assert bodies(peer.published()) == [[b"0"], [b"1"], [b"2", b"3"]]


# -- recorded and unrecorded topics -------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
def test_invalid_batch_is_neither_stored_nor_sent(stored: bool) -> None:
    peer = Peer(MemoryPublishStore() if stored else None).connect()
    falling = struct.pack("<4i", 0, 3, 2, 5)
    invalid = EncodedBodies(3, b"hello", falling, 0)
    with pytest.raises(BadMessage, match="body offset 2"):
        peer.core.publishing.publish_whole("orders", 3, 5, partial(invalid.batch, "orders"))
    assert peer.sent() == []
    publish(peer, b"good")
    assert bodies(peer.published()) == [[b"good"]]
    assert peer.core.publishing.unpersisted_count() == stored


def test_unrecorded_topics_are_sent_in_separate_unsequenced_frames() -> None:
    peer = Peer(MemoryPublishStore()).connect(recorded=("orders", "^fx/"))
    assert publish(peer, b"1") == [FRESH]
    assert publish(peer, b"tick", topic="ticks") == [None]
    assert publish(peer, b"2", topic="fx/usd") == [FRESH + 1]
    assert publish(peer, b"tock", topic="ticks") == [None]
    peer.say(Persisted(frame=1))
    peer.say(Processed(frame=2))
    frames = peer.published()
    assert [command for command, _ in frames] == [
        Publish(frame=1, sequenced=True),
        Publish(frame=2),
        Publish(frame=3, sequenced=True),
        Publish(frame=4),
    ]
    assert bodies(frames) == [[b"1"], [b"tick"], [b"2"], [b"tock"]]
    assert [batch.run(0).publisher for _, batch in frames] == [ME, 0, ME, 0]


def test_invalid_pattern_of_recorded_topics_ends_the_connection() -> None:
    peer = Peer().connect(recorded=("orders", "(?=a)"))
    (hangup,) = peer.took(EndConnection)
    assert isinstance(hangup.error, BadCommand)
    assert "look-ahead" in str(hangup.error)
    assert peer.core.logon.logged_on is None


@pytest.mark.behaviour(7)
def test_answer_to_unrecorded_publish_settles_no_recorded_message() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect(recorded=("orders",))
    publish(peer, b"1")
    publish(peer, b"tick", topic="ticks")
    peer.say(Processed(frame=2))
    assert held_batches(store) == [[b"1"]]
    publish(peer, b"2")
    assert bodies(peer.published()) == [[b"1"], [b"tick"]]


def test_persisted_settles_no_unrecorded_frame() -> None:
    peer = Peer().connect(recorded=("orders",))
    publish(peer, b"tick", topic="ticks")
    publish(peer, b"1")
    peer.say(Persisted(frame=2))
    publish(peer, b"tock", topic="ticks")
    assert bodies(peer.published()) == [[b"tick"], [b"1"]]


# -- sequences and the store --------------------------------------------------------------------------


@pytest.mark.behaviour(4)
def test_fresh_store_starts_above_the_clock_and_last_persisted() -> None:
    assert publish(Peer(MemoryPublishStore()).connect(), b"1") == [FRESH]
    later = FRESH + 10**15
    (sequence,) = publish(Peer(MemoryPublishStore()).connect(last_persisted=later), b"1")
    assert sequence == later + foreign_sequences_max + 1, "above sequences that another process may have used"


@pytest.mark.behaviour(4)
def test_used_store_continues_sequences_and_keeps_the_publisher_id() -> None:
    store = MemoryPublishStore()
    store.put(Stored(50, 51, batch_from_bodies("orders", [b"a", b"b"], publisher=ME, first_sequence=50)))
    peer = Peer(store).connect(last_persisted=49)
    assert publish(peer, b"c") == [52]
    peer.say(Persisted(frame=1, sequence=51))
    frames = peer.published()
    assert bodies(frames) == [[b"a", b"b"], [b"c"]]
    assert [(b.run(0).publisher, b.run(0).first_sequence) for _, b in frames] == [(ME, 50), (ME, 52)]


def test_sequences_have_no_gaps_across_messages_and_frames() -> None:
    peer = Peer(MemoryPublishStore()).connect()
    assert publish(peer, b"1", b"2", b"3") == [FRESH, FRESH + 1, FRESH + 2]
    peer.say(Persisted(frame=1, sequence=FRESH))
    assert [b.sequences.tolist() for _, b in peer.published()] == [[FRESH], [FRESH + 1, FRESH + 2]]


def test_store_keeps_messages_until_persisted() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1", b"2", b"3")
    assert peer.core.publishing.unpersisted_count() == 3
    peer.say(Persisted(frame=1, sequence=FRESH))
    assert held_batches(store) == [[b"2", b"3"]]
    peer.say(Persisted(frame=2, sequence=FRESH + 2))
    assert peer.core.publishing.unpersisted_count() == 0


def test_persisted_for_an_earlier_connection_settles_by_sequence() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1")
    peer.lose()
    peer.connect()
    peer.say(Persisted(frame=0, sequence=FRESH))
    assert held_batches(store) == []


@pytest.mark.parametrize("sequence", [FRESH + 1, 2**62])
@pytest.mark.parametrize("frame", [0, 1])
def test_persisted_above_sent_sequences_ends_connection_and_settles_nothing(
    frame: int, sequence: int
) -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1", b"2")  # the second is batched, so it was not sent
    peer.say(Persisted(frame=frame, sequence=sequence))
    (hangup,) = peer.took(EndConnection)
    assert isinstance(hangup.error, BadCommand)
    assert peer.core.publishing.unpersisted_count() == 2
    assert b"1" in held_batches(store)[0]


def test_persisted_flush_waits_only_for_earlier_messages() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1", b"2")
    peer.core.flush(Named("f"), "persisted")
    publish(peer, b"3")
    from_client = peer.sent()
    assert [type(command) for command, _ in from_client] == [Publish, Publish], "no separate command"
    peer.took(ResolveCall)
    peer.say(Persisted(frame=1))
    assert peer.took(ResolveCall) == []
    peer.say(Persisted(frame=2))
    assert peer.outcome("f") is None
    assert held_batches(store) == [[b"3"]]


def test_persisted_flush_waits_for_unrecorded_frames() -> None:
    peer = Peer().connect(recorded=("kept",))
    peer.core.publishing.publish("kept", b"1")
    peer.core.publishing.publish("gone", b"2")
    peer.core.flush(Named("f"), "persisted")
    peer.took(ResolveCall)
    peer.say(Persisted(frame=1))
    assert peer.took(ResolveCall) == []
    peer.say(Processed(frame=2))
    assert peer.outcome("f") is None


def test_flush_without_outstanding_messages_completes_at_once() -> None:
    peer = Peer().connect()
    peer.took(ResolveCall)
    peer.core.flush(Named("f"), "persisted")
    assert peer.outcome("f") is None


def test_replacement_of_store_with_messages_raises() -> None:
    peer = Peer(MemoryPublishStore()).connect()
    publish(peer, b"1", b"2")
    with pytest.raises(UsageError, match="2 message"):
        peer.core.set_store(MemoryPublishStore(), START)


@pytest.mark.behaviour(13)
def test_publish_store_can_be_set_while_connected() -> None:
    peer = Peer().connect(last_persisted=3)
    publish(peer, b"1", b"2")
    peer.core.set_store(MemoryPublishStore(), START)
    assert publish(peer, b"3") == [FRESH]
    peer.say(Persisted(frame=2))
    assert [(c.sequenced, b.bodies_list()) for c, b in peer.published()] == [
        (False, [b"1"]),
        (False, [b"2"]),
        (True, [b"3"]),
    ]


# -- refusals -----------------------------------------------------------------------------------------


def test_rejected_frame_is_removed_from_the_store_and_reported_once() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1", b"2", b"3")
    peer.say(Rejected(frame=1, sequence=FRESH, code="bad_message", text="no JSON"))
    ((error, messages, batch),) = peer.took(FailedWrite)
    assert str(error) == "bad_message: no JSON"
    assert messages == 1
    assert batch is not None
    assert batch.bodies_list() == [b"1"]
    assert bodies(peer.published()) == [[b"1"], [b"2", b"3"]]
    assert held_batches(store) == [[b"2", b"3"]]


def test_rejected_frame_without_store_is_reported_without_messages() -> None:
    peer = Peer().connect()
    publish(peer, b"1")
    peer.say(Rejected(frame=1, code="bad_message", text="no JSON"))
    ((_, messages, batch),) = peer.took(FailedWrite)
    assert (messages, batch) == (1, None)


def test_rejections_with_failed_write_handler_are_not_kept() -> None:
    peer = Peer().connect()
    peer.core.publishing.rejections.report = False
    publish(peer, b"1")
    peer.say(Rejected(frame=1, code="bad_message", text="no JSON"))
    assert peer.core.publishing.rejections.take() is None
    assert len(peer.took(FailedWrite)) == 1


# -- losing and regaining the connection --------------------------------------------------------------


@pytest.mark.behaviour(13)
def test_publish_while_disconnected_without_store_raises() -> None:
    peer = Peer().connect()
    publish(peer, b"1", b"2")
    peer.lose()
    with pytest.raises(Disconnected):
        publish(peer, b"3")
    peer.sent()
    peer.connect()
    publish(peer, b"4")
    assert bodies(peer.published()) == [[b"4"]]


@pytest.mark.behaviour(13)
def test_publish_while_disconnected_with_store_is_sent_after_reconnect() -> None:
    peer = Peer(MemoryPublishStore()).connect()
    publish(peer, b"1", b"2")
    peer.say(Persisted(frame=1, sequence=FRESH))
    peer.lose()
    assert publish(peer, b"3", b"4") == [FRESH + 2, FRESH + 3]
    peer.sent()
    peer.connect(last_persisted=FRESH)
    frames = peer.published()
    assert [command.frame for command, _ in frames] == [1, 2]
    assert bodies(frames) == [[b"2"], [b"3", b"4"]]
    assert publish(peer, b"5") == [FRESH + 4]


def test_messages_persisted_by_the_server_are_not_resent() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"1")
    peer.publish_whole("orders", [b"2", b"3"])
    peer.lose()
    peer.sent()
    peer.connect(last_persisted=FRESH + 1)
    ((command, batch),) = peer.published()
    assert command == Publish(frame=1, sequenced=True)
    assert batch.sequences.tolist() == [FRESH + 2]
    batch.verify()
    peer.say(Persisted(frame=1, sequence=FRESH + 2))
    assert store.unpersisted_count() == 0
    assert store.size_bytes == 0


@pytest.mark.parametrize("last_persisted", [0, FRESH + 1], ids=["nothing stored", "later message stored"])
def test_rejection_lost_with_the_connection_is_repeated(last_persisted: int) -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    peer.publish_whole("orders", [b"refused"])
    peer.publish_whole("orders", [b"good"])
    peer.lose()
    peer.sent()
    peer.connect(last_persisted=last_persisted, validated=("orders",))
    assert bodies(peer.published()) == [[b"refused"], [b"good"]]
    peer.say(Rejected(frame=1, sequence=FRESH, code="bad_message", text="no JSON"))
    ((_, messages, batch),) = peer.took(FailedWrite)
    assert messages == 1
    assert batch is not None
    assert batch.bodies_list() == [b"refused"]
    peer.say(Persisted(frame=2, sequence=FRESH + 1))
    assert store.unpersisted_count() == 0
    assert peer.core.publishing.rejections.take() is not None


# -- before the first logon ---------------------------------------------------------------------------


def test_messages_stored_before_first_logon_are_split_by_recorded_topics() -> None:
    store = MemoryPublishStore()
    peer = Peer(store)
    for topic, body in (("orders", b"1"), ("ticks", b"t"), ("orders", b"2")):
        publish(peer, body, topic=topic)
    peer.core.publishing.publish("ticks", b"u", 5, "c")
    peer.connect(recorded=("orders",))
    (unrecorded, apart), (recorded, rest) = peer.published()
    assert (unrecorded.sequenced, recorded.sequenced) == (False, True)
    assert [(m.data, m.correlation_id) for m in apart] == [(b"t", None), (b"u", "c")]
    assert rest.sequences.tolist() == [FRESH, FRESH + 2]
    peer.say(Persisted(frame=2, sequence=FRESH + 2))
    assert store.unpersisted_count() == 0
    assert publish(peer, b"3") == [FRESH + 4]


def test_publish_to_unrecorded_topic_while_disconnected_raises() -> None:
    peer = Peer(MemoryPublishStore()).connect(recorded=("orders",))
    peer.lose()
    with pytest.raises(Disconnected):
        publish(peer, b"tick", topic="ticks")


def test_publish_after_close_while_disconnected_raises_with_store() -> None:
    peer = Peer(MemoryPublishStore()).connect()
    peer.lose()
    peer.core.close()
    with pytest.raises(Closed):
        publish(peer, b"1")


# -- bounds -------------------------------------------------------------------------------------------


def test_full_store_rejects_publishes_and_reports_free_space() -> None:
    store = MemoryPublishStore(bytes_max=1000)
    peer = Peer(store).connect()
    accepted = fill(peer, b"x" * 100)
    assert 2 <= accepted <= 9
    assert store.size_bytes <= 1000
    assert peer.core.publishing.unpersisted_count() == accepted
    assert peer.took(StoreHasRoom) == []
    last = FRESH + accepted - 1
    peer.say(Persisted(frame=len(peer.published()), sequence=last))
    assert len(peer.took(StoreHasRoom)) == 1
    assert publish(peer, b"y") == [last + 1]


@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("size", [10, 500, 3_000])
def test_store_rejects_only_messages_that_do_not_fit(size: int, *, connected: bool) -> None:
    store = MemoryPublishStore(bytes_max=65_536, when_full="raise")
    peer = Peer(store)
    if connected:
        peer.connect()
    fill(peer, b"x" * size)
    with pytest.raises(StoreFull) as refused:  # and on a second attempt
        publish(peer, b"x" * size)
    held, bound, needed = (int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", str(refused.value)))
    assert (held, bound) == (store.size_bytes, 65_536)
    assert size < needed < size + 200
    assert held + needed > bound


def test_full_store_while_disconnected_stays_within_the_limit() -> None:
    store = MemoryPublishStore(bytes_max=300_000)
    peer = Peer(store)
    assert 3_000 < fill(peer, b"x" * 50) < 6_000
    peer.connect()
    assert 200_000 < store.size_bytes <= 300_000


def test_message_larger_than_the_store_raises_message_too_large() -> None:
    peer = Peer(MemoryPublishStore(bytes_max=1000)).connect()
    with pytest.raises(MessageTooLarge, match="bytes_max=1,000"):
        publish(peer, b"x" * 900)
