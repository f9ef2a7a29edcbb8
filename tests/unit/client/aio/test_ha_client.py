"""The asyncio HA client with ended event loops and cancelled tasks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

import tickertape as tt
from tests.helpers.ha_parts import nowhere
from tests.unit.client.socket_server import socket_server

SECONDS = 20.0


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # a loop that ended closes nothing
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_async_ha_client_after_loop_closed_with_open_tasks_connects_on_next_loop(
    make: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    _publish_in_loops_that_are_closed(make)
    gc.collect()  # resource warnings belong to this test, not to a later one


def _publish_in_loops_that_are_closed(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    reported: list[BaseException] = []
    with socket_server() as server:
        client = tt.AsyncHAClient("pricing-1", servers=server.uri, reconnect_delay=0)
        client.set_exception_listener(reported.append)

        async def publish(body: bytes) -> None:
            await client.connect_and_logon(SECONDS)
            await client.publish("orders", body)
            await client.publish_flush()

        for number in range(3):
            loop = make()
            loop.run_until_complete(publish(b"%d" % number))
            loop.close()
            gc.collect()

        asyncio.run(client.close())
        assert server.bodies() == [b"0", b"1", b"2"]
        assert reported == []


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # a loop that ended closes nothing
def test_async_ha_client_after_ended_loop_connects_on_another_loop() -> None:
    _publish_in_loops_one_after_the_other()
    gc.collect()


def _publish_in_loops_one_after_the_other() -> None:
    with socket_server() as server:
        client = tt.AsyncHAClient("pricing-1", servers=server.uri, reconnect_delay=0)

        async def publish(body: bytes) -> None:
            await client.connect_and_logon(SECONDS)
            await client.publish("orders", body)
            await client.publish_flush()

        asyncio.run(publish(b"1"))
        asyncio.run(publish(b"2"))

        async def end() -> None:
            await publish(b"3")
            await client.close()

        asyncio.run(end())
        assert server.bodies() == [b"1", b"2", b"3"]
        assert len(server.logons) == 3


def test_async_ha_client_after_loop_ended_while_connecting_connects_on_next_loop() -> None:
    reported: list[BaseException] = []
    chooser = tt.DefaultServerChooser(nowhere())
    client = tt.AsyncHAClient("pricing-1", server_chooser=chooser, reconnect_delay=100)
    client.set_exception_listener(reported.append)

    async def start() -> None:
        beginning = asyncio.create_task(client.connect_and_logon())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not beginning.done()

    asyncio.run(start())
    assert reported == []  # waiting calls were cancelled too
    with socket_server() as server:
        chooser.add(server.uri)

        async def again() -> None:
            chooser.report_failure(tt.Disconnected(""), tt.ConnectionInfo("", chooser.current_uri() or ""))
            await client.connect_and_logon(SECONDS)
            await client.close()

        asyncio.run(again())


def test_async_ha_client_on_another_running_loop_raises() -> None:
    async def run() -> None:
        with socket_server() as server:
            async with tt.AsyncHAClient("pricing-1", servers=server.uri) as client:

                async def elsewhere() -> None:
                    with pytest.raises(tt.UsageError, match="another event loop"):
                        await client.connect_and_logon()

                await asyncio.to_thread(asyncio.run, elsewhere())
                await client.publish("orders", b"1")
                await client.publish_flush()

    asyncio.run(run())


def test_cancelled_connect_and_logon_stops_and_can_be_retried() -> None:
    async def run() -> None:
        chooser = tt.DefaultServerChooser(nowhere())
        client = tt.AsyncHAClient("pricing-1", server_chooser=chooser, reconnect_delay=0.001)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await client.connect_and_logon()
            with pytest.raises(tt.Disconnected, match="connection attempt was cancelled"):
                await client.subscribe("orders")
        with socket_server() as server:
            chooser.add(server.uri)
            await client.connect_and_logon(SECONDS)
            await client.close()

    asyncio.run(run())


def test_cancelling_one_of_two_connect_calls_keeps_the_other() -> None:
    async def run() -> None:
        chooser = tt.DefaultServerChooser(nowhere())
        client = tt.AsyncHAClient("pricing-1", server_chooser=chooser, reconnect_delay=0.001)
        waiting = [asyncio.create_task(client.connect_and_logon(SECONDS)) for _ in range(2)]
        await asyncio.sleep(0.005)
        waiting[0].cancel()
        with socket_server() as server:
            chooser.add(server.uri)
            await waiting[1]
            assert client.connected
            await client.close()

    asyncio.run(run())


def test_cancelled_reconnect_task_fails_waiting_and_later_calls() -> None:
    async def run() -> None:
        chooser = tt.DefaultServerChooser(nowhere())
        client = tt.AsyncHAClient("pricing-1", server_chooser=chooser, reconnect_delay=0.001)
        waiting = asyncio.create_task(client.connect_and_logon())
        await asyncio.sleep(0.005)
        assert client._driver._reconnecting is not None
        client._driver._reconnecting.cancel()
        with pytest.raises(tt.Disconnected, match="the reconnect task was cancelled"):
            await waiting
        with pytest.raises(tt.Disconnected, match="the reconnect task was cancelled"):
            await client.subscribe("orders")
        await client.close()

    asyncio.run(run())


def test_authenticator_may_be_a_coroutine_function() -> None:
    class Tokens(tt.DefaultAuthenticator):
        async def authenticate(  # type: ignore[override]
            self, user: str | None, password: str | None
        ) -> str | None:
            await asyncio.sleep(0)
            return f"{user}-{password}"

    async def run() -> None:
        with socket_server() as server:
            chooser = tt.DefaultServerChooser(server.uri, authenticator=Tokens())
            async with tt.AsyncHAClient("a", server_chooser=chooser, user="ann", password="p"):
                assert [logon.password for logon in server.logons] == ["ann-p"]

    asyncio.run(run())


def test_cancelled_authenticator_task_costs_one_attempt() -> None:
    class Tokens(tt.DefaultAuthenticator):
        asked = 0

        async def authenticate(  # type: ignore[override]
            self, user: str | None, password: str | None
        ) -> str | None:
            self.asked += 1
            if self.asked == 2:
                fetching = asyncio.ensure_future(asyncio.sleep(100))
                fetching.cancel()
                await fetching
            return "p"

    failures: list[str] = []

    class Chooser(tt.DefaultServerChooser):
        def report_failure(self, error: tt.TickertapeError, info: tt.ConnectionInfo) -> None:
            failures.append(str(error))

    async def run() -> None:
        reported: list[BaseException] = []
        back = asyncio.Event()
        tokens = Tokens()

        def received(state: tt.ConnectionState) -> None:
            if state is tt.ConnectionState.RESUBSCRIBED:
                back.set()

        with socket_server() as server:
            chooser = Chooser(server.uri, authenticator=tokens)
            async with tt.AsyncHAClient("a", server_chooser=chooser, reconnect_delay=0.001) as client:
                client.set_exception_listener(reported.append)
                client.add_connection_state_listener(received)
                server.drop()
                await asyncio.wait_for(back.wait(), SECONDS)
                await client.publish_flush()
        assert tokens.asked == 3
        assert reported == []
        assert len(failures) == 1
        assert "the authenticator raised CancelledError" in failures[0]

    asyncio.run(run())


def test_reconnect_task_cancelled_before_the_first_step_can_be_restarted() -> None:
    async def run() -> None:
        with socket_server() as server:
            client = tt.AsyncHAClient("pricing-1", servers=server.uri)
            waiting = asyncio.create_task(client.connect_and_logon())
            asyncio.get_running_loop().call_soon(
                lambda: client._driver._reconnecting and client._driver._reconnecting.cancel()
            )
            with pytest.raises(tt.Disconnected, match="the reconnect task was cancelled"):
                await asyncio.wait_for(waiting, SECONDS)
            await client.connect_and_logon(SECONDS)
            await client.close()

    asyncio.run(run())


def test_async_with_closes_the_client_if_connecting_fails(tmp_path: Path) -> None:
    async def run() -> None:
        delays = tt.FixedDelayStrategy(0.001, give_up_after=0.002)
        client = tt.AsyncHAClient.file_backed(
            "a",
            publish_path=tmp_path / "publishes",
            bookmark_path=tmp_path / "bookmarks",
            servers=nowhere(),
            reconnect_delay=delays,
        )
        with pytest.raises(tt.Disconnected, match="gives up"):
            await client.__aenter__()
        tt.FilePublishStore(tmp_path / "publishes").close()  # the store has no owner

    asyncio.run(run())
