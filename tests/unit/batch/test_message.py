"""Messages and payloads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tickertape.base.errors import BadMessage
from tickertape.batch import BatchBuilder, Message, MessageBatch
from tickertape.payload.bodies import decode, encode


class Context:
    sub_id = "sub-1"
    command = "sow"
    store = None
    came_again = False
    lease = None
    sow_keys = None

    def __init__(self, *, with_bookmark: bool, with_timestamp: bool) -> None:
        self.with_bookmark = with_bookmark
        self.with_timestamp = with_timestamp


def batch() -> MessageBatch:
    builder = BatchBuilder()
    builder.add("orders", b'{"id": 1}', sequence=4, correlation_id="c", key="k", expiration_ms=1500)
    builder.add("trades", b"[2]", sequence=9)
    return builder.build(publisher=2**64 - 1, timestamp=1_000_000)


def test_message_fields_are_read_from_the_batch() -> None:
    first, second = batch()
    assert (first.topic, first.data, first.json()) == ("orders", b'{"id": 1}', {"id": 1})
    assert (first.publisher, first.sequence) == ("18446744073709551615", 4)
    assert (first.correlation_id, first.sow_key) == ("c", "k")
    assert (first.expiration, second.expiration) == (1500, None)
    assert type(first.expiration) is int
    assert (second.topic, second.sequence, second.correlation_id, second.sow_key) == ("trades", 9, None, None)
    assert (first.command, first.sub_id) == ("publish", None)
    assert repr(second) == "<Message trades 18446744073709551615|9| 3 bytes>"
    assert first != next(iter(batch())), "messages compare by identity"
    assert isinstance(first, Message)


@pytest.mark.behaviour(8)
def test_bookmarks_are_omitted_unless_asked_for() -> None:
    delivered = batch()
    first, _ = delivered
    assert (first.bookmark, first.timestamp) == (None, None)
    delivered.context = Context(with_bookmark=False, with_timestamp=False)
    assert (first.bookmark, first.timestamp) == (None, None)
    delivered.context = Context(with_bookmark=True, with_timestamp=True)
    assert first.bookmark == "18446744073709551615|4|"
    assert first.timestamp == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert (first.command, first.sub_id) == ("sow", "sub-1")


def test_message_of_a_non_persistent_topic_has_no_bookmark_and_no_timestamp() -> None:
    builder = BatchBuilder()
    builder.add("plain", b"1")
    delivered = builder.build()
    delivered.context = Context(with_bookmark=True, with_timestamp=True)
    (message,) = delivered
    assert (message.bookmark, message.timestamp) == (None, None)


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (b"\xff", b"\xff"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        ("é", b"\xc3\xa9"),
        ({"id": 1, "x": [1.5, None, True]}, b'{"id":1,"x":[1.5,null,true]}'),
        (datetime(2026, 1, 2, tzinfo=UTC), b'"2026-01-02T00:00:00Z"'),
    ],
)
def test_encode_returns_the_body_bytes_of_each_type(data: object, body: bytes) -> None:
    encoded = encode(data)
    assert encoded == body
    assert type(encoded) is bytes


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize("data", ["\ud800", object(), {1j: 2}, [2**70 * 1j]])
def test_value_that_cannot_be_encoded_is_refused(data: object) -> None:
    with pytest.raises(BadMessage, match="as a message body"):
        encode(data)


@pytest.mark.parametrize("data", ["\udc80", {"a": "\udc80"}])
def test_error_of_invalid_unicode_gives_a_cure_that_fits(data: object) -> None:
    with pytest.raises(BadMessage, match=r"not valid Unicode\. Use valid Unicode text, or publish bytes"):
        encode(data)


def test_too_deep_nesting_is_refused_by_encode_and_decode() -> None:
    with pytest.raises(BadMessage):
        encode(_deep())
    with pytest.raises(BadMessage):
        decode(b"[" * 100_000 + b"]" * 100_000)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'"\xff"'])
def test_body_that_is_invalid_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadMessage, match=f"body of {len(body)} bytes as JSON"):
        decode(body)
