"""The blocking HA client with real signals, forks and threads."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

import tickertape as tt
from tests.helpers.forking import exit_code_of_child
from tests.helpers.ha_parts import silent_server
from tests.helpers.interrupts import Interrupt, interrupt_until_gone
from tests.unit.client.socket_server import socket_server
from tickertape.client.common.effects import ConnectionDown
from tickertape.client.ha import reconnect as machine
from tickertape.client.ha.policies import as_failure
from tickertape.testing.server import wait_until
from tickertape.wire.commands import Goodbye

SECONDS = 20.0


def test_interrupted_connect_and_logon_stops_and_can_be_retried(interrupts: None) -> None:
    chooser = tt.DefaultServerChooser()
    with socket.create_server(("127.0.0.1", 0)) as silent, socket_server() as server:
        chooser.add(f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        client = tt.HAClient("pricing-1", server_chooser=chooser, reconnect_delay=0)

        def interrupt() -> None:
            connection, _ = silent.accept()
            interrupt_until_gone(connection)  # the client waits for the logon, or will soon

        for _ in range(3):
            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(Interrupt):
                client.connect_and_logon()
            thread.join(SECONDS)
            assert not thread.is_alive()
            with pytest.raises(tt.Disconnected, match="connection attempt was interrupted"):
                client.publish("orders", b"0")
        chooser.add(server.uri)
        chooser.report_failure(tt.Disconnected(""), tt.ConnectionInfo("", chooser.current_uri() or ""))
        client.connect_and_logon(SECONDS)
        client.publish("orders", b"1")
        client.publish_flush()
        assert server.bodies() == [b"1"]
        client.close()


def test_ha_client_in_forked_child_raises_and_parent_continues() -> None:
    with socket_server() as server, tt.HAClient("pricing-1", servers=server.uri) as client:
        calls: list[Callable[[], object]] = [
            client.connect_and_logon,
            client.connect,
            lambda: client.publish("orders", b"1"),
            lambda: client.subscribe("orders"),
            lambda: client.unsubscribe("any"),
            client.publish_flush,
        ]

        def refused() -> int:
            count = 0
            for call in calls:
                try:
                    call()
                except tt.Forked:
                    count += 1
            client.close()
            client.disconnect()
            return count

        assert exit_code_of_child(refused) == len(calls)
        client.publish("orders", b"1")
        client.publish_flush()
        assert server.bodies() == [b"1"]


def test_failed_reconnect_thread_fails_waiting_and_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[BaseException] = []
    with socket_server() as server:
        client = tt.HAClient("pricing-1", servers=server.uri)
        client.set_exception_listener(errors.append)

        def broken(uri: str, instance: str) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(client._driver._policies, "succeeded", broken)
        monkeypatch.setattr(threading, "excepthook", lambda _: None)
        with pytest.raises(tt.Disconnected, match="the reconnect thread failed: RuntimeError"):
            client.connect_and_logon(SECONDS)
        with pytest.raises(tt.Disconnected, match="the reconnect thread failed"):
            client.subscribe("orders")
        monkeypatch.undo()
        client.connect_and_logon(SECONDS)
        client.close()
    assert errors == []


def test_connect_and_logon_after_timeout_in_resubscription_can_be_retried() -> None:
    class Slow(tt.MemorySubscriptionManager):
        def stored(self) -> tuple[tt.StoredSubscription, ...]:
            go.wait(SECONDS)
            return ()

    go = threading.Event()
    states: list[tt.ConnectionState] = []
    with socket_server() as server:
        client = tt.HAClient("pricing-1", servers=server.uri, subscription_manager=Slow(), reconnect_delay=0)
        client.add_connection_state_listener(states.append)
        with pytest.raises(tt.TimedOut):
            client.connect_and_logon(0.05)
        threading.Timer(0.05, go.set).start()
        client.connect_and_logon(SECONDS)
        client.publish("orders", b"1")
        client.publish_flush()
        assert len(server.logons) == 2
        assert states.count(tt.ConnectionState.RESUBSCRIBED) == 1
        client.close()


def test_attempt_ignores_the_end_of_another_connection() -> None:
    client = tt.HAClient("pricing-1", servers="tcp://127.0.0.1:1")
    lost = tt.Disconnected("lost")
    client._driver._take_in(machine.Start())
    client._driver._take_in(machine.ServerChosen("tcp://127.0.0.1:1"))
    assert client._driver._concerns_machine(ConnectionDown(lost, 1))
    client._driver.core.connections = 1  # the connection exists when the next attempt starts
    client._driver._take_in(machine.AttemptFailed(1, lost))
    client._driver._take_in(machine.ServerChosen("tcp://127.0.0.1:2"))
    client._driver._take_in(machine.DelayChosen(0.0))
    assert not client._driver._concerns_machine(ConnectionDown(lost, 1))
    assert client._driver._concerns_machine(ConnectionDown(lost, 2))


def test_attempt_abandoned_while_the_chooser_runs_does_not_connect() -> None:
    with socket_server() as server:
        chooser = Slow(server.uri)
        client = tt.HAClient("pricing-1", server_chooser=chooser, reconnect_delay=0)
        with pytest.raises(tt.TimedOut):
            client.connect_and_logon(0.01)
        chooser.go.set()
        wait_until(lambda: client._driver._reconnecting is None)
        assert server.logons == []
        assert not client.connected
        client.connect_and_logon(SECONDS)
        assert len(server.logons) == 1
        client.close()


class Slow(tt.DefaultServerChooser):
    """A chooser that blocks until `go` is set."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.go = threading.Event()

    def current_uri(self) -> str | None:
        self.go.wait(SECONDS)
        return super().current_uri()


def test_rejected_logon_is_retried_with_the_password_of_the_authenticator() -> None:
    class Tokens(tt.DefaultAuthenticator):
        def retry(self, user: str | None, password: str | None) -> str | None:
            server.refuse = None
            return "fresh"

    with socket_server() as server:
        server.refuse = Goodbye(code="refused", text="the token has expired")
        chooser = tt.DefaultServerChooser(server.uri.replace("//", "//ann:stale@"), authenticator=Tokens())
        with tt.HAClient("pricing-1", server_chooser=chooser, reconnect_delay=0):
            assert [(logon.user, logon.password) for logon in server.logons] == [
                ("ann", "stale"),
                ("ann", "fresh"),
            ]


def test_password_of_wrong_type_fails_the_attempt() -> None:
    class Numbers(tt.DefaultAuthenticator):
        def authenticate(self, user: str | None, password: str | None) -> str | None:
            return 5  # type: ignore[return-value]

    with socket_server() as server:
        chooser = tt.DefaultServerChooser(server.uri, authenticator=Numbers())
        delays = tt.FixedDelayStrategy(0.01, give_up_after=0.01)
        client = tt.HAClient("pricing-1", server_chooser=chooser, reconnect_delay=delays)
        with pytest.raises(
            tt.Disconnected, match=r"Invalid password from the authenticator of type int\. Use str"
        ):
            client.connect_and_logon()
        client.close()


def test_attempt_without_client_timeout_has_a_default_timeout() -> None:
    with silent_server() as silent:
        client = tt.HAClient("pricing-1", servers=silent, timeout=None)
        assert client._driver._attempt_seconds == 10
        client.close()


def test_failed_attempt_reports_a_tickertape_error() -> None:
    ours = tt.Disconnected("gone")
    assert as_failure(ours, "tcp://a:1") is ours
    other = as_failure(UnicodeError("label too long"), "tcp://a:1")
    assert isinstance(other, tt.TickertapeError)
    assert "Cannot connect to 'tcp://a:1': UnicodeError: label too long" in str(other)


def test_unresolvable_host_name_counts_as_failed_attempt() -> None:
    delays = tt.FixedDelayStrategy(0.01, give_up_after=0.01)
    client = tt.HAClient("pricing-1", servers=f"tcp://{'a' * 70}.example:1", reconnect_delay=delays)
    with pytest.raises(tt.Disconnected, match=r"gives up\. Last attempt: "):
        client.connect_and_logon(SECONDS)
    client.close()


@pytest.mark.parametrize("kind", [tt.Client, tt.HAClient])
def test_close_waits_for_a_running_handler_up_to_the_timeout(kind: type[tt.Client]) -> None:
    inside, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def handle(_message: tt.Message) -> None:
        inside.set()
        go_on.wait(SECONDS)
        over.set()

    with socket_server() as server:
        client = tt.Client("a", server.uri) if kind is tt.Client else tt.HAClient("a", servers=server.uri)
        client.connect()
        client.subscribe("orders", on_message=handle)
        client.publish("orders", b"1")
        client.publish_flush()
        assert inside.wait(SECONDS)
        client.close(timeout=0.05)
        assert not over.is_set()
        go_on.set()
        assert over.wait(SECONDS)


@pytest.mark.parametrize("kind", [tt.Client, tt.HAClient])
def test_close_returns_after_a_handler_that_ends_in_time(kind: type[tt.Client]) -> None:
    inside, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def handle(_message: tt.Message) -> None:
        inside.set()
        go_on.wait(SECONDS)
        order.append("handled")

    def close() -> None:
        client.close(timeout=SECONDS)
        order.append("closed")

    with socket_server() as server:
        client = tt.Client("a", server.uri) if kind is tt.Client else tt.HAClient("a", servers=server.uri)
        client.connect()
        client.subscribe("orders", on_message=handle)
        client.publish("orders", b"1")
        client.publish_flush()
        assert inside.wait(SECONDS)
        closing = threading.Thread(target=close)
        closing.start()
        wait_until(lambda: client._driver.core.logon.closed)
        go_on.set()
        closing.join(SECONDS)
        assert order == ["handled", "closed"]


def test_close_in_a_handler_does_not_wait_for_the_resubscribing_thread() -> None:
    closed = threading.Event()

    def handle(_message: tt.Message) -> None:
        client.close(timeout=None)  # would wait for ever
        closed.set()

    with socket_server() as server:
        client = tt.HAClient("a", servers=server.uri, reconnect_delay=0.001, timeout=SECONDS)
        client.connect_and_logon()
        client.subscribe("orders", sub_id="a", on_message=handle)
        client.subscribe("orders", sub_id="b", on_message=lambda _: None)
        server.deaf = True
        server.drop()
        wait_until(lambda: client._driver._machine.step is machine.ReconnectStep.RESUBSCRIBING)
        wait_until(lambda: server.sessions[1].subscribed)  # the first of the two, which gets messages
        with tt.Client("other", server.uri, timeout=SECONDS) as other:
            other.publish("orders", b"1")
            assert closed.wait(SECONDS)


def test_slow_handler_during_resubscription_does_not_lose_the_connection() -> None:
    attempt_seconds = 0.1
    hung_up: list[bool] = []
    released = threading.Event()

    def handle(_message: tt.Message) -> None:
        link = client._driver.connection
        if link is None or released.is_set():
            return
        time.sleep(4 * attempt_seconds)  # meanwhile the second subscribe has no answer
        hung_up.append(link.hung_up)
        server.deaf = False
        released.set()

    with socket_server() as server:
        client = tt.HAClient("a", servers=server.uri, reconnect_delay=0.001, timeout=attempt_seconds)
        client.connect_and_logon(SECONDS)
        client.subscribe("orders", sub_id="a", on_message=handle, timeout=SECONDS)
        client.subscribe("orders", sub_id="b", on_message=lambda _: None, timeout=SECONDS)
        server.deaf = True
        client._driver.connection.hang_up()  # type: ignore[union-attr]
        with tt.Client("other", server.uri, timeout=SECONDS) as other:
            wait_until(lambda: client._driver._machine.step is machine.ReconnectStep.RESUBSCRIBING)
            while not released.wait(attempt_seconds / 2):  # the client may be reconnecting
                other.publish("orders", b"1")
        assert hung_up == [False]
        # No handler is busy and the answer is missing, so the client ends the connection.
        wait_until(lambda: client._driver._machine.ready, SECONDS)
        client.close(timeout=SECONDS)


@pytest.mark.parametrize("timeout", [None, SECONDS])
def test_state_listener_publishing_into_full_store_does_not_stop_reconnecting(
    timeout: float | None,
) -> None:
    store = tt.MemoryPublishStore(bytes_max=20_000)
    raised: list[type[BaseException]] = []
    with socket_server() as server:
        server.mute = True  # nothing is acknowledged
        client = tt.HAClient(
            "a", servers=server.uri, publish_store=store, reconnect_delay=0.001, timeout=timeout
        )

        def publish(state: tt.ConnectionState) -> None:
            if state is tt.ConnectionState.DISCONNECTED:
                try:
                    client.publish("orders", bytes(1_000))
                except tt.TickertapeError as error:
                    raised.append(type(error))

        client.connect_and_logon(SECONDS)
        while True:
            try:
                client.publish("orders", bytes(1_000), timeout=0.01)
            except tt.TimedOut:
                break
        client.add_connection_state_listener(publish)
        server.drop()
        wait_until(lambda: len(server.logons) == 2)
        wait_until(lambda: client.connected)
        assert raised == [tt.StoreFull]
        client.close(timeout=0.01)


def test_calls_made_after_the_disconnected_state_wait_for_the_next_connection() -> None:
    notifying, asked = threading.Event(), threading.Event()

    def hear(state: tt.ConnectionState) -> None:
        if state is tt.ConnectionState.DISCONNECTED:
            notifying.set()
            asked.wait(0.2)

    with socket_server() as server, tt.HAClient("a", servers=server.uri, reconnect_delay=0.001) as client:
        client.add_connection_state_listener(hear)
        for number in range(3):
            notifying.clear()
            asked.clear()
            server.drop()
            assert notifying.wait(SECONDS)
            if number == 0:
                client.connect_and_logon(SECONDS)
            elif number == 1:
                client.publish_flush(timeout=SECONDS)
            else:
                client.subscribe("orders", timeout=SECONDS)
            assert client.connected
            asked.set()


def test_disconnect_handler_may_wait_for_the_next_connection() -> None:
    ends: list[bool] = []

    def connect(client: tt.HAClient) -> None:
        client.connect_and_logon(SECONDS)
        ends.append(client.connected)

    with socket_server() as server, tt.HAClient("a", servers=server.uri, reconnect_delay=0.001) as client:
        client.set_disconnect_handler(connect)
        server.drop()
        wait_until(lambda: ends == [True])
