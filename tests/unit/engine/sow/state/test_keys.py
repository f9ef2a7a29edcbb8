"""Canonical keys: equal values have equal bytes, and other messages have a reason."""

from __future__ import annotations

import struct
from typing import Any, Literal

import msgspec
import pytest

from tickertape.base.errors import BadOption, BadPath
from tickertape.batch import BatchBuilder
from tickertape.engine.limits import sow_key_bytes_max
from tickertape.engine.sow.state.keys import (
    ExplicitKeys,
    KeyReader,
    KeySource,
    generated_key,
    labels_between,
)

Missing = Literal["refuse", "null"]


def json_keys(*texts: str) -> list[bytes]:
    column = KeyReader(("/k",), "json").read([f'{{"k":{text}}}'.encode() for text in texts])
    assert column.bad == {}
    return column.keys


def messagepack_key(value: Any) -> bytes:
    column = KeyReader(("/k",), "messagepack").read([msgspec.msgpack.encode({"k": value})])
    assert column.bad == {}
    return column.keys[0]


VECTORS = [
    ('""', "a0"),
    ('"a"', "a161"),
    ('"\\u0000"', "a100"),
    ('"é"', "a2c3a9"),
    ('"' + "x" * 31 + '"', "bf" + "78" * 31),
    ('"' + "x" * 32 + '"', "d920" + "78" * 32),
    ('"' + "x" * 255 + '"', "d9ff" + "78" * 255),
    ('"' + "x" * 256 + '"', "da0100" + "78" * 256),
    ("true", "c3"),
    ("false", "c2"),
    ("0", "00"),
    ("127", "7f"),
    ("128", "cc80"),
    ("256", "cd0100"),
    ("65536", "ce00010000"),
    ("4294967296", "cf0000000100000000"),
    ("18446744073709551615", "cfffffffffffffffff"),
    ("-1", "ff"),
    ("-32", "e0"),
    ("-33", "d0df"),
    ("-129", "d1ff7f"),
    ("-32769", "d2ffff7fff"),
    ("-9223372036854775808", "d38000000000000000"),
    ("18446744073709551616", "c71101" + b"10000000000000000".hex()),
    ("-9223372036854775809", "c71101" + b"-8000000000000001".hex()),
    ("1.5", "cb3ff8000000000000"),
    ("0.1", "cb3fb999999999999a"),
    ("-0.5", "cbbfe0000000000000"),
]
"""JSON values and the canonical key in hexadecimal digits. Logs have these bytes, so they must not change."""


@pytest.mark.parametrize(("text", "expected"), VECTORS)
def test_canonical_key_of_a_json_value_has_the_stored_bytes(text: str, expected: str) -> None:
    assert json_keys(text)[0].hex() == expected


@pytest.mark.parametrize(("text", "expected"), VECTORS)
def test_canonical_key_is_the_same_beside_values_that_are_checked_one_by_one(
    text: str, expected: str
) -> None:
    assert json_keys(text, "0.25")[0].hex() == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"a", "c40161"),
        (b"", "c400"),
        (float("nan"), "c70002"),
        (-float("nan"), "c70002"),
        (float("inf"), "cb7ff0000000000000"),
        (-float("inf"), "cbfff0000000000000"),
        (1.0, "01"),
        (-0.0, "00"),
        (2.0**64, "c71101" + b"10000000000000000".hex()),
    ],
)
def test_canonical_key_of_a_messagepack_value_has_the_stored_bytes(value: Any, expected: str) -> None:
    assert messagepack_key(value).hex() == expected


@pytest.mark.parametrize(
    "texts",
    [
        ["1", "1.0", "1e0", "10e-1"],
        ["0", "0.0", "-0.0"],
        ["9007199254740992", "9007199254740992.0"],
        ["1208925819614629174706176", "1.208925819614629174706176e24"],
        ['"a"', '"\\u0061"'],
        ['"/"', '"\\/"'],
    ],
)
def test_equal_json_values_have_one_canonical_key(texts: list[str]) -> None:
    assert len(set(json_keys(*texts))) == 1
    assert len({json_keys(text)[0] for text in texts}) == 1


def test_different_json_values_have_different_canonical_keys() -> None:
    texts = ["1", '"1"', "true", '"true"', "false", '""', "0", "0.1", '"0.1"', "1e300", "9007199254740993"]
    texts += ["9007199254740992", "18446744073709551616", "18446744073709551617", '"é"', '"e\\u0301"']
    assert len(set(json_keys(*texts))) == len(texts)


def test_canonical_key_of_several_fields_is_the_array_of_all_values() -> None:
    reader = KeyReader(("/a", "/b/c"), "json")
    column = reader.read([b'{"b":{"c":2},"a":"x"}', b'{"a":true,"b":{"c":1.0}}'])
    assert [key.hex() for key in column.keys] == ["92a17802", "92c301"]
    column = reader.read([b'{"b":{"c":2},"a":"x"}'])
    assert [key.hex() for key in column.keys] == ["92a17802"]


def test_values_of_several_fields_do_not_run_into_each_other() -> None:
    reader = KeyReader(("/a", "/b"), "json")
    keys = reader.read([b'{"a":"xy","b":"z"}', b'{"a":"x","b":"yz"}', b'{"a":"z","b":"xy"}']).keys
    assert len(set(keys)) == 3


@pytest.mark.parametrize("other", [b'{"k":"a"}', b'{"k":0.5}'])
def test_canonical_key_over_a_pattern_starts_with_the_topic(other: bytes) -> None:
    reader = KeyReader(("/k",), "json", topic_in_key=True)
    column = reader.read([b'{"k":"a"}', b'{"k":"a"}', other], ["t1", "t2", "t1"])
    assert [key.hex() for key in column.keys[:2]] == ["92a27431a161", "92a27432a161"]
    several = KeyReader(("/k", "/n"), "json", topic_in_key=True)
    assert several.read([b'{"k":"a","n":1}'], ["t1"]).keys[0].hex() == "93a27431a16101"
    assert several.read([b'{"k":"a","n":1.5}'], ["t1"]).keys[0].hex() == "93a27431a161cb3ff8000000000000"


def test_keys_over_a_pattern_without_topics_are_refused() -> None:
    for read in (KeyReader(("/k",), "json", topic_in_key=True).read, ExplicitKeys(topic_in_key=True).read):
        with pytest.raises(ValueError, match="a message has no topic"):
            read([b"a", b"b"], ["t"])
        with pytest.raises(ValueError, match="a message has no topic"):
            read([b"a"])


def test_topics_are_ignored_without_a_pattern() -> None:
    assert KeyReader(("/k",), "json").read([b'{"k":0.5}', b'{"k":1}'], ["t", "u"]).keys[1] == b"\x01"
    assert ExplicitKeys().read([b"a"], ["t"]).keys == [b"\xa1a"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{}", "the key field '/k' is missing or null"),
        (b'{"k":null}', "the key field '/k' is missing or null"),
        (b"[1]", "the key field '/k' is missing or null"),
        (b'{"k":[1]}', "the key field '/k' is an array"),
        (b'{"k":{}}', "the key field '/k' is an object"),
        (b'{"k":', "the body cannot be read as json: Input data was truncated"),
        (b"", "the body cannot be read as json: Input data was truncated"),
        (b'{"k":"' + b"x" * 4094 + b'"}', "the key has 4,097 bytes, and at most 4,096 are allowed"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_message_without_a_valid_key_has_a_reason_and_others_keep_keys(
    body: bytes, reason: str, place: int
) -> None:
    bodies = [b'{"k":"a"}', b'{"k":2}']
    bodies.insert(place, body)
    column = KeyReader(("/k",), "json").read(bodies)
    assert column.bad == {place: reason}
    expected = [b"\xa1a", b"\x02"]
    expected.insert(place, b"")
    assert column.keys == expected


def test_second_field_without_a_value_is_named_in_the_reason() -> None:
    column = KeyReader(("/a", "/b"), "json").read([b'{"a":1,"b":2}', b'{"a":1}', b'{"a":[],"b":1}', b"{"])
    assert column.keys == [b"\x92\x01\x02", b"", b"", b""]
    assert column.bad[1] == "the key field '/b' is missing or null"
    assert column.bad[2] == "the key field '/a' is an array"
    assert column.bad[3].startswith("the body cannot be read as json")


def test_message_without_a_valid_key_beside_large_integers_has_a_reason() -> None:
    bodies = [b'{"k":1}', b"{", b'{"k":18446744073709551616}', b"{}", b'{"k":0.5}', b'{"k":[]}', b'{"k":"a"}']
    column = KeyReader(("/k",), "json").read(bodies)
    assert sorted(column.bad) == [1, 3, 5]
    large = b"\xc7\x11\x0110000000000000000"
    assert column.keys == [b"\x01", b"", large, b"", b"\xcb?\xe0\0\0\0\0\0\0", b"", b"\xa1a"]


def test_longest_allowed_key_is_valid() -> None:
    text = "x" * (sow_key_bytes_max - 3)
    assert len(json_keys(f'"{text}"')[0]) == sow_key_bytes_max


def test_missing_and_null_values_are_one_key_if_configured() -> None:
    reader = KeyReader(("/k",), "json", missing="null")
    assert reader.read([b"{}", b'{"k":null}', b'{"k":"null"}', b"[]"]).keys[:2] == [b"\xc0", b"\xc0"]
    column = reader.read([b"{}", b'{"k":[1]}', b"{"])
    assert column.keys == [b"\xc0", b"", b""]
    assert sorted(column.bad) == [1, 2]
    several = KeyReader(("/a", "/b"), "json", missing="null")
    assert several.read([b'{"a":1}', b'{"a":0.5,"b":1}']).keys[0] == b"\x92\x01\xc0"


def test_many_unreadable_bodies_have_each_a_reason() -> None:
    bodies = [b"{" if row % 3 else b'{"k":%d}' % row for row in range(300)]
    column = KeyReader(("/k",), "json").read(bodies)
    assert sorted(column.bad) == [row for row in range(300) if row % 3]
    assert [bool(key) for key in column.keys] == [not row % 3 for row in range(300)]


def test_body_outside_the_usual_shape_has_a_key() -> None:
    reader = KeyReader(("/a/b", "/c[1]"), "json")
    column = reader.read([b'{"a":{"b":1},"c":[1,2]}', b'{"a":[{"b":3}],"c":5}', b'{"a":{"b":1},"c":[1,2]}'])
    assert column.keys[0] == column.keys[2] == b"\x92\x01\x02"
    assert 1 in column.bad


def test_keys_of_fix_messages_are_texts() -> None:
    reader = KeyReader(("/55",), "fix")
    column = reader.read([b"35=D\x0155=IBM\x01", b"35=D\x01", b"35=D\x0155=1\x01", b"55=a\x0155=b\x01"])
    assert column.keys == [b"\xa3IBM", b"", b"\xa11", b""]
    assert column.bad[1] == "the key field '/55' is missing or null"
    assert column.bad[3] == "the key field '/55' is an array"
    several = KeyReader(("/b", "/a"), "nvfix")
    assert several.read([b"a=1\x01b=2\x01"]).keys == [b"\x92\xa12\xa11"]


def test_bson_numbers_have_the_keys_of_json_numbers() -> None:
    bson = pytest.importorskip("bson", reason="optional package of the message type")
    column = KeyReader(("/k",), "bson").read([bson.encode({"k": value}) for value in (1, 1.0, b"a", "a")])
    assert [key.hex() for key in column.keys] == ["01", "01", "c40161", "a161"]


def test_fields_that_no_message_can_have_are_refused() -> None:
    with pytest.raises(BadOption, match="the list of key fields is empty"):
        KeyReader((), "json")
    with pytest.raises(BadPath):
        KeyReader(("k",), "json")
    with pytest.raises(BadPath):
        KeyReader(("/k",), "binary")
    with pytest.raises(BadOption):
        KeyReader(("/k",), "xml")


def test_no_messages_have_no_keys() -> None:
    several = KeyReader(("/k", "/n"), "json", topic_in_key=True)
    sources: list[KeySource] = [KeyReader(("/k",), "json"), several, ExplicitKeys()]
    for source in sources:
        column = source.read([], topics=[])
        assert (column.keys, column.bad) == ([], {})


# -- explicit keys --------------------------------------------------------------------------------------


def test_explicit_key_is_the_text_of_the_message_key() -> None:
    labels = [b"a", b"A-_+/=", b"x" * 31, b"x" * 32, b"x" * 255, b"x" * 256]
    column = ExplicitKeys().read(labels)
    assert column.bad == {}
    assert column.keys == [msgspec.msgpack.encode(label.decode()) for label in labels]


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        (b"", "the message key is missing"),
        (b"x" * 257, "the message key has 257 bytes, and at most 256 are allowed"),
        (b"a,b", "the message key has a character that is not in the Base64 alphabets"),
        (b"a b", "the message key has a character that is not in the Base64 alphabets"),
        (b"a\n", "the message key has a character that is not in the Base64 alphabets"),
        ("é".encode(), "the message key has a character that is not in the Base64 alphabets"),
    ],
)
@pytest.mark.parametrize("pattern", [False, True])
def test_message_without_a_valid_explicit_key_has_a_reason(label: bytes, reason: str, pattern: bool) -> None:
    column = ExplicitKeys(topic_in_key=pattern).read([b"a", label, b"b"], ["t", "u", "t"])
    assert column.bad == {1: reason}
    head = "92a174" if pattern else ""
    assert [key.hex() for key in column.keys] == [f"{head}a161", "", f"{head}a162"]


def test_explicit_key_over_a_pattern_has_the_canonical_form_of_a_field() -> None:
    column = ExplicitKeys(topic_in_key=True).read([b"a", b"a"], ["t1", "é"])
    fields = KeyReader(("/k",), "json", topic_in_key=True).read([b'{"k":"a"}'] * 2, ["t1", "é"])
    assert column.keys == fields.keys


def test_labels_of_a_batch_are_the_message_keys() -> None:
    builder = BatchBuilder()
    for key in ("a", "", "bcd"):
        builder.add("t", b"x", key=key)
    batch = builder.build()
    assert labels_between(batch.keys, 0, 3) == [b"a", b"", b"bcd"]
    assert labels_between(batch.keys, 1, 3) == [b"", b"bcd"]
    assert labels_between(None, 1, 3) == [b"", b""]


# -- generated keys -------------------------------------------------------------------------------------


def test_generated_key_has_the_published_text() -> None:
    assert generated_key("orders", b"\xa1a") == "5yCmsKBaWjyI5xQaa4jgwQ"
    assert generated_key("", b"\x01") == "fFPsb1XL4D6mq3y0WxKJ7A"


def test_generated_keys_of_other_domains_and_keys_differ() -> None:
    pairs = [("ab", b"c"), ("a", b"bc"), ("", b"abc"), ("abc", b""), ("a", b"\xa1b"), ("a\xa1b", b"")]
    keys = {generated_key(domain, canonical) for domain, canonical in pairs}
    assert len(keys) == len(pairs)
    assert {len(key) for key in keys} == {22}


def test_generated_key_is_a_valid_explicit_key() -> None:
    keys = [generated_key("orders", struct.pack("<I", n)).encode() for n in range(200)]
    assert ExplicitKeys().read(keys).bad == {}
