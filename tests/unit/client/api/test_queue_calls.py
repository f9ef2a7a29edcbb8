"""Acknowledgements of queue messages by all clients: threads, handlers, timeouts, lost connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import tickertape as tt
from tests.conformance.fronts import BOTH_FRONTS, Front, front_fixture
from tests.unit.client.queue_peer import Settled, read
from tests.unit.client.socket_server import SocketServer, socket_server
from tickertape.batch import batch_from_bodies
from tickertape.testing.server import wait_until
from tickertape.wire.settlement import QUEUE_TOPIC
from tickertape.wire.sow_command import SowDelete, encode_delete

WORK = "rec/work"


front = front_fixture(*BOTH_FRONTS)


@pytest.fixture
def server() -> Iterator[SocketServer]:
    with socket_server() as running:
        running.backlog = 100
        yield running


def settled(server: SocketServer) -> list[Settled]:
    """Return the settlements that the server recorded."""
    with server.lock:
        batches = list(server.log)
    return [
        read(batch.body(at))
        for batch in batches
        for at in range(batch.count)
        if batch.topic(at) == QUEUE_TOPIC
    ]


def acknowledged(server: SocketServer) -> int:
    """Return the number of acknowledged messages. Unanswered acknowledgements may be sent twice."""
    runs = [(queue, *run) for queue, action, of in settled(server) if action == "ack" for run in of]
    return len(
        {(queue, publisher, first + at) for queue, publisher, first, count in runs for at in range(count)}
    )


def make(front: Front, server: SocketServer, kind: str, **options: Any) -> tt.Client:
    """Return a connected client."""
    if kind == "plain":
        return front.connect("worker", server.uri, **options)
    client = front.make_ha("worker", servers=server.uri, reconnect_delay=0.01, **options)
    client.connect_and_logon()
    return client


def produce(server: SocketServer, count: int, first: int = 1) -> None:
    """Deliver `count` jobs to the consumers."""
    jobs = [str(number).encode() for number in range(first, first + count)]
    batch = batch_from_bodies(WORK, jobs, publisher=9, first_sequence=first)
    wait_until(lambda: server.sessions[-1].subscribed)  # a short time after the answer
    for session in tuple(server.sessions):
        session.hand_on(batch)


@pytest.mark.parametrize("kind", ["plain", "ha"])
def test_message_and_client_calls_settle_queue_messages(
    front: Front, server: SocketServer, kind: str
) -> None:
    client = make(front, server, kind)
    stream = client.subscribe(WORK, max_backlog=10)
    produce(server, 6)
    one, two, three, four, five, six = (stream.get(timeout=10) for _ in range(6))
    assert {message.topic for message in (one, six)} == {WORK}
    one.ack()
    two.cancel()
    client.ack(WORK, three)
    client.ack(WORK, four.bookmark or "", "expire")
    client.ack(WORK, [five, six], "lease_extension=2s")
    client.sow_delete(WORK, bookmark=[five])
    client.sow_delete(WORK, filter="/id > 1", options="cancel")
    client.publish_flush()
    actions = [action for _, action, _ in settled(server)]
    assert actions == ["ack", "cancel", "ack", "expire", "extend 2000", "ack", "cancel /id > 1"]
    assert {queue for queue, _, _ in settled(server)} == {WORK}


def test_queue_calls_with_invalid_arguments_raise(front: Front, server: SocketServer) -> None:
    client = make(front, server, "plain")
    with pytest.raises(tt.UsageError, match="without a selection"):
        client.sow_delete(WORK)
    with pytest.raises(tt.UsageError, match="with filter, bookmark together"):
        client.sow_delete(WORK, bookmark="1|1|", filter="TRUE")
    with pytest.raises(tt.BadOption):
        client.ack(WORK, "1|1|", "done")
    with pytest.raises(tt.BadTopic):
        client.publish(QUEUE_TOPIC, b"x")
    with pytest.raises(tt.BadOption):
        client.ack_batch_size = 0
    with pytest.raises(tt.BadOption):
        client.ack_timeout = "soon"
    with pytest.raises(tt.UsageError):
        client.auto_ack = 1  # type: ignore[assignment]
    for options in ({"max_backlog": 5}, {"browse": True}, {"options": "max_backlog=5"}):
        with pytest.raises(tt.BadOption, match="bookmark"):
            client.subscribe(WORK, bookmark=tt.EPOCH, **options)
    for wrong in (0, -1, "many", 1.5, True):
        with pytest.raises(tt.BadOption):
            client.subscribe(WORK, max_backlog=wrong)  # type: ignore[arg-type]
    assert (client.ack_batch_size, client.ack_timeout, client.auto_ack) == (1, 1.0, False)
    assert settled(server) == []


def test_batched_acknowledgements_are_sent_in_time_while_a_handler_blocks(
    front: Front, server: SocketServer
) -> None:
    client = make(front, server, "plain")
    client.ack_batch_size = 50
    client.ack_timeout = "50ms"
    assert (client.ack_batch_size, client.ack_timeout) == (50, 0.05)
    on = threading.Event()

    def handle(message: tt.Message) -> None:
        message.ack()
        if message.data == b"2" and front.kind == "blocking":
            on.wait(20)

    client.subscribe(WORK, on_message=handle)
    produce(server, 3)
    wait_until(lambda: acknowledged(server) >= 2)
    on.set()
    wait_until(lambda: acknowledged(server) == 3)
    time.sleep(0.15)  # the thread that sends acknowledgements may have ended, and a new one starts
    produce(server, 1, first=10)
    wait_until(lambda: acknowledged(server) == 4)


@pytest.mark.parametrize("kind", ["plain", "ha"])
def test_close_sends_batched_acknowledgements(front: Front, server: SocketServer, kind: str) -> None:
    client = make(front, server, kind)
    client.ack_batch_size = 50
    client.ack_timeout = 60
    stream = client.subscribe(WORK, max_backlog=100)
    produce(server, 3)
    for _ in range(3):
        stream.get(timeout=10).ack()
    assert acknowledged(server) == 0
    client.close()
    assert acknowledged(server) == 3


def test_shorter_ack_timeout_applies_at_once(front: Front, server: SocketServer) -> None:
    client = make(front, server, "plain")
    client.ack_batch_size = 50
    client.ack_timeout = 60
    stream = client.subscribe(WORK, max_backlog=100)
    produce(server, 2)
    stream.get(timeout=10).ack()
    client.ack_timeout = 0.02
    wait_until(lambda: acknowledged(server) == 1)
    stream.get(timeout=10).ack()
    wait_until(lambda: acknowledged(server) == 2)


def test_messages_can_be_acknowledged_from_any_thread(front: Front, server: SocketServer) -> None:
    client = make(front, server, "plain")
    client.ack_batch_size = 7
    client.ack_timeout = "20ms"
    stream = client.subscribe(WORK, max_backlog=100)
    produce(server, 100)
    messages = [stream.get(timeout=10) for _ in range(100)]

    def settle(part: list[tt.Message]) -> None:
        for message in part:
            message.ack()

    threads = [threading.Thread(target=settle, args=(messages[at::4],)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: acknowledged(server) >= 100)
    rows = [run for _, _, runs in settled(server) for run in runs]
    sequences = sorted(first + at for _, first, count in rows for at in range(count))
    assert sequences == sorted(message.sequence for message in messages)


def test_auto_ack_handler_acknowledges_on_return_and_cancels_on_exception(
    front: Front, server: SocketServer
) -> None:
    client = make(front, server, "plain")
    client.auto_ack = True
    reported: list[BaseException] = []
    client.set_exception_listener(reported.append)

    def handle(message: tt.Message) -> None:
        if message.data == b"2":
            raise ValueError

    client.subscribe(WORK, on_message=handle, max_backlog=10)
    produce(server, 3)
    wait_until(lambda: len(settled(server)) == 3)
    assert [action for _, action, _ in settled(server)] == ["ack", "cancel", "ack"]
    assert [type(error) for error in reported] == [ValueError]


def test_acknowledgements_of_lost_connection_are_sent_on_the_next(front: Front, server: SocketServer) -> None:
    client = make(front, server, "ha")
    messages: list[tt.Message] = []
    client.subscribe(WORK, on_message=messages.append, max_backlog=10)
    produce(server, 3)
    wait_until(lambda: len(messages) == 3)
    client.ack_batch_size = 10
    client.ack_timeout = 60
    messages[0].ack()
    server.drop()
    messages[1].ack()
    wait_until(lambda: acknowledged(server) == 2)
    wait_until(lambda: len(server.logons) >= 2)
    messages[2].ack()
    client.publish_flush(timeout=10)
    assert acknowledged(server) == 3


def test_acknowledgement_from_thread_during_connection_loss_runs_on_event_loop(
    server: SocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = Front("asyncio")
    losing, acknowledged_second = threading.Event(), threading.Event()
    threads: list[int] = []
    try:
        client = make(front, server, "ha")
        acks = client._driver.core.acks
        stream = client.subscribe(WORK, max_backlog=10)
        produce(server, 2)
        first, second = stream.get(timeout=10), stream.get(timeout=10)
        client.ack_batch_size, client.ack_timeout = 2, 60
        front.run(_here())  # the options are set: the first waits for the second, which fills the batch
        first.ack()
        lose, acknowledge = acks.lost, acks.acknowledged

        def lost() -> None:  # on the event loop, which has already detected the loss
            losing.set()
            acknowledged_second.wait(10)
            lose()

        def noted(*arguments: Any) -> None:
            threads.append(threading.get_ident())
            acknowledge(*arguments)

        monkeypatch.setattr(acks, "lost", lost)
        monkeypatch.setattr(acks, "acknowledged", noted)
        server.drop()
        assert losing.wait(10)
        second.ack()
        acknowledged_second.set()
        wait_until(lambda: acknowledged(server) == 2)
        assert threads == [front.run(_here())]
    finally:
        acknowledged_second.set()
        front.close()


async def _here() -> int:
    return threading.get_ident()


def test_acknowledgement_without_connection_and_store_raises(front: Front, server: SocketServer) -> None:
    client = make(front, server, "plain")
    stream = client.subscribe(WORK, max_backlog=10)
    produce(server, 2)
    message = stream.get(timeout=10)
    server.drop()
    wait_until(lambda: not client.connected)
    if front.kind == "blocking":
        with pytest.raises(tt.Disconnected):
            message.ack()
    with pytest.raises(tt.Disconnected):
        client.ack(WORK, "1|1|")
    with pytest.raises(tt.StreamEnded):
        stream.get(timeout=10)  # waiting messages were returned to the queue


@pytest.mark.parametrize(
    "answers", [[(None, False)], [(40, True), (None, False)], [(40, True), (40, True), (None, False)]]
)
def test_delete_with_a_lost_answer_has_unknown_counts(
    front: Front, server: SocketServer, answers: list[tuple[int | None, bool]]
) -> None:
    client = make(front, server, "plain", publish_store=tt.MemoryPublishStore())
    server.deletes.extend(answers)
    assert client.sow_delete("orders", keys=["a"]) == tt.DeleteResult(None, None, None)
    assert not server.deletes


@pytest.mark.parametrize("store", [False, True])
def test_delete_is_repeated_until_no_match_is_left(front: Front, server: SocketServer, store: bool) -> None:
    client = make(front, server, "plain", publish_store=tt.MemoryPublishStore() if store else None)
    server.deletes.extend([(40, True), (40, True), (5, False)])
    deleted = client.sow_delete("orders", keys=["a", "b"])
    assert deleted == tt.DeleteResult(records=85, matches=85, topic_matches=100, position=1_003)
    assert server.bodies() == [encode_delete(SowDelete(topic="orders", keys=("a", "b")))] * 3
    if store:
        assert len({int(batch.sequences[0]) for batch in server.log}) == 3
    server.deletes.extend([(40, True), (0, False)])
    assert client.sow_delete("orders", data=b"{}", wait=False) is None
    client.publish_flush()
    assert len(server.bodies()) == 4, "without a wait it is not repeated"


def test_delete_without_answer_times_out(front: Front, server: SocketServer) -> None:
    client = make(front, server, "plain")
    server.mute = True
    with pytest.raises(tt.TimedOut, match="sow_delete"):
        client.sow_delete("orders", keys=["a"], timeout=0.05)
    client.close(timeout=0.05)
