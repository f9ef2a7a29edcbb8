"""One connection's socket and receive thread, without a protocol."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from tickertape.base.errors import BadOption, Disconnected
from tickertape.base.interfaces import Buffer
from tickertape.client.blocking.connection import SocketConnection
from tickertape.client.common.address import parse_uri


class Driver:
    """A driver that records all calls."""

    def __init__(self, fails: bool = False) -> None:
        self.data = b""
        self.error: Disconnected | None = None
        self.ended = threading.Event()
        self.calls = 0
        self.deadline: float | None = None
        self._fails = fails
        self._memory = memoryview(bytearray(1000))

    def buffer(self) -> memoryview:
        return self._memory

    def arrived(self, count: int) -> float | None:
        if self._fails:
            raise ZeroDivisionError
        self.calls += 1
        self.data += bytes(self._memory[:count])
        deadline, self.deadline = self.deadline, None
        return deadline

    def lost(self, error: Disconnected) -> None:
        self.error = error
        self.ended.set()


def linked(driver: Driver) -> tuple[SocketConnection, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    link = SocketConnection(ours, "test", driver)
    link.start()
    return link, theirs


def test_bytes_beyond_the_socket_buffer_are_written_later_in_order() -> None:
    driver = Driver()
    link, theirs = linked(driver)
    expected = bytearray()
    for i in range(300):
        buffers: list[Buffer] = [b"%d " % i, memoryview(bytes([i % 251]) * 20_000), b""]
        expected += b"".join(buffers)
        link.add(buffers)
        link.push()
    assert link.blocked
    assert link.congested
    assert not link.wait_room(0)
    received = bytearray()
    while len(received) < len(expected):
        received += theirs.recv(1 << 16)
    assert received == expected
    assert link.wait_room(10)
    theirs.close()
    assert driver.ended.wait(10)
    link.thread.join()


class Interrupted:
    """A socket with a Ctrl-C of the user during each write."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real

    def sendmsg(self, buffers: list[Buffer]) -> int:
        self._real.sendmsg(buffers)
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize("reads", [False, True])
def test_wait_unblocked_returns_when_the_peer_reads_or_connection_ends(*, reads: bool) -> None:
    driver = Driver()
    link, theirs = linked(driver)
    link.wait_unblocked()
    while not link.blocked:
        link.add([bytes(100_000)])
        link.push()
    waiter = threading.Thread(target=link.wait_unblocked, daemon=True)
    waiter.start()
    assert waiter.is_alive()
    if reads:
        theirs.settimeout(10)
        while link.blocked:
            theirs.recv(100_000)
    else:
        link.hang_up()
    waiter.join(10)
    assert not waiter.is_alive()
    link.hang_up()
    assert driver.ended.wait(10)
    theirs.close()


def test_interrupted_write_ends_the_connection_and_releases_the_lock() -> None:
    driver = Driver()
    link, theirs = linked(driver)
    with theirs:
        link._socket = cast(socket.socket, Interrupted(link._socket))
        link.add([b"half a frame"])
        with pytest.raises(KeyboardInterrupt):
            link.push()
        assert driver.ended.wait(10), "the sent bytes are unknown, so the connection ends"
        assert "interrupted" in str(driver.error)
        taken: list[bool] = []
        other = threading.Thread(target=lambda: taken.append(link._writing.acquire(timeout=10)))
        other.start()
        other.join()
        assert taken == [True], "the lock is free for other threads"


def test_push_during_a_write_is_deferred_to_the_next_push() -> None:
    driver = Driver()
    link, theirs = linked(driver)
    with theirs:
        with link._writing:
            link.add([b"later"])
            link.push()
        theirs.settimeout(0.05)
        with pytest.raises(TimeoutError):
            theirs.recv(100)
        link.push()
        theirs.settimeout(10)
        assert theirs.recv(100) == b"later"
        link.hang_up()
        link.thread.join()


def test_connection_delivers_all_bytes_before_the_end() -> None:
    driver = Driver()
    link, theirs = linked(driver)
    theirs.sendall(b"x" * 2500)
    theirs.close()
    assert driver.ended.wait(10)
    link.thread.join()
    assert driver.data == b"x" * 2500
    assert "the connection to 'test' was closed by the server. Connect again." in str(driver.error)


def test_deadline_calls_the_driver_without_bytes() -> None:
    driver = Driver()
    driver.deadline = 0.0
    link, theirs = linked(driver)
    theirs.sendall(b"x")
    while driver.calls < 2:
        assert not driver.ended.wait(0.001)
    assert driver.data == b"x"
    link.hang_up(Disconnected("enough"))
    link.thread.join()
    assert str(driver.error) == "enough"
    theirs.close()


def test_hang_up_of_ended_connection_does_nothing() -> None:
    driver = Driver()
    link, theirs = linked(driver)
    theirs.close()
    link.thread.join()
    link.add([b"late"])
    link.push()
    link.hang_up()
    assert link.wait_room(0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_exception_on_receive_thread_is_reported_as_loss() -> None:
    driver = Driver(fails=True)
    link, theirs = linked(driver)
    theirs.sendall(b"x")
    link.thread.join()
    assert driver.error is not None
    assert isinstance(driver.error.__cause__, ZeroDivisionError)
    theirs.close()


def test_parse_uri_decodes_credentials_and_paths() -> None:
    address = parse_uri("tcp://ann:p%40ss@[::1]:9007")
    assert (address.host, address.port, address.user, address.password) == ("::1", 9007, "ann", "p@ss")
    assert address.uri == "tcp://ann:...@[::1]:9007"
    assert parse_uri("unix:///run/tt%20x").path == "/run/tt x"
    with pytest.raises(BadOption):
        parse_uri("")


def once_reading(theirs: socket.socket, done: Callable[[], bool]) -> Callable[[], bool]:
    """Send an answer at the first check of `read_until`, when the calling thread reads."""
    answers = [b"answer"]

    def asked() -> bool:
        if answers:
            theirs.sendall(answers.pop())
        return done()

    return asked


def test_read_until_reads_on_the_calling_thread_then_returns_the_role() -> None:
    driver = Driver()
    link, theirs = linked(driver)
    readers: list[str] = []
    arrived = driver.arrived

    def noted(count: int) -> float | None:
        readers.append(threading.current_thread().name)
        return arrived(count)

    driver.arrived = noted  # type: ignore[method-assign]
    with theirs:
        link.read_until(once_reading(theirs, lambda: driver.data == b"answer"), time.monotonic() + 10)
        assert driver.data == b"answer"
        assert readers == [threading.current_thread().name]
        theirs.sendall(b" and more")
        while len(driver.data) < 15:
            assert not driver.ended.wait(0.001)
        assert readers[-1] == link.thread.name
        link.read_until(lambda: False, time.monotonic() + 0.01)
    assert driver.ended.wait(10)
    link.thread.join()
    link.read_until(lambda: False, None)


def test_interrupted_read_without_bytes_keeps_the_connection() -> None:
    driver = Driver()
    link, theirs = linked(driver)

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with theirs:
        with pytest.raises(KeyboardInterrupt):
            link.read_until(interrupt, None)
        theirs.sendall(b"x")
        while not driver.data:
            assert not driver.ended.wait(0.001)
    link.thread.join()


def test_interrupted_read_with_unprocessed_bytes_ends_the_connection() -> None:
    driver = Driver()
    link, theirs = linked(driver)

    def interrupted(count: int) -> float | None:
        raise KeyboardInterrupt

    driver.arrived = interrupted  # type: ignore[method-assign]
    with theirs:
        with pytest.raises(KeyboardInterrupt):
            link.read_until(once_reading(theirs, lambda: False), time.monotonic() + 10)
        assert driver.ended.wait(10)
        assert "interrupted" in str(driver.error)
    link.thread.join()


def test_read_until_returns_at_the_end_of_the_connection() -> None:
    driver = Driver()
    link, theirs = linked(driver)
    later = threading.Timer(0.02, theirs.close)
    later.start()
    link.read_until(lambda: False, time.monotonic() + 10)
    assert driver.ended.wait(10)
    assert "the connection to 'test' was closed by the server. Connect again." in str(driver.error)
    link.thread.join()


def test_read_until_leaves_the_buffer_of_the_next_connection_alone_after_the_end() -> None:
    driver = Driver()
    link, theirs = linked(driver)
    theirs.close()
    assert driver.ended.wait(10)
    link.thread.join()
    asked: list[str] = []

    def buffer() -> memoryview:
        asked.append("buffer")
        return memoryview(bytearray(1))

    driver.buffer = buffer  # type: ignore[method-assign]
    link.read_until(lambda: False, time.monotonic() + 10)
    assert asked == []


def test_bytes_after_an_interrupted_read_are_not_processed() -> None:
    driver = Driver()
    link, theirs = linked(driver)
    counts: list[int] = []

    def interrupted(count: int) -> float | None:
        counts.append(count)
        if len(counts) == 1:
            raise KeyboardInterrupt
        return None

    driver.arrived = interrupted  # type: ignore[method-assign]
    answers = [bytes(2_500)]

    def done() -> bool:
        if answers:
            theirs.sendall(answers.pop())
        return False

    with theirs:
        with pytest.raises(KeyboardInterrupt):
            link.read_until(done, time.monotonic() + 10)
        link.read_until(done, time.monotonic() + 10)
        assert driver.ended.wait(10)
    link.thread.join()
    assert counts == [1_000]
    assert "interrupted" in str(driver.error)
