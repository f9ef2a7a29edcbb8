"""One connection on an event loop, without a protocol."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable

import pytest
import uvloop

from tickertape.base.errors import Disconnected
from tickertape.client.aio.connection import JOINED_BYTES_MAX, AsyncioConnection
from tickertape.client.common.address import parse_uri

LOOPS = pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
RESETS = struct.pack("ii", 1, 0)


class Driver:
    """A driver that records all calls."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.errors: list[Disconnected] = []
        self.written_frames: list[int] = []
        self._memory = memoryview(bytearray(1000))

    def opened(self, link: AsyncioConnection) -> None: ...

    def buffer(self) -> memoryview:
        return self._memory

    def arrived(self, count: int) -> None: ...

    def written(self, link: AsyncioConnection, frame: int) -> None:
        self.written_frames.append(frame)

    def lost(self, link: AsyncioConnection, error: Disconnected) -> None:
        self.errors.append(error)
        self.ended.set()


@LOOPS
@pytest.mark.parametrize("sizes", [[10], [JOINED_BYTES_MAX] * 20])
def test_writes_to_a_broken_connection_are_dropped_without_log_message(
    make_loop: Callable[[], asyncio.AbstractEventLoop], sizes: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def run(server: socket.socket) -> Driver:
        driver = Driver()
        link = AsyncioConnection(parse_uri(f"tcp://127.0.0.1:{server.getsockname()[1]}"), driver)
        await link.dial()
        accepted, _ = server.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
        accepted.close()
        for _ in range(20):  # before the loop can detect the end
            link.send([b"x" * size for size in sizes])
        assert not driver.errors
        await asyncio.wait_for(driver.ended.wait(), 10)
        link.send([b"x"])
        return driver

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        asyncio.Runner(loop_factory=make_loop) as runner,
        caplog.at_level(logging.WARNING),
    ):
        driver = runner.run(run(server))
    assert len(driver.errors) == 1
    assert caplog.messages == []


@LOOPS
def test_written_frame_is_reported_once_in_the_second_loop_turn(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def run() -> None:
        driver, loop = Driver(), asyncio.get_running_loop()
        link = AsyncioConnection(parse_uri("tcp://127.0.0.1:1"), driver)
        link.report_written(1, loop)
        link.report_written(1, loop)
        await asyncio.sleep(0)
        assert driver.written_frames == []
        await asyncio.sleep(0)
        assert driver.written_frames == [1]
        link.pause_writing()
        link.report_written(2, loop)
        link.report_written(3, loop)
        for _ in range(5):
            await asyncio.sleep(0)
        assert driver.written_frames == [1]
        link.resume_writing()
        assert driver.written_frames == [1, 3]
        link.pause_writing()
        link.resume_writing()
        assert driver.written_frames == [1, 3]

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(run())


def test_written_report_on_closed_loop_does_nothing() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    driver = Driver()
    AsyncioConnection(parse_uri("tcp://127.0.0.1:1"), driver).report_written(1, loop)
    assert driver.written_frames == []
