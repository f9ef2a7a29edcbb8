from __future__ import annotations

import struct

from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from tests.helpers.wire import batch_of, client_logged_on, joined, read_in, seen, server_logged_on
from tests.helpers.wire_golden import examples
from tickertape.base.limits import frame_bytes_max
from tickertape.wire.commands import PREFACE, Command, Deliver, Flush, LoggedOn, Logon, Publish
from tickertape.wire.connection import Connection, Event, Received, Violation
from tickertape.wire.link_connection import LinkConnection

CLIENT = [
    joined(Connection("client").send(command, batch))
    for role, command, batch in examples().values()
    if role == "client" and not isinstance(command, Logon)
]
SERVER = [
    joined(Connection("server").send(command, batch))
    for role, command, batch in examples().values()
    if role == "server" and not isinstance(command, LoggedOn)
]
LOGON = PREFACE + joined(Connection("client").send(examples()["logon"][1]))
LARGE = joined(Connection("client").send(Publish(frame=1), batch_of(40, 1000)))

# changes of a valid stream: (kind, offset as a fraction, value)
mutations = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "word", "cut", "insert", "drop", "double"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 2**32 - 1),
    ),
    max_size=4,
)
cuts = st.lists(st.integers(1, 400), max_size=30)


def mutated(stream: bytes, changes: list[tuple[str, float, int]]) -> bytes:
    data = bytearray(stream)
    for what, where, value in changes:
        at = int(where * len(data))
        if what == "flip" and data:
            data[at] ^= 1 << value % 8
        elif what == "set" and data:
            data[at] = value & 255
        elif what == "word" and len(data) >= 8:
            struct.pack_into("<I", data, at & ~3 if at + 4 <= len(data) else 0, value)
        elif what == "cut":
            del data[at:]
        elif what == "insert":
            data[at:at] = value.to_bytes(4, "little")[: value % 5]
        elif what == "drop":
            del data[at : at + value % 40]
        elif what == "double":
            data[at:at] = data[at : at + value % 64]
    return bytes(data)


def resealed(stream: bytes) -> bytes:
    """Return the stream with corrected checksums of its frames, to reach the checks behind them."""
    data = bytearray(stream)
    at = 0
    while at + 16 <= len(data):
        size, header_bytes, _, _ = struct.unpack_from("<IIII", data, at)
        batch_at = at + 16 + (header_bytes + 7 & ~7)
        if size < 24 or size % 8 or at + size > len(data) or batch_at > at + size:
            break
        struct.pack_into("<I", data, at + 8, crc32c(data[at + 16 : at + 16 + header_bytes]))
        struct.pack_into("<I", data, at + 12, crc32c(data[batch_at : at + size]))
        at += size
    return bytes(data)


def in_pieces(connection: Connection | LinkConnection, stream: bytes, sizes: list[int]) -> list[Event]:
    events: list[Event] = []
    at = 0
    for size in sizes:
        events += connection.feed(stream[at : at + size])
        assert connection.held_bytes <= frame_bytes_max
        at += size
    return events + connection.feed(stream[at:])


def check_events(connection: Connection, other: Connection, stream: bytes, sizes: list[int]) -> None:
    """Check that feeding returns only events, a violation last, the same for any pieces of the bytes."""
    events = in_pieces(connection, stream, sizes)
    assert all(isinstance(event, Received) for event in events[:-1])
    if events and isinstance(events[-1], Violation):
        assert connection.feed(CLIENT[0]) == []
        assert events[-1].error.code in {
            "bad_frame",
            "frame_too_large",
            "bad_command",
            "bad_batch",
            "logon_required",
            "already_logged_on",
            "bad_version",
            "not_tickertape",
        }
    assert [seen(event) for event in read_in(other, stream)] == [seen(event) for event in events]


@example([CLIENT[0]], [("set", 0.0, 40)], [36], False)
@given(st.lists(st.sampled_from(CLIENT), max_size=8), mutations, cuts, st.booleans())
def test_server_given_any_mutated_stream_returns_events(
    frames: list[bytes], changes: list[tuple[str, float, int]], sizes: list[int], reseal: bool
) -> None:
    stream = mutated(b"".join(frames), changes)
    check_events(server_logged_on(), server_logged_on(), resealed(stream) if reseal else stream, sizes)


@given(st.lists(st.sampled_from(SERVER), max_size=8), mutations, cuts, st.booleans())
def test_client_given_any_mutated_stream_returns_events(
    frames: list[bytes], changes: list[tuple[str, float, int]], sizes: list[int], reseal: bool
) -> None:
    stream = mutated(b"".join(frames), changes)
    check_events(client_logged_on(), client_logged_on(), resealed(stream) if reseal else stream, sizes)


@example(CLIENT[0], [("double", 0.25, 37)], [124])
@given(st.sampled_from(CLIENT), mutations, cuts)
def test_server_given_any_mutated_logon_returns_events(
    frame: bytes, changes: list[tuple[str, float, int]], sizes: list[int]
) -> None:
    stream = mutated(LOGON + frame, changes)
    check_events(Connection("server"), Connection("server"), stream, sizes)


@given(st.binary(max_size=300), cuts)
def test_connection_given_random_bytes_returns_one_violation_or_waits(data: bytes, sizes: list[int]) -> None:
    for make in (server_logged_on, client_logged_on, lambda: Connection("server")):
        check_events(make(), make(), data, sizes)


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=200))
def test_server_given_any_header_and_batch_with_valid_checksums_returns_one_event(
    header: bytes, batch: bytes
) -> None:
    batch += bytes(-len(batch) % 8)
    padded = header + bytes(-len(header) % 8)
    prefix = struct.pack("<IIII", 16 + len(padded) + len(batch), len(header), crc32c(header), crc32c(batch))
    events = server_logged_on().feed(prefix + padded + batch)
    assert len(events) == 1


@given(st.binary(max_size=400))
def test_server_given_any_batch_with_a_valid_header_accepts_or_refuses_the_batch(batch: bytes) -> None:
    good = batch_of(4, 30).encode()
    for candidate in (
        batch + bytes(-len(batch) % 8),
        batch + good[len(batch) :],
        good[:-8] + batch[:8].ljust(8),
    ):
        if candidate:
            header, padding = b"\x82\xa1c\xa1p\xa5frame\x01", bytes(4)
            size = 32 + len(candidate)
            prefix = struct.pack("<IIII", size, len(header), crc32c(header), crc32c(candidate))
            (event,) = server_logged_on().feed(prefix + header + padding + candidate)
            assert isinstance(event, Received) or event.error.code == "bad_batch"


@given(st.lists(st.integers(1, 20_000), max_size=12), st.integers(0, 3))
def test_connection_given_large_frames_in_any_pieces_returns_all_frames(
    sizes: list[int], before: int
) -> None:
    stream = CLIENT[0] * before + LARGE + CLIENT[1] + LARGE
    check_events(server_logged_on(), server_logged_on(), stream, sizes)
    assert len(in_pieces(server_logged_on(), stream, sizes)) == before + 3


@given(st.integers(0, 2**64 - 1), st.text(), st.lists(st.binary(max_size=50), min_size=1, max_size=20))
def test_connection_round_trips_commands_and_batches(number: int, text: str, bodies: list[bytes]) -> None:
    from tickertape.batch import batch_from_bodies

    batch = batch_from_bodies("orders", bodies, publisher=number, first_sequence=1)
    sent: list[tuple[Command, bytes | None]] = [
        (Deliver(sub_id=text, next=number), batch.encode()),
    ]
    stream = joined(Connection("server").send(Deliver(sub_id=text, next=number), batch))
    assert [(seen(e).command, seen(e).batch) for e in client_logged_on().feed(stream)] == sent
    (event,) = server_logged_on().feed(joined(Connection("client").send(Flush(id=number, level=text))))
    assert seen(event).command == Flush(id=number, level=text)
