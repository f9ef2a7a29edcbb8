"""HA clients of all fronts: name takeovers, closing, states, invalid options."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tests.helpers.ha_parts import nowhere, silent_server
from tests.helpers.relay import Relay
from tickertape.testing.server import RunningServer, wait_until

SECONDS = 20.0
SOON = 0.02


# -- names --------------------------------------------------------------------------------------------


@pytest.mark.behaviour(35)
@pytest.mark.slow
def test_ha_clients_of_one_name_stop_after_one_takeover(
    front: Front, server: RunningServer, name: str
) -> None:
    reported: list[BaseException] = []
    clients = [front.make_ha(name, servers=server.uri, reconnect_delay=SOON) for _ in range(2)]
    for client in clients:
        client.set_exception_listener(reported.append)
        client.connect_and_logon(SECONDS)
    wait_until(lambda: len(reported) == 1, SECONDS)
    assert isinstance(reported[0], tt.NameInUse)
    wait_until(lambda: [client.connected for client in clients].count(True) == 1)
    (loser,) = [client for client in clients if not client.connected]
    with pytest.raises(tt.Disconnected, match=r"it stopped connecting\. .*took over"):
        loser.publish("orders", b"1")
    wait_until(lambda: server.errors().count("name_in_use") == 3)
    loser.connect_and_logon(SECONDS)  # an explicit connect is allowed
    assert loser.connected


@pytest.mark.behaviour(35)
def test_ha_client_with_name_of_another_user_is_rejected(front: Front, uri: str, name: str) -> None:
    first = front.make_ha(name, servers=uri, user="ann")
    first.connect_and_logon(SECONDS)
    second = front.make_ha(name, servers=uri, user="bob", reconnect_delay=SOON)
    with pytest.raises(tt.TimedOut, match="in use by another user"):
        second.connect_and_logon(timeout=1.0)
    assert first.connected


# -- the end ------------------------------------------------------------------------------------------


def test_ha_client_close_in_every_state_makes_calls_raise_closed(
    front: Front, uri: str, name: str, topic: str
) -> None:
    with silent_server() as silent:
        waiting = {"reconnect_delay": 100.0}
        for servers, options in (([], {}), ([silent], {}), ([nowhere()], waiting), ([uri], {})):
            client = front.make_ha(name, servers=[*servers, nowhere()], **options)
            states: list[tt.ConnectionState] = []
            client.add_connection_state_listener(states.append)
            ends: list[BaseException | None] = []
            beginning = threading.Thread(target=_connect, args=(client, ends))
            if servers:
                beginning.start()
                expected = "connected" if servers[0] in (silent, uri) else None
                wait_until(lambda: expected is None or expected in states)  # noqa: B023 - called here only
                wait_until(lambda: client._driver._machine.step.value != "not connecting")  # noqa: B023
            client.close()
            if servers:
                beginning.join(SECONDS)
                assert not beginning.is_alive()
                assert ends in ([None], [tt.Closed]), servers
            assert states[-1] is tt.ConnectionState.SHUTDOWN
            for call in (client.connect_and_logon, client.connect, client.publish_flush):
                with pytest.raises(tt.Closed):
                    call()
            client.close()
            client.disconnect()


def _connect(client: tt.HAClient, ends: list[Any]) -> None:
    try:
        client.connect_and_logon()
    except tt.TickertapeError as error:
        ends.append(type(error))
    else:
        ends.append(None)


def test_ha_client_closed_at_any_time_while_connecting_ends_the_reconnect_task(
    front: Front, uri: str, name: str
) -> None:
    random = Random(7)
    for number in range(25):
        client = front.make_ha(f"{name}-{number}", servers=[nowhere(), uri], reconnect_delay=0.001)
        ends: list[Any] = []
        beginning = threading.Thread(target=_connect, args=(client, ends))
        beginning.start()
        time.sleep(random.random() * 0.02)
        client.close()
        beginning.join(SECONDS)
        assert ends in ([None], [tt.Closed])
        keeper: Any = client._driver._reconnecting
        assert keeper is None


def test_connect_and_logon_after_timeout_at_any_time_can_be_retried(
    front: Front, uri: str, name: str
) -> None:
    random = Random(8)
    client = front.make_ha(name, servers=[nowhere(), uri], reconnect_delay=0.001)
    late = 0
    while late < 5:
        try:
            client.connect_and_logon(random.random() * 0.004)
        except tt.TimedOut:
            late += 1
        else:
            client.close()
            client = front.make_ha(name, servers=[nowhere(), uri], reconnect_delay=0.001)
    client.connect_and_logon(SECONDS)
    client.publish_flush()


def test_with_block_of_ha_client_closes_stores_if_connecting_fails(
    front: Front, name: str, tmp_path: Path
) -> None:
    paths = {"publish_path": tmp_path / "publishes", "bookmark_path": tmp_path / "bookmarks"}
    delays = tt.FixedDelayStrategy(0.01, give_up_after=0.02)
    for _ in range(2):  # open stores would make the second client fail
        client = front.make_ha_backed("file", name, servers=nowhere(), reconnect_delay=delays, **paths)
        with pytest.raises(tt.Disconnected, match="gives up"):
            client.__enter__()
        with pytest.raises(tt.Closed):
            client.publish("orders", b"1")


def test_with_block_of_ha_client_connects_and_closes(front: Front, uri: str, name: str, topic: str) -> None:
    client = front.make_ha(name, servers=uri)
    with client as entered:
        entered.publish(topic, b"1")
        entered.connect_and_logon()  # no effect
    assert not client.connected
    with front.connect(f"{name}-reader", uri) as reader:
        assert [message.data for message in reader.replay(topic)] == [b"1"]


def test_plain_client_calls_each_connection_state_listener_once_per_state(
    front: Front, relay: Relay, name: str
) -> None:
    states: list[tt.ConnectionState] = []
    others: list[tt.ConnectionState] = []
    client = front.make(name, relay.uri, publish_store=tt.MemoryPublishStore())
    for listener in (states.append, others.append, states.append):
        client.add_connection_state_listener(listener)
    client.connect()
    relay.cut()
    wait_until(lambda: "disconnected" in states)
    client.remove_connection_state_listener(others.append)
    client.connect()
    client.close()
    once = ["connected", "logged_on", "publish_replayed", "disconnected"]
    assert states == [*once, *once, "shutdown"]
    assert others == once
    with pytest.raises(tt.UsageError):
        client.add_connection_state_listener("log")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "Cannot connect without servers"),
        ({"servers": "tcp://a:1", "server_chooser": tt.DefaultServerChooser("tcp://a:1")}, "Pass only one"),
        ({"servers": ["http://a"]}, "Invalid server address"),
        ({"server_chooser": "tcp://a:1"}, "all methods of ServerChooser"),
        ({"servers": "tcp://a:1", "reconnect_delay": "often"}, "Invalid interval 'often'"),
        ({"servers": "tcp://a:1", "subscription_manager": 1}, "all methods of SubscriptionManager"),
    ],
)
def test_ha_client_with_invalid_options_raises(front: Front, options: dict[str, Any], says: str) -> None:
    with pytest.raises(tt.BadOption, match=says):
        front.make_ha("c", **options)
