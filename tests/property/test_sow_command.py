"""Queries and deletes of records: any valid one round-trips, any bytes are one or refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.wire import batch_of, client_logged_on, joined, seen, server_logged_on
from tickertape.base.errors import BadCommand
from tickertape.wire.commands import Command, Deleted, GroupBegin, GroupEnd, Records, Sow
from tickertape.wire.connection import Connection
from tickertape.wire.sow_command import SowDelete, decode_delete, decode_marks, encode_delete, encode_marks

TEXTS = st.text(max_size=20)
COUNTS = st.integers(0, 2**63 - 1)
KEYS = st.lists(TEXTS, max_size=8).map(tuple)
CANONICAL = st.lists(st.binary(max_size=20), max_size=8).map(tuple)
U64 = st.integers(0, 2**64 - 1)

SELECTIONS = st.one_of(
    st.builds(lambda keys: {"keys": keys}, KEYS.filter(bool)),
    st.builds(lambda keys: {"canonical": keys}, CANONICAL.filter(bool)),
    st.builds(lambda text: {"filter": text}, TEXTS),
    st.builds(lambda data: {"data": data}, st.binary(max_size=50)),
)
DELETES = st.builds(lambda topic, fields: SowDelete(topic=topic, **fields), TEXTS, SELECTIONS)

QUERIES = st.builds(
    Sow,
    id=COUNTS,
    sub_id=TEXTS,
    topic=TEXTS,
    filter=st.none() | TEXTS,
    keys=KEYS,
    canonical=CANONICAL,
    order_by=TEXTS,
    top_n=st.none() | COUNTS,
    skip_n=COUNTS,
    batch_size=COUNTS,
    options=TEXTS,
    credit=COUNTS,
    follow=st.booleans(),
    bookmark=st.none() | TEXTS,
)
ANSWERS = st.one_of(
    st.builds(
        GroupBegin,
        sub_id=TEXTS,
        topic=TEXTS,
        as_of=TEXTS,
        position=COUNTS,
        key=KEYS,
        domain=TEXTS,
        explicit=st.booleans(),
        pattern=TEXTS,
        types=st.dictionaries(TEXTS, KEYS, max_size=3),
    ),
    st.builds(Records, sub_id=TEXTS, marks=st.binary(max_size=72)),
    st.builds(GroupEnd, sub_id=TEXTS, matches=COUNTS, topic_matches=COUNTS, records=COUNTS),
    st.builds(
        Deleted,
        frame=COUNTS,
        sequence=COUNTS,
        matches=COUNTS,
        topic_matches=COUNTS,
        deleted=COUNTS,
        more=st.booleans(),
    ),
)


@given(DELETES)
def test_any_delete_round_trips(delete: SowDelete) -> None:
    assert decode_delete(encode_delete(delete)) == delete


@given(TEXTS, st.lists(SELECTIONS, max_size=4))
def test_delete_is_accepted_exactly_with_one_selection(topic: str, parts: list[dict[str, object]]) -> None:
    fields: dict[str, object] = {"topic": topic}
    for part in parts:
        fields |= part
    body = msgspec.msgpack.encode(fields)
    if len(fields) == 2:
        assert msgspec.structs.asdict(decode_delete(body)).items() >= fields.items()
        return
    with pytest.raises(BadCommand):
        decode_delete(body)


@given(DELETES, st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4))
def test_mutated_delete_is_refused_or_a_delete(delete: SowDelete, changes: list[tuple[float, int]]) -> None:
    data = bytearray(encode_delete(delete))
    for where, value in changes:
        data[int(where * len(data))] = value
    try:
        found = decode_delete(bytes(data))
    except BadCommand:
        return
    assert decode_delete(encode_delete(found)) == found


@given(QUERIES)
def test_any_query_round_trips_through_a_frame(query: Sow) -> None:
    (event,) = server_logged_on().feed(joined(Connection("client").send(query)))
    assert seen(event).command == query


@given(ANSWERS)
def test_any_answer_round_trips_through_a_frame(answer: Command) -> None:
    batch = batch_of(3) if isinstance(answer, Records) else None
    (event,) = client_logged_on().feed(joined(Connection("server").send(answer, batch)))
    assert seen(event).command == answer
    assert seen(event).batch == (None if batch is None else batch.encode())


@given(st.lists(st.tuples(U64, U64, st.integers(-(2**63), 2**63 - 1)), max_size=20))
def test_any_marks_round_trip(rows: list[tuple[int, int, int]]) -> None:
    publishers, sequences, timestamps = zip(*rows, strict=True) if rows else ((), (), ())
    found = decode_marks(encode_marks(publishers, sequences, timestamps), len(rows))
    assert list(zip(*(column.tolist() for column in found), strict=True)) == rows
