"""With conflated acknowledgements, messages share frames while the connection is busy."""

from __future__ import annotations

import pytest

from tests.unit.client.peer import FRESH, Peer, bodies, publish
from tickertape.base.limits import batch_bytes_target, message_cost_bytes
from tickertape.client.publish_store.memory import MemoryPublishStore
from tickertape.wire.commands import Flush, Persisted, Processed, Publish

TEXTS = [b"%04d" % number for number in range(1_000)]


def conflating(store: MemoryPublishStore | None = None) -> Peer:
    peer = Peer(store)
    peer.core.logon.set_ack_conflation("1s")
    return peer.connect()


def written(peer: Peer) -> None:
    """Report that the driver wrote all frames."""
    peer.core.written(peer.core.publishing.unwritten_frame)


@pytest.mark.parametrize("stored", [False, True])
def test_messages_behind_a_busy_writer_share_frames_without_acknowledgement(*, stored: bool) -> None:
    peer = conflating(MemoryPublishStore() if stored else None)
    frames = []
    for start in range(0, 1_000, 100):  # the writer is free after each 100 messages
        publish(peer, *TEXTS[start : start + 100])
        written(peer)
        frames += peer.published()
    written(peer)
    assert [len(texts) for texts in bodies(frames)] == [1, 99] + [100] * 9
    assert [text for texts in bodies(frames) for text in texts] == TEXTS
    assert [command.frame for command, _ in frames] == list(range(1, 12))
    assert not peer.core.publishing.unwritten_frame


def test_message_after_a_quiet_period_is_sent_at_once() -> None:
    peer = conflating()
    for text in TEXTS[:5]:
        publish(peer, text)
        assert bodies(peer.published()) == [[text]]
        written(peer)
        assert not peer.sent()


def test_written_report_of_an_earlier_frame_sends_nothing() -> None:
    peer = conflating()
    publish(peer, b"a")
    first = peer.core.publishing.unwritten_frame
    publish(peer, bytes(batch_bytes_target - message_cost_bytes), b"b")
    assert len(peer.published()) == 2
    peer.core.written(first)
    assert not peer.sent()
    written(peer)
    assert bodies(peer.published()) == [[b"b"]]


def test_busy_writer_batches_up_to_the_frame_limit() -> None:
    peer = conflating()
    size = batch_bytes_target // 8 - message_cost_bytes
    publish(peer, *[bytes(size)] * 17)
    assert [len(texts) for texts in bodies(peer.published())] == [1, 8, 8]


def test_messages_of_unrecorded_topics_share_frames() -> None:
    peer = Peer()
    peer.core.logon.set_ack_conflation("1s")
    peer.connect(recorded=("orders",))
    for text in TEXTS[:10]:
        publish(peer, text)
        publish(peer, text, topic="quotes")
    written(peer)
    frames = peer.published()
    assert bodies([frame for frame in frames if frame[1].topic(0) == "orders"]) == [TEXTS[:1], TEXTS[1:10]]
    assert bodies([frame for frame in frames if frame[1].topic(0) == "quotes"]) == [TEXTS[:1], TEXTS[1:10]]
    written(peer)
    publish(peer, b"next")
    publish(peer, b"next", topic="quotes")
    assert bodies(peer.published()) == [[b"next"]] * 2


def test_acknowledgement_while_frames_are_written_leaves_the_writer_busy() -> None:
    peer = conflating()
    publish(peer, b"a")
    peer.say(Persisted(frame=1, sequence=0))
    publish(peer, b"b", b"c")
    assert bodies(peer.published()) == [[b"a"]]
    written(peer)
    assert bodies(peer.published()) == [[b"b", b"c"]]


def test_messages_behind_a_backlog_are_sent_after_the_backlog() -> None:
    store = MemoryPublishStore()
    peer = Peer(store)
    peer.core.logon.set_ack_conflation("1s")
    big = bytes(batch_bytes_target)
    publish(peer, *[big] * 20)
    peer.connect(last_persisted=FRESH - 1)
    sent = [command for command, _ in peer.sent() if isinstance(command, Publish)]
    assert 0 < len(sent) < 20
    publish(peer, b"new")
    written(peer)
    assert not peer.sent()  # the backlog is sent first
    while sent:
        peer.say(Persisted(frame=sent[-1].frame, sequence=FRESH - 1 + sent[-1].frame))
        commands = peer.sent()
        sent = [command for command, _ in commands if isinstance(command, Publish)]
        last = commands[-1] if commands else None
        assert all(isinstance(command, Publish | Flush) for command, _ in commands)
        written(peer)
    assert last is None
    assert store.unpersisted_count() == 0
    publish(peer, b"x")
    assert bodies(peer.published()) == [[b"x"]]


def test_settlements_do_not_wait_for_the_writer() -> None:
    peer = conflating()
    publish(peer, b"a", b"b")
    peer.sent()
    assert peer.core.publishing.settle(b"done") is False
    assert bodies(peer.published()) == [[b"b", b"done"]]


def test_lost_connection_clears_the_unwritten_frame() -> None:
    peer = conflating()
    publish(peer, b"a", b"b")
    peer.lose()
    assert not peer.core.publishing.unwritten_frame
    peer.core.written(1)
    peer.connect()
    peer.sent()
    publish(peer, b"c")
    assert bodies(peer.published()) == [[b"c"]]


def test_publisher_without_conflation_needs_no_written_report() -> None:
    peer = Peer().connect()
    publish(peer, b"a", b"b")
    assert not peer.core.publishing.unwritten_frame
    peer.core.written(1)
    assert bodies(peer.published()) == [[b"a"]]
    peer.say(Processed(frame=1))
