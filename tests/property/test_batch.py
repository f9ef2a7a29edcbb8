"""Batches against a model, a plain list of dictionaries: equal operations give equal contents."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.reserved_batches import header_entries, with_reserved
from tickertape.base.errors import BadBatch, CorruptBatch, UsageError
from tickertape.batch import (
    COLUMNS_DEFAULT,
    RUN_BY_SERVER,
    RUN_LATE,
    RUN_MERGED,
    BatchBuilder,
    MessageBatch,
    Stamp,
    as_late,
    as_linked,
    batch_from_arrow,
    cost_between,
    derive,
    indices_of_topics,
    merge,
    message_costs,
    reorder,
    select,
    select_topic,
    slice_batch,
    split_topics,
    with_bodies,
    with_topics,
)
from tickertape.batch.derive import take_part
from tickertape.batch.format import lengths_of, offsets_from

Row = dict[str, Any]

_topics = st.sampled_from(["orders", "trades", "größe", "t" * 300, ""])
_labels = st.one_of(st.just(""), st.text(max_size=6))
_headers = st.sampled_from([b"", b"", b"\x81\xa1a\xa1b", b"\x81\xa1a\xc4\x01\xff", b"\xff"])
_bodies = st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"x" * 8, b"y" * 8]))
_ids = st.sampled_from([0, 1, 7, 2**63, 2**64 - 1])


@st.composite
def runs(draw: st.DrawFn) -> list[Row]:
    """Generate one run: rows of one publisher with rising sequences."""
    publisher = draw(_ids)
    timestamp = draw(st.integers(-(2**63), 2**63 - 1))
    gaps = draw(st.sampled_from([st.just(1), st.integers(1, 3)]))
    plain = draw(st.booleans())
    reserved = not plain and draw(st.booleans())
    late = reserved and draw(st.booleans())
    merged = reserved and draw(st.booleans())
    origin = draw(st.sampled_from([0, 1, 2**32 - 1])) if reserved else 0
    order_stamp = draw(st.sampled_from([timestamp, 0, -(2**63), 2**63 - 1])) if reserved else timestamp
    sequence = draw(st.sampled_from([0, 5, 2**63 - 2, 2**64 - 100]))
    rows = []
    for _ in range(draw(st.integers(1, 8))):
        rows.append(
            {
                "publisher": publisher,
                "timestamp": timestamp,
                "sequence": sequence,
                "topic": "orders" if plain else draw(_topics),
                "data": draw(_bodies),
                "expiration": 0 if plain else draw(st.sampled_from([0, 0, 5, 2**63 - 1])),
                "correlation_id": "" if plain else draw(_labels),
                "key": "" if plain else draw(_labels),
                "kind": 0 if plain else draw(st.sampled_from([0, 0, 0, 1, 2] if reserved else [0, 0, 0, 1])),
                "message_flags": draw(st.sampled_from([0, 0, 1, 2, 3])) if reserved else 0,
                "headers": draw(_headers) if reserved else b"",
                "late": late,
                "merged": merged,
                "origin": origin,
                "order_stamp": order_stamp,
            }
        )
        sequence += draw(gaps)
    return rows


commits = st.lists(runs(), min_size=1, max_size=5)


def build(rows: list[Row]) -> MessageBatch:
    builder = BatchBuilder()
    for row in rows:
        builder.add(
            row["topic"],
            row["data"],
            expiration_ms=row["expiration"],
            correlation_id=row["correlation_id"],
            key=row["key"],
            headers=row["headers"],
            sequence=row["sequence"],
            kind=row["kind"] == 1,
        )
    batch = builder.build(rows[0]["publisher"], 0, rows[0]["timestamp"])
    assert len(builder) == builder.count == len(rows)
    assert builder.size_bytes - 128 <= batch.nbytes <= builder.size_bytes
    return _with_reserved(batch, rows)


def _with_reserved(batch: MessageBatch, rows: list[Row]) -> MessageBatch:
    """Return the batch of one run with the values of `rows` that builders do not write."""
    first = rows[0]
    flags = RUN_LATE * first["late"] | (RUN_MERGED | RUN_BY_SERVER) * first["merged"]
    kinds = [row["kind"] for row in rows]
    message_flags = [row["message_flags"] for row in rows]
    stamped = first["order_stamp"] != first["timestamp"]
    if not (flags or first["origin"] or 2 in kinds or any(message_flags) or stamped):
        return batch
    return with_reserved(
        batch,
        run_flags=[flags],
        origins=[first["origin"]],
        kinds=kinds if any(kinds) else None,
        message_flags=message_flags if any(message_flags) else None,
        order_stamps=[first["order_stamp"]] if stamped else None,
    )


def rows_of(batch: MessageBatch) -> list[Row]:
    expirations, kinds, flags = batch.expirations, batch.kinds, batch.message_flags
    headers = header_entries(batch)
    counts = batch.runs["count"].tolist()
    stamps = (batch.runs["timestamp"] if batch.order_stamps is None else batch.order_stamps).tolist()
    run_of = np.repeat(np.arange(batch.run_count), counts).tolist()
    return [
        {
            "publisher": batch.publisher(i),
            "timestamp": batch.timestamp(i),
            "sequence": batch.sequence(i),
            "topic": batch.topic(i),
            "data": batch.body(i),
            "expiration": 0 if expirations is None else int(expirations[i]),
            "correlation_id": batch.correlation_id(i) or "",
            "key": batch.key(i) or "",
            "kind": 0 if kinds is None else int(kinds[i]),
            "message_flags": 0 if flags is None else int(flags[i]),
            "headers": headers[i],
            "late": bool(batch.run(run_of[i]).flags & RUN_LATE),
            "merged": bool(batch.run(run_of[i]).flags & RUN_MERGED),
            "origin": batch.run(run_of[i]).origin,
            "order_stamp": stamps[run_of[i]],
        }
        for i in range(len(batch))
    ]


def costs_of(rows: list[Row]) -> list[int]:
    texts = [
        (row["data"], row["correlation_id"].encode(), row["key"].encode(), row["headers"]) for row in rows
    ]
    return [32 + sum(map(len, parts)) for parts in texts]


def check(batch: MessageBatch, rows: list[Row]) -> MessageBatch:
    """Check that `batch` holds `rows`, verifies, and round-trips. Return the parsed batch."""
    encoded = batch.encode()
    again = MessageBatch.parse(encoded)
    for one in (batch, again):
        one.verify()
        assert rows_of(one) == rows
        assert one.bodies_list() == [row["data"] for row in rows]
        assert one.sequences.tolist() == [row["sequence"] for row in rows]
        assert one.publishers.tolist() == [row["publisher"] for row in rows]
        assert one.timestamps.tolist() == [row["timestamp"] for row in rows]
        assert one.encode() == encoded
        assert one.nbytes == len(encoded)
        assert len(one.head) == one.head_bytes
        assert len(one.bodies) == one.body_bytes == sum(len(row["data"]) for row in rows)
        costs = costs_of(rows)
        assert one.cost == sum(costs)
        assert cost_between(one, len(rows) // 3, len(rows)) == sum(costs[len(rows) // 3 :])
        assert [m.data for m in one] == one.bodies_list()
        assert not any(
            a.flags.writeable for a in (one.runs, one.offsets, one.sequences, one.publishers, one.timestamps)
        )
    assert batch.crc() == again.crc()
    return again


def merged(commit: list[list[Row]]) -> tuple[MessageBatch, list[Row]]:
    rows = [row for run in commit for row in run]
    return merge([build(run) for run in commit]), rows


@given(runs())
def test_built_run_has_the_added_rows(rows: list[Row]) -> None:
    again = check(build(rows), rows)
    assert again.has_sequences == (rows[-1]["sequence"] - rows[0]["sequence"] != len(rows) - 1)
    assert set(again.topics) == {row["topic"] for row in rows}


@given(commits)
def test_merge_of_batches_is_the_concatenation(commit: list[list[Row]]) -> None:
    batch, rows = merged(commit)
    check(batch, rows)
    assert batch.run_count == len(commit)
    half = len(commit) // 2
    if half:
        in_two_steps = merge([merged(commit[:half])[0], merged(commit[half:])[0]])
        assert in_two_steps.encode() == batch.encode()


@given(commits, st.data())
def test_stamps_replace_the_rows_of_runs(commit: list[list[Row]], data: st.DataObject) -> None:
    batches, stamps, expected = [build(run) for run in commit], [], []
    for run in commit:
        same = data.draw(st.booleans())
        stamp = Stamp(
            run[0]["publisher"] if same else 99, run[0]["sequence"], data.draw(st.integers(0, 2**60))
        )
        stamps.append(stamp)
        for i, row in enumerate(run):
            sequence = row["sequence"] if same else stamp.first_sequence + i
            own = row["order_stamp"] != row["timestamp"]
            changed = {
                "publisher": stamp.publisher,
                "timestamp": stamp.timestamp,
                "sequence": sequence,
                "order_stamp": row["order_stamp"] if own else stamp.timestamp,
            }
            expected.append(row | changed)
    check(merge(batches, stamps), expected)


@given(commits, st.data())
def test_slice_of_batch_has_the_rows_of_a_list_slice(commit: list[list[Row]], data: st.DataObject) -> None:
    batch, rows = merged(commit)
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    part = slice_batch(batch, start, stop)
    check(part, rows[start:stop])
    assert part.bodies.obj is batch.bodies.obj
    assert (part is batch) == (stop - start == len(rows))
    _check_checksum_flags(commit, part, list(range(start, stop)))


@given(commits, st.data())
def test_select_with_a_mask_or_indices_has_exactly_these_rows(
    commit: list[list[Row]], data: st.DataObject
) -> None:
    batch, rows = merged(commit)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), np.bool_)
    indices = mask.nonzero()[0]
    if not len(indices):
        with pytest.raises(UsageError, match="Cannot select messages"):
            select(batch, mask)
        return
    part = select(batch, mask)
    taken = [rows[i] for i in indices]
    again = check(part, taken)
    assert select(batch, indices).encode() == part.encode()
    assert set(again.topics) == {row["topic"] for row in taken} or part is batch
    _check_checksum_flags(commit, part, indices.tolist())
    # a selection of a selection is the selection of both
    second = np.arange(len(taken)) % 2 == 0
    assert select(part, second).encode() == select(batch, indices[second]).encode()


@given(commits, st.data())
def test_batch_with_other_bodies_keeps_all_other_columns(
    commit: list[list[Row]], data: st.DataObject
) -> None:
    batch, rows = merged(commit)
    bodies = data.draw(st.lists(_bodies, min_size=len(rows), max_size=len(rows)))
    changed = check(
        with_bodies(batch, bodies), [{**row, "data": body} for row, body in zip(rows, bodies, strict=True)]
    )
    assert (changed.runs["flags"] & RUN_BY_SERVER == RUN_BY_SERVER).all()
    with pytest.raises(UsageError, match="bodies for a batch"):
        with_bodies(batch, bodies[1:])


def _check_checksum_flags(commit: list[list[Row]], part: MessageBatch, indices: list[int]) -> None:
    number = [k for k, run in enumerate(commit) for _ in run]
    taken = [number[i] for i in indices]
    expected = [int(taken.count(k) < len(commit[k]) or commit[k][0]["merged"]) for k in sorted(set(taken))]
    assert (part.runs["flags"] & RUN_BY_SERVER).tolist() == expected


# -- every function of derive.py ----------------------------------------------------------------------

Derived = Iterator[tuple[MessageBatch, list[Row]]]


def _slice_batch(batch: MessageBatch, rows: list[Row], data: st.DataObject) -> Derived:
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    yield slice_batch(batch, start, stop), rows[start:stop]


def _indices(rows: list[Row], data: st.DataObject) -> list[int]:
    return sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))


def _select(batch: MessageBatch, rows: list[Row], data: st.DataObject) -> Derived:
    indices = _indices(rows, data)
    yield select(batch, np.array(indices)), [rows[i] for i in indices]


def _take_part(batch: MessageBatch, rows: list[Row], data: st.DataObject) -> Derived:
    indices = _indices(rows, data)
    taken = [rows[i] for i in indices]
    offsets = offsets_from(lengths_of(batch.offsets)[indices])
    yield (
        take_part(batch, np.array(indices), offsets, b"".join(row["data"] for row in taken)),
        taken,
    )


def _reorder(batch: MessageBatch, rows: list[Row], data: st.DataObject) -> Derived:
    order = data.draw(st.permutations(range(len(rows))))
    yield reorder(batch, np.array(order)), [rows[i] for i in order]


def _messages(rows: list[Row], topic: str) -> list[Row]:
    return [row for row in rows if row["topic"] == topic and row["kind"] == 0]


def _select_topic(batch: MessageBatch, rows: list[Row], data: st.DataObject) -> Derived:
    for topic in batch.topics:
        part = select_topic(batch, topic)
        if part is not None:
            yield part, _messages(rows, topic)


def _split_topics(batch: MessageBatch, rows: list[Row], data: st.DataObject) -> Derived:
    for topic, part in split_topics(batch, batch.topics):
        yield part, _messages(rows, topic)


def _indices_of_topics(batch: MessageBatch, rows: list[Row], data: st.DataObject) -> Derived:
    for topic, indices in indices_of_topics(batch, batch.topics):
        yield select(batch, indices), _messages(rows, topic)


def _message_costs(batch: MessageBatch, rows: list[Row], data: st.DataObject) -> Derived:
    assert message_costs(batch).tolist() == costs_of(rows)
    yield batch, rows


def _merge(batch: MessageBatch, rows: list[Row], data: st.DataObject) -> Derived:
    others = data.draw(runs())
    yield merge([build(others), batch]), others + rows
    yield merge([batch, build(others)]), rows + others


def _with_bodies(batch: MessageBatch, rows: list[Row], data: st.DataObject) -> Derived:
    bodies = data.draw(st.lists(_bodies, min_size=len(rows), max_size=len(rows)))
    changed = [{**row, "data": body} for row, body in zip(rows, bodies, strict=True)]
    yield with_bodies(batch, bodies), changed
    yield with_bodies(batch, bodies, merged=True), [{**row, "merged": True} for row in changed]


def _as_late(batch: MessageBatch, rows: list[Row], data: st.DataObject) -> Derived:
    yield as_late(batch), [{**row, "late": True} for row in rows]


def _as_linked(batch: MessageBatch, rows: list[Row], data: st.DataObject) -> Derived:
    count = batch.first_run.message_count
    late, origin = data.draw(st.booleans()), data.draw(st.integers(0, 2**32 - 1))
    stamp = data.draw(st.integers(-(2**63), 2**63 - 1).filter(lambda one: one != rows[0]["timestamp"]))
    changed = {"late": late, "origin": origin, "order_stamp": stamp}
    linked = as_linked(slice_batch(batch, 0, count), origin, stamp, late=late)
    yield linked, [{**row, **changed} for row in rows[:count]]


def _with_topics(batch: MessageBatch, rows: list[Row], data: st.DataObject) -> Derived:
    names = data.draw(st.dictionaries(_topics, _topics))
    yield with_topics(batch, names), [{**row, "topic": names.get(row["topic"], row["topic"])} for row in rows]


_DERIVED: dict[str, Callable[[MessageBatch, list[Row], st.DataObject], Derived]] = {
    "as_late": _as_late,
    "as_linked": _as_linked,
    "indices_of_topics": _indices_of_topics,
    "merge": _merge,
    "message_costs": _message_costs,
    "reorder": _reorder,
    "select": _select,
    "select_topic": _select_topic,
    "slice_batch": _slice_batch,
    "split_topics": _split_topics,
    "take_part": _take_part,
    "with_bodies": _with_bodies,
    "with_topics": _with_topics,
}


def test_every_function_that_derives_a_batch_has_a_property() -> None:
    functions = inspect.getmembers(derive, inspect.isfunction)
    own = {name for name, function in functions if function.__module__ == derive.__name__}
    assert {name for name in own if not name.startswith("_")} == _DERIVED.keys()


@pytest.mark.parametrize("name", _DERIVED)
@given(commits, st.data())
def test_derived_batch_keeps_every_part_of_the_messages(
    name: str, commit: list[list[Row]], data: st.DataObject
) -> None:
    batch, rows = merged(commit)
    for made, expected in _DERIVED[name](batch, rows, data):
        check(made, expected)


@given(commits, _topics)
def test_select_topic_takes_messages_and_no_control_records(commit: list[list[Row]], topic: str) -> None:
    batch, rows = merged(commit)
    taken = [row for row in rows if row["topic"] == topic and row["kind"] == 0]
    part = select_topic(batch, topic)
    if part is None:
        assert taken == []
    else:
        again = check(part, taken)
        assert again.topics == (topic,)
        assert (part is batch) == (len(taken) == len(rows))


@given(commits)
def test_arrow_has_all_columns(commit: list[list[Row]]) -> None:
    batch, rows = merged(commit)
    names = [*COLUMNS_DEFAULT, "expiration_ms", "correlation_id", "sow_key", "kind"]
    table = MessageBatch.parse(batch.encode()).to_arrow(names)
    table.validate(full=True)
    found = {name: table.column(name) for name in names}
    found["timestamp"] = found["timestamp"].cast(pa.int64())
    optional = {"expiration_ms": "expiration", "correlation_id": "correlation_id", "sow_key": "key"}
    for name, column in found.items():
        if name in optional:
            assert column.to_pylist() == [row[optional[name]] or None for row in rows], name
        else:
            assert column.to_pylist() == [row[name] for row in rows], name


@given(st.lists(_bodies, min_size=1, max_size=20), st.data())
def test_batch_from_arrow_slice_has_exactly_these_bodies(bodies: list[bytes], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(bodies) - 1))
    array = pa.array(bodies, pa.binary()).slice(start)
    batch = batch_from_arrow("t", array, publisher=4, first_sequence=9, timestamp=3)
    again = MessageBatch.parse(batch.encode())
    again.verify()
    assert again.bodies_list() == bodies[start:]
    assert again.to_arrow(["data"]).column(0).equals(array)


# -- invalid batches ----------------------------------------------------------------------------------


def use_everything(batch: MessageBatch) -> None:
    """Use every view: a parsed batch must be safe to use."""
    rows = rows_of(batch)
    assert len(rows) == batch.count
    assert batch.bodies_list() == [row["data"] for row in rows]
    assert MessageBatch.parse(batch.encode()).count == batch.count
    table = batch.to_arrow(["topic", "data", "sow_key", "correlation_id", "expiration_ms", "kind"])
    table.validate(full=True)
    if batch.count > 1:
        assert MessageBatch.parse(slice_batch(batch, 1, batch.count).encode()).count == batch.count - 1
        every_second = np.arange(batch.count) % 2 == 0
        MessageBatch.parse(select(batch, every_second).encode())
    with contextlib.suppress(CorruptBatch):
        batch.verify()
    MessageBatch.parse(merge([batch, batch]).encode())
    for topic in batch.topics:
        select_topic(batch, topic)


def _parse_or_refuse(data: bytes) -> None:
    try:
        batch = MessageBatch.parse(data)
    except BadBatch:
        return
    use_everything(batch)


def small() -> bytes:
    """Two runs, two topics, every column."""
    one, two = BatchBuilder(), BatchBuilder()
    one.add("a", b"12345", sequence=3, correlation_id="é", key="kk", expiration_ms=9, headers=b"\x80")
    one.add("bé", b"", sequence=6, kind=1)
    two.add("a", b"678", sequence=1)
    batch = merge([one.build(7, 0, 11), two.build(8, 0, 12)])
    return with_reserved(batch, message_flags=[1, 0, 2], order_stamps=[9, 10], run_flags=[5, 2]).encode()


def test_parse_of_any_truncated_batch_is_refused() -> None:
    encoded = small()
    for size in range(len(encoded)):
        with pytest.raises(BadBatch):
            MessageBatch.parse(encoded[:size])
        with pytest.raises(BadBatch):
            MessageBatch.parse(size.to_bytes(4, "little") + encoded[4:size])


@pytest.mark.parametrize("value", [0, 1, 0x7F, 0x80, 0xFF])
def test_parse_with_any_byte_set_to_extremes_is_refused_or_safe(value: int) -> None:
    encoded = small()
    for at in range(len(encoded)):
        _parse_or_refuse(encoded[:at] + bytes([value]) + encoded[at + 1 :])


@given(commits, st.data())
def test_parse_with_changed_bytes_is_refused_or_safe(commit: list[list[Row]], data: st.DataObject) -> None:
    encoded = bytearray(merged(commit)[0].encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at] = data.draw(st.integers(0, 255))
    _parse_or_refuse(bytes(encoded))


@given(st.binary(max_size=200))
def test_parse_of_random_bytes_is_refused_or_safe(noise: bytes) -> None:
    _parse_or_refuse(noise)
    padded = noise + bytes(-len(noise) & 7)
    _parse_or_refuse(len(padded).to_bytes(4, "little") + bytes(2) + padded[6:])


@given(st.lists(runs(), min_size=1, max_size=6))
def test_split_topics_equals_select_topic_for_each_topic(commit: list[list[Row]]) -> None:
    batch, _ = merged(commit)
    for few in (batch.topics, batch.topics[:1], batch.topics[::2]):
        split = {topic: chosen.encode() for topic, chosen in split_topics(batch, few)}
        chosen = {topic: select_topic(batch, topic) for topic in few}
        assert split == {topic: one.encode() for topic, one in chosen.items() if one is not None}


@given(st.lists(runs(), min_size=1, max_size=6))
def test_split_topics_skips_topics_without_messages(commit: list[list[Row]]) -> None:
    batch, _ = merged(commit)
    expected = [topic for topic in batch.topics if select_topic(batch, topic) is not None]
    for unknown in (["\x01"], ["\x01", "\x02", "\x03"]):
        topics = [*unknown, *batch.topics]
        assert [topic for topic, _ in split_topics(batch, topics)] == expected
