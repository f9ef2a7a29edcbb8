"""The asyncio client: cancellation, coroutine handlers, an event loop shared with other tasks."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

import tickertape as tt
from tests.helpers.processes import source_environment
from tickertape.testing.server import RunningServer

Body = Callable[[tt.AsyncClient], Coroutine[Any, Any, None]]
Run = Callable[[Body], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, uri: str, name: str) -> Run:
    """Run a coroutine function with a connected client, on either loop."""

    def act(body: Body) -> None:
        async def main() -> None:
            async with tt.AsyncClient(name, uri) as client:
                await body(client)

        if request.param == "uvloop":
            uvloop.run(main())
        else:
            asyncio.run(main())

    return act


async def cancelled(work: Coroutine[Any, Any, Any], after: float = 0.0) -> None:
    task = asyncio.ensure_future(work)
    await asyncio.sleep(after)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def drain(stream: tt.AsyncMessageStream) -> None:
    async for _ in stream:
        pass


def test_async_streams_are_async_iterators(run: Run, topic: str) -> None:
    async def body(client: tt.AsyncClient) -> None:
        await client.publish_batch(topic, [b"%d" % i for i in range(1_000)])
        messages = [message.data async for message in await client.replay(topic)]
        assert messages == [b"%d" % i for i in range(1_000)]
        batches = [batch async for batch in (await client.replay(topic)).batches()]
        assert sum(len(batch) for batch in batches) == 1_000
        async with await client.bookmark_subscribe(topic, tt.EPOCH) as stream:
            async for message in stream:
                if message.data == b"10":
                    break
            assert (await anext(stream)).data == b"11"
            assert (await stream.get()).data == b"12"

    run(body)


def test_async_stream_with_cancelled_get_loses_no_message(run: Run, topic: str) -> None:
    async def body(client: tt.AsyncClient) -> None:
        stream = await client.subscribe(topic)
        for number in range(30):
            waiting = asyncio.ensure_future(stream.get())
            await asyncio.sleep(0)
            if number % 3:
                await client.publish(topic, b"%d" % number)
            waiting.cancel()
            await asyncio.wait([waiting])
            if number % 3:
                if waiting.cancelled():
                    assert (await stream.get(10)).data == b"%d" % number
                else:
                    assert waiting.result().data == b"%d" % number
        await cancelled(drain(stream), 0.01)
        await client.publish(topic, b"last")
        async for message in stream:
            assert message.data == b"last"
            break

    run(body)


def test_async_client_after_cancelled_calls_is_usable(
    run: Run, shared_server: RunningServer, topic: str
) -> None:
    async def body(client: tt.AsyncClient) -> None:
        os.kill(shared_server.pid, signal.SIGSTOP)
        try:
            await client.publish(topic, b"1")
            await cancelled(client.publish_flush(), 0.01)
            await cancelled(client.publish_flush(level="processed"), 0.01)
            await cancelled(client.subscribe(topic, sub_id="abandoned"), 0.01)
            await cancelled(client.replay(topic), 0.01)
            with pytest.raises(tt.TimedOut):
                await client.subscribe(topic, sub_id="late", timeout=0.01)
        finally:
            os.kill(shared_server.pid, signal.SIGCONT)
        await client.publish_flush()
        assert [message.data async for message in await client.replay(topic)] == [b"1"]
        for sub_id in ("abandoned", "late"):  # ended, so that nothing fills up: the ids are free again
            async with await client.subscribe(topic, sub_id=sub_id) as stream:
                await client.publish(topic, b"2")
                assert (await stream.get(10)).data == b"2"

    run(body)


def test_async_client_after_cancelled_connect_connects_on_retry(
    uri: str, name: str, shared_server: RunningServer
) -> None:
    async def main() -> None:
        client = tt.AsyncClient(name, uri)
        os.kill(shared_server.pid, signal.SIGSTOP)
        try:
            await cancelled(client.connect(), 0.02)
            with pytest.raises(tt.TimedOut):
                await client.connect(timeout=0.02)
        finally:
            os.kill(shared_server.pid, signal.SIGCONT)
        assert not client.connected
        await client.connect()
        await client.publish_flush()
        await client.close()

    asyncio.run(main())


def test_async_client_with_cancelled_close_is_closed(
    uri: str, name: str, topic: str, shared_server: RunningServer
) -> None:
    async def main() -> None:
        client = tt.AsyncClient(name, uri)
        await client.connect()
        stream = await client.subscribe(topic)
        os.kill(shared_server.pid, signal.SIGSTOP)
        try:
            await client.publish(topic, b"1")
            await cancelled(client.close(), 0.02)
        finally:
            os.kill(shared_server.pid, signal.SIGCONT)
        assert not client.connected
        assert [message async for message in stream] == []
        with pytest.raises(tt.Closed):
            await client.connect()
        await client.close()

    asyncio.run(main())


def test_async_client_close_waits_no_longer_than_the_timeout(
    uri: str, name: str, topic: str, shared_server: RunningServer
) -> None:
    reported: list[BaseException] = []

    async def main() -> None:
        client = tt.AsyncClient(name, uri)
        client.set_exception_listener(reported.append)
        await client.connect()
        os.kill(shared_server.pid, signal.SIGSTOP)
        try:
            await client.publish(topic, b"1")
            await client.close(timeout=0.05)
        finally:
            os.kill(shared_server.pid, signal.SIGCONT)
        assert not client.connected

    asyncio.run(main())
    assert [type(error) for error in reported] == [tt.TimedOut, tt.Disconnected]
    assert "1 message(s) have no answer" in str(reported[1])


def test_async_publish_yields_to_other_tasks_and_is_bounded(
    run: Run, shared_server: RunningServer, topic: str
) -> None:
    async def body(client: tt.AsyncClient) -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        for _ in range(3_000):
            await client.publish(topic, bytes(500))
        assert turns > 5
        counting.cancel()
        os.kill(shared_server.pid, signal.SIGSTOP)
        try:
            await cancelled(client.publish_batch(topic, [bytes(50_000)] * 10_000), 0.5)
        finally:
            os.kill(shared_server.pid, signal.SIGCONT)
        await client.publish_flush(timeout=30)

    run(body)


def test_async_publish_when_cancelled_publishes_nothing(
    run: Run, shared_server: RunningServer, topic: str
) -> None:
    async def body(client: tt.AsyncClient) -> None:
        accepted = 0
        os.kill(shared_server.pid, signal.SIGSTOP)
        try:

            async def publish() -> None:
                nonlocal accepted
                while True:
                    await client.publish(topic, b"%d" % accepted + bytes(100_000))
                    accepted += 1

            await cancelled(publish(), 0.2)
        finally:
            os.kill(shared_server.pid, signal.SIGCONT)
        await client.publish_flush(timeout=30)
        stored = [message.data.rstrip(b"\0") async for message in await client.replay(topic)]
        assert stored == [b"%d" % number for number in range(accepted)]

    run(body)


def test_coroutine_handlers_run_in_order_and_exceptions_are_reported(run: Run, topic: str) -> None:
    seen: list[bytes] = []
    reported: list[BaseException] = []

    async def body(client: tt.AsyncClient) -> None:
        done, free = asyncio.Event(), asyncio.Event()

        async def handle(message: tt.Message) -> None:
            await free.wait()
            seen.append(message.data)
            if message.data == b"1":
                await client.publish(topic, b"3")  # the client can be used inside
                await client.publish_flush()
                raise ValueError(message.data)
            if message.data == b"3":
                done.set()

        client.set_exception_listener(reported.append)
        await client.subscribe(topic, on_message=handle)
        await client.publish(topic, b"1")
        await client.publish(topic, b"2")
        await client.publish_flush()  # acknowledged though the handler is slow
        free.set()
        async with asyncio.timeout(10):
            await done.wait()

    run(body)
    assert seen == [b"1", b"2", b"3"]
    assert [type(error) for error in reported] == [ValueError]


def test_async_client_close_cancels_handlers_after_the_timeout(uri: str, name: str, topic: str) -> None:
    ended: list[str] = []

    async def main() -> None:
        client = tt.AsyncClient(name, uri)
        await client.connect()
        begun, both = asyncio.Event(), asyncio.Event()

        async def hang(message: tt.Message) -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        async def close_from_inside(message: tt.Message) -> None:
            await begun.wait()
            await client.close(timeout=0.1)
            ended.append("closed")
            both.set()

        await client.subscribe(topic, on_message=hang)
        stream = await client.subscribe(topic, on_message=close_from_inside)
        await client.publish(topic, b"1")
        async with asyncio.timeout(10):
            await both.wait()
        assert stream.end_reason == "closed"

    asyncio.run(main())
    assert ended == ["cancelled", "closed"]


def use_on_two_loops(client: tt.AsyncClient, topic: str) -> None:
    async def use() -> None:
        await client.publish(topic, b"1")
        await client.publish_flush()

    async def refuse() -> None:
        with pytest.raises(tt.UsageError, match="another event loop"):
            await client.publish_flush()

    async def first() -> None:
        await client.connect()
        await use()
        await asyncio.to_thread(asyncio.run, refuse())

    async def second() -> None:
        await refuse()
        await client.connect()
        await use()
        await client.close()

    asyncio.run(first())
    asyncio.run(second())


def test_async_client_on_another_loop_raises_until_connect(uri: str, name: str, topic: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the first loop ends without closing the client
        use_on_two_loops(tt.AsyncClient(name, uri), topic)
        gc.collect()


def test_async_client_keeps_message_order_per_task(run: Run, topic: str) -> None:
    async def body(client: tt.AsyncClient) -> None:
        async def publish(task: int) -> None:
            for number in range(100):
                await client.publish(topic, b"%d %d" % (task, number))
            await client.publish_flush()

        await asyncio.gather(*(publish(task) for task in range(20)))
        found: dict[bytes, list[int]] = {}
        async for message in await client.replay(topic):
            task, number = message.data.split()
            found.setdefault(task, []).append(int(number))
        assert len(found) == 20
        assert all(numbers == list(range(100)) for numbers in found.values())

    run(body)


def test_async_replay_handler_on_lost_connection_ends_without_loop_error(
    server: RunningServer, name: str
) -> None:
    unhandled: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        async with tt.AsyncClient(f"{name} writes", server.uri) as writer:
            await writer.publish_batch("t", [bytes(1_000)] * 100)
            await writer.publish_flush()
        taken: list[tt.Message] = []
        lost = asyncio.Event()
        client = tt.AsyncClient(name, server.uri)
        await client.connect()
        client.set_disconnect_handler(lambda _: lost.set())

        async def handler(message: tt.Message) -> None:
            taken.append(message)
            if len(taken) == 5:
                server.kill()
                await lost.wait()

        command = tt.Command("subscribe", "t", bookmark=tt.EPOCH, until_caught_up=True, depth="16KB")
        stream = await client.execute_async(command, handler)
        await lost.wait()
        await client.close()
        assert stream.end_reason == "disconnected"
        del stream, client, handler
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert unhandled == []


def test_asyncio_how_to_example_runs(uri: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "asyncio.md").read_text(encoding="utf-8")
    example = page.split("```python\n")[1].split("```")[0]
    example = example.replace("tcp://127.0.0.1:9007", uri).replace('"orders"', '"recorded-999"')
    done = subprocess.run(
        [sys.executable, "-c", example],
        env=source_environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "{'id': 1, 'symbol': 'IBM'}\n"), done.stderr
