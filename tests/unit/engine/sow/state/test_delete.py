"""Delete and expiry records: bounds, exact sizes, and invalid records."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest

from tickertape.base.errors import JournalCorrupt
from tickertape.base.limits import message_bytes_max
from tickertape.batch.format import Bools, Int64s, UInt64s
from tickertape.engine.limits import (
    sow_delete_keys_max,
    sow_delete_record_bytes_max,
    sow_delete_sort_rows,
    sow_expiry_step_max,
)
from tickertape.engine.sow.state import delete
from tickertape.engine.sow.state.delete import (
    NO_COUNTS,
    NO_PUBLISHER,
    DeleteBuilder,
    DeleteCounts,
    DeleteKind,
    DeleteRecord,
    decode,
    encode,
)
from tickertape.engine.sow.state.delete_rows import DeleteRows

KEY_FINGERPRINT = bytes(range(16))
DELETED, EXPIRED = DeleteKind.DELETED, DeleteKind.EXPIRED


def u8(*numbers: int) -> UInt64s:
    return np.array(numbers, np.uint64)


def i8(*numbers: int) -> Int64s:
    return np.array(numbers, np.int64)


def add_keys(builder: DeleteBuilder, keys: list[bytes], publisher: int = 7) -> None:
    count = len(keys)
    sequences = np.arange(1, count + 1, dtype=np.uint64)
    builder.add(keys, np.full(count, publisher, np.uint64), sequences, np.full(count, 5, np.int64))


def built(keys: list[bytes], kind: DeleteKind = DELETED) -> DeleteRecord:
    builder = DeleteBuilder("orders", KEY_FINGERPRINT, kind)
    add_keys(builder, keys)
    return builder.build()


def numbered(count: int, size: int = 8) -> list[bytes]:
    return [n.to_bytes(size, "big") for n in range(count)]


def of_pattern() -> DeleteRecord:
    builder = DeleteBuilder("all", KEY_FINGERPRINT)
    builder.add(
        [b"c", b"a", b"b", b"a"],
        u8(9, 4, 9, 0),
        u8(2, 3, 1, 0),
        i8(200, 300, 100, 0),
        topics=["x", "x", "y", "y"],
        live=np.array([False, True, True, False]),
    )
    return builder.build(5, 6, more=True)


# -- contents -----------------------------------------------------------------------------------------


def test_built_record_has_columns_in_the_order_of_topics_and_keys() -> None:
    record = of_pattern()
    assert record.keys() == [b"a", b"c", b"a", b"b"]
    assert record.topics == ("x", "y")
    assert record.topics_between(0, 4) == ["x", "x", "y", "y"]
    assert record.sequences.tolist() == [3, 2, 0, 1]
    assert record.order_stamps.tolist() == [300, 200, 0, 100]
    assert record.publishers.tolist() == [4, 9]
    assert record.publisher_numbers.tolist() == [0, 1, NO_PUBLISHER, 1]
    assert record.publishers_between(0, 4).tolist() == [4, 9, 0, 9]
    assert (record.topic, record.kind, record.more) == ("all", DELETED, True)
    assert record.counts == DeleteCounts(5, 6, 2)


def test_record_is_read_in_pieces() -> None:
    record = decode(encode(of_pattern()))
    assert [record.keys_between(low, low + 3) for low in (0, 3)] == [[b"a", b"c", b"a"], [b"b"]]
    assert [record.topics_between(low, low + 3) for low in (0, 3)] == [["x", "x", "y"], ["y"]]
    assert [record.publishers_between(low, low + 3).tolist() for low in (0, 3)] == [[4, 9, 0], [9]]


def test_record_of_one_topic_names_the_topic_of_each_key() -> None:
    assert built([b"a", b"b"]).topics_between(0, 5) == ["orders", "orders"]
    builder = DeleteBuilder("all", KEY_FINGERPRINT)
    builder.add([b"a"], u8(1), u8(1), i8(1), topics=["x"])
    record = decode(encode(builder.build()))
    assert (record.topics, len(record.topic_numbers)) == (("x",), 0)
    assert record.topics_between(0, 1) == ["x"]


def test_record_without_keys_has_counts() -> None:
    builder = DeleteBuilder("orders", KEY_FINGERPRINT)
    record = decode(encode(builder.build(0, 12)))
    assert (record.count, record.keys(), record.more) == (0, [], False)
    assert record.counts == DeleteCounts(0, 12, 0)
    assert record.encoded_bytes == len(encode(record))


def test_later_row_of_a_key_replaces_the_earlier_one() -> None:
    builder = DeleteBuilder("orders", KEY_FINGERPRINT)
    builder.add([b"k", b"l", b"k"], u8(1, 1, 2), u8(5, 6, 7), i8(1, 2, 3))
    builder.add([b"l"], u8(3), u8(0), i8(4))
    record = builder.build()
    assert record.keys() == [b"k", b"l"]
    assert record.sequences.tolist() == [7, 0]
    assert record.publishers_between(0, 2).tolist() == [2, 0]
    assert record.counts.deleted == 1


def test_large_record_is_sorted_in_bounded_pieces_and_sees_later_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, piece = 60_000, 2_000
    sorted_rows: list[int] = []
    sort = DeleteRows.sort

    def counted(rows: DeleteRows) -> DeleteRows:
        sorted_rows.append(len(rows.lengths))
        return sort(rows)

    monkeypatch.setattr(DeleteRows, "sort", counted)
    keys = numbered(count)
    shuffled = [keys[at] for at in np.random.default_rng(1).permutation(count).tolist()]
    builder = DeleteBuilder("orders", KEY_FINGERPRINT)
    for low in range(0, count, piece):
        add_keys(builder, shuffled[low : low + piece])
    builder.remove(keys[100:200])
    steps = sum(1 for _ in builder.merge())
    assert steps > count // sow_delete_sort_rows
    builder.remove([*keys[300:400], b"no such key"])
    add_keys(builder, [keys[150], keys[399], keys[5_000], b"", b"\xff"], publisher=9)
    record = builder.build()
    expected = {*keys, b"", b"\xff"} - {*keys[100:150], *keys[151:200], *keys[300:399]}
    assert record.keys() == sorted(expected)
    named = dict(zip(record.keys(), record.publishers_between(0, record.count).tolist(), strict=True))
    assert {key for key, publisher in named.items() if publisher == 9} == {
        *(keys[150], keys[399], keys[5_000], b"", b"\xff")
    }
    assert max(sorted_rows) <= 3 * sow_delete_sort_rows


def test_keys_that_end_with_zeros_are_distinct() -> None:
    keys = [b"", b"\0", b"\0" * 7, b"\0" * 8, b"\0" * 9, b"\0" * 16, b"\0" * 17]
    record = built(keys[::-1])
    assert record.keys() == keys
    assert decode(encode(record)).keys() == keys


def test_rows_with_and_without_a_topic_are_refused() -> None:
    builder = DeleteBuilder("all", KEY_FINGERPRINT)
    builder.add([b"a"], u8(1), u8(1), i8(1))
    with pytest.raises(ValueError, match="some rows have a topic"):
        builder.add([b"b"], u8(1), u8(1), i8(1), topics=["x"])
    other = DeleteBuilder("all", KEY_FINGERPRINT)
    other.add([b"a"], u8(1), u8(1), i8(1), topics=["x"])
    with pytest.raises(ValueError, match="some rows have a topic"):
        other.add([b"b"], u8(1), u8(1), i8(1))


# -- bounds and sizes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DeleteKind)
def test_record_has_at_most_the_keys_of_the_kind(kind: DeleteKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete, "sow_delete_record_bytes_max", message_bytes_max)
    most = sow_delete_keys_max if kind is DELETED else sow_expiry_step_max
    builder = DeleteBuilder("orders", KEY_FINGERPRINT, kind)
    keys = numbered(most + 3, 3)
    add_keys(builder, keys[: most - 1])
    full = [builder.is_full]
    add_keys(builder, keys[most - 1 :])
    assert [*full, builder.is_full] == [False, True]
    first = builder.build()
    assert (first.count, first.more, builder.count) == (most, True, 3)
    assert decode(encode(first)).keys() == keys[:most]
    rest = builder.build()
    assert (rest.keys(), rest.more, builder.count) == (keys[most:], False, 0)


@pytest.mark.parametrize("size", [2, 100, 4096])
def test_record_has_as_many_bytes_as_the_bound_permits(size: int) -> None:
    keys = [
        n.to_bytes(4, "big") * (size // 4 + 1) for n in range(sow_delete_record_bytes_max // (size + 24) + 9)
    ]
    builder = DeleteBuilder("orders", KEY_FINGERPRINT)
    add_keys(builder, keys)
    record = builder.build()
    body = encode(record)
    assert len(body) == record.encoded_bytes <= sow_delete_record_bytes_max
    assert decode(body).keys() == keys[: record.count]
    assert builder.count
    assert record.encoded_bytes + len(keys[0]) + 24 > sow_delete_record_bytes_max


def test_many_topics_count_towards_the_size_of_a_record() -> None:
    builder = DeleteBuilder("all", KEY_FINGERPRINT)
    topics = [f"{n:06}" + "t" * 1000 for n in range(5_000)]
    builder.add([b"k"] * 5_000, u8(*[1] * 5_000), u8(*range(1, 5_001)), i8(*[1] * 5_000), topics=topics)
    record = builder.build()
    assert 4_000 < record.count < 5_000
    assert record.topics == tuple(topics[: record.count])
    assert len(encode(record)) == record.encoded_bytes <= sow_delete_record_bytes_max
    rest = builder.build()
    assert rest.topics == tuple(topics[record.count :])
    assert decode(encode(rest)).topics_between(0, 1) == [topics[record.count]]


@pytest.mark.parametrize("count", [0, 1, 15, 31, 32, 63, 64, 8_191, 8_192, 16_384])
@pytest.mark.parametrize("size", [0, 2, 3, 8])
def test_size_of_a_record_is_known_before_the_encoding(count: int, size: int) -> None:
    keys = [n.to_bytes(2, "big") * (size // 2) + b"x" * (size % 2) for n in range(count if size > 1 else 1)]
    record = built(keys)
    assert record.encoded_bytes == len(encode(record))


@pytest.mark.parametrize("logs", [0, 1, 15, 16, 300])
@pytest.mark.parametrize("topics", [1, 15, 16, 70_000])
def test_size_of_a_record_includes_all_tables(logs: int, topics: int) -> None:
    names = tuple(f"t{n}" + "x" * (n % 300 if n < 1_000 else 0) for n in range(topics))
    record = msgspec.structs.replace(
        built([b"a", b"b"]),
        topic="o" * 40,
        logs=tuple(n.to_bytes(16, "big") for n in range(logs)),
        log_numbers=np.array([0, logs], np.uint16),
        topics=names,
        topic_numbers=np.array([0, topics - 1], np.uint32),
    )
    for number in (0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1):
        counted = msgspec.structs.replace(record, counts=DeleteCounts(number, 1, number))
        assert counted.encoded_bytes == len(encode(counted))
    found = decode(encode(record))
    assert (found.logs, found.topics) == (record.logs, names)
    assert found.log_numbers.tolist() == [0, logs]


def test_key_larger_than_a_record_is_refused() -> None:
    builder = DeleteBuilder("orders", KEY_FINGERPRINT)
    add_keys(builder, [bytes(sow_delete_record_bytes_max)])
    assert builder.is_full
    with pytest.raises(ValueError, match="too large for a record"):
        builder.build()
    assert builder.count == 1


def test_expiry_has_no_counts() -> None:
    record = built([b"a"], EXPIRED)
    assert record.counts == NO_COUNTS
    assert decode(encode(record)).kind is EXPIRED


# -- invalid records ----------------------------------------------------------------------------------


def parts(record: DeleteRecord) -> list[Any]:
    found: list[Any] = msgspec.msgpack.decode(encode(record))
    return found


def body_with(record: DeleteRecord, **changes: Any) -> bytes:
    """Return an encoded record with other elements, by `e` and index."""
    elements = parts(record)
    for name, value in changes.items():
        elements[int(name[1:])] = value
    return msgspec.msgpack.encode(elements)


def u4(*numbers: int) -> bytes:
    return np.array(numbers, np.uint32).tobytes()


VALID = built([b"a", b"bb", b"bbb"])
FULL = of_pattern()

INVALID: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "truncated"),
    "no array": (b"\x80", "array"),
    "more elements": (msgspec.msgpack.encode([*parts(VALID), 1]), "length"),
    "fewer elements": (msgspec.msgpack.encode(parts(VALID)[:-1]), "length"),
    "more bytes": (encode(VALID) + b"\0", "trailing"),
    "kind 0": (body_with(VALID, e1=0), "Invalid enum value 0"),
    "kind 3": (body_with(VALID, e1=3), "Invalid enum value 3"),
    "negative matches": (body_with(VALID, e2=[-1, 0, 0]), ">= 0"),
    "negative deleted": (body_with(VALID, e2=[0, 0, -1]), ">= 0"),
    "key fingerprint of 15 bytes": (body_with(VALID, e14=bytes(15)), "length >= 16"),
    "key fingerprint of 17 bytes": (body_with(VALID, e14=bytes(17)), "length <= 16"),
    "two counts": (body_with(VALID, e2=[0, 0]), "length"),
    "log id of 15 bytes": (body_with(VALID, e4=[bytes(15)]), "length >= 16"),
    "publishers of 9 bytes": (body_with(VALID, e6=bytes(9)), "publishers have 9 bytes"),
    "sequences of 23 bytes": (body_with(VALID, e7=bytes(23)), "sequences have 23 bytes"),
    "fewer sequences": (body_with(VALID, e7=bytes(16)), "order stamps have 24 bytes instead of 16"),
    "more order stamps": (body_with(VALID, e8=bytes(32)), "order stamps have 32 bytes"),
    "fewer publisher numbers": (body_with(VALID, e9=bytes(8)), "publisher numbers have 8 bytes"),
    "fewer log numbers": (body_with(VALID, e10=bytes(4)), "log numbers have 4 bytes"),
    "fewer topic numbers": (body_with(FULL, e11=bytes(8)), "topic numbers have 8 bytes"),
    "fewer offsets": (body_with(VALID, e12=bytes(12)), "offsets have 12 bytes instead of 16"),
    "publisher number": (body_with(VALID, e9=u4(0, 1, 0)), "publisher number is outside"),
    "sequence without a publisher": (body_with(VALID, e9=u4(0, NO_PUBLISHER, 0)), "publisher number is"),
    "publisher without a sequence": (body_with(FULL, e9=u4(0, 1, 1, 1)), "without a message has a publisher"),
    "log number": (body_with(VALID, e4=[bytes(16)], e10=b"\0\0\1\0\2\0"), "log number is outside"),
    "log number without logs": (body_with(VALID, e10=b"\0\0\1\0\0\0"), "log number is outside"),
    "topic number": (body_with(FULL, e11=u4(0, 0, 1, 2)), "topic number is outside"),
    "topic number without topics": (body_with(VALID, e11=u4(0, 0, 0)), "topic number is outside"),
    "topic twice": (body_with(FULL, e5=["x", "x"]), "topic is twice"),
    "falling topics": (body_with(FULL, e11=u4(0, 1, 0, 1)), "topic numbers are not ascending"),
    "first offset": (body_with(VALID, e12=u4(1, 1, 3, 6)), "offsets of keys"),
    "last offset below": (body_with(VALID, e12=u4(0, 1, 3, 5)), "offsets of keys"),
    "last offset above": (body_with(VALID, e12=u4(0, 1, 3, 7)), "offsets of keys"),
    "falling offsets": (body_with(VALID, e12=u4(0, 3, 1, 6)), "offsets of keys"),
    "offset far outside": (body_with(VALID, e12=u4(0, 1, 2**32 - 1, 6)), "offsets of keys"),
    "equal keys": (body_with(VALID, e12=u4(0, 1, 2, 3), e13=b"abb"), "not distinct"),
    "falling keys": (body_with(VALID, e12=u4(0, 1, 2, 3), e13=b"acb"), "not ascending"),
    "empty keys": (body_with(VALID, e12=u4(0, 0, 0, 6)), "not distinct"),
    "equal keys of a topic": (body_with(FULL, e13=b"aaab"), "not distinct"),
    "expiry without a message": (
        body_with(VALID, e1=2, e2=[0, 0, 0], e7=u8(1, 0, 1).tobytes(), e9=u4(0, NO_PUBLISHER, 0)),
        "expiry has counts, or a key without",
    ),
    "expiry with counts": (body_with(VALID, e1=2, e2=[1, 0, 0]), "expiry has counts"),
    "name that is not UTF-8": (encode(VALID).replace(b"orders", b"order\xff"), "utf-8"),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_invalid_record_is_refused_with_a_reason(name: str) -> None:
    body, reason = INVALID[name]
    with pytest.raises(JournalCorrupt) as raised:
        decode(body)
    text = str(raised.value)
    assert text.startswith("invalid record of deleted keys: ")
    assert reason.lower() in text.lower()


@pytest.mark.parametrize("index", [4, 5, 6, 7, 12, 13])
def test_declared_length_of_a_part_allocates_no_memory(index: int) -> None:
    declared = {4: b"\xdd", 5: b"\xdd"}.get(index, b"\xc6") + b"\xff\xff\xff\xff"
    body = b"\x9e" + b"".join(msgspec.msgpack.encode(part) for part in parts(VALID)[:index]) + declared
    tracemalloc.start()
    try:
        with pytest.raises(JournalCorrupt):
            decode(body + bytes(100))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shared", [0, 1, 7, 8, 9, 16, 4000])
def test_keys_with_a_common_start_must_be_distinct_and_ascending(shared: int) -> None:
    start = b"\xff" * shared
    for low, high, valid in (
        (b"", b"\0", True),
        (b"a", b"b", True),
        (b"a", b"a\0", True),
        (b"a", b"a", False),
        (b"b", b"a", False),
        (b"a\0", b"a", False),
        (b"\x7f", b"\x80", True),
        (b"a" + bytes(8), b"a" + bytes(9), True),
        (b"a" + bytes(9), b"a" + bytes(9), False),
    ):
        keys = [start + low, start + high, start + b"\xff" * 20]
        offsets = np.cumsum([0, *map(len, keys)]).astype(np.uint32)
        body = body_with(VALID, e12=offsets.tobytes(), e13=b"".join(keys))
        if valid:
            assert decode(body).keys() == keys
        else:
            with pytest.raises(JournalCorrupt, match="not distinct"):
                decode(body)


def test_delete_of_more_keys_than_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete, "sow_delete_keys_max", 2)
    with pytest.raises(JournalCorrupt, match="3 keys, more than 2"):
        decode(encode(VALID))


def test_expiry_of_more_keys_than_a_step_is_refused() -> None:
    record = msgspec.structs.replace(built(numbered(sow_expiry_step_max + 1)), kind=EXPIRED)
    with pytest.raises(JournalCorrupt, match="16385 keys, more than 16384"):
        decode(encode(msgspec.structs.replace(record, counts=NO_COUNTS)))


def test_record_above_the_size_bound_is_refused() -> None:
    body = body_with(
        VALID, e12=u4(0, 1, 3, sow_delete_record_bytes_max), e13=bytes(sow_delete_record_bytes_max)
    )
    with pytest.raises(JournalCorrupt, match="more than 4194304"):
        decode(body)


def test_columns_of_a_decoded_record_cannot_be_changed() -> None:
    record = decode(encode(FULL))
    columns: list[Any] = [record.sequences, record.order_stamps, record.publishers, record.offsets]
    for column in columns:
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
    with pytest.raises(AttributeError):
        record.more = False  # type: ignore[misc]


def test_live_column_counts_only_named_messages() -> None:
    builder = DeleteBuilder("orders", KEY_FINGERPRINT)
    live: Bools = np.array([True, True, False])
    builder.add([b"a", b"b", b"c"], u8(1, 1, 1), u8(0, 2, 3), i8(1, 1, 1), live=live)
    assert builder.build(3, 3).counts == DeleteCounts(3, 3, 1)
