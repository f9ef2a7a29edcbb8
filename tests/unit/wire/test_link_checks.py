"""Contents of link frames: rows, names, origins, and the runs of a batch."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.helpers.link_frames import (
    LOGS,
    OPEN,
    OPENED,
    ORIGIN,
    SOURCE,
    control_run,
    names,
    plain,
    run_of,
)
from tests.helpers.reserved_batches import with_reserved
from tickertape.base.errors import BadLink
from tickertape.base.limits import (
    client_name_bytes_max,
    filter_bytes_max,
    link_text_bytes_max,
    topic_bytes_max,
)
from tickertape.base.names import publisher_id
from tickertape.batch import BatchBuilder, MessageBatch, merge
from tickertape.wire.commands import Goodbye, LinkMismatch
from tickertape.wire.link import (
    LinkedOrigin,
    LinkedSource,
    LinkOrigin,
    LinkPlace,
    LinkRule,
    LinkSowTopic,
    LinkTopics,
)
from tickertape.wire.link_checks import (
    check_goodbye,
    check_open,
    check_opened,
    check_origins,
    check_runs,
    control_publisher,
)
from tickertape.wire.link_rows import (
    decode_holes,
    decode_names,
    decode_places,
    decode_positions,
    decode_starts,
    encode_names,
    encode_pairs,
    encode_positions,
)

replace = msgspec.structs.replace
KNOWN = {1: LOGS[2], 2: LOGS[3]}
WIDE = "\U0001f600"
"""Four bytes in one character."""


# -- rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decode", "row_bytes"),
    [(decode_starts, 16), (decode_places, 16), (decode_holes, 16), (decode_names, 36), (decode_positions, 8)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_rows_of_another_size_are_refused(decode: Any, row_bytes: int) -> None:
    for size in (1, row_bytes - 1, row_bytes + 1, 3 * row_bytes - 1):
        with pytest.raises(BadLink, match=f"rows of {row_bytes} bytes"):
            decode(b"\1" * size)


def test_names_have_the_documented_bytes() -> None:
    row = names((0x0102030405060708, 0x11, 0x22), origin=0x33, stamp=-2)
    assert row == bytes.fromhex("08070605040302011100000000000000220000000000000033000000feffffffffffffff")
    (found,) = zip(*(column.tolist() for column in decode_names(row)), strict=True)
    assert found == (0x0102030405060708, 0x11, 0x22, 0x33, -2)
    assert encode_names(decode_names(row)) == row


def test_pairs_and_positions_have_the_documented_bytes() -> None:
    assert encode_pairs([1, 2**64 - 1], [2, 3]) == (
        bytes([1, *bytes(7), 2, *bytes(7)]) + b"\xff" * 8 + bytes([3, *bytes(7)])
    )
    assert encode_positions([2, 3]) == bytes([2, *bytes(7), 3, *bytes(7)])
    assert encode_pairs([], []) == b""


@pytest.mark.parametrize("row", [(0, 1, 1), (1, 0, 1), (1, 2, 1)])
def test_name_without_a_run_is_refused(row: tuple[int, int, int]) -> None:
    assert len(decode_names(names((1, 1, 1), (2**64 - 1, 2**64 - 1, 2**64 - 1))).publishers) == 2
    with pytest.raises(BadLink):
        decode_names(names((1, 1, 1), row))


@pytest.mark.parametrize("rows", [([0], [1]), ([1], [0]), ([2, 1], [1, 1]), ([2, 2], [1, 1])])
def test_first_holes_out_of_order_are_refused(rows: Any) -> None:
    assert decode_holes(encode_pairs([1, 2], [9, 5])).highest.tolist() == [9, 5]
    with pytest.raises(BadLink):
        decode_holes(encode_pairs(*rows))


def test_starts_without_order_are_refused() -> None:
    assert decode_starts(encode_pairs([9, 5], [7, 7])).positions.tolist() == [7, 7]
    for starts, positions in (([], []), ([1, 2], [8, 7]), ([1, 1], [7, 8])):
        with pytest.raises(BadLink):
            decode_starts(encode_pairs(starts, positions))


def test_places_of_different_starts_have_any_positions() -> None:
    assert decode_places(encode_pairs([9, 5], [7, 3])).starts.tolist() == [9, 5]
    with pytest.raises(BadLink):
        decode_places(encode_pairs([9, 5, 9], [7, 3, 8]))


def test_positions_without_order_are_refused() -> None:
    assert decode_positions(encode_positions([0, 5, 2**64 - 1])).tolist() == [0, 5, 2**64 - 1]
    for positions in ([1, 1], [2, 1]):
        with pytest.raises(BadLink):
            decode_positions(encode_positions(positions))


# -- the handshake ------------------------------------------------------------------------------------

REACH = LinkedOrigin(instance="a", group="a", log=LOGS[2])
FROM = LinkedSource(instance="a", log=LOGS[2], start=1)
SOW = LinkSowTopic(name="t", missing_key="refuse")
LONG_NAME = WIDE * (client_name_bytes_max // 4) + "x"
LONG_TOPIC = WIDE * (topic_bytes_max // 4) + "x"
LONG_TEXT = WIDE * (link_text_bytes_max // 4) + "x"
LONG_FILTER = WIDE * (filter_bytes_max // 4) + "x"
INVALID_SIDES: dict[str, dict[str, Any]] = {
    "instance": {"instance": LONG_NAME},
    "instance with control characters": {"instance": "a\n"},
    "group": {"group": LONG_NAME},
    "destination": {"destination": LONG_NAME},
    "software": {"software": LONG_TEXT},
    "pass-through": {"pass_through": LONG_TOPIC},
    "starts": {"starts": b"1"},
    "no starts": {"starts": b""},
    "rule": {"rules": (LinkRule(topic=LONG_TOPIC, sync=True),)},
    "rule without a topic": {"rules": (LinkRule(topic="", sync=True),)},
    "filter": {"rules": (LinkRule(topic="t", filter=LONG_FILTER, sync=True),)},
    "recorded": {"topics": LinkTopics(recorded=(LONG_TOPIC,))},
    "types": {"topics": LinkTopics(types={LONG_TOPIC: "json"})},
    "validated": {"topics": LinkTopics(validated=(LONG_TOPIC,))},
    "derived": {"topics": LinkTopics(derived=(LONG_TOPIC,))},
    "sow": {"topics": LinkTopics(sow=(replace(SOW, name=LONG_TOPIC),))},
    "sow key": {"topics": LinkTopics(sow=(replace(SOW, key=(LONG_TOPIC,)),))},
    "sow pattern": {"topics": LinkTopics(sow=(replace(SOW, pattern=LONG_TOPIC),))},
    "source": {"sources": (replace(FROM, instance=LONG_NAME),)},
    "rule of a source": {"sources": (replace(FROM, rules=(LinkRule(topic="", sync=True),)),)},
    "instance of a source": {"sources": (replace(FROM, origins=(replace(REACH, instance=LONG_NAME),)),)},
    "group of a source": {"sources": (replace(FROM, origins=(replace(REACH, group=LONG_NAME),)),)},
}


def test_valid_handshake_is_accepted() -> None:
    full = replace(
        SOURCE,
        instance=LONG_NAME[:-1],
        pass_through=LONG_TOPIC[:-1],
        software=LONG_TEXT[:-1],
        rules=(LinkRule(topic=LONG_TOPIC[:-1], filter=LONG_FILTER[:-1], sync=True),),
    )
    check_open(replace(OPEN, side=full, token=LONG_TEXT[:-1]))
    check_opened(replace(OPENED, side=full), (0,))


@pytest.mark.parametrize("what", INVALID_SIDES)
def test_invalid_side_is_refused_in_both_commands(what: str) -> None:
    side = replace(SOURCE, **INVALID_SIDES[what])
    with pytest.raises(BadLink):
        check_open(replace(OPEN, side=side))
    with pytest.raises(BadLink):
        check_opened(replace(OPENED, side=side), (0,))


def test_too_long_token_is_refused_and_not_shown() -> None:
    with pytest.raises(BadLink) as caught:
        check_open(replace(OPEN, token=LONG_TEXT))
    assert WIDE not in str(caught.value)


def test_answer_with_a_version_of_one_side_only_is_refused() -> None:
    both = replace(OPENED, side=replace(OPENED.side, versions=(1, 2)))
    check_opened(replace(both, version=2), (2, 3))
    for version, offered in ((1, (2, 3)), (3, (2, 3)), (4, (2, 3))):
        with pytest.raises(BadLink, match=f"version {version}"):
            check_opened(replace(both, version=version), offered)


@pytest.mark.parametrize("place", [None, LinkPlace(12, 599), LinkPlace(11, 600), LinkPlace(11, 480)], ids=str)
def test_place_that_is_not_the_last_place_is_refused(place: LinkPlace | None) -> None:
    with pytest.raises(BadLink):
        check_opened(replace(OPENED, place=place), (0,))


def test_answer_without_places_has_no_place() -> None:
    check_opened(replace(OPENED, place=None, places=b""), (0,))
    with pytest.raises(BadLink):
        check_opened(replace(OPENED, places=b""), (0,))


def test_goodbye_with_a_too_long_text_is_refused() -> None:
    check_goodbye(Goodbye(code="", text="", mismatches=(LinkMismatch("c", LONG_TEXT[:-1]),)))
    with pytest.raises(BadLink):
        check_goodbye(Goodbye(code="", text="", mismatches=(LinkMismatch("c", LONG_TEXT),)))


# -- origins ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": 2},
        {"path": (LOGS[3],)},
        {"path": (LOGS[2], LOGS[4], LOGS[4])},
        {"instance": LONG_NAME},
        {"group": "a\0"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_invalid_origin_is_refused(wrong: dict[str, Any]) -> None:
    assert check_origins([ORIGIN], {2: LOGS[3]}) == {1: LOGS[2]}
    with pytest.raises(BadLink):
        check_origins([replace(ORIGIN, **wrong)], {2: LOGS[3]})


def test_origin_number_with_two_meanings_in_one_frame_is_refused() -> None:
    other = LinkOrigin(1, LOGS[3], "b", "b", (LOGS[3],))
    for pair in ([ORIGIN, other], [ORIGIN, ORIGIN]):
        with pytest.raises(BadLink):
            check_origins(pair, {})


# -- runs ---------------------------------------------------------------------------------------------

GOOD = run_of(7, 42, 2)
CONTROL = control_run(None)
MIXED = merge([GOOD, CONTROL, run_of(8, 1, origin=1), control_run(LOGS[2], origin=1)])


def mixed_run() -> MessageBatch:
    """Return a run of a control record with a message."""
    builder = BatchBuilder()
    builder.add("orders", b"1")
    builder.add("$control", b"2", kind=1)
    return builder.build(publisher=publisher_id("$control"), first_sequence=1)


def test_runs_of_a_log_are_accepted() -> None:
    for batch in (
        GOOD,
        CONTROL,
        MIXED,
        with_reserved(GOOD, run_flags=[2]),
        with_reserved(GOOD, order_stamps=[5]),
    ):
        check_runs(batch, KNOWN)


INVALID_RUNS = {
    "no publisher and sequence numbers": plain(),
    "no publisher": run_of(0, 1),
    "no sequence numbers": run_of(7, 0),
    "second run without sequence numbers": merge([GOOD, run_of(7, 0)]),
    "unknown origin": run_of(7, 1, origin=3),
    "second run of an unknown origin": merge([GOOD, run_of(7, 1, origin=3)]),
    "superseded message": with_reserved(GOOD, message_flags=[0, 1]),
    "restated record": with_reserved(GOOD, kinds=[0, 2]),
    "place of a log": run_of(7, 1, topic="$link", kind=1),
    "second topic with places": merge([GOOD, run_of(7, 1, topic="$link", kind=1)]),
    "foreign control record without origin": control_run(LOGS[2]),
    "control record of the source with its foreign publisher": control_run(LOGS[0]),
    "control record of the source with a foreign origin": control_run(None, origin=1),
    "control record of another origin": control_run(LOGS[3], origin=1),
    "control record of a client": run_of(7, 1, topic="$control", kind=1),
    "later control record without origin": merge([GOOD, CONTROL, control_run(LOGS[2])]),
    "message in the control topic": run_of(publisher_id("$control"), 1, topic="$control"),
    "message in the control topic beside records": with_reserved(merge([CONTROL, CONTROL]), kinds=[1, 0]),
    "control record among messages": mixed_run(),
}


@pytest.mark.parametrize("what", INVALID_RUNS)
def test_runs_that_no_link_may_send_are_refused(what: str) -> None:
    with pytest.raises(BadLink):
        check_runs(INVALID_RUNS[what], KNOWN)


def test_control_publisher_differs_by_log_and_from_the_own_one() -> None:
    found = {control_publisher(log) for log in LOGS}
    assert len(found) == len(LOGS)
    assert publisher_id("$control") not in found
    assert control_publisher(bytes(16)) == 4752824274096894101
