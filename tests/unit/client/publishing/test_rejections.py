"""Frames with rejected messages: the publish store, reports and resends."""

from __future__ import annotations

import pytest

from tests.helpers.publish_batches import held_batches
from tests.unit.client.peer import FRESH, Named, Peer, bodies, publish
from tickertape.base.errors import BadBody, BadCommand, Disconnected
from tickertape.client.common.effects import EndConnection, FailedWrite, ResolveCall
from tickertape.client.publish_store import MemoryPublishStore
from tickertape.wire.commands import LoggedOn, Persisted, Processed, Rejected


def refused(frame: int, *numbers: int) -> Rejected:
    return Rejected(frame=frame, sequence=numbers[-1], code="bad_body", text="no", refused=numbers)


def test_rejected_messages_leave_the_store_and_the_rest_stays_until_persisted() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"0")
    publish(peer, b"1", b"x", b"3")
    peer.say(Persisted(frame=1, sequence=FRESH))
    peer.say(refused(2, FRESH + 2))
    (failed,) = peer.took(FailedWrite)
    assert failed.messages == 1
    assert failed.batch is not None
    assert (failed.batch.bodies_list(), failed.batch.sequences.tolist()) == ([b"x"], [FRESH + 2])
    assert isinstance(failed.error.__cause__, BadBody)
    assert held_batches(store) == [[b"1", b"3"]]
    publish(peer, b"4")
    peer.say(Persisted(frame=2, sequence=FRESH + 3))
    assert held_batches(store) == [[b"4"]]


def test_rejections_of_a_frame_may_arrive_in_parts_and_cover_all_messages() -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"0")
    publish(peer, b"x", b"y", b"3")
    peer.say(Persisted(frame=1, sequence=FRESH))
    peer.say(refused(2, FRESH + 1))
    peer.say(refused(2, FRESH + 2))
    assert held_batches(store) == [[b"3"]]
    peer.say(refused(2, FRESH + 3))
    assert held_batches(store) == []
    assert [failed.messages for failed in peer.took(FailedWrite)] == [1, 1, 1]
    assert not peer.core.publishing.unsettled()
    rejection = peer.core.publishing.rejections.take()
    assert "rejected 3 messages" in str(rejection)


def test_rejections_without_store_are_counted_and_frame_stays_unsettled() -> None:
    peer = Peer().connect()
    publish(peer, b"0")
    publish(peer, b"1", b"x")
    peer.say(Persisted(frame=1))
    peer.say(refused(2, 1))
    (failed,) = peer.took(FailedWrite)
    assert (failed.messages, failed.batch) == (1, None)
    assert peer.core.publishing.unsettled()
    peer.say(Persisted(frame=2))
    assert not peer.core.publishing.unsettled()


def test_messages_with_lost_rejection_are_resent_for_validation() -> None:
    store = MemoryPublishStore()
    peer = Peer(store)
    hello = {"version": 0, "software": "", "instance": "a", "journal": "j", "epoch": 1, "publisher": 7}
    peer.open()
    peer.say(LoggedOn(last_persisted=0, validated=("orders",), **hello))  # type: ignore[arg-type]
    publish(peer, b"0", b"x", b"1", b"2")
    peer.say(Persisted(frame=1, sequence=FRESH))
    publish(peer, b"other", topic="fills")
    peer.sent()
    peer.lose()
    peer.open()
    peer.say(LoggedOn(last_persisted=FRESH + 3, validated=("orders",), **hello))  # type: ignore[arg-type]
    assert bodies(peer.published()) == [[b"x", b"1", b"2"], [b"other"]], "resent for validation by the server"
    peer.say(refused(1, FRESH + 1))
    assert [failed.messages for failed in peer.took(FailedWrite)] == [1]
    assert held_batches(store) == [[b"1", b"2"], [b"other"]]
    peer.say(Persisted(frame=2, sequence=FRESH + 4))
    assert held_batches(store) == []


def test_persisted_messages_without_validated_topics_are_not_resent() -> None:
    peer = Peer(MemoryPublishStore()).connect()
    publish(peer, b"0", b"1")
    peer.say(Persisted(frame=1, sequence=FRESH))
    peer.sent()
    peer.lose()
    peer.connect(last_persisted=FRESH + 1)
    assert peer.sent() == []


@pytest.mark.parametrize(
    "answer",
    [
        refused(1, 5),
        refused(2, FRESH),
        refused(2, FRESH + 1, FRESH + 4),
        refused(2, FRESH + 1, FRESH + 1, FRESH + 2, FRESH + 3),
        Processed(frame=1),
        Processed(frame=2),
    ],
)
def test_answer_that_contradicts_the_frame_ends_connection_and_store_keeps_all(
    answer: Rejected | Processed,
) -> None:
    store = MemoryPublishStore()
    peer = Peer(store).connect()
    publish(peer, b"0", b"1", b"2", b"3")
    if answer.frame == 2:
        peer.say(Persisted(frame=1, sequence=FRESH))
    peer.took(ResolveCall)
    peer.core.flush(Named("f"), "persisted")
    peer.say(answer)
    (hangup,) = peer.took(EndConnection)
    assert isinstance(hangup.error, BadCommand)
    assert (peer.took(FailedWrite), peer.took(ResolveCall)) == ([], [])
    peer.lose()
    assert isinstance(peer.outcome("f"), Disconnected)
    assert store.unpersisted_count() == 5 - answer.frame
    peer.sent()
    peer.connect(last_persisted=FRESH if answer.frame == 2 else 0)
    again = [body for frame in bodies(peer.published()) for body in frame]
    assert again == [b"0", b"1", b"2", b"3"][answer.frame - 1 :]


@pytest.mark.parametrize("numbers", [(0, 1, 2), (1, 1)])
def test_rejection_of_unsent_messages_without_store_ends_the_connection(
    numbers: tuple[int, ...],
) -> None:
    peer = Peer().connect()
    publish(peer, b"0")
    publish(peer, b"1", b"2")
    peer.say(Persisted(frame=1))
    peer.say(refused(2, *numbers))
    assert [type(hangup.error) for hangup in peer.took(EndConnection)] == [BadCommand]
