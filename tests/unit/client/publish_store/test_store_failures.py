"""A publish store that fails at a connection loss: no message is lost, and the error is reported."""

from __future__ import annotations

import struct

import pytest

from tests.helpers.publish_batches import held_batches
from tests.unit.client.peer import FRESH, Named, Peer, bodies, publish
from tickertape.base.errors import Closed, Disconnected, StoreError, StoreFailed
from tickertape.base.limits import batch_bytes_target, message_cost_bytes
from tickertape.client.common.connection_state import ConnectionState
from tickertape.client.common.effects import ConnectionDown, End, ReportError, ResolveCall, State
from tickertape.client.common.subscribe_arguments import make_request
from tickertape.client.publish_store import MemoryPublishStore
from tickertape.client.publish_store.protocol import Stored
from tickertape.wire.commands import Ack, Persisted

FULL = StoreFailed("no space left on device")


class FailingStore(MemoryPublishStore):
    """A store whose next puts raise the members of `errors`."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Exception] = []

    def put(self, stored: Stored) -> None:
        if self.errors:
            raise self.errors.pop()
        super().put(stored)


def gathering() -> tuple[FailingStore, Peer]:
    """Return a peer with one message in flight and two batched ones."""
    store = FailingStore()
    peer = Peer(store).connect()
    assert publish(peer, b"1", b"2", b"3") == [FRESH, FRESH + 1, FRESH + 2]
    peer.sent()
    return store, peer


def reports(peer: Peer) -> list[tuple[object, str]]:
    """Return the reported causes and numbers of messages that could not be stored."""
    errors = [report.error for report in peer.took(ReportError)]
    return [(error.__cause__, str(error).split()[2]) for error in errors]


@pytest.mark.parametrize("error", [FULL, OSError("boom"), struct.error("out of range")])
def test_failed_put_at_connection_loss_loses_nothing_and_is_the_cause(error: Exception) -> None:
    store, peer = gathering()
    peer.core.subscribe(Named("s"), make_request("orders", "s"), Named("sink"))
    peer.say(Ack(id=1))
    peer.core.flush(Named("f"), "persisted")
    publish(peer, b"4")
    store.errors = [error] * 2
    peer.lose()
    ((cause, connection),) = peer.took(ConnectionDown)
    assert (isinstance(cause, StoreError), connection) == (True, 1)
    assert cause is error or cause.__cause__ is error
    assert isinstance(peer.outcome("f"), Disconnected)
    assert [end.sink for end in peer.took(End)] == ["sink"]
    assert State(ConnectionState.DISCONNECTED) in peer.took(State)
    assert reports(peer) == [(cause, "1")], "the error is reported once"
    assert peer.core.publishing.unpersisted_count() == 4
    assert publish(peer, b"5") == [FRESH + 4]
    peer.connect()
    assert [body for frame in bodies(peer.published()) for body in frame] == [b"1", b"2", b"3", b"4", b"5"]


def test_failed_put_at_connection_loss_is_retried() -> None:
    store, peer = gathering()
    store.errors = [FULL]
    peer.lose()
    assert held_batches(store) == [[b"1"], [b"2", b"3"]]
    assert peer.core.publishing.unpersisted_count() == 3


def test_put_that_fails_after_the_logon_ends_the_connection() -> None:
    store, peer = gathering()
    store.errors = [OSError("boom")] * 3
    peer.lose()
    peer.took(ConnectionDown)
    peer.connect()
    assert isinstance(peer.core.logon.ending, StoreFailed)
    peer.lose()
    assert peer.core.publishing.unpersisted_count() == 3
    peer.connect()
    assert [body for frame in bodies(peer.published()) for body in frame] == [b"1", b"2", b"3"]


def test_close_with_failing_store_closes_and_reports_the_error() -> None:
    store, peer = gathering()
    store.errors = [FULL] * 9
    peer.core.close()
    peer.lose()
    assert reports(peer) == [(FULL, "2")]
    assert peer.took(State)[-1] == State(ConnectionState.SHUTDOWN)
    with pytest.raises(Closed):
        publish(peer, b"4")


def test_close_while_disconnected_reports_messages_not_stored() -> None:
    store, peer = gathering()
    peer.lose()
    publish(peer, b"4")
    store.errors = [FULL] * 9
    peer.core.close()
    assert reports(peer) == [(FULL, "1")]
    assert peer.core.publishing.unpersisted_count() == 4


def test_store_failure_after_a_successful_put_is_reported_once_more() -> None:
    store, peer = gathering()
    store.errors = [FULL] * 2
    peer.lose()
    peer.connect()
    peer.say(Persisted(frame=1, sequence=FRESH))
    assert len(peer.took(ReportError)) == 1
    publish(peer, b"4")
    store.errors = [FULL] * 2
    peer.lose()
    assert len(peer.took(ReportError)) == 1
    assert peer.took(ResolveCall)


@pytest.mark.parametrize("error", [FULL, OSError("boom")])
def test_message_with_failed_put_is_not_sent_later(error: Exception) -> None:
    store = FailingStore()
    peer = Peer(store).connect()
    store.errors = [error]
    with pytest.raises(StoreError):
        publish(peer, b"refused")
    assert peer.core.publishing.unpersisted_count() == 0
    assert publish(peer, b"1") == [FRESH], "the sequence is used again"
    assert bodies(peer.published()) == [[b"1"]]
    assert held_batches(store) == [[b"1"]]


@pytest.mark.parametrize("labels", [(), (1500, "c", "k")])
def test_failed_put_keeps_messages_batched_before(
    labels: tuple[int, str, str] | tuple[()],
) -> None:
    store, peer = gathering()
    store.errors = [OSError("boom")]
    two = 2 * (1 + message_cost_bytes)
    large = b"x" * (batch_bytes_target - two - message_cost_bytes)  # with the two others exactly the target
    with pytest.raises(StoreFailed, match="boom"):
        peer.core.publishing.publish("orders", large, *labels)
    assert publish(peer, b"4") == [FRESH + 3]
    peer.say(Persisted(frame=1, sequence=FRESH))
    assert bodies(peer.published()) == [[b"2", b"3", b"4"]]
    assert [stored.last for stored in store.held()] == [FRESH + 3]


def test_batch_with_failed_put_is_not_sent_later() -> None:
    store = FailingStore()
    peer = Peer(store).connect()
    store.errors = [OSError("boom")]
    with pytest.raises(StoreFailed, match="boom"):
        peer.publish_whole("orders", [b"1", b"2"])
    assert publish(peer, b"3") == [FRESH]
    assert bodies(peer.published()) == [[b"3"]]
