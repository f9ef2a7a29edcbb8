"""Both clients with a scripted server that rejects, is silent or does not read."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tests.unit.client.socket_server import SocketServer, log_on_and_stop_reading, socket_server
from tickertape.testing.server import wait_until
from tickertape.wire.commands import Goodbye, PersistedNotice


@pytest.fixture
def server() -> Iterator[SocketServer]:
    with socket_server() as running:
        yield running


# -- refusals -----------------------------------------------------------------------------------------


def test_rejected_logon_raises_and_connect_can_be_retried(front: Front, server: SocketServer) -> None:
    lost: list[object] = []
    client = front.make("c", server.uri)
    client.set_disconnect_handler(lost.append)
    server.refuse = Goodbye(code="publisher_collision", text="choose another")
    with pytest.raises(tt.Refused, match="choose another"):
        client.connect()
    server.refuse = None
    client.connect()
    client.publish("orders", b"1")
    client.publish_flush()
    assert lost == []


def test_flush_raises_rejected_messages_once(front: Front, server: SocketServer) -> None:
    client = front.connect("c", server.uri)
    client.publish("rec/refused", b"1")
    with pytest.raises(tt.PublishRejected, match="rejected 1 message"):
        client.publish_flush()
    client.publish_flush()


def test_failed_write_handler_receives_rejected_messages(front: Front, server: SocketServer) -> None:
    reported: list[tuple[tt.TickertapeError, tt.MessageBatch | None]] = []
    client = front.connect("c", server.uri, publish_store=tt.MemoryPublishStore())
    client.set_failed_write_handler(lambda error, batch: reported.append((error, batch)))
    client.publish("rec/refused", b"1")
    client.publish_flush()
    wait_until(lambda: len(reported) == 1)
    ((error, batch),) = reported
    assert isinstance(error, tt.PublishRejected)
    assert batch is not None
    assert batch.bodies_list() == [b"1"]
    assert client.unpersisted_count() == 0


def test_close_reports_rejected_messages_to_exception_listener(front: Front, server: SocketServer) -> None:
    reported: list[BaseException] = []
    client = front.connect("c", server.uri)
    client.set_exception_listener(reported.append)
    client.publish("rec/refused", b"1")
    client.close()
    assert [type(error) for error in reported] == [tt.PublishRejected]


# -- a full store -------------------------------------------------------------------------------------


def test_publish_with_full_store_waits_for_acknowledgements(front: Front, server: SocketServer) -> None:
    client = front.connect("c", server.uri, publish_store=tt.MemoryPublishStore(4_000))
    for number in range(300):
        client.publish("orders", b"%03d" % number + b"x" * 100)
    client.publish_flush()
    assert [body[:3] for body in server.bodies()] == [b"%03d" % number for number in range(300)]


def test_publish_with_full_store_waits_through_reconnect_by_handler(
    front: Front, server: SocketServer
) -> None:
    """A disconnect handler is set, and may reconnect."""
    server.mute = True
    lost, again, back = threading.Event(), threading.Event(), threading.Event()

    def wait_for_leave() -> None:
        lost.set()
        again.wait(10)

    client = front.connect("c", server.uri, publish_store=tt.MemoryPublishStore(4_000))
    client.set_disconnect_handler(front.reconnecting(wait_for_leave, back.set))
    bodies = [b"%03d" % number + b"x" * 100 for number in range(100)]
    publisher = threading.Thread(target=client.publish_batch, args=("orders", bodies))
    publisher.start()
    wait_until(lambda: client.unpersisted_count() > 10)
    server.drop()
    assert lost.wait(10)
    server.mute = False
    publisher.join(0.05)
    assert publisher.is_alive()  # full and without a connection, so the call waits
    again.set()
    publisher.join(10)
    assert back.wait(10)
    client.publish_flush()
    assert server.bodies() == bodies


def test_publish_with_full_store_raises_without_reconnect_or_after_close(
    front: Front, server: SocketServer
) -> None:
    server.mute = True
    client = front.connect("c", server.uri, publish_store=tt.MemoryPublishStore(1_000))
    client.publish_batch("orders", [b"x" * 300] * 2)
    server.drop()
    wait_until(lambda: not client.connected)
    with pytest.raises(tt.Disconnected, match=r"it is not connected \(.*\)\. .*publish store"):
        client.publish_batch("orders", [b"x" * 300] * 5)
    client.set_disconnect_handler(lambda _: None)
    closing = threading.Timer(0.05, client.close)
    closing.start()
    with pytest.raises(tt.Closed):
        client.publish_batch("orders", [b"x" * 300] * 5)
    closing.join()


def test_publish_with_full_store_waits_for_the_timeout_of_the_call(
    front: Front, server: SocketServer
) -> None:
    server.mute = True
    client = front.connect("c", server.uri, publish_store=tt.MemoryPublishStore(1_000))
    client.publish_batch("orders", [b"x" * 300] * 2)
    calls: list[Callable[..., object]] = [
        lambda limit: client.publish("orders", b"x" * 500, timeout=limit),
        lambda limit: client.publish("orders", b"x" * 500, timeout=limit, correlation_id="c"),
        lambda limit: client.publish_batch("orders", [b"x" * 500], timeout=limit),
        lambda limit: client.publish_arrow("orders", pa.array([b"x" * 500]), timeout=limit),
        lambda limit: client.execute(tt.Command("publish", "orders", data=b"x" * 500), timeout=limit),
    ]
    for call in calls:
        with pytest.raises(tt.TimedOut, match=r"no free space within 0\.02 s"):
            call("20ms")
        with pytest.raises(tt.BadOption):
            call("soon")
    for number in range(3):
        with pytest.raises(tt.BadOption):  # also if the call does not wait
            client.publish("un/recorded", b"%d" % number, timeout="soon")
        client.publish("un/recorded", b"%d" % number, timeout=None)
    assert client.unpersisted_count() == 2
    server.drop()


# -- a server that does not read ----------------------------------------------------------------------


def test_publish_to_server_that_does_not_read_times_out(front: Front) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        read_on = threading.Event()
        server = threading.Thread(target=log_on_and_stop_reading, args=(listener, read_on))
        server.start()
        client = front.connect("c", f"tcp://127.0.0.1:{listener.getsockname()[1]}", timeout=0.2)
        column = pa.array([bytes(200_000)] * 100)
        calls: list[Callable[..., object]] = [
            lambda **limit: client.publish("orders", bytes(200_000), **limit),
            lambda **limit: client.publish_batch("orders", [bytes(200_000)] * 100, **limit),
            lambda **limit: client.publish_arrow("orders", column, **limit),
        ]
        try:
            with pytest.raises(tt.TimedOut, match=r"accepted no data within 0\.2 s"):
                client.publish_batch("orders", [bytes(200_000)] * 1_000)
            for call in calls:
                with pytest.raises(tt.TimedOut):
                    call()
                with pytest.raises(tt.TimedOut, match=r"within 0\.03 s"):
                    call(timeout="30ms")
        finally:
            read_on.set()
        client.close(timeout=0)
        server.join()


# -- persisted notices --------------------------------------------------------------------------------


def test_persisted_notice_advances_recovery_point_of_quiet_subscription(
    front: Front, server: SocketServer
) -> None:
    client = front.connect("c", server.uri)
    stream = client.bookmark_subscribe("orders", tt.EPOCH, sub_id="quiet")
    server.sessions[0].say(PersistedNotice(sub_ids=("quiet", "unknown"), publisher=7, sequence=9))
    wait_until(lambda: stream.recovery_point == "7|9|")
    client.publish("orders", b"1")
    client.publish_flush()
    client.publish_flush(level="processed")  # answered after the message was delivered
    server.sessions[0].say(PersistedNotice(sub_ids=("quiet",), publisher=7, sequence=10))
    client.publish_flush(level="processed")  # the notice has arrived, and waits for the message
    assert stream.recovery_point == "7|9|"
    assert stream.get(10).data == b"1"
    with pytest.raises(tt.TimedOut):
        stream.get(0)
    assert stream.recovery_point == "7|10|"


# -- other ways to a server ---------------------------------------------------------------------------


def test_client_publishes_over_a_unix_socket(front: Front, tmp_path: Path) -> None:
    with socket_server(tmp_path / "server") as server:
        client = front.connect("c", server.uri)
        client.publish("orders", b"1")
        client.publish_flush()
        assert server.bodies() == [b"1"]
        client.close()
        with pytest.raises(tt.Disconnected):
            front.connect("c", f"unix://{tmp_path}/nobody")


def test_client_sends_user_and_password_of_the_address(front: Front, server: SocketServer) -> None:
    uri = server.uri.replace("tcp://", "tcp://ann:s%20t@")
    front.connect("c", uri)
    front.connect("d", uri, user="bob", password="x")
    shown = [(logon.name, logon.user, logon.password) for logon in server.logons]
    assert shown == [("c", "ann", "s t"), ("d", "bob", "x")]
