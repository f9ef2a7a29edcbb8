"""Whatever comes over the socket: its own error, its connection closed, and another client undisturbed."""

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
CROWD = 200
FEW_FILES = 128
"""As many files as one server may have open."""
CONNECTION_BYTES_MAX = 64 * KIB
"""What a connection takes beside the frame that it has begun."""

pytestmark = pytest.mark.slow


def damaged(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 0xFF]) + frame[at + 1 :]


def header(data: bytes) -> bytes:
    """A frame whose checksums are right, whatever its header is."""
    padded = data + bytes(-len(data) % 8)
    return struct.pack("<IIII", 16 + len(padded), len(data), crc32c(data), 0) + padded


def batch_frame(batch: bytes, **fields: object) -> bytes:
    """A publish frame around any bytes as its batch, with the checksum that they have."""
    whole = frame(Publish(frame=1, **fields), batch_of(1))  # type: ignore[arg-type]
    size = struct.unpack_from("<I", whole, 4)[0]
    begin = 16 + size + -size % 8
    prefix = struct.pack("<IIII", begin + len(batch), size, crc32c(whole[16 : 16 + size]), crc32c(batch))
    return prefix + whole[16:begin] + batch


PUBLISH = frame(Publish(frame=1), batch_of(3))

STRANGERS: dict[str, tuple[bytes, str]] = {
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
    "a name that cannot be": (PREFACE + frame(Logon(name="a\nb")), "bad_name"),
    "a name that is too long": (PREFACE + frame(Logon(name="n" * 10_000)), "bad_name"),
    "no version at all": (PREFACE + frame(Logon(name="stranger", versions=())), "bad_version"),
    "thousands of versions": (
        PREFACE + frame(Logon(name="stranger", versions=tuple(range(1, 5000)))),
        "bad_version",
    ),
    "an unknown logon option": (PREFACE + frame(Logon(name="stranger", options="x=1")), "bad_option"),
    "a long logon option": (PREFACE + frame(Logon(name="stranger", options="x" * 16_000)), "bad_option"),
    "a logon too large for strangers": (PREFACE + frame(Logon(name="n" * 20_000)), "frame_too_large"),
    "a header that nests": (PREFACE + header(b"\x91" * 16_000), "bad_command"),
    "a header that promises 4 GiB": (PREFACE + header(b"\xdd\xff\xff\xff\xff"), "bad_command"),
    "a text that promises 4 GiB": (PREFACE + header(b"\x81\xa1c\xdb\xff\xff\xff\xff"), "bad_command"),
    "an unknown command": (PREFACE + header(b"\x81\xa1c\xa4boom"), "bad_command"),
    "a header of nothing": (PREFACE + struct.pack("<IIII", 16, 0, 0, 0), "bad_frame"),
}

GOOD_BATCH = batch_of(3).encode()
CONTROL = BatchBuilder()
CONTROL.add("orders", b"1", kind=1)

MEMBERS: dict[str, tuple[bytes, str]] = {
    "a second logon": (LOGON, "already_logged_on"),
    "an oversized frame": (struct.pack("<IIII", GIGABYTE, 32, 0, 0), "frame_too_large"),
    "a damaged header": (damaged(frame(Flush(id=1)), 18), "bad_frame"),
    "a damaged batch": (damaged(PUBLISH, len(PUBLISH) - 20), "bad_frame"),
    "a length that is no multiple of 8": (struct.pack("<IIII", 33, 9, 0, 0) + bytes(32), "bad_frame"),
    "a batch of zeros": (batch_frame(bytes(4096)), "bad_batch"),
    "a batch that promises 2 billion messages": (
        batch_frame(GOOD_BATCH[:8] + struct.pack("<I", 2**31 - 1) + GOOD_BATCH[12:]),
        "bad_batch",
    ),
    "a body that its checksum denies": (
        batch_frame(GOOD_BATCH[:-8] + bytes(b ^ 1 for b in GOOD_BATCH[-8:-4]) + GOOD_BATCH[-4:]),
        "corrupt_batch",
    ),
    "credits for nobody": (frame(Credits(sub_ids=(), bytes=())), "bad_command"),
    "credits without their sizes": (frame(Credits(sub_ids=("a", "b"), bytes=(1,))), "bad_command"),
    "a credit of nothing among others": (frame(Credits(sub_ids=("a", "b"), bytes=(1, 0))), "bad_command"),
    "credits for too many": (frame(Credits(sub_ids=("a",) * 257, bytes=(1,) * 257)), "bad_command"),
    "a publish frame left out": (frame(Publish(frame=2), batch_of(1)), "bad_command"),
    "sequences of another publisher": (frame(Publish(frame=1, sequenced=True), batch_of(1)), "bad_batch"),
    "a control record": (frame(Publish(frame=1), CONTROL.build()), "bad_batch"),
    "two runs in a frame": (
        frame(Publish(frame=1), merge([batch_of(1, first=1), batch_of(1, first=2)])),
        "bad_batch",
    ),
    "no credit": (frame(Credit(sub_id="s", bytes=0)), "bad_command"),
    "more credit than there is": (frame(Credit(sub_id="s", bytes=2**40)), "bad_command"),
    "a negative number": (header(msgspec.msgpack.encode({"c": "flush", "id": -1})), "bad_command"),
    "a number as a name": (
        header(msgspec.msgpack.encode({"c": "unsub", "id": 1, "sub_ids": 7})),
        "bad_command",
    ),
    "text that is no UTF-8": (header(b"\x83\xa1c\xa5flush\xa2id\x01\xa5level\xa2\xff\xfe"), "bad_command"),
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
        for options in ("no_such_option", "bookmark,bookmark", "rate=0x"):
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


def test_a_crowd_of_strangers_whose_frames_never_end_takes_little(
    server: RunningServer, witness: Witness
) -> None:
    begun = PREFACE + struct.pack("<IIII", frame_bytes_before_logon_max, 32, 0, 0)
    before = anonymous_bytes(server.pid)
    with contextlib.ExitStack() as crowd:
        for _ in range(CROWD):
            peer = crowd.enter_context(Peer(server.uri))
            peer.send(begun + bytes(frame_bytes_before_logon_max - 64))
        # Another connection's answer: what came before it has been read.
        last = crowd.enter_context(Peer(server.uri, "last"))
        last.send(frame(Flush(id=1)))
        last.until(Ack)
        grown = anonymous_bytes(server.pid) - before
    assert grown < CROWD * (frame_bytes_before_logon_max + CONNECTION_BYTES_MAX)


def test_strangers_cannot_take_the_descriptors_that_the_log_needs(
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
def test_a_stranger_that_says_nothing_is_sent_away_in_time(server: RunningServer, witness: Witness) -> None:
    with Peer(server.uri) as silent, Peer(server.uri) as slow:
        slow.send(PREFACE + LOGON[:-1])
        begun = time.monotonic()
        check_goodbye(silent.until_closed(), "logon_timeout")
        check_goodbye(slow.until_closed(), "logon_timeout")
        assert logon_seconds_max - 1 < time.monotonic() - begun < logon_seconds_max + 5
