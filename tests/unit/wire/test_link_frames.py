"""Frames of replication links: direction, batches, handshake, and limits that apply while decoding."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.helpers.link_frames import (
    LOGS,
    OPEN,
    OPENED,
    ORIGIN,
    SOURCE,
    conversation,
    names,
    run_of,
)
from tests.helpers.wire import LOGON, batch_of, joined, only_error, read_in, seen
from tickertape.base.errors import BadCommand, BadFrame, BadLink, FrameTooLarge
from tickertape.base.limits import (
    client_name_bytes_max,
    filter_bytes_max,
    frame_bytes_before_link_max,
    frame_bytes_before_logon_max,
    goodbye_mismatches_max,
    header_bytes_max,
    link_feature_characters_max,
    link_features_max,
    link_incoming_max,
    link_key_fields_max,
    link_origins_max,
    link_origins_per_frame_max,
    link_path_logs_max,
    link_places_max,
    link_rows_max,
    link_rules_max,
    link_starts_max,
    link_text_bytes_max,
    link_topics_max,
    link_versions_max,
    link_window_bytes_max,
    topic_bytes_max,
)
from tickertape.batch import MessageBatch
from tickertape.wire.commands import PREFACE, Command, Goodbye, Heartbeat, LinkMismatch
from tickertape.wire.frames import encode_frame
from tickertape.wire.link import (
    LinkAck,
    LinkCredit,
    LinkedOrigin,
    LinkedSource,
    LinkHoles,
    LinkNames,
    LinkOpen,
    LinkOpened,
    LinkOrigin,
    LinkRequest,
    LinkRule,
    LinkRuns,
    LinkSowTopic,
    LinkTopics,
    link_name_bytes,
    link_place_bytes,
    link_position_bytes,
)
from tickertape.wire.link_connection import LinkConnection
from tickertape.wire.link_rows import encode_pairs, encode_positions

replace = msgspec.structs.replace
CONVERSATION = conversation()
ONE_WAY = [sent for sent in CONVERSATION.values() if not isinstance(sent[1], Goodbye | Heartbeat)]
FROM_SOURCE = [sent for sent in ONE_WAY if sent[0] == "source"]
FROM_DESTINATION = [sent for sent in ONE_WAY if sent[0] == "destination"]


def frame(command: Command, batch: MessageBatch | None = None) -> bytes:
    return joined(encode_frame(command, batch))


def destination_open() -> LinkConnection:
    """Return a destination that has answered the handshake."""
    destination = LinkConnection("destination")
    assert len(read_in(destination, PREFACE + frame(OPEN))) == 1
    destination.send(OPENED)
    return destination


def source_open() -> LinkConnection:
    """Return a source that has the answer to its handshake."""
    source = LinkConnection("source")
    source.send(OPEN)
    assert len(read_in(source, frame(OPENED))) == 1
    return source


# -- direction and handshake --------------------------------------------------------------------------


@pytest.mark.parametrize("sent", FROM_SOURCE, ids=lambda sent: type(sent[1]).__name__)
def test_source_refuses_commands_of_a_source(sent: Any) -> None:
    error = only_error(read_in(source_open(), frame(sent[1], sent[2])))
    assert isinstance(error, BadCommand)
    assert "only a source sends" in str(error)


@pytest.mark.parametrize("sent", FROM_DESTINATION, ids=lambda sent: type(sent[1]).__name__)
def test_destination_refuses_commands_of_a_destination(sent: Any) -> None:
    error = only_error(read_in(destination_open(), frame(sent[1], sent[2])))
    assert isinstance(error, BadCommand)
    assert "only a destination sends" in str(error)


def test_logon_at_a_destination_is_an_unknown_command() -> None:
    error = only_error(read_in(LinkConnection("destination"), PREFACE + frame(LOGON)))
    assert isinstance(error, BadCommand)
    assert "Unknown command 'logon'" in str(error)


def test_frames_before_the_handshake_are_refused() -> None:
    for name in ("runs", "names", "holes", "heartbeat"):
        _, command, batch = CONVERSATION[name]
        error = only_error(read_in(LinkConnection("destination"), PREFACE + frame(command, batch)))
        assert isinstance(error, BadLink), name
    for name in ("request", "durable", "credit"):
        source = LinkConnection("source")
        source.send(OPEN)
        error = only_error(read_in(source, frame(CONVERSATION[name][1])))
        assert isinstance(error, BadLink), name


def test_second_handshake_is_refused_at_both_ends() -> None:
    assert isinstance(only_error(read_in(destination_open(), frame(OPEN))), BadLink)
    assert isinstance(only_error(read_in(source_open(), frame(OPENED))), BadLink)


def test_source_receives_a_refusal_with_all_mismatches_instead_of_the_answer() -> None:
    mismatches = tuple(LinkMismatch(f"check-{n}", "x" * link_text_bytes_max) for n in range(64))
    mismatches += (LinkMismatch("x" * link_feature_characters_max, ""),) * 64
    assert len(mismatches) == goodbye_mismatches_max
    goodbye = Goodbye(code="link_refused", text="no", mismatches=mismatches)
    source = LinkConnection("source")
    source.send(OPEN)
    (event,) = read_in(source, frame(goodbye))
    assert seen(event).command == goodbye


def test_goodbye_with_the_longest_mismatches_fits_in_a_header() -> None:
    most = LinkMismatch("x" * link_feature_characters_max, "x" * link_text_bytes_max)
    assert (
        len(frame(Goodbye(code="", text="", mismatches=(most,) * goodbye_mismatches_max))) < header_bytes_max
    )


def test_goodbye_without_mismatches_has_no_field_for_mismatches() -> None:
    assert b"mismatches" not in frame(Goodbye(code="bad_frame", text="no"))


def test_handshake_above_the_logon_limit_arrives() -> None:
    starts = encode_pairs(range(link_starts_max), range(link_starts_max))
    open_large = replace(OPEN, side=replace(SOURCE, starts=starts))
    data = frame(open_large)
    assert frame_bytes_before_logon_max < len(data) <= frame_bytes_before_link_max
    (event,) = read_in(LinkConnection("destination"), PREFACE + data)
    assert seen(event).command == open_large


def test_destination_refuses_large_frames_before_the_answer_only() -> None:
    runs = batch_of(300, 1000)
    data = frame(LinkRuns(end=1), runs)
    assert len(data) > frame_bytes_before_link_max
    destination = LinkConnection("destination")
    read_in(destination, PREFACE + frame(OPEN))
    assert isinstance(only_error(read_in(destination, data)), FrameTooLarge)
    (_, event) = read_in(destination_open(), frame(LinkHoles(position=0)) + data)
    assert seen(event).command == LinkRuns(end=1)


def test_runs_without_a_batch_and_names_with_a_batch_are_refused() -> None:
    started = destination_open()
    read_in(started, frame(LinkHoles(position=0)))
    assert isinstance(only_error(read_in(started, frame(LinkRuns(end=1)))), BadFrame)
    other = destination_open()
    read_in(other, frame(LinkHoles(position=0)))
    assert isinstance(only_error(read_in(other, frame(LinkNames(end=1), run_of(1, 1)))), BadFrame)
    with pytest.raises(BadCommand):
        source_open().send(LinkRuns(end=1))


def test_events_after_a_violation_of_the_order_are_dropped() -> None:
    destination = destination_open()
    good, bad = frame(LinkHoles(position=5)), frame(LinkNames(end=4))
    events = read_in(destination, good + bad + frame(LinkNames(end=6)))
    assert [seen(event).code for event in events] == ["", "bad_link"]
    assert read_in(destination, frame(LinkNames(end=6))) == []


def test_refused_command_of_the_own_end_is_not_sent_and_changes_nothing() -> None:
    source = source_open()
    with pytest.raises(BadLink):
        source.send(LinkNames(end=1))
    source.send(LinkHoles(position=0))
    source.send(LinkNames(end=1))
    with pytest.raises(FrameTooLarge):
        source.send(Goodbye(code="x", text="x" * header_bytes_max))


def test_commands_show_no_token() -> None:
    assert "secret" not in repr(replace(OPEN, token="secret"))


# -- limits -------------------------------------------------------------------------------------------


def origin(number: int, logs: int = 2) -> LinkOrigin:
    return LinkOrigin(number, LOGS[2], "ldn-1", "ldn", LOGS[2 : 2 + logs])


def side(**fields: Any) -> LinkOpen:
    return LinkOpen(side=replace(SOURCE, **fields))


def opened(**fields: Any) -> LinkOpened:
    return replace(OPENED, **fields)


REACH = LinkedOrigin(instance="a", group="a", log=LOGS[2])
FROM = LinkedSource(instance="a", log=LOGS[2], start=1)
SOW = LinkSowTopic(name="t", missing_key="refuse")
LIMITS: dict[str, tuple[Callable[[int], Command], int]] = {
    "starts": (lambda n: side(starts=encode_pairs(range(n), range(n))), link_starts_max),
    "places": (lambda n: opened(places=bytes(link_place_bytes * n)), link_places_max),
    "features": (lambda n: side(features=("f",) * n), link_features_max),
    "required": (lambda n: side(required=("f",) * n), link_features_max),
    "feature": (lambda n: side(features=("f" * n,)), link_feature_characters_max),
    "versions": (lambda n: side(versions=tuple(range(n))), link_versions_max),
    "software": (lambda n: side(software="s" * n), link_text_bytes_max),
    "token": (lambda n: replace(OPEN, token="s" * n), link_text_bytes_max),
    "instance": (lambda n: side(instance="i" * n), client_name_bytes_max),
    "group": (lambda n: side(group="g" * n), client_name_bytes_max),
    "rules": (lambda n: side(rules=(LinkRule(topic="t", sync=True),) * n), link_rules_max),
    "rule": (lambda n: side(rules=(LinkRule(topic="t" * n, sync=True),)), topic_bytes_max),
    "filter": (lambda n: side(rules=(LinkRule(topic="t", filter="f" * n, sync=True),)), filter_bytes_max),
    "pass-through": (lambda n: side(pass_through="g" * n), topic_bytes_max),
    "digests": (lambda n: side(digests=(bytes(16),) * n), link_rules_max),
    "excluded": (lambda n: side(excluded=("e",) * n), link_features_max),
    "recorded": (lambda n: side(topics=LinkTopics(recorded=("t",) * n)), link_topics_max),
    "validated": (lambda n: side(topics=LinkTopics(validated=("t",) * n)), link_topics_max),
    "derived": (lambda n: side(topics=LinkTopics(derived=("t",) * n)), link_topics_max),
    "types": (lambda n: side(topics=LinkTopics(types={f"{t}": "j" for t in range(n)})), link_topics_max),
    "topic": (lambda n: side(topics=LinkTopics(recorded=("t" * n,))), topic_bytes_max),
    "sow": (lambda n: side(topics=LinkTopics(sow=(SOW,) * n)), link_topics_max),
    "sow key": (lambda n: side(topics=LinkTopics(sow=(replace(SOW, key=("/a",) * n),))), link_key_fields_max),
    "sources": (lambda n: side(sources=(FROM,) * n), link_incoming_max),
    "source rules": (
        lambda n: side(sources=(replace(FROM, rules=(LinkRule(topic="t", sync=True),) * n),)),
        link_rules_max,
    ),
    "origins per frame": (
        lambda n: LinkNames(end=1, origins=tuple(origin(number + 1) for number in range(n))),
        link_origins_per_frame_max,
    ),
    "origin number": (lambda n: LinkNames(end=1, origins=(origin(n),)), link_origins_max),
    "path": (lambda n: LinkNames(end=1, origins=(origin(1, n),)), link_path_logs_max),
    "names": (lambda n: LinkNames(end=1, rows=names(*[(1, 1, 1)] * n)), link_rows_max),
    "holes": (
        lambda n: LinkHoles(position=1, behind=True, rows=encode_pairs(range(1, n + 1), range(1, n + 1))),
        link_rows_max,
    ),
    "positions": (lambda n: LinkRequest(positions=encode_positions(range(n))), link_rows_max),
    "credit": (lambda n: LinkCredit(bytes=n), link_window_bytes_max),
    "window": (lambda n: opened(credit=n), link_window_bytes_max),
    "mismatches": (
        lambda n: Goodbye(code="", text="", mismatches=(LinkMismatch("c", ""),) * n),
        goodbye_mismatches_max,
    ),
    "mismatch": (
        lambda n: Goodbye(code="", text="", mismatches=(LinkMismatch("c", "t" * n),)),
        link_text_bytes_max,
    ),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_limit_of_a_link_command_is_accepted_and_one_more_is_refused(limit: str) -> None:
    make, most = LIMITS[limit]
    decode: Callable[[bytes], Command] = msgspec.msgpack.Decoder(type(make(1))).decode
    assert decode(msgspec.msgpack.encode(make(most))) == make(most)
    with pytest.raises(msgspec.ValidationError):
        decode(msgspec.msgpack.encode(make(most + 1)))


def framed(limit: str) -> bool:
    """Return whether a header can have one entry more than the limit."""
    make, most = LIMITS[limit]
    return len(msgspec.msgpack.encode(make(most + 1))) < header_bytes_max


@pytest.mark.parametrize("limit", [limit for limit in LIMITS if framed(limit)])
def test_command_above_a_limit_is_a_violation_at_the_other_end(limit: str) -> None:
    make, most = LIMITS[limit]
    command = make(most + 1)
    if isinstance(command, LinkOpen):
        receiver, preface = LinkConnection("destination"), PREFACE
    elif isinstance(command, LinkOpened):
        receiver, preface = LinkConnection("source"), b""
    else:
        receiver, preface = (source_open() if limit in ("positions", "credit") else destination_open()), b""
    error = only_error(read_in(receiver, preface + frame(command)))
    assert isinstance(error, BadCommand)


def test_origin_number_0_is_refused() -> None:
    command = LinkNames(end=1, origins=(replace(ORIGIN, number=0),))
    assert isinstance(only_error(read_in(destination_open(), frame(command))), BadCommand)


def test_ids_and_digests_of_another_size_are_refused() -> None:
    for size in (0, 15, 17):
        log = bytes(size)
        for command in (side(log=log), side(digests=(log,)), side(replaced=(log,))):
            error = only_error(read_in(LinkConnection("destination"), PREFACE + frame(command)))
            assert isinstance(error, BadCommand)


def test_numbers_below_zero_and_unknown_levels_are_refused() -> None:
    unknown = LinkAck(durable=1, level="replicated")  # type: ignore[arg-type]
    for command in (LinkAck(durable=-1), unknown, LinkCredit(bytes=0)):
        assert isinstance(only_error(read_in(source_open(), frame(command))), BadCommand)
    assert isinstance(only_error(read_in(destination_open(), frame(LinkNames(end=-1)))), BadCommand)


def test_full_frame_of_names_and_origins_fits_in_a_header() -> None:
    long = "\U0001f600" * (client_name_bytes_max // 4)
    path = tuple(number.to_bytes(16, "little") for number in range(link_path_logs_max))
    origins = tuple(
        LinkOrigin(link_origins_max - number, path[0], long, long, path)
        for number in range(link_origins_per_frame_max)
    )
    rows = names(*[(2**64 - 1, 2**63, 2**64 - 1)] * link_rows_max, origin=link_origins_max)
    command = LinkNames(end=2**64 - 1, origins=origins, rows=rows)
    destination = destination_open()
    (_, event) = read_in(destination, frame(LinkHoles(position=0)) + frame(command))
    assert seen(event).command == command
    assert destination.order.named == link_rows_max


def test_too_many_entries_are_refused_before_decoding() -> None:
    """An array that claims 2**32 entries, or more than its limit, must not be allocated."""
    tag = b"\xa1c\xa2nm\xa3end\x01\xa7origins"
    decode = msgspec.msgpack.Decoder(LinkNames).decode
    for head in (b"\xdd\xff\xff\xff\xff", b"\xdc\x00\x81"):
        header = b"\x83" + tag + head + b"\x91" * 200_000
        tracemalloc.start()
        try:
            with pytest.raises(msgspec.DecodeError):
                decode(header)
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()


def test_rows_have_the_documented_sizes() -> None:
    assert (link_name_bytes, link_place_bytes, link_position_bytes) == (36, 16, 8)
    assert len(names((1, 2, 3))) == 36
    assert (link_rows_max, link_starts_max, link_places_max) == (4096, 4096, 64)
    assert (link_origins_max, link_path_logs_max, link_window_bytes_max) == (65_535, 16, 16 << 20)
