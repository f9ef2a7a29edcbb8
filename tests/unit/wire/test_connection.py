from __future__ import annotations

import struct

import msgspec
import pytest
from crc32c import crc32c

from tests.helpers.wire import (
    LOGGED_ON,
    LOGON,
    Pair,
    Seen,
    batch_of,
    client_logged_on,
    joined,
    only_error,
    read_in,
    seen,
    server_logged_on,
)
from tests.helpers.wire_golden import examples
from tickertape.base.errors import (
    AlreadyLoggedOn,
    BadBatch,
    BadCommand,
    BadFrame,
    BadVersion,
    FrameTooLarge,
    LogonRequired,
    NotTickertape,
)
from tickertape.base.limits import frame_bytes_before_logon_max, frame_bytes_max, receive_buffer_bytes
from tickertape.batch import MessageBatch
from tickertape.wire.commands import (
    PREFACE,
    Ack,
    Command,
    Credit,
    Deliver,
    Flush,
    Goodbye,
    Heartbeat,
    LoggedOn,
    Logon,
    Persisted,
    Publish,
    Subscribe,
)
from tickertape.wire.connection import ClientRole, Connection, Event, Received, Violation

Sent = tuple[Command, MessageBatch | None]


def from_role(role: str) -> list[Sent]:
    """One of each command of `role` after the logon, and batches small, middle and large in between."""
    sent: list[Sent] = [
        (command, batch)
        for by, command, batch in examples().values()
        if by == role and not isinstance(command, Logon | LoggedOn)
    ]
    carrier: Command = Publish(frame=9) if role == "client" else Deliver(sub_id="s", next=9)
    sent.insert(3, (carrier, batch_of(60, 1000)))
    sent.append((carrier, batch_of(1, 0)))
    sent.append((Heartbeat(), None))
    return sent


def expected(sent: list[Sent]) -> list[Seen]:
    return [Seen(command, None if batch is None else batch.encode(), "", "") for command, batch in sent]


@pytest.mark.parametrize("step", [1, 3, 16, 1000, 50_000, None])
def test_connection_gives_the_same_events_for_every_read_size(step: int | None) -> None:
    pair = Pair(step)
    pair.log_on()
    to_server, to_client = from_role("client"), from_role("server")
    pair.from_client(*to_server)
    pair.from_server(*to_client)
    assert [seen(event) for event in pair.at_server] == expected([(LOGON, None), *to_server])
    assert [seen(event) for event in pair.at_client] == expected([(LOGGED_ON, None), *to_client])
    assert pair.server.held_bytes == pair.client.held_bytes == 0


@pytest.mark.parametrize("step", [1, None])
def test_connection_feed_gives_the_same_events_as_reads(step: int | None) -> None:
    stream = b"".join(joined(Connection("client").send(*sent)) for sent in from_role("client"))
    server = server_logged_on()
    events: list[Event] = []
    for at in range(0, len(stream), step or len(stream)):
        events += server.feed(stream[at : at + (step or len(stream))])
    assert [seen(event) for event in events] == expected(from_role("client"))


def test_connections_with_a_shared_scratch_buffer_read_independent_streams() -> None:
    scratch = memoryview(bytearray(receive_buffer_bytes))
    stream = b"".join(joined(Connection("client").send(*sent)) for sent in from_role("client"))
    servers = [server_logged_on(scratch) for _ in range(3)]
    got: list[list[Event]] = [[] for _ in servers]
    for at in range(0, len(stream), 999):
        for server, events in zip(servers, got, strict=True):
            events += server.feed(stream[at : at + 999])
    for events in got:
        assert [seen(event) for event in events] == expected(from_role("client"))


def test_received_batches_do_not_change_with_later_reads() -> None:
    server = server_logged_on()
    batches = [batch_of(1, 200), batch_of(100, 1000), batch_of(3, 10)]
    stream = b"".join(joined(Connection("client").send(Publish(frame=1), batch)) for batch in batches)
    events = [*read_in(server, stream), *read_in(server, stream, 5000)]
    room = server.buffer()
    room[:] = b"\xff" * len(room)
    for event, batch in zip(events, batches * 2, strict=True):
        assert isinstance(event, Received)
        assert event.batch is not None
        event.batch.verify()
        assert event.batch.encode() == batch.encode()


def test_only_a_client_has_a_preface() -> None:
    assert Connection("client").preface() == b"tktape/0"
    assert Connection("server").preface() == b""


@pytest.mark.parametrize("step", [1, None])
@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"tktape/1", BadVersion),
        (b"tktape/9 and more", BadVersion),
        (b"tktape/x", NotTickertape),
        (b"tktape//", NotTickertape),
        (b"TKTAPE/0", NotTickertape),
        (b"GET / HTTP/1.1\r\n\r\n", NotTickertape),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", NotTickertape),
        (bytes(8), NotTickertape),
        (b"\xff" * 100, NotTickertape),
        (joined(Connection("client").send(LOGON)), NotTickertape),
    ],
)
def test_connection_with_wrong_protocol_preface_is_rejected(
    data: bytes, error: type[Exception], step: int | None
) -> None:
    server = Connection("server")
    found = only_error(read_in(server, data, step))
    assert type(found) is error
    assert read_in(server, PREFACE + joined(Connection("client").send(LOGON))) == []


def test_partial_preface_gives_no_event() -> None:
    assert read_in(Connection("server"), PREFACE[:-1]) == []


@pytest.mark.parametrize("step", [1, None])
def test_command_before_logon_is_rejected(step: int | None) -> None:
    server = Connection("server")
    data = PREFACE + joined(Connection("client").send(Heartbeat()))
    assert isinstance(only_error(read_in(server, data, step)), LogonRequired)


@pytest.mark.parametrize("step", [1, None])
def test_second_logon_is_rejected(step: int | None) -> None:
    data = joined(Connection("client").send(LOGON))
    assert isinstance(only_error(read_in(server_logged_on(), data, step)), AlreadyLoggedOn)
    data = joined(Connection("server").send(LOGGED_ON))
    assert isinstance(only_error(read_in(client_logged_on(), data, step)), AlreadyLoggedOn)


def test_second_logon_before_the_answer_to_the_first_is_rejected() -> None:
    server = Connection("server")
    logon = joined(Connection("client").send(LOGON))
    first, second = read_in(server, PREFACE + logon + logon)
    assert seen(first).command == LOGON
    assert seen(second).code == "already_logged_on"


@pytest.mark.parametrize("command", [Goodbye(code="name_in_use", text=""), Heartbeat()])
def test_client_accepts_goodbye_and_heartbeat_before_logon_answer(command: Command) -> None:
    (event,) = read_in(Connection("client"), joined(Connection("server").send(command)))
    assert seen(event).command == command


@pytest.mark.parametrize(
    "sent", [(Ack(id=1), None), (Deliver(sub_id="s"), batch_of()), (Persisted(frame=1), None)]
)
def test_client_rejects_other_server_commands_before_logon_answer(sent: Sent) -> None:
    data = joined(Connection("server").send(*sent))
    assert isinstance(only_error(read_in(Connection("client"), data)), LogonRequired)


@pytest.mark.parametrize("step", [1, None])
def test_frame_above_the_limit_before_logon_is_rejected(step: int | None) -> None:
    server = Connection("server")
    too_long = Logon(name="x" * frame_bytes_before_logon_max)
    data = PREFACE + joined(Connection("client").send(too_long))
    found = only_error(read_in(server, data, step))
    assert isinstance(found, FrameTooLarge)
    assert str(frame_bytes_before_logon_max) in str(found)
    assert server.held_bytes == 0


def test_logon_lifts_the_frame_size_limit() -> None:
    publish = joined(Connection("client").send(Publish(frame=1), batch_of(20, 1000)))
    assert len(publish) > frame_bytes_before_logon_max
    server = Connection("server")
    read_in(server, PREFACE + joined(Connection("client").send(LOGON)))
    assert isinstance(only_error(read_in(server, publish)), FrameTooLarge)
    assert len(read_in(server_logged_on(), publish)) == 1


@pytest.mark.parametrize("step", [1, None])
def test_oversized_frame_after_logon_is_rejected(step: int | None) -> None:
    prefix = struct.pack("<IIII", frame_bytes_max + 8 & ~7, 8, 0, 0)
    for connection in (server_logged_on(), client_logged_on()):
        assert isinstance(only_error(read_in(connection, prefix + bytes(100), step)), FrameTooLarge)
        assert connection.held_bytes == 0


def test_client_accepts_logon_answer_with_five_thousand_topics() -> None:
    recorded = tuple(f"topic-{i}" for i in range(5000))
    answer = msgspec.structs.replace(LOGGED_ON, recorded=recorded)
    (event,) = read_in(Connection("client"), joined(Connection("server").send(answer)))
    assert seen(event).command == answer


def frame_of(header: bytes, batch: bytes = b"") -> bytes:
    padding = bytes(-len(header) % 8)
    size = 16 + len(header) + len(padding) + len(batch)
    return struct.pack("<IIII", size, len(header), crc32c(header), crc32c(batch)) + header + padding + batch


def header_of(**fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


@pytest.mark.parametrize("step", [1, None])
@pytest.mark.parametrize(
    ("header", "match"),
    [
        (header_of(c="nonsense"), "Unknown command 'nonsense'"),
        (header_of(c="p"), "missing required field `frame`"),
        (header_of(c="p", frame="1"), "Expected `int`"),
        (header_of(c="p", frame=-1), ">= 0"),
        (header_of(c="cr", sub_id="s", bytes=-4096), ">= 0"),
        (header_of(c="cr", sub_id="s", bytes=1.5), "Expected `int`"),
        (header_of(c="sub", id=1, sub_id="s", topic="t", credit=0, positions=[1]), "length 2"),
        (header_of(c="unsub", id=1, sub_ids="s"), "Expected `array`"),
        (header_of(frame=1), "missing required field `c`"),
        (header_of(c=5), "Expected `str`"),
        (msgspec.msgpack.encode([1, 2]), "got `array`"),
        (b"\xc1", "Invalid command header"),
        (b"\x00", "got `int`"),
        (b"\xff" * 40, "got `int`"),
        (b"\x82\xa1c\xa5logon\xa4name\xa2\xff\xfe", "utf-8"),
        (b"\x82\xa1c\xa2\xff\xfe", "utf-8"),
        (b"\x83\xa1c\xa5unsub\xa2id\x01\xa7sub_ids\xdd\xff\xff\xff\xff", "truncated"),
        (b"\x82\xa1c\xa2hb\xa1x" + b"\x91" * 100_000 + b"\x01", "recursion"),
        (header_of(c="hb") + b"\x00", "trailing"),
        (header_of(c="hb")[:-1], "truncated"),
    ],
)
def test_invalid_command_header_is_rejected(header: bytes, match: str, step: int | None) -> None:
    found = only_error(read_in(server_logged_on(), frame_of(header), step))
    assert isinstance(found, BadCommand)
    assert match in str(found)
    assert len(str(found)) < 300


def test_command_of_the_wrong_role_is_rejected() -> None:
    for role, command, batch in examples().values():
        if isinstance(command, Heartbeat):
            continue
        reader = client_logged_on() if role == "client" else server_logged_on()
        wrong = role.replace("client", "server") if role == "client" else "client"
        found = only_error(read_in(reader, joined(Connection("client").send(command, batch))))
        assert isinstance(found, BadCommand)
        assert f"only a {role} sends" in str(found)
        assert f"this end is the {wrong}" not in str(found) or wrong == reader.role


def test_fields_of_a_later_version_are_ignored() -> None:
    (event,) = read_in(server_logged_on(), frame_of(header_of(c="flush", id=7, level="persisted", later=[1])))
    assert seen(event).command == Flush(id=7)


def test_publish_without_batch_is_rejected() -> None:
    found = only_error(read_in(server_logged_on(), frame_of(header_of(c="p", frame=1))))
    assert isinstance(found, BadFrame)
    assert "requires a batch, but has none" in str(found)


def test_heartbeat_with_batch_is_rejected() -> None:
    found = only_error(read_in(server_logged_on(), frame_of(header_of(c="hb"), batch_of().encode())))
    assert isinstance(found, BadFrame)
    assert "must not have a batch" in str(found)


@pytest.mark.parametrize("batch", [bytes(8), bytes(32), b"\xff" * 64, batch_of().encode()[:-8]])
def test_publish_with_invalid_batch_is_rejected(batch: bytes) -> None:
    found = only_error(read_in(server_logged_on(), frame_of(header_of(c="p", frame=1), batch)))
    assert isinstance(found, BadBatch)


def test_violation_ends_the_events_and_keeps_earlier_commands() -> None:
    server = server_logged_on()
    good = joined(Connection("client").send(Flush(id=1)))
    bad = frame_of(header_of(c="p", frame=1))
    first, second = read_in(server, good + bad + good)
    assert seen(first).command == Flush(id=1)
    assert isinstance(second, Violation)
    assert read_in(server, good) == []
    assert server.feed(good) == []
    assert len(server.buffer()) > 0


def test_checksum_error_is_reported_after_earlier_frames() -> None:
    good = joined(Connection("client").send(Flush(id=1)))
    bad = bytearray(good)
    bad[8] ^= 1
    for step in (1, None):
        first, second = read_in(server_logged_on(), good + bytes(bad) + good, step)
        assert seen(first).command == Flush(id=1)
        assert seen(second).code == "bad_frame"


def longer(frame: bytes, by: int) -> bytes:
    """`frame` with one bit changed, so that its length field claims `by` more bytes."""
    (size,) = struct.unpack_from("<I", frame)
    assert not size & by
    return struct.pack("<I", size | by) + frame[4:]


HEARTBEATS = 3 * joined(Connection("client").send(Heartbeat()))


@pytest.mark.parametrize("step", [1, 8, None])
@pytest.mark.parametrize("by", [1 << 10, 1 << 12, 1 << 20])
@pytest.mark.parametrize("role", ["client", "server"])
def test_frame_with_corrupt_length_is_rejected_without_waiting_for_more_bytes(
    role: ClientRole, by: int, step: int | None
) -> None:
    """One bit of the length changed: the heartbeats that follow are not part of the frame."""
    command: Command
    carrier: Command
    if role == "client":
        end, command, carrier = client_logged_on, Persisted(frame=1), Deliver(sub_id="s")
    else:
        end, command, carrier = server_logged_on, Flush(id=1), Publish(frame=1)
    peer = Connection("server" if role == "client" else "client")
    good = joined(peer.send(command))
    *before, last = read_in(end(), good + longer(good, by) + HEARTBEATS, step)
    assert [seen(event).command for event in before] == [command]
    assert type(only_error([last])) is BadFrame
    data = joined(peer.send(carrier, batch_of(3, 100)))
    *before, last = read_in(end(), good + longer(data, by) + HEARTBEATS, step)
    assert [seen(event).command for event in before] == [command]
    assert type(only_error([last])) is BadBatch


@pytest.mark.parametrize("step", [1, 8, None])
@pytest.mark.parametrize("by", [8, 1 << 10, 1 << 12])
@pytest.mark.parametrize("role", ["client", "server"])
def test_frame_with_two_wrong_lengths_ends_the_connection_though_nothing_follows(
    role: ClientRole, by: int, step: int | None
) -> None:
    end = client_logged_on if role == "client" else server_logged_on
    peer = Connection("server" if role == "client" else "client")
    command: Command = Persisted(frame=1) if role == "client" else Flush(id=1)
    carrier: Command = Deliver(sub_id="s") if role == "client" else Publish(frame=1)
    for frame in (joined(peer.send(command)), joined(peer.send(carrier, batch_of(3, 100)))):
        header_bytes = int.from_bytes(frame[4:8], "little") + by
        wrong = struct.pack("<II", len(frame) + by, header_bytes) + frame[8:]
        found = only_error(read_in(end(), wrong, step))
        assert type(found) is BadFrame
        if by > 8:  # otherwise the next bytes are read as its end, with a wrong checksum
            assert f"its header has {header_bytes - by} bytes, but claims {header_bytes} bytes" in str(found)


@pytest.mark.parametrize("step", [1, 8, None])
def test_frame_without_batch_and_with_wrong_length_ends_the_connection_though_nothing_follows(
    step: int | None,
) -> None:
    frame = joined(Connection("client").send(Flush(id=1)))
    found = only_error(read_in(server_logged_on(), longer(frame, 1 << 10), step))
    assert type(found) is BadFrame
    assert "must not have a batch" in str(found)


@pytest.mark.parametrize("step", [1000, None])
def test_large_frame_with_corrupt_length_is_rejected_at_the_end_of_real_bytes(step: int | None) -> None:
    server = server_logged_on()
    data = joined(Connection("client").send(Publish(frame=1), batch_of(100, 1000)))
    assert isinstance(only_error(read_in(server, longer(data, 1 << 20), step)), BadBatch)
    assert server.held_bytes == 0
    assert len(server.buffer()) > 0


def test_frame_with_corrupt_header_length_is_rejected_once_the_header_arrived() -> None:
    data = bytearray(joined(Connection("client").send(Publish(frame=1), batch_of(100, 1000))))
    data[4] ^= 0x20
    found = only_error(read_in(server_logged_on(), bytes(data[:400])))
    assert isinstance(found, BadFrame)
    assert "its header has 12 bytes, but claims 44 bytes" in str(found)


@pytest.mark.parametrize("change", [0x01, 0x02, 0x20])
def test_error_of_wrong_header_length_is_the_same_for_every_split_of_the_bytes(change: int) -> None:
    data = bytearray(joined(Connection("client").send(Publish(frame=1), batch_of(3, 100))))
    data[4] ^= change
    whole = str(only_error(read_in(server_logged_on(), bytes(data))))
    for cut in range(1, len(data)):
        server = server_logged_on()
        found = only_error([*server.feed(bytes(data[:cut])), *server.feed(bytes(data[cut:]))])
        assert str(found) == whole, f"cut at {cut}"


def test_invalid_command_is_reported_before_the_whole_frame_arrives() -> None:
    data = frame_of(header_of(c="nonsense"), batch_of(1, 1000).encode())
    assert isinstance(only_error(read_in(server_logged_on(), longer(data, 1 << 12)[:200])), BadCommand)


@pytest.mark.parametrize("step", [1, 7, 40])
def test_frame_with_corrupt_length_after_a_large_frame_is_rejected(step: int) -> None:
    server = server_logged_on()
    good = joined(Connection("client").send(Publish(frame=1), batch_of(100, 1000)))
    bad = longer(joined(Connection("client").send(Flush(id=1))), 1 << 12)
    assert len(read_in(server, good)) == 1
    assert read_in(server, good[:-1]) == []
    (event,) = read_in(server, good[-1:])
    assert isinstance(event, Received)
    assert isinstance(only_error(read_in(server, bad + HEARTBEATS, step)), BadFrame)


def test_server_can_send_goodbye_after_a_violation() -> None:
    server = Connection("server")
    error = only_error(read_in(server, b"GET / HTTP/1.1\r\n"))
    data = joined(server.send(Goodbye(code=error.code, text=str(error))))
    (event,) = read_in(Connection("client"), data)
    assert seen(event).command == Goodbye(code="not_tickertape", text=str(error))


def test_truncated_stream_gives_no_violation() -> None:
    server = server_logged_on()
    data = joined(Connection("client").send(Publish(frame=1), batch_of(100, 1000)))
    assert read_in(server, data[:-1]) == []
    assert server.held_bytes == len(data) - 1, "no memory is allocated before the next read of the frame"
    assert server.large_frame == (len(data), len(data) - 1)
    assert len(server.buffer()) == 1
    assert server.held_bytes == len(data)
    assert server.large_frame == (len(data), len(data) - 1)
    assert len(read_in(server, data[-1:])) == 1
    assert server.held_bytes == 0
    assert server.large_frame is None


@pytest.mark.parametrize("read_on", [False, True])
def test_abandoned_connection_holds_no_memory_and_ignores_input(read_on: bool) -> None:
    server = server_logged_on()
    data = joined(Connection("client").send(Publish(frame=1), batch_of(100, 1000)))
    assert read_in(server, data[:-1]) == []
    if read_on:
        server.buffer()
    server.abandon()
    assert (server.held_bytes, server.large_frame) == (0, None)
    assert server.feed(data) == []


def test_send_rejects_commands_that_the_peer_would_reject() -> None:
    client = Connection("client")
    with pytest.raises(BadCommand, match="requires a batch, but has none"):
        client.send(Publish(frame=1))
    with pytest.raises(BadCommand, match="must not have a batch"):
        client.send(Credit(sub_id="s", bytes=1), batch_of())
    with pytest.raises(FrameTooLarge):
        client.send(Subscribe(id=1, sub_id="s", topic="t", bookmark="1|2|," * 60_000, credit=1))


def test_batch_with_known_checksum_is_sent_to_several_subscriptions() -> None:
    batch = batch_of(3)
    server = Connection("server")
    crc = batch.crc()
    for sub_id in ("a", "b"):
        (event,) = read_in(
            client_logged_on(), joined(server.send(Deliver(sub_id=sub_id), batch, batch_crc=crc))
        )
        assert seen(event).batch == batch.encode()
