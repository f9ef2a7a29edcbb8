"""Deletes of records and record marks: exactly one selection, bounds, and invalid bodies."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from tests.helpers.wire_golden import deletes
from tickertape.base.client_limits import filter_bytes_most
from tickertape.base.errors import BadCommand
from tickertape.base.limits import message_bytes_max, sow_keys_bytes_max, sow_keys_per_command_max
from tickertape.wire.sow_command import (
    SowDelete,
    check_keys,
    decode_delete,
    decode_marks,
    encode_delete,
    encode_marks,
    record_mark_bytes,
)

MANY = sow_keys_per_command_max
LONG = sow_keys_bytes_max


def body(**fields: object) -> bytes:
    """Return an encoded delete that is not checked."""
    return msgspec.msgpack.encode({"topic": "positions", **fields})


@pytest.mark.parametrize("delete", deletes(), ids=["keys", "canonical", "filter", "data"])
def test_delete_of_each_form_round_trips(delete: SowDelete) -> None:
    assert decode_delete(encode_delete(delete)) == delete


def test_delete_with_empty_data_selects_by_data() -> None:
    delete = SowDelete(topic="positions", data=b"")
    assert decode_delete(encode_delete(delete)) == delete


def test_absent_fields_of_other_encoders_have_no_value() -> None:
    found = decode_delete(body(keys=["k"], canonical=[], filter=None, data=None))
    assert found == SowDelete(topic="positions", keys=("k",))


KEYS, CANONICAL = {"keys": ("k",)}, {"canonical": (b"\xa1k",)}
FILTER, DATA = {"filter": "/a = 1"}, {"data": b"{}"}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, "no keys, filter or data"),
        (KEYS | FILTER, "keys and filter"),
        (KEYS | DATA, "keys and data"),
        (CANONICAL | FILTER, "keys and filter"),
        (FILTER | DATA, "filter and data"),
        (KEYS | FILTER | DATA, "keys and filter and data"),
    ],
)
def test_delete_without_exactly_one_selection_is_refused(fields: dict[str, object], found: str) -> None:
    reason = (
        rf"^Cannot delete records of 'positions': the delete has {found}\. "
        r"Use exactly one of keys, filter and data\.$"
    )
    with pytest.raises(BadCommand, match=reason):
        decode_delete(body(**fields))
    with pytest.raises(BadCommand, match=reason):
        encode_delete(msgspec.structs.replace(SowDelete(topic="positions"), **fields))


def test_keys_of_both_forms_are_refused() -> None:
    reason = "^Cannot select records by `keys` and `canonical` together"
    with pytest.raises(BadCommand, match=reason):
        decode_delete(body(keys=["k"], canonical=[b"\xa1k"]))
    with pytest.raises(BadCommand, match=reason):
        check_keys(("k",), (b"\xa1k",))


def test_delete_with_most_keys_round_trips() -> None:
    for delete in (
        SowDelete(topic="t", keys=("k",) * MANY),
        SowDelete(topic="t", canonical=(b"",) * MANY),
        SowDelete(topic="t", keys=("é" * (LONG // 2),)),
        SowDelete(topic="t", canonical=(bytes(LONG - 1), b"k")),
        SowDelete(topic="t", filter="x" * filter_bytes_most),
    ):
        assert decode_delete(encode_delete(delete)) == delete


@pytest.mark.parametrize("keys", [("",) * (MANY + 1), (b"",) * (MANY + 1)], ids=["keys", "canonical"])
def test_delete_with_too_many_keys_is_refused(keys: Sequence[str | bytes]) -> None:
    name = "keys" if isinstance(keys[0], str) else "canonical"
    with pytest.raises(BadCommand, match=rf"length <= 100000 - at `\$.{name}`"):
        decode_delete(body(**{name: keys}))
    delete = msgspec.structs.replace(SowDelete(topic="t"), **{name: keys})
    with pytest.raises(BadCommand, match=r"by 100,001 keys: .* Use at most 100,000 keys"):
        encode_delete(delete)


@pytest.mark.parametrize(
    "fields",
    [{"keys": ["x" * LONG, "x"]}, {"keys": ["é" * (LONG // 2), "x"]}, {"canonical": [bytes(LONG), b"x"]}],
    ids=["ASCII", "two bytes", "canonical"],
)
def test_delete_with_too_long_keys_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(BadCommand, match=r"of 1,048,577 bytes in total: .* Use at most 1,048,576 bytes"):
        decode_delete(body(**fields))


@pytest.mark.parametrize("text", ["x" * (filter_bytes_most + 1), "é" * (filter_bytes_most // 2) + "x"])
def test_delete_with_too_long_filter_is_refused(text: str) -> None:
    with pytest.raises(BadCommand, match=r"a filter of 16,385 bytes is too long"):
        decode_delete(body(filter=text))


def test_delete_above_the_size_of_a_message_is_refused() -> None:
    largest = message_bytes_max - len(body(data=bytes(1 << 16))) + (1 << 16)
    assert len(encode_delete(SowDelete(topic="positions", data=bytes(largest)))) <= message_bytes_max
    for call in (
        lambda: encode_delete(SowDelete(topic="positions", data=bytes(message_bytes_max))),
        lambda: decode_delete(body(data=bytes(message_bytes_max))),
    ):
        with pytest.raises(BadCommand, match="Use at most 16,777,216 bytes"):
            call()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc0",
        b"\x92\xa5topic\xa1t",
        b"\x80",
        b"\x82\xa5topic\xa1t",
        b"\x82\xa5topic\xa1t\xa6filter\xa2\xff\xfe",
        b"\x82\xa5topic\xa1t\xa4data\xa1x",
        b"\x82\xa5topic\xa1t\xa4keys\x91\xc4\x01k",
        b"\x82\xa5topic\xa1t\xa9canonical\x91\xa1k",
        b"\x81\xa4keys\x91\xa1k",
        b"\xde\x00\x02\xa5topic\xa1t\xa4keys\x91\xa1k",
        body(keys=["k"]) + b"\xc0",
        body(filter="/a = 1", limit=5),
        body(filter="/a = 1", keys=[], canonical=[], data=None, other=None),
    ],
)
def test_body_that_is_no_delete_is_refused(data: bytes) -> None:
    with pytest.raises(BadCommand, match=r"^Cannot delete records: .*\. [A-Z].*\.$"):
        decode_delete(data)


def test_delete_with_invalid_unicode_is_not_encoded() -> None:
    for fields in ({"keys": ("\ud800",)}, {"filter": "\ud800"}, {"topic": "\ud800", "keys": ("k",)}):
        with pytest.raises(BadCommand, match="not valid Unicode"):
            encode_delete(msgspec.structs.replace(SowDelete(topic="t"), **fields))


def test_marks_keep_the_ends_of_all_ranges() -> None:
    publishers, sequences, timestamps = [0, 2**64 - 1], [2**64 - 1, 1], [-(2**63), 2**63 - 1]
    marks = encode_marks(publishers, sequences, timestamps)
    assert len(marks) == 2 * record_mark_bytes
    assert marks[:8] + marks[16:24] == bytes(8) + bytes(7) + b"\x80"
    found = decode_marks(marks, 2)
    assert [column.tolist() for column in found] == [publishers, sequences, timestamps]
    assert found.timestamps.dtype == np.int64


def test_marks_of_no_records_are_empty() -> None:
    assert encode_marks([], [], []) == b""
    assert [len(column) for column in decode_marks(b"", 0)] == [0, 0, 0]


@pytest.mark.parametrize(("size", "count"), [(0, 1), (23, 1), (25, 1), (24, 0), (24, 2), (48, 1)])
def test_marks_of_another_number_of_records_are_refused(size: int, count: int) -> None:
    with pytest.raises(BadCommand, match=rf"^Invalid marks of {size} bytes for {count} records"):
        decode_marks(bytes(size), count)
