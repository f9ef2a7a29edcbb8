"""Hostile bytes on the socket: a specific error, a closed connection, and undisturbed clients."""

from __future__ import annotations

import contextlib
import resource
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

import msgspec
import pytest
from crc32c import crc32c

import tickertape as tt
from tests.helpers.peer import Peer, frame
from tests.helpers.processes import anonymous_bytes
from tests.helpers.wire import batch_of
from tests.helpers.witness import SECONDS, Witness
from tickertape.base.limits import KIB, frame_bytes_before_logon_max
from tickertape.batch import BatchBuilder, merge
from tickertape.server.limits import logon_seconds_max
from tickertape.testing import RunningServer, running_server, wait_until
from tickertape.wire.commands import (
    PREFACE,
    Ack,
    Command,
    Credit,
    Credits,
    Flush,
    Goodbye,
    Logon,
    Publish,
    Subscribe,
)

LOGON = frame(Logon(name="stranger"))
GIGABYTE = 2**30
CONNECTIONS = 200
FEW_FILES = 128
"""Open files that a server may have."""
CONNECTION_BYTES_MAX = 64 * KIB
"""Memory of a connection beside its unfinished frame."""

pytestmark = pytest.mark.slow


def damaged(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 0xFF]) + frame[at + 1 :]


def header(data: bytes) -> bytes:
    """Return a frame with valid checksums and any header."""
    padded = data + bytes(-len(data) % 8)
    return struct.pack("<IIII", 16 + len(padded), len(data), crc32c(data), 0) + padded


def batch_frame(batch: bytes, **fields: object) -> bytes:
    """Return a publish frame with any bytes as batch, and their checksum."""
    whole = frame(Publish(frame=1, **fields), batch_of(1))  # type: ignore[arg-type]
    size = struct.unpack_from("<I", whole, 4)[0]
    begin = 16 + size + -size % 8
    prefix = struct.pack("<IIII", begin + len(batch), size, crc32c(whole[16 : 16 + size]), crc32c(batch))
    return prefix + whole[16:begin] + batch


PUBLISH = frame(Publish(frame=1), batch_of(3))

BEFORE_LOGON: dict[str, tuple[bytes, str]] = {
    "garbage": (Random(7).randbytes(5000), "not_tickertape"),
    "zeros": (bytes(4096), "not_tickertape"),
    "a TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), "not_tickertape"),
    "another version": (b"tktape/9" + LOGON, "bad_version"),
    "no common version": (PREFACE + frame(Logon(name="stranger", versions=(7, 9))), "bad_version"),
    "an oversized frame": (PREFACE + struct.pack("<IIII", GIGABYTE, 32, 0, 0), "frame_too_large"),
    "a command before logon": (PREFACE + frame(Flush(id=1)), "logon_required"),
    "a publish before logon": (PREFACE + PUBLISH, "logon_required"),
    "a damaged logon": (PREFACE + damaged(LOGON, 20), "bad_frame"),
    "a command of the server": (PREFACE + frame(Goodbye(code="x", text="y")), "bad_command"),
    "an invalid name": (PREFACE + frame(Logon(name="a\nb")), "bad_name"),
    "a name that is too long": (PREFACE + frame(Logon(name="n" * 10_000)), "bad_name"),
    "no version at all": (PREFACE + frame(Logon(name="stranger", versions=())), "bad_version"),
    "thousands of versions": (
        PREFACE + frame(Logon(name="stranger", versions=tuple(range(1, 5000)))),
        "bad_version",
    ),
    "an unknown logon option": (PREFACE + frame(Logon(name="stranger", options="x=1")), "bad_option"),
    "a long logon option": (PREFACE + frame(Logon(name="stranger", options="x" * 16_000)), "bad_option"),
    "a logon above the limit before the logon": (
        PREFACE + frame(Logon(name="n" * 20_000)),
        "frame_too_large",
    ),
    "a header that nests": (PREFACE + header(b"\x91" * 16_000), "bad_command"),
    "a header that promises 4 GiB": (PREFACE + header(b"\xdd\xff\xff\xff\xff"), "bad_command"),
    "a text that promises 4 GiB": (PREFACE + header(b"\x81\xa1c\xdb\xff\xff\xff\xff"), "bad_command"),
    "an unknown command": (PREFACE + header(b"\x81\xa1c\xa4boom"), "bad_command"),
    "an empty header": (PREFACE + struct.pack("<IIII", 16, 0, 0, 0), "bad_frame"),
}

GOOD_BATCH = batch_of(3).encode()
CONTROL = BatchBuilder()
CONTROL.add("orders", b"1", kind=1)

AFTER_LOGON: dict[str, tuple[bytes, str]] = {
    "a second logon": (LOGON, "already_logged_on"),
    "an oversized frame": (struct.pack("<IIII", GIGABYTE, 32, 0, 0), "frame_too_large"),
    "a damaged header": (damaged(frame(Flush(id=1)), 18), "bad_frame"),
    "a damaged batch": (damaged(PUBLISH, len(PUBLISH) - 20), "bad_frame"),
    "a length that is not a multiple of 8": (struct.pack("<IIII", 33, 9, 0, 0) + bytes(32), "bad_frame"),
    "a batch of zeros": (batch_frame(bytes(4096)), "bad_batch"),
    "a batch that promises 2 billion messages": (
        batch_frame(GOOD_BATCH[:8] + struct.pack("<I", 2**31 - 1) + GOOD_BATCH[12:]),
        "bad_batch",
    ),
    "a body with a wrong checksum": (
        batch_frame(GOOD_BATCH[:-8] + bytes(b ^ 1 for b in GOOD_BATCH[-8:-4]) + GOOD_BATCH[-4:]),
        "corrupt_batch",
    ),
    "credits for no subscription": (frame(Credits(sub_ids=(), bytes=())), "bad_command"),
    "credits without their sizes": (frame(Credits(sub_ids=("a", "b"), bytes=(1,))), "bad_command"),
    "a credit of zero among others": (frame(Credits(sub_ids=("a", "b"), bytes=(1, 0))), "bad_command"),
    "credits for too many": (frame(Credits(sub_ids=("a",) * 257, bytes=(1,) * 257)), "bad_command"),
    "a publish frame left out": (frame(Publish(frame=2), batch_of(1)), "bad_command"),
    "sequences of another publisher": (frame(Publish(frame=1, sequenced=True), batch_of(1)), "bad_batch"),
    "a control record": (frame(Publish(frame=1), CONTROL.build()), "bad_batch"),
    "two runs in a frame": (
        frame(Publish(frame=1), merge([batch_of(1, first=1), batch_of(1, first=2)])),
        "bad_batch",
    ),
    "no credit": (frame(Credit(sub_id="s", bytes=0)), "bad_command"),
    "more credit than the limit": (frame(Credit(sub_id="s", bytes=2**40)), "bad_command"),
    "a negative number": (header(msgspec.msgpack.encode({"c": "flush", "id": -1})), "bad_command"),
    "a number as a name": (
        header(msgspec.msgpack.encode({"c": "unsub", "id": 1, "sub_ids": 7})),
        "bad_command",
    ),
    "text that is not UTF-8": (header(b"\x83\xa1c\xa5flush\xa2id\x01\xa5level\xa2\xff\xfe"), "bad_command"),
    "a publish without messages": (frame(Publish(frame=1)), "bad_frame"),
    "garbage": (Random(8).randbytes(5000), "frame_too_large"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server() as running:
        yield running


@pytest.fixture
def witness(server: RunningServer) -> Iterator[Witness]:
    watching = Witness(server)
    yield watching
    watching.check()


def check_goodbye(said: list[Command], code: str) -> None:
    assert [type(command) for command in said] == [Goodbye], said
    (goodbye,) = said
    assert isinstance(goodbye, Goodbye)
    assert goodbye.code == code
    assert len(goodbye.text) > 10, "it says why"


@pytest.mark.parametrize("what", list(BEFORE_LOGON))
def test_invalid_bytes_before_the_logon_get_an_error_and_disturb_no_client(
    server: RunningServer, witness: Witness, what: str
) -> None:
    data, code = BEFORE_LOGON[what]
    with Peer(server.uri) as peer:
        peer.send(data)
        check_goodbye(peer.until_closed(), code)


@pytest.mark.parametrize("what", list(AFTER_LOGON))
def test_protocol_violation_after_the_logon_gets_an_error_and_disturbs_no_client(
    server: RunningServer, witness: Witness, what: str
) -> None:
    data, code = AFTER_LOGON[what]
    with Peer(server.uri, "stranger") as peer:
        peer.send(data)
        check_goodbye(peer.until_closed(), code)


def test_connection_lost_inside_a_frame_stores_nothing(server: RunningServer, witness: Witness) -> None:
    for size in (3, len(PREFACE) + 5, len(PREFACE + LOGON) + 30):
        with Peer(server.uri) as peer:
            peer.send((PREFACE + LOGON + PUBLISH)[:size])
    with tt.Client("after", server.uri, timeout=SECONDS) as client:
        assert list(client.replay("orders")) == []


def test_invalid_requests_are_refused_and_the_connection_continues(
    server: RunningServer, witness: Witness
) -> None:
    with tt.Client("careless", server.uri, timeout=SECONDS) as client:
        client.publish("orders-careless", b"1")
        client.publish_flush()
        for malformed in ("20261399T000000", "[0:", "[20260101T000000+01:00:)", "yesterday"):
            with pytest.raises(tt.BadBookmark):
                client.bookmark_subscribe("orders-careless", malformed)
        for options in ("no_such_option", "bookmark,bookmark", "rate=0x"):
            with pytest.raises(tt.BadOption):
                client.bookmark_subscribe("orders-careless", tt.EPOCH, options=options)
        with pytest.raises(tt.BadTopic):
            client.publish("orders*", b"1")
        assert [message.data for message in client.replay("orders-careless")] == [b"1"]


def test_server_refuses_invalid_requests_that_bypass_the_client_checks(
    server: RunningServer, witness: Witness
) -> None:
    """Our client refuses these requests before it sends them, but other clients may not."""
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


def test_many_unfinished_frames_before_the_logon_use_bounded_memory(
    server: RunningServer, witness: Witness
) -> None:
    unfinished = PREFACE + struct.pack("<IIII", frame_bytes_before_logon_max, 32, 0, 0)
    before = anonymous_bytes(server.pid)
    with contextlib.ExitStack() as connections:
        for _ in range(CONNECTIONS):
            peer = connections.enter_context(Peer(server.uri))
            peer.send(unfinished + bytes(frame_bytes_before_logon_max - 64))
        # An answer to a later connection shows that the server has read the earlier ones.
        last = connections.enter_context(Peer(server.uri, "last"))
        last.send(frame(Flush(id=1)))
        last.until(Ack)
        grown = anonymous_bytes(server.pid) - before
    assert grown < CONNECTIONS * (frame_bytes_before_logon_max + CONNECTION_BYTES_MAX)


def test_connections_before_the_logon_leave_descriptors_for_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "few.toml"
    config.write_text('[journal]\nsegment_size = "1MB"\n')
    few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (FEW_FILES, FEW_FILES))
    monkeypatch.setattr(subprocess, "Popen", partial(subprocess.Popen, preexec_fn=few))
    with running_server(tmp_path / "data", config) as server, ExitStack() as strangers:
        wait_until(lambda: f"connections_max={FEW_FILES // 2}" in server.errors(), SECONDS)
        publisher = tt.Client("publisher", server.uri, timeout=SECONDS)
        for _ in range(FEW_FILES // 2 - 1):
            strangers.enter_context(Peer(server.uri))
        for _ in range(FEW_FILES):
            with Peer(server.uri) as one_too_many:
                check_goodbye(one_too_many.until(Goodbye), "not_ready")
        for _ in range(20):
            publisher.publish("t", bytes(200_000))
            publisher.publish_flush()
        assert len(list((tmp_path / "data" / "journal").iterdir())) > 3, "over several segments"
        publisher.close()


@pytest.mark.full
def test_silent_connection_is_closed_after_the_logon_timeout(server: RunningServer, witness: Witness) -> None:
    with Peer(server.uri) as silent, Peer(server.uri) as slow:
        slow.send(PREFACE + LOGON[:-1])
        start = time.monotonic()
        check_goodbye(silent.until_closed(), "logon_timeout")
        check_goodbye(slow.until_closed(), "logon_timeout")
        assert logon_seconds_max - 1 < time.monotonic() - start < logon_seconds_max + 5
