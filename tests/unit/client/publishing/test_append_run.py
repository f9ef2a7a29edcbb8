"""Publishing without a lock: runs of a thread, their end by other threads, concurrent publishers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from tests.unit.client.peer import FRESH, Peer, bodies
from tests.unit.client.socket_server import SocketServer, socket_server
from tickertape.base.limits import batch_bytes_target, message_cost_bytes
from tickertape.client.blocking.client import Client
from tickertape.client.publish_store import MemoryPublishStore
from tickertape.client.publishing.send_buffer import CLOSED
from tickertape.wire.commands import Persisted

ME = 77


def with_run(*texts: bytes) -> Peer:
    """Return a peer with one message in flight and an open run of `ME` with `texts` appended."""
    peer = Peer(MemoryPublishStore()).connect()
    for text in (b"0", b"1", b"2"):
        peer.core.publishing.publish("orders", text, owner=ME)
    run = peer.core.publishing.run
    assert run.owner == ME
    assert (run.base, len(run.bodies)) == (FRESH + 1, 2)
    run.bodies.extend(texts)
    return peer


def test_appended_messages_of_a_run_are_in_the_next_frame() -> None:
    peer = with_run(b"3", b"4")
    assert peer.core.publishing.unpersisted_count() == 5
    peer.say(Persisted(frame=1, sequence=FRESH))
    assert peer.core.publishing.run is CLOSED
    assert bodies(peer.published()) == [[b"0"], [b"1", b"2", b"3", b"4"]]
    assert peer.core.publishing.publish("orders", b"5") == FRESH + 5


def test_append_before_the_end_of_the_run_keeps_the_sequence() -> None:
    peer = with_run(b"3")
    run = peer.core.publishing.run
    peer.say(Persisted(frame=1, sequence=FRESH))
    assert peer.core.publishing.publish_again(run, 2, b"3") == FRESH + 3
    assert bodies(peer.published()) == [[b"0"], [b"1", b"2", b"3"]]


def test_append_after_the_end_of_the_run_is_published_once() -> None:
    peer = with_run(b"3")
    run = peer.core.publishing.run
    peer.say(Persisted(frame=1, sequence=FRESH))
    run.bodies.append(b"late")
    assert peer.core.publishing.publish_again(run, 3, b"late") == FRESH + 4
    peer.say(Persisted(frame=2, sequence=FRESH + 3))
    assert bodies(peer.published()) == [[b"0"], [b"1", b"2", b"3"], [b"late"]]


def test_run_is_limited_to_the_size_of_a_frame() -> None:
    peer = Peer(MemoryPublishStore()).connect()
    for size in (1, 100, 200, 150):
        peer.core.publishing.publish("orders", bytes(size), owner=ME)
    run = peer.core.publishing.run
    assert run.body_bytes_max >= 150
    assert run.count_max * (150 + message_cost_bytes) < batch_bytes_target
    assert run.count_max * (run.body_bytes_max + message_cost_bytes) > batch_bytes_target * 9 // 10


def test_run_without_store_has_no_sequences() -> None:
    peer = Peer().connect()
    for text in (b"0", b"1", b"2"):
        peer.core.publishing.publish("orders", text, owner=ME)
    assert peer.core.publishing.run.base is None


def test_connection_loss_without_store_ends_the_run() -> None:
    peer = Peer().connect()
    for text in (b"0", b"1", b"2"):
        peer.core.publishing.publish("orders", text, owner=ME)
    peer.lose()
    assert peer.core.publishing.run is CLOSED
    assert not peer.core.publishing.unsettled()


@pytest.fixture
def busy() -> Iterator[None]:
    """Make the interpreter switch threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("busy")
def test_concurrent_publishers_use_each_sequence_once() -> None:
    with socket_server() as server, Client("p", server.uri, publish_store=MemoryPublishStore()) as client:
        given: list[dict[int, bytes]] = [{} for _ in range(3)]

        def work(number: int) -> None:
            for i in range(1500):
                body = b"%d %d" % (number, i)
                sequence = client.publish("orders", body)
                assert sequence is not None
                given[number][sequence] = body
                if i % 400 == 0:
                    client.publish_flush()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.publish_flush()
        assert_stored(server, given)


def assert_stored(server: SocketServer, given: list[dict[int, bytes]]) -> None:
    stored = {message.sequence: message.data for batch in server.log for message in batch}
    assert len(stored) == 4500
    assert {n: body for numbers in given for n, body in numbers.items()} == stored
