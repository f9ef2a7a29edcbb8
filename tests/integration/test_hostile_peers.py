"""Whatever comes over the socket: its own error, its connection closed, and another client undisturbed."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from random import Random

import pytest

import tickertape as tt
from tests.helpers.peer import Peer, frame
from tests.helpers.wire import batch_of
from tickertape.testing import RunningServer, running_server, wait_until
from tickertape.wire.commands import PREFACE, Ack, Command, Flush, Goodbye, Logon, Publish, Subscribe

SECONDS = 20.0
LOGON = frame(Logon(name="stranger"))
GIGABYTE = 2**30

pytestmark = pytest.mark.slow


def damaged(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 0xFF]) + frame[at + 1 :]


PUBLISH = frame(Publish(frame=1), batch_of(3))

STRANGERS: dict[str, tuple[bytes, str]] = {
    "garbage": (Random(7).randbytes(5000), "not_tickertape"),
    "zeros": (bytes(4096), "not_tickertape"),
    "an HTTP request": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", "not_tickertape"),
    "a TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), "not_tickertape"),
    "another version": (b"tktape/9" + LOGON, "bad_version"),
    "no common version": (PREFACE + frame(Logon(name="stranger", versions=(7, 9))), "bad_version"),
    "an oversized frame": (PREFACE + struct.pack("<IIII", GIGABYTE, 32, 0, 0), "frame_too_large"),
    "a command before logon": (PREFACE + frame(Flush(id=1)), "logon_required"),
    "a publish before logon": (PREFACE + PUBLISH, "logon_required"),
    "a damaged logon": (PREFACE + damaged(LOGON, 20), "bad_frame"),
    "a command of the server": (PREFACE + frame(Goodbye(code="x", text="y")), "bad_command"),
    "a name that cannot be": (PREFACE + frame(Logon(name="a\nb")), "bad_name"),
}

MEMBERS: dict[str, tuple[bytes, str]] = {
    "a second logon": (LOGON, "already_logged_on"),
    "an oversized frame": (struct.pack("<IIII", GIGABYTE, 32, 0, 0), "frame_too_large"),
    "a damaged header": (damaged(frame(Flush(id=1)), 18), "bad_frame"),
    "a damaged batch": (damaged(PUBLISH, len(PUBLISH) - 20), "bad_frame"),
    "a length that is no multiple of 8": (struct.pack("<IIII", 33, 9, 0, 0) + bytes(32), "bad_frame"),
    "a publish without messages": (frame(Publish(frame=1)), "bad_frame"),
    "garbage": (Random(8).randbytes(5000), "frame_too_large"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server() as running:
        yield running


class Witness:
    """Another client, which publishes and reads all the time; everything has to arrive."""

    def __init__(self, uri: str) -> None:
        self._client = tt.Client("witness", uri, timeout=SECONDS)
        self._stream = self._client.subscribe("witness")
        self._stop = threading.Event()
        self._published = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._await(5)

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            self._client.publish("witness", b"%d" % self._published)
            self._published += 1

    def _await(self, more: int) -> None:
        """Wait until so many more are published."""
        goal = self._published + more
        wait_until(lambda: self._published >= goal, SECONDS)

    def check(self) -> None:
        self._await(5)
        self._stop.set()
        self._thread.join()
        self._client.publish_flush()
        got = [self._stream.get(SECONDS).data for _ in range(self._published)]
        assert got == [b"%d" % n for n in range(self._published)]
        assert self._client.connected
        self._client.close()


@pytest.fixture
def witness(server: RunningServer) -> Iterator[Witness]:
    watching = Witness(server.uri)
    yield watching
    watching.check()


def check_goodbye(said: list[Command], code: str) -> None:
    assert [type(command) for command in said] == [Goodbye], said
    (goodbye,) = said
    assert isinstance(goodbye, Goodbye)
    assert goodbye.code == code
    assert len(goodbye.text) > 10, "it says why"


@pytest.mark.parametrize("what", list(STRANGERS))
def test_a_stranger_is_told_why_and_nobody_else_notices(
    server: RunningServer, witness: Witness, what: str
) -> None:
    data, code = STRANGERS[what]
    with Peer(server.uri) as peer:
        peer.send(data)
        check_goodbye(peer.until_closed(), code)


@pytest.mark.parametrize("what", list(MEMBERS))
def test_a_client_that_breaks_the_rules_is_told_why_and_nobody_else_notices(
    server: RunningServer, witness: Witness, what: str
) -> None:
    data, code = MEMBERS[what]
    with Peer(server.uri, "stranger") as peer:
        peer.send(data)
        check_goodbye(peer.until_closed(), code)


def test_a_connection_cut_in_the_middle_of_a_frame_leaves_nothing(
    server: RunningServer, witness: Witness
) -> None:
    for size in (3, len(PREFACE) + 5, len(PREFACE + LOGON) + 30):
        with Peer(server.uri) as peer:
            peer.send((PREFACE + LOGON + PUBLISH)[:size])
    with tt.Client("after", server.uri, timeout=SECONDS) as client:
        assert list(client.replay("orders")) == []


def test_bad_requests_are_refused_and_the_connection_goes_on(server: RunningServer, witness: Witness) -> None:
    with tt.Client("careless", server.uri, timeout=SECONDS) as client:
        client.publish("orders-careless", b"1")
        client.publish_flush()
        for malformed in ("20261399T000000", "[0:", "[20260101T000000+01:00:)", "yesterday"):
            with pytest.raises(tt.BadBookmark):
                client.bookmark_subscribe("orders-careless", malformed)
        for options in ("no_such_option", "bookmark,bookmark", "rate=2x"):
            with pytest.raises(tt.BadOption):
                client.bookmark_subscribe("orders-careless", tt.EPOCH, options=options)
        with pytest.raises(tt.BadTopic):
            client.publish("orders*", b"1")
        assert [message.data for message in client.replay("orders-careless")] == [b"1"]


def test_the_server_judges_for_itself(server: RunningServer, witness: Witness) -> None:
    """Our client refuses these before it sends them; another one may not."""
    subscriptions = [
        Subscribe(id=1, sub_id="a", topic="orders", bookmark="yesterday", credit=1000),
        Subscribe(id=2, sub_id="b", topic="orders", bookmark="0", options="no_such_option", credit=1000),
        Subscribe(id=3, sub_id="c", topic="", credit=1000),
    ]
    with Peer(server.uri, "careless") as peer:
        peer.send(b"".join(map(frame, subscriptions)))
        peer.send(frame(Flush(id=4)))
        answers = [command for _ in range(4) for command in peer.until(Ack)]
    codes = {answer.id: answer.code for answer in answers if isinstance(answer, Ack)}
    assert codes == {1: "bad_bookmark", 2: "bad_option", 3: "bad_topic", 4: ""}
