"""The blocking client against a small real server, over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.client.socket_server import SocketServer, log_on_and_stop_reading, socket_server
from tickertape.base.bookmarks import EPOCH
from tickertape.base.errors import (
    BadMessage,
    BadOption,
    Closed,
    Disconnected,
    NameInUse,
    PublishRejected,
    StoreFull,
    StreamEnded,
    TickertapeError,
    TimedOut,
    UsageError,
)
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.blocking.client import Client
from tickertape.client.publish_store import MemoryPublishStore
from tickertape.testing.server import wait_until
from tickertape.wire.commands import Goodbye


@pytest.fixture
def server() -> Iterator[SocketServer]:
    with socket_server() as running:
        yield running


@pytest.fixture
def client(server: SocketServer) -> Iterator[Client]:
    with Client("pricing-1", server.uri) as connected:
        yield connected


# -- connecting ---------------------------------------------------------------------------------------


def test_client_connects_and_sends_credentials_of_the_address(server: SocketServer) -> None:
    uri = server.uri.replace("tcp://", "tcp://ann:s%20t@")
    with Client("pricing-1", uri) as client:
        assert client.connected
        assert client.server is not None
        assert client.server.instance == "ny-1"
        client.connect()
    (logon,) = server.logons
    assert (logon.name, logon.user, logon.password) == ("pricing-1", "ann", "s t")


def test_client_publishes_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "server"
    with socket_server(path) as server, Client("pricing-1", server.uri) as client:
        client.publish("orders", b"1")
        client.publish_flush()
        assert server.bodies() == [b"1"]


def test_rejected_logon_raises_and_connect_can_be_retried(server: SocketServer) -> None:
    server.refuse = Goodbye(code="name_in_use", text="taken")
    lost: list[Client] = []
    client = Client("pricing-1", server.uri, connect=False)
    client.set_disconnect_handler(lost.append)
    with pytest.raises(NameInUse, match="taken"):
        client.connect()
    server.refuse = None
    client.connect()
    assert lost == []
    client.close()


def test_client_without_server_raises_disconnected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Disconnected, match="Cannot connect"):
        Client("pricing-1", f"tcp://127.0.0.1:{port}")


def test_connect_to_silent_server_times_out_and_can_be_retried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Client("a", f"tcp://127.0.0.1:{silent.getsockname()[1]}", timeout="50ms", connect=False)
        for _ in range(2):
            with pytest.raises(TimedOut, match="no Tickertape server answered"):
                client.connect()
        client.close()


@pytest.mark.parametrize(
    "uri", ["http://a:1", "tcp://a", "tcp://:1", "a:1", "unix://a", "tcp://a:99999", "tcp://a:1/amps/json"]
)
def test_client_with_invalid_uri_raises(uri: str) -> None:
    with pytest.raises(BadOption):
        Client("a", uri)


def test_error_about_invalid_uri_hides_the_password() -> None:
    with pytest.raises(BadOption) as caught:
        Client("a", "tcp://ann:secret@host:1/path")
    assert "secret" not in str(caught.value)


# -- publishing ---------------------------------------------------------------------------------------


def test_publish_and_flush_send_bodies_in_order(server: SocketServer, client: Client) -> None:
    assert client.publish("orders", {"id": 1}) is None
    assert client.publish("orders", "text") is None
    assert client.publish("orders", b"bytes") is None
    client.publish_flush(timeout=10)
    assert server.bodies() == [b'{"id":1}', b"text", b"bytes"]
    with pytest.raises(BadMessage):
        client.publish("orders", object())


@pytest.mark.behaviour(11)
def test_publish_sends_expiration_correlation_id_and_key(server: SocketServer, client: Client) -> None:
    client.publish("orders", b"1", expiration="2s", correlation_id="c", sow_key="k")
    client.publish("orders", b"2", expiration=0.5)
    client.publish_flush(level="processed")
    first, second = (message for batch in server.log for message in batch)
    assert (first.correlation_id, first.sow_key, second.correlation_id) == ("c", "k", None)
    assert [batch.expirations.tolist() for batch in server.log if batch.expirations is not None] == [
        [2000],
        [500],
    ]


def test_publish_batch_keeps_order_and_returns_the_last_sequence(server: SocketServer) -> None:
    with Client("pricing-1", server.uri, publish_store=MemoryPublishStore()) as client:
        first = client.publish("orders", b"first")
        assert first is not None
        texts = [f"message {i}" for i in range(20_000)]
        assert client.publish_batch("orders", texts) == first + 20_000
        assert client.publish_batch("orders", []) is None
        client.publish_flush()
        assert client.unpersisted_count() == 0
    assert server.bodies() == [b"first", *(text.encode() for text in texts)]
    assert 5 < len(server.log) < 30


def test_close_waits_until_the_server_has_all_messages(server: SocketServer) -> None:
    with Client("pricing-1", server.uri) as client:
        for i in range(1000):
            client.publish("orders", b"%d" % i)
    assert server.bodies() == [b"%d" % i for i in range(1000)]
    with pytest.raises(Closed):
        client.publish("orders", b"late")
    with pytest.raises(Closed):
        client.connect()
    client.close()


def test_publishes_from_many_threads_are_each_sent_once(server: SocketServer, client: Client) -> None:
    def work(worker: int) -> None:
        for i in range(300):
            client.publish("orders", b"%d %d" % (worker, i))

    workers = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    client.publish_flush()
    bodies = server.bodies()
    assert len(bodies) == 1200
    for worker in range(4):
        mine = [body for body in bodies if body.startswith(b"%d " % worker)]
        assert mine == [b"%d %d" % (worker, i) for i in range(300)]


def test_flush_raises_rejected_messages_once(client: Client) -> None:
    client.publish("rec/refused", b"1")
    with pytest.raises(PublishRejected, match="refused"):
        client.publish_flush()
    client.publish_flush()


def test_close_reports_rejected_messages_to_exception_listener(server: SocketServer) -> None:
    reported: list[BaseException] = []
    with Client("pricing-1", server.uri) as client:
        client.set_exception_listener(reported.append)
        client.publish("rec/refused", b"1")
    assert [type(error) for error in reported] == [PublishRejected]


def test_failed_write_handler_receives_rejected_messages(server: SocketServer) -> None:
    reported: list[tuple[TickertapeError, MessageBatch | None]] = []
    with Client("pricing-1", server.uri, publish_store=MemoryPublishStore()) as client:
        client.set_failed_write_handler(lambda error, batch: reported.append((error, batch)))
        client.publish("rec/refused", b"1")
        client.publish_flush()
        assert client.unpersisted_count() == 0
    ((error, batch),) = reported
    assert isinstance(error, PublishRejected)
    assert batch is not None
    assert batch.bodies_list() == [b"1"]


def test_publish_with_full_store_waits_for_acknowledgements(server: SocketServer) -> None:
    store = MemoryPublishStore(bytes_max=4000)
    with Client("pricing-1", server.uri, publish_store=store) as client:
        for i in range(500):
            client.publish("orders", b"%03d" % i + b"x" * 100)
        client.publish_flush()
    assert [body[:3] for body in server.bodies()] == [b"%03d" % i for i in range(500)]


def test_publish_with_full_store_times_out_or_raises_without_acknowledgements(server: SocketServer) -> None:
    server.mute = True
    waiting = Client("a", server.uri, publish_store=MemoryPublishStore(1000), timeout=0.05)
    with pytest.raises(TimedOut, match="no free space"):
        waiting.publish_batch("orders", [b"x" * 300] * 5)
    raising = Client("b", server.uri, publish_store=MemoryPublishStore(1000, when_full="raise"))
    with pytest.raises(StoreFull):
        raising.publish_batch("orders", [b"x" * 300] * 5)
    server.drop()
    waiting.close(timeout=0)
    raising.close(timeout=0)


def test_publish_waiting_for_store_space_fails_at_connection_loss(server: SocketServer) -> None:
    server.mute = True
    client = Client("a", server.uri, publish_store=MemoryPublishStore(1000), timeout=None)
    while client.unpersisted_count() < 2:
        client.publish("orders", b"x" * 300)
    threading.Timer(0.05, server.drop).start()
    with pytest.raises(Disconnected, match="1,000 bytes"):
        client.publish("orders", b"x" * 300)
    client.close()


def test_publish_with_full_store_waits_through_reconnect_by_handler(
    server: SocketServer,
) -> None:
    server.mute = True
    lost, again = threading.Event(), threading.Event()

    def reconnect(client: Client) -> None:
        lost.set()
        assert again.wait(10)
        client.connect()

    with Client("pricing-1", server.uri, publish_store=MemoryPublishStore(4000)) as client:
        client.set_disconnect_handler(reconnect)
        publisher = threading.Thread(
            target=client.publish_batch, args=("orders", [b"%03d" % i + b"x" * 100 for i in range(100)])
        )
        publisher.start()
        server.drop()
        assert lost.wait(10)
        server.mute = False
        publisher.join(0.05)
        assert publisher.is_alive()  # full and without a connection, so the call waits
        again.set()
        publisher.join(10)
        client.publish_flush()
    assert [body[:3] for body in server.bodies()] == [b"%03d" % i for i in range(100)]


def test_publish_with_full_store_raises_without_reconnect_or_after_close(server: SocketServer) -> None:
    server.mute = True
    client = Client("pricing-1", server.uri, publish_store=MemoryPublishStore(1000))
    client.publish_batch("orders", [b"x" * 300] * 2)
    server.drop()
    with pytest.raises(Disconnected, match=r"it is not connected \(.*\)\. .*publish store"):
        client.publish_batch("orders", [b"x" * 300] * 5)
    client.set_disconnect_handler(lambda _: None)
    closing = threading.Timer(0.05, client.close)
    closing.start()
    with pytest.raises(Closed):
        client.publish_batch("orders", [b"x" * 300] * 5)
    closing.join()


def test_publish_to_server_that_does_not_read_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client("a", f"tcp://127.0.0.1:{listener.getsockname()[1]}", connect=False, timeout=0.2)
        read_on = threading.Event()
        server = threading.Thread(target=log_on_and_stop_reading, args=(listener, read_on))
        server.start()
        client.connect()
        with pytest.raises(TimedOut, match="accepted no data"):
            client.publish_batch("orders", [bytes(200_000)] * 1000)
        read_on.set()
        client.close(timeout=0)
        server.join()


# -- losing the connection ----------------------------------------------------------------------------


@pytest.mark.behaviour(13)
def test_disconnect_handler_is_called_once_per_loss_and_may_connect(server: SocketServer) -> None:
    calls: list[Client] = []
    back = threading.Event()

    def handler(lost: Client) -> None:
        calls.append(lost)
        lost.connect()
        back.set()

    with Client("pricing-1", server.uri, publish_store=MemoryPublishStore()) as client:
        client.set_disconnect_handler(handler)
        client.publish("orders", b"1")
        client.publish_flush()
        for round_ in range(1, 4):
            server.drop()
            assert back.wait(10)
            back.clear()
            assert len(calls) == round_
            client.publish("orders", b"again")
            client.publish_flush()
    assert len(calls) == 3
    assert server.bodies() == [b"1", b"again", b"again", b"again"]


def test_lost_connection_ends_streams_and_calls(server: SocketServer, client: Client) -> None:
    server.mute = True
    stream = client.subscribe("orders")
    lost = threading.Event()
    client.set_disconnect_handler(lambda _: lost.set())
    server.drop()
    assert list(stream) == []
    assert stream.end_reason == "disconnected"
    assert lost.wait(10)
    assert not client.connected
    with pytest.raises(Disconnected):
        client.publish("orders", b"1")
    with pytest.raises(Disconnected):
        client.publish_flush(timeout=None)


def test_messages_published_while_disconnected_are_sent_at_connect(server: SocketServer) -> None:
    lost = threading.Event()
    with Client("pricing-1", server.uri, publish_store=MemoryPublishStore()) as client:
        client.set_disconnect_handler(lambda _: lost.set())
        server.mute = True
        first = client.publish("orders", b"1")
        assert first is not None
        server.drop()
        assert lost.wait(10)
        server.mute = False
        assert client.publish("orders", b"2") == first + 1
        assert client.unpersisted_count() == 2
        client.connect()
        client.publish_flush()
        assert client.unpersisted_count() == 0
    assert server.bodies()[-2:] == [b"1", b"2"], "the first message may have arrived without an answer"


def test_exception_of_disconnect_handler_is_reported(server: SocketServer, client: Client) -> None:
    reported: list[BaseException] = []
    received = threading.Event()

    def listener(error: BaseException) -> None:
        reported.append(error)
        received.set()

    client.set_exception_listener(listener)
    client.set_disconnect_handler(lambda _: int("none"))
    server.drop()
    assert received.wait(10)
    assert [type(error) for error in reported] == [ValueError]


# -- reading ------------------------------------------------------------------------------------------


def test_replay_returns_published_messages_and_ends(client: Client) -> None:
    client.publish_batch("orders", [b"1", b"2"])
    client.publish("rec/other", b"x")
    client.publish("orders", b"3")
    messages = list(client.replay("orders"))
    assert [message.data for message in messages] == [b"1", b"2", b"3"]


def test_live_subscription_receives_only_new_messages(client: Client) -> None:
    client.publish("un/ticks", b"before")
    client.publish_flush()
    with client.subscribe("un/ticks") as stream:
        client.publish("un/ticks", b"1")
        client.publish("un/ticks", b"2")
        assert stream.get(10).data == b"1"
        assert stream.get(10).data == b"2"
        with pytest.raises(TimedOut):
            stream.get(0.01)
    with pytest.raises(StreamEnded, match="unsubscribed"):
        stream.get(10)


def test_bookmark_subscription_replays_and_continues_live(client: Client) -> None:
    client.publish_batch("orders", [b"1", b"2"])
    stream = client.bookmark_subscribe("orders", EPOCH)
    stream.wait_caught_up(timeout=10)
    client.publish("orders", b"3")
    assert [stream.get(10).data for _ in range(3)] == [b"1", b"2", b"3"]
    client.unsubscribe(stream.sub_id)
    assert list(stream) == []
    assert stream.end_reason == "unsubscribed"


def test_wait_caught_up_reads_beyond_the_depth_of_the_stream(server: SocketServer, client: Client) -> None:
    client.publish_batch("orders", [b"x" * 1000] * 100)
    stream = client.bookmark_subscribe("orders", EPOCH, depth="4KB")
    stream.wait_caught_up(timeout=10)
    assert sum(1 for _ in range(100) if len(stream.get(0).data) == 1000) == 100

    def granted() -> int:
        return sum(credit.bytes for session in server.sessions for credit in session.credits)

    wait_until(lambda: granted() == 100 * 1032)  # credit below half of the window is sent a little later


def test_handler_runs_on_the_receive_thread_and_may_publish(server: SocketServer, client: Client) -> None:
    threads: set[str] = set()
    problems: list[BaseException] = []
    done = threading.Event()

    def handle(message: Message) -> None:
        threads.add(threading.current_thread().name)
        client.publish("orders", b"copy of " + message.data)
        if message.data == b"2":
            try:
                client.publish_flush()
            except UsageError as error:
                problems.append(error)
            stream.close()
            done.set()

    stream = client.subscribe("un/ticks", on_message=handle)
    for text in (b"1", b"2", b"3"):
        client.publish("un/ticks", text)
    assert done.wait(10)
    client.publish_flush()
    assert server.bodies() == [b"copy of 1", b"copy of 2"]
    assert threads == {f"tickertape {server.uri}"}
    assert len(problems) == 1


def test_subscribe_that_times_out_raises_and_client_closes(server: SocketServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client("a", f"tcp://127.0.0.1:{listener.getsockname()[1]}", connect=False)
        read_on = threading.Event()
        thread = threading.Thread(target=log_on_and_stop_reading, args=(listener, read_on))
        thread.start()
        client.connect()
        with pytest.raises(TimedOut, match="subscribe s"):
            client.subscribe("orders", sub_id="s", timeout=0.02)
        read_on.set()
        client.close(timeout=0)
        thread.join()
