"""HTTP connections that are slow on purpose, and their timeouts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence

import pytest

from tests.helpers.peer import frame
from tickertape.server.admin.http import Answer, Changing, HttpConnection
from tickertape.server.limits import admin_request_bytes_max
from tickertape.wire.commands import PREFACE, Logon

SECONDS_MAX = 0.1
GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


made: list[str] = []
"""Answered targets, for the test that clears the list."""


async def answer(target: str, accept: str) -> Answer:
    made.append(target)
    if target == "/large":
        return Answer(200, bytes(32 * 2**20))
    if target == "/slow":
        await asyncio.sleep(0.01)
    return Answer(200, target.encode())


def talk(
    with_server: Talk, seconds_max: float = SECONDS_MAX, changing: Changing | None = None
) -> set[HttpConnection]:
    """Run one connection against a server, and return the connections that remain."""
    peers: set[HttpConnection] = set()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: HttpConnection(answer, peers, hosts=("h",), changing=changing, seconds_max=seconds_max),
            "127.0.0.1",
            0,
        )
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await asyncio.wait_for(with_server(reader, writer), 20)
        writer.close()
        for _ in range(100):
            await asyncio.sleep(0)
        server.close()

    asyncio.run(run())
    return peers


def test_incomplete_request_gets_408_after_the_timeout() -> None:
    async def partial(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GET[:-2])
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")

    assert talk(partial) == set()


def test_request_sent_byte_by_byte_gets_no_extra_time() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            writer.write(b"G")
            await asyncio.sleep(SECONDS_MAX / 10)  # endless if each byte extended the timeout
        with contextlib.suppress(ConnectionResetError):  # unread bytes reset the connection
            assert (await reading).startswith(b"HTTP/1.1 408 ")

    assert talk(drip) == set()


BODY = b"HEAD /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n"


@pytest.mark.parametrize("said", [BODY, BODY + b"12345"])
def test_refused_head_request_gets_no_body_and_is_disconnected(said: bytes) -> None:
    async def head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        received = await reader.read()
        assert received.startswith(b"HTTP/1.1 413 ")
        assert received.endswith(b"\r\n\r\n")

    assert talk(head) == set()


def test_connection_is_closed_in_time_when_the_refusal_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: HttpConnection, status: int, text: str) -> None:
        raise ZeroDivisionError

    async def partial(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["exception"]))
        writer.write(GET[:-2])
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""

    seen: list[BaseException] = []
    monkeypatch.setattr(HttpConnection, "_refuse", broken)
    assert talk(partial) == set()
    assert [type(error) for error in seen] == [ZeroDivisionError]


@pytest.mark.parametrize("first", [b"", GET])
def test_idle_connection_is_closed_without_a_response(first: bytes) -> None:
    async def idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        said = await reader.read()
        assert said.count(b"HTTP/1.1") == bool(first)

    assert talk(idle) == set()


def test_response_that_is_not_read_is_dropped_after_the_timeout() -> None:
    async def slow_reader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GET.replace(b"/a", b"/large"))
        await asyncio.sleep(3 * SECONDS_MAX)
        got = 0
        with contextlib.suppress(ConnectionResetError):
            while more := await reader.read(2**20):
                got += len(more)
        assert got < 32 * 2**20, "only the bytes in the buffers"

    assert talk(slow_reader) == set()


def test_next_response_is_made_after_the_client_read_the_last_one() -> None:
    made.clear()

    async def slow_reader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GET.replace(b"/a", b"/large") * 100)
        with contextlib.suppress(ConnectionError):
            while True:
                await asyncio.sleep(SECONDS_MAX / 10)  # endless if each request extended the timeout
                writer.write(GET)
                await writer.drain()
        assert made == ["/large"]

    assert talk(slow_reader) == set()


def test_pipelined_requests_with_full_write_buffers_are_all_answered() -> None:
    async def pipeline(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GET.replace(b"/a", b"/large") * 2 + GET)
        writer.write_eof()
        await asyncio.sleep(0.05)  # long enough to fill the buffers of the system
        got = 0
        tail = b""
        while more := await reader.read(2**20):
            got += len(more)
            tail = (tail + more)[-2:]
        assert got > 2 * 32 * 2**20
        assert tail == b"/a"

    assert talk(pipeline, 20) == set()


def test_pipelined_requests_are_answered_in_order() -> None:
    async def pipeline(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GET.replace(b"/a", b"/slow") + GET + GET.replace(b"/a", b"/b"))
        said = b""
        while not said.endswith(b"/b"):
            said += await reader.read(1000)
        assert said.index(b"/slow") < said.index(b"/a") < said.index(b"/b")

    assert talk(pipeline, 20) == set()


def test_half_closed_connection_gets_a_response() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GET.replace(b"/a", b"/slow"))
        writer.write_eof()
        assert (await reader.read()).endswith(b"/slow")

    assert talk(half, 20) == set()


class Recorder(asyncio.Transport):
    """A transport without a socket, which keeps the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.said = b""
        self.ended = asyncio.Event()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.said += data

    def write_eof(self) -> None:
        self.ended.set()

    def close(self) -> None:
        self.ended.set()

    def abort(self) -> None:
        self.ended.set()

    def is_closing(self) -> bool:
        return False


def answer_to(parts: Sequence[bytes]) -> bytes:
    """Return the answer of a connection that receives one part with each read, up to its end."""

    async def run() -> bytes:
        recorder = Recorder()
        connection = HttpConnection(answer, set(), hosts=("h",), seconds_max=20)
        connection.connection_made(recorder)
        for part in parts:
            connection.data_received(part)
        await asyncio.wait_for(recorder.ended.wait(), 10)
        connection.connection_lost(None)
        return recorder.said

    return asyncio.run(run())


def splits(data: bytes, cuts: Iterable[int]) -> list[list[bytes]]:
    """Return `data` whole, in two parts cut at each place, and byte by byte."""
    single = [data[at : at + 1] for at in range(len(data))]
    return [[data], *([data[:at], data[at:]] for at in cuts), single]


LAST = b"Host: h\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (PREFACE + frame(Logon(name="lost")), b"Cannot serve Tickertape clients. Use the listen address"),
        (b"\x16\x03\x01\x02\x00\x01" + bytes(60), b"Cannot serve TLS. Use http://."),
        (b"GET /tktape/0 HTTP/1.1\r\n" + LAST, b"/tktape/0"),
        (b"GET /\x16 HTTP/1.1\r\n" + LAST, b"illegal request line"),
    ],
    ids=["client", "tls", "path", "control character"],
)
def test_protocol_of_the_client_is_recognised_for_every_split(data: bytes, text: bytes) -> None:
    answers = {answer_to(parts) for parts in splits(data, range(1, len(data)))}
    assert len(answers) == 1
    assert text in answers.pop()


@pytest.mark.parametrize(("more", "status"), [(0, b"200"), (1, b"431")])
def test_head_of_a_request_has_one_limit_for_every_split(more: int, status: bytes) -> None:
    head = b"GET /a HTTP/1.1\r\nX: %s\r\n" + LAST
    data = head % (b"x" * (admin_request_bytes_max + more - len(head) + len(b"%s")))
    assert len(data) == admin_request_bytes_max + more
    cuts = (1, 8, len(data) // 2, len(data) - 40, len(data) - 4, len(data) - 1)
    answers = {answer_to(parts) for parts in splits(data, cuts)}
    assert len(answers) == 1
    assert answers.pop().startswith(b"HTTP/1.1 " + status)


def test_pipelined_requests_may_exceed_the_limit_of_one_head() -> None:
    count = 2 * admin_request_bytes_max // len(GET)
    said = answer_to([GET * count + b"GET /b HTTP/1.1\r\n" + LAST])
    assert said.count(b"HTTP/1.1 200") == count + 1


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\n",
        b"Content-Length: 5\r\nExpect: 100-continue\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
    ],
)
def test_announced_body_is_refused_without_a_byte_of_the_body(headers: bytes) -> None:
    said = answer_to([b"POST /a HTTP/1.1\r\n" + headers + LAST])
    assert said.startswith(b"HTTP/1.1 413 ")
    assert said == answer_to([b"POST /a HTTP/1.1\r\n" + headers + LAST + b"0;" + b"x" * 20_000])


@pytest.mark.parametrize("length", [b"0", b"00", b"0, 0"])
def test_request_with_an_empty_body_is_answered(length: bytes) -> None:
    said = answer_to([b"GET /a HTTP/1.1\r\nContent-Length: " + length + b"\r\n" + LAST])
    assert said.startswith(b"HTTP/1.1 200 ")


def test_refused_client_that_still_sends_gets_the_whole_answer() -> None:
    async def upload(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 33554432\r\n\r\n")
        writer.write(bytes(32 * 2**20))
        await writer.drain()
        assert (await reader.read()).startswith(b"HTTP/1.1 413 ")

    assert talk(upload, 20) == set()


def test_refused_client_that_never_closes_is_disconnected() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(SECONDS_MAX / 10)

    assert talk(endless) == set()


@pytest.mark.parametrize("changes", [False, True])
def test_method_that_is_not_allowed_gets_the_allowed_ones(changes: bool) -> None:
    async def change(target: str, content_type: str, authorization: str) -> Answer:
        raise AssertionError(target, content_type, authorization)

    async def put(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"PUT /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        said = await reader.read()
        assert said.startswith(b"HTTP/1.1 405 ")
        assert (b"allow: GET, HEAD, POST\r\n" in said, b"HEAD or POST" in said) == (changes, changes)
        assert (b"allow: GET, HEAD\r\n" in said, b"GET or HEAD" in said) == (not changes, not changes)

    assert talk(put, changing=change if changes else None) == set()
