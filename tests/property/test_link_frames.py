"""Frames of replication links: round trips of any command, and any bytes at both ends."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.link_frames import OPEN, OPENED, conversation, run_of
from tests.helpers.wire import joined, read_in, seen
from tests.property.test_wire import cuts, in_pieces, mutated, mutations, resealed
from tickertape.base.limits import header_bytes_max, link_window_bytes_max
from tickertape.batch import MessageBatch
from tickertape.wire.commands import Command, Goodbye, Heartbeat, LinkMismatch
from tickertape.wire.connection import Received, Violation
from tickertape.wire.frames import FrameReader, encode_frame
from tickertape.wire.link import (
    DestinationCommand,
    LinkAck,
    LinkCredit,
    LinkedOrigin,
    LinkedSource,
    LinkHoles,
    LinkNames,
    LinkOpen,
    LinkOpened,
    LinkOrigin,
    LinkPlace,
    LinkRequest,
    LinkRule,
    LinkRuns,
    LinkSide,
    LinkSowTopic,
    LinkTopics,
    SourceCommand,
)
from tickertape.wire.link_connection import LinkConnection, LinkRole
from tickertape.wire.link_rows import (
    NameRows,
    decode_holes,
    decode_names,
    decode_places,
    decode_positions,
    decode_starts,
    encode_names,
    encode_pairs,
    encode_positions,
)


def packed(rows: list[tuple[int, int]]) -> bytes:
    return encode_pairs([left for left, _ in rows], [right for _, right in rows])


numbers = st.integers(0, 2**64 - 1)
positive = st.integers(1, 2**64 - 1)
logs = st.binary(min_size=16, max_size=16)
digests = st.lists(logs, max_size=3).map(tuple)
words = st.text(min_size=1, max_size=20)
lists = st.lists(words, max_size=3).map(tuple)
texts = st.text(max_size=60)
rules = st.lists(
    st.builds(LinkRule, topic=words, filter=st.none() | texts, sync=st.booleans()), max_size=3
).map(tuple)
pairs = st.lists(st.tuples(numbers, numbers), max_size=5).map(packed)
sows = st.builds(
    LinkSowTopic, name=words, key=lists, key_domain=texts, missing_key=words, pattern=st.none() | words
)
topics = st.builds(
    LinkTopics,
    recorded=st.none() | lists,
    types=st.dictionaries(words, words, max_size=3),
    validated=lists,
    derived=lists,
    sow=st.lists(sows, max_size=2).map(tuple),
)
reaching = st.builds(
    LinkedOrigin,
    instance=words,
    group=words,
    log=logs,
    digests=digests,
    path=st.lists(words, max_size=3).map(tuple),
)
sources = st.builds(
    LinkedSource,
    instance=words,
    log=logs,
    start=numbers,
    rules=rules,
    origins=st.lists(reaching, max_size=2).map(tuple),
)
sides = st.builds(
    LinkSide,
    versions=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3).map(tuple),
    software=texts,
    features=lists,
    required=lists,
    instance=words,
    group=words,
    log=logs,
    starts=pairs,
    destination=texts,
    rules=rules,
    pass_through=texts,
    digests=digests,
    excluded=lists,
    topics=topics,
    sources=st.lists(sources, max_size=2).map(tuple),
    replaced=digests,
)
origins = st.lists(
    st.builds(
        LinkOrigin,
        st.integers(1, 65_535),
        logs,
        words,
        words,
        st.lists(logs, min_size=1, max_size=16).map(tuple),
    ),
    max_size=3,
).map(tuple)
row_bytes = st.lists(st.binary(min_size=8, max_size=8), min_size=1, max_size=9).map(b"".join)
goodbyes = st.builds(
    Goodbye,
    code=texts,
    text=texts,
    mismatches=st.lists(st.builds(LinkMismatch, words, texts), max_size=4).map(tuple),
)
heartbeats = st.builds(Heartbeat, interval_ms=st.none() | numbers)
from_source: st.SearchStrategy[Command] = st.one_of(
    st.builds(LinkOpen, side=sides, token=st.none() | texts, heartbeat_ms=numbers),
    st.builds(LinkHoles, position=numbers, behind=st.booleans(), rows=pairs, more=st.booleans()),
    st.builds(LinkRuns, end=numbers, origins=origins, answers=row_bytes),
    st.builds(LinkNames, end=numbers, origins=origins, rows=row_bytes),
    goodbyes,
    heartbeats,
)
places = st.none() | st.builds(LinkPlace, numbers, numbers)
from_destination: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        LinkOpened,
        side=sides,
        version=st.integers(0, 2**32 - 1),
        place=places,
        places=pairs,
        holes=numbers,
        credit=st.integers(1, link_window_bytes_max),
    ),
    st.builds(LinkRequest, positions=row_bytes),
    st.builds(LinkAck, durable=numbers, level=st.sampled_from(["local", "written"])),
    st.builds(LinkCredit, bytes=st.integers(1, link_window_bytes_max)),
    goodbyes,
    heartbeats,
)
DECODERS = {
    "source": msgspec.msgpack.Decoder[SourceCommand](SourceCommand),
    "destination": msgspec.msgpack.Decoder[DestinationCommand](DestinationCommand),
}


def read_back(command: Command, batch: MessageBatch | None = None) -> tuple[bytes, bytes | None]:
    """Return header and batch of a frame that a reader took apart."""
    reader = FrameReader()
    (found,) = reader.feed(joined(encode_frame(command, batch)))
    assert reader.error is None
    return found.header, None if found.batch is None else bytes(found.batch)


@given(from_source)
def test_any_command_of_a_source_round_trips(command: Command) -> None:
    batch = run_of(7, 1) if isinstance(command, LinkRuns) else None
    header, found = read_back(command, batch)
    assert DECODERS["source"].decode(header) == command
    assert found == (None if batch is None else batch.encode())


@given(from_destination)
def test_any_command_of_a_destination_round_trips(command: Command) -> None:
    header, _ = read_back(command)
    assert DECODERS["destination"].decode(header) == command


@given(sides, st.text(max_size=300))
def test_any_handshake_is_an_event_or_a_violation(side: LinkSide, token: str) -> None:
    source, destination = LinkConnection("source"), LinkConnection("destination")
    stream = source.preface() + joined(encode_frame(LinkOpen(side=side, token=token)))
    assert len(stream) < header_bytes_max
    (event,) = read_in(destination, stream)
    if isinstance(event, Violation):
        assert event.error.code == "bad_link"
    else:
        assert event.command == LinkOpen(side=side, token=token)


# -- rows ---------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(positive, positive, numbers, st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1))
    )
)
def test_names_round_trip(rows: list[tuple[int, int, int, int, int]]) -> None:
    rows = [(one, min(a, b or 1), max(a, b), origin, stamp) for one, a, b, origin, stamp in rows]
    kinds = (np.uint64, np.uint64, np.uint64, np.uint32, np.int64)
    columns = [np.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
    found = decode_names(encode_names(NameRows(*columns)))
    assert list(zip(*(column.tolist() for column in found), strict=True)) == rows


@given(st.dictionaries(positive, positive))
def test_first_holes_round_trip(holes: dict[int, int]) -> None:
    rows = sorted(holes.items())
    found = decode_holes(packed(rows))
    assert list(zip(found.publishers.tolist(), found.highest.tolist(), strict=True)) == rows


@given(st.dictionaries(numbers, numbers, min_size=1))
def test_places_and_starts_round_trip(places: dict[int, int]) -> None:
    rows = list(places.items())
    assert decode_places(packed(rows)).positions.tolist() == list(places.values())
    rising = list(zip(places, sorted(places.values()), strict=True))
    assert decode_starts(packed(rising)).starts.tolist() == list(places)


@given(st.sets(numbers))
def test_positions_round_trip(positions: set[int]) -> None:
    assert decode_positions(encode_positions(sorted(positions))).tolist() == sorted(positions)


# -- any bytes ----------------------------------------------------------------------------------------

FRAMES: dict[str, list[bytes]] = {
    side: [joined(encode_frame(c, b)) for sender, c, b in conversation().values() if sender == side]
    for side in ("source", "destination")
}
CODES = {"bad_frame", "frame_too_large", "bad_command", "bad_batch", "bad_link"}


def opened(role: LinkRole) -> LinkConnection:
    """Return an end of a link after the handshake."""
    connection = LinkConnection(role)
    if role == "source":
        connection.send(OPEN)
        read_in(connection, joined(encode_frame(OPENED)))
    else:
        read_in(connection, LinkConnection("source").preface() + joined(encode_frame(OPEN)))
        connection.send(OPENED)
    return connection


@given(
    st.sampled_from(["source", "destination"]),
    st.lists(st.integers(0, 7), max_size=6),
    st.booleans(),
    mutations,
    cuts,
    st.booleans(),
)
def test_end_given_any_mutated_stream_returns_events_alike_for_any_pieces(
    role: LinkRole,
    order: list[int],
    whole: bool,
    changes: list[tuple[str, float, int]],
    sizes: list[int],
    reseal: bool,
) -> None:
    frames = FRAMES["destination" if role == "source" else "source"][1:]
    chosen = frames if whole else [frames[number % len(frames)] for number in order]
    stream = mutated(b"".join(chosen), changes)
    stream = resealed(stream) if reseal else stream
    connection = opened(role)
    events = in_pieces(connection, stream, sizes)
    assert all(isinstance(event, Received) for event in events[:-1])
    if events and isinstance(events[-1], Violation):
        assert connection.feed(frames[0]) == []
        assert events[-1].error.code in CODES
    assert [seen(event) for event in read_in(opened(role), stream)] == [seen(event) for event in events]
