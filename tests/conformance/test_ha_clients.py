"""HA clients of all fronts on real servers: reconnection steps, failures, giving up, closing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tests.helpers.ha_parts import (
    NotingAuthenticator,
    NotingChooser,
    NotingDelays,
    NotingStore,
    Trace,
    nowhere,
    silent_server,
)
from tests.helpers.relay import Relay
from tests.unit.client.socket_server import SocketServer
from tickertape.client.publish_store.protocol import Stored
from tickertape.testing.server import RunningServer, wait_until
from tickertape.wire.commands import Goodbye, Logon, Publish, Subscribe

SECONDS = 20.0
SOON = 0.02


@pytest.fixture
def refusing() -> Iterator[SocketServer]:
    """A server that rejects every logon."""
    server = SocketServer()
    server.refuse = Goodbye(code="refused", text="not you")
    yield server
    server.close()


def cut(relay: Relay, client: Any) -> None:
    """End the connection and wait until the client reconnected."""
    before = client.server
    relay.cut()
    wait_until(lambda: client.server is not None and client.server is not before, SECONDS)


# -- the steps ----------------------------------------------------------------------------------------


@pytest.mark.behaviour(21)
def test_ha_client_reconnect_runs_each_step_in_order(
    front: Front, relay: Relay, name: str, topic: str
) -> None:
    trace: Trace = []
    store = NotingStore(trace)
    chooser = NotingChooser(trace, relay.uri, authenticator=NotingAuthenticator(trace))
    client = front.make_ha(
        name,
        server_chooser=chooser,
        reconnect_delay=NotingDelays(trace, SOON),
        publish_store=store,
        user="ann",
        password="secret",
    )
    states: list[tt.ConnectionState] = []
    client.add_connection_state_listener(states.append)
    client.connect_and_logon(SECONDS)
    assert trace == [
        "reset", "uri", "authenticator", "authenticate", "completed ann ann/secret/1", "success", "reset",
    ]  # fmt: skip
    received: list[bytes] = []
    client.subscribe(topic, sub_id="live", on_message=lambda message: received.append(message.data))
    client.publish(topic, b"1")
    client.publish_flush()
    wait_until(lambda: received == [b"1"])
    relay.hold()
    client.publish(topic, b"2")
    wait_until(lambda: sum(isinstance(command, Publish) for command in relay.asked) == 2)
    trace.clear()
    states.clear()
    relay.asked.clear()
    store.noting = True
    relay.cut()
    wait_until(lambda: not client.connected)
    relay.release()
    wait_until(lambda: tt.ConnectionState.RESUBSCRIBED in states, SECONDS)
    store.noting = False
    assert trace[:8] == [
        "uri", "authenticator", "delay", "authenticate", "completed ann ann/secret/2", "success", "reset",
        "held",
    ]  # fmt: skip
    assert trace[8:10] == ["discard", "held"]  # read for the takeover check, discarded, and sent
    assert set(trace[10:]) <= {"discard", "held"}  # the acknowledgement
    assert [type(command) for command in relay.asked][:2] in ([Logon, Subscribe], [Logon, Publish])
    assert [state.value for state in states] == [
        "disconnected", "connected", "logged_on", "publish_replayed", "resubscribed",
    ]  # fmt: skip
    client.publish_flush()
    assert [message.data for message in client.replay(topic)] == [b"1", b"2"]


@pytest.mark.behaviour(22)
def test_ha_client_calls_the_authenticator_for_each_attempt(
    front: Front, refusing: SocketServer, uri: str, name: str
) -> None:
    trace: Trace = []
    chooser = NotingChooser(
        trace, [refusing.uri, refusing.uri, uri], authenticator=NotingAuthenticator(trace)
    )
    client = front.make_ha(name, server_chooser=chooser, reconnect_delay=0, user="ann")
    client.connect_and_logon(SECONDS)
    assert [logon.password for logon in refusing.logons] == ["ann/None/1", "ann/None/2"]
    assert [step for step in trace if step not in ("uri", "authenticator")] == [
        "authenticate", "failure", "retry", "failure", "retry", "completed ann ann/None/3", "success",
    ]  # fmt: skip


@pytest.mark.behaviour(22)
def test_ha_client_without_server_raises_in_connect_and_logon_and_later_calls(
    front: Front, name: str, topic: str
) -> None:
    class Exhausted(tt.DefaultServerChooser):
        def report_failure(self, error: tt.TickertapeError, info: tt.ConnectionInfo) -> None:
            self._uris.clear()

        def error(self) -> str:
            return "all of them were tried"

    reported: list[BaseException] = []
    states: list[tt.ConnectionState] = []
    client = front.make_ha(name, server_chooser=Exhausted(nowhere()), reconnect_delay=0)
    client.set_exception_listener(reported.append)
    client.add_connection_state_listener(states.append)
    with pytest.raises(tt.Disconnected, match=r"all of them were tried\. Last attempt: [Cc]annot connect"):
        client.connect_and_logon()
    wait_until(lambda: states == [tt.ConnectionState.DISCONNECTED])
    for call in (
        lambda: client.subscribe(topic),
        lambda: client.publish(topic, b"1"),
        client.publish_flush,
        lambda: client.unsubscribe("any"),
    ):
        with pytest.raises(tt.Disconnected, match="all of them were tried"):
            call()
    assert reported == []


@pytest.mark.behaviour(22)
def test_ha_client_without_server_at_reconnect_reports_to_exception_listener(
    front: Front, relay: Relay, name: str, topic: str
) -> None:
    reported: list[BaseException] = []
    trace: Trace = []
    chooser = NotingChooser(trace, relay.uri)
    client = front.make_ha(name, server_chooser=chooser, reconnect_delay=0)
    client.set_exception_listener(reported.append)
    client.connect_and_logon(SECONDS)
    chooser._uris.clear()
    relay.cut()
    wait_until(lambda: len(reported) == 1)
    assert isinstance(reported[0], tt.Disconnected)
    assert "The list of servers is empty" in str(reported[0])
    with pytest.raises(tt.Disconnected, match="The list of servers is empty"):
        client.subscribe(topic, timeout=None)
    chooser.add(relay.uri)
    client.connect_and_logon(SECONDS)
    client.publish(topic, b"1")
    client.publish_flush()
    assert len(reported) == 1


@pytest.mark.behaviour(22)
def test_server_chooser_that_calls_the_client_gets_usage_error(front: Front, uri: str, name: str) -> None:
    trace: Trace = []
    chooser = NotingChooser(trace, uri)
    reported: list[BaseException] = []
    client = front.make_ha(name, server_chooser=chooser, timeout=5)
    client.set_exception_listener(reported.append)
    inner: Any = getattr(client, "target", client) if front.kind != "blocking" else client

    def call() -> None:
        outcome = inner.connect_and_logon()
        with contextlib.suppress(StopIteration):  # the first step of the coroutine
            outcome.send(None)

    chooser.meanwhile = call
    with pytest.raises(tt.Disconnected, match=r"it raised UsageError: Cannot wait for connect_and_logon"):
        client.connect_and_logon(SECONDS)
    assert [type(error) for error in reported] == [tt.UsageError]


@pytest.mark.behaviour(23)
@pytest.mark.slow
def test_ha_client_fails_over_and_stays_on_the_second_server(
    front: Front, server: RunningServer, uri: str, name: str
) -> None:
    client = front.make_ha(name, servers=[server.uri, uri], reconnect_delay=SOON)
    client.connect_and_logon(SECONDS)
    first = client.server
    assert first is not None
    server.kill()
    wait_until(lambda: client.server is not None and client.server.journal != first.journal, SECONDS)
    second = client.server
    server.start()
    front.connect(name, uri)  # takes over the name once
    wait_until(lambda: client.server is not None and client.server is not second, SECONDS)
    assert client.server is not None
    assert second is not None
    assert client.server.journal == second.journal


@pytest.mark.behaviour(24)
def test_ha_client_without_timeout_tries_until_the_delay_strategy_gives_up(front: Front, name: str) -> None:
    trace: Trace = []
    chooser = NotingChooser(trace, [nowhere(), nowhere()])
    delays = NotingDelays(trace, 0.05, give_up_after=0.12)
    client = front.make_ha(name, server_chooser=chooser, reconnect_delay=delays)
    for _ in range(2):
        trace.clear()
        with pytest.raises(tt.Disconnected, match=r"the delay strategy gives up\. Last attempt: [Cc]annot"):
            client.connect_and_logon()
        steps = ["uri", "authenticator", "delay", "failure"]
        assert [trace.count(step) for step in steps] == [5, 5, 4, 4]


def test_connect_and_logon_timeout_ends_the_attempts(front: Front, name: str, topic: str) -> None:
    with silent_server() as silent:
        client = front.make_ha(name, servers=[nowhere(), silent], reconnect_delay=SOON)
        with pytest.raises(
            tt.TimedOut, match=r"(?i)no connection within 0.3 s. last attempt: cannot connect"
        ):
            client.connect_and_logon(timeout="300ms")
        with pytest.raises(tt.Disconnected, match=r"it stopped connecting\. Cannot connect: no connection"):
            client.subscribe(topic, timeout=None)


def test_silent_server_costs_ha_client_one_attempt(front: Front, uri: str, name: str, topic: str) -> None:
    with silent_server() as silent:
        client = front.make_ha(name, servers=[silent, uri], reconnect_delay=SOON, timeout=0.3)
        client.connect_and_logon(SECONDS)
        client.publish(topic, b"1")
        client.publish_flush(timeout=SECONDS)


def test_authenticator_without_required_methods_is_reported(front: Front, uri: str, name: str) -> None:
    class Half:
        def authenticate(self, user: str | None, password: str | None) -> str | None:
            return password

        def retry(self, user: str | None, password: str | None) -> str | None:
            return password

    class Chooser(tt.DefaultServerChooser):
        def current_authenticator(self) -> Any:
            return Half()

    reported: list[BaseException] = []
    client = front.make_ha(name, server_chooser=Chooser(uri))
    client.set_exception_listener(reported.append)
    with pytest.raises(tt.Disconnected, match="Invalid authenticator of type Half"):
        client.connect_and_logon(SECONDS)
    assert [type(error) for error in reported] == [tt.BadOption]


def test_unreadable_publish_store_ends_reconnect_and_is_reported(
    front: Front, relay: Relay, name: str, topic: str
) -> None:
    class Damaged(tt.MemoryPublishStore):
        damaged = False

        def held(self) -> Sequence[Stored]:
            if self.damaged:
                raise tt.StoreCorrupt("a segment is gone")
            return super().held()

    reported: list[BaseException] = []
    store = Damaged()
    client = front.make_ha(name, servers=relay.uri, publish_store=store, reconnect_delay=SOON)
    client.set_exception_listener(reported.append)
    client.connect_and_logon(SECONDS)
    client.publish(topic, b"1")
    client.publish_flush()
    store.damaged = True
    relay.cut()
    wait_until(lambda: len(reported) == 1)
    assert isinstance(reported[0], tt.StoreCorrupt)
    for _ in range(2):
        with pytest.raises(tt.Disconnected, match="a segment is gone"):
            client.publish_flush()
        with pytest.raises(tt.StoreCorrupt, match="a segment is gone"):
            client.connect_and_logon(SECONDS)
    store.damaged = False
    client.connect_and_logon(SECONDS)
    client.publish_flush()
    assert len(reported) == 1


# -- calls in each state ------------------------------------------------------------------------------


def test_messages_published_while_disconnected_are_stored_and_sent_later(
    front: Front, relay: Relay, name: str, topic: str
) -> None:
    client = front.make_ha(name, servers=relay.uri, reconnect_delay=SOON)
    sequences = [client.publish(topic, b"0")]
    assert client.unpersisted_count() == 1
    client.connect_and_logon(SECONDS)
    for number in range(1, 200):
        if number % 50 == 0:
            relay.cut()
        sequences.append(client.publish(topic, b"%d" % number))
    wait_until(lambda: client.connected and client.unpersisted_count() == 0, SECONDS)
    stored = [(message.sequence, message.data) for message in client.replay(topic)]
    assert stored == [(sequence, b"%d" % number) for number, sequence in enumerate(sequences)]


def test_publish_with_full_store_waits_for_the_next_connection(
    front: Front, relay: Relay, name: str, topic: str
) -> None:
    store = tt.MemoryPublishStore(bytes_max=20_000)
    client = front.make_ha(name, servers=nowhere(), publish_store=store, reconnect_delay=SOON)
    body = bytes(1_000)
    held = 16
    for _ in range(held):
        client.publish(topic, body)
    body = bytes(4_000)
    with pytest.raises(tt.Disconnected, match="it is not connected"):  # connect_and_logon was not called yet
        client.publish(topic, body)
    client.close()
    chooser = NotingChooser([], nowhere())
    client = front.make_ha(
        name,
        server_chooser=chooser,
        publish_store=tt.MemoryPublishStore(bytes_max=20_000),
        reconnect_delay=SOON,
    )
    beginning = threading.Thread(target=client.connect_and_logon, args=(SECONDS,))
    beginning.start()
    wait_until(lambda: len(chooser._trace) > 2)
    for _ in range(held):
        client.publish(topic, bytes(1_000))
    with pytest.raises(tt.TimedOut, match="no free space"):
        client.publish(topic, body, timeout=0.05)
    chooser.add(relay.uri)
    for _ in range(30):
        client.publish(topic, body, timeout=SECONDS)
    beginning.join(SECONDS)
    client.publish_flush(timeout=SECONDS)
    assert client.unpersisted_count() == 0
    assert sum(1 for _ in client.replay(topic)) == held + 30


def test_subscribe_and_flush_wait_for_a_connection_up_to_the_timeout(
    front: Front, uri: str, name: str, topic: str
) -> None:
    chooser = NotingChooser([], nowhere())
    client = front.make_ha(name, server_chooser=chooser, reconnect_delay=SOON)
    with pytest.raises(tt.Disconnected, match="Call connect_and_logon"):
        client.subscribe(topic)
    beginning = threading.Thread(target=client.connect_and_logon, args=(SECONDS,))
    beginning.start()
    wait_until(lambda: "failure" in chooser._trace)
    with pytest.raises(
        tt.TimedOut, match=r"Cannot connect for subscribe s: no connection within 0\.05 s\. L"
    ):
        client.subscribe(topic, sub_id="s", timeout=0.05)
    with pytest.raises(tt.TimedOut, match="Cannot connect for publish_flush"):
        client.publish_flush(timeout=0.05)
    adding = threading.Timer(0.1, chooser.add, [uri])
    adding.start()
    stream = client.subscribe(topic, timeout=SECONDS)
    client.publish(topic, b"1")
    assert stream.get(SECONDS).data == b"1"
    for thread in (beginning, adding):
        thread.join(SECONDS)


def test_subscribe_waiting_for_an_answer_fails_at_connection_loss(
    front: Front, relay: Relay, name: str, topic: str
) -> None:
    client = front.make_ha(name, servers=relay.uri, reconnect_delay=SOON)
    client.connect_and_logon(SECONDS)
    relay.hold()
    failed: list[BaseException] = []

    def subscribe() -> None:
        try:
            client.subscribe(topic, timeout=SECONDS)
        except tt.Disconnected as error:
            failed.append(error)

    caller = threading.Thread(target=subscribe)
    caller.start()
    wait_until(lambda: any(isinstance(command, Subscribe) for command in relay.asked))
    relay.cut()
    relay.release()
    caller.join(SECONDS)
    assert len(failed) == 1


def test_exceptions_of_chooser_strategy_and_authenticator_are_reported(
    front: Front, uri: str, name: str
) -> None:
    class Broken(tt.DefaultServerChooser):
        def report_success(self, info: tt.ConnectionInfo) -> None:
            raise ValueError("in the report")

    class Tired(tt.FixedDelayStrategy):
        def next_delay(self, uri: str, mono: float, chance: float) -> float | None:
            raise ValueError("in the strategy")

    class Locked(tt.DefaultAuthenticator):
        def authenticate(self, user: str | None, password: str | None) -> str | None:
            raise ValueError("in the authenticator")

    reported: list[BaseException] = []
    client = front.make_ha(name, server_chooser=Broken(uri))
    client.set_exception_listener(reported.append)
    client.connect_and_logon(SECONDS)
    assert [str(error) for error in reported] == ["in the report"]
    client.close()
    reported.clear()
    chooser = tt.DefaultServerChooser(uri, authenticator=Locked())
    client = front.make_ha(name, server_chooser=chooser, reconnect_delay=Tired())
    client.set_exception_listener(reported.append)
    with pytest.raises(
        tt.Disconnected, match=r"strategy raised ValueError: in the strategy\. .* in the authenticator"
    ):
        client.connect_and_logon(SECONDS)
    assert [str(error) for error in reported] == ["in the strategy"]
