"""Filters on batches: message types by topic, inputs, and limits of a piece."""

from __future__ import annotations

import numpy as np
import pytest

from tickertape.base.errors import BadFilter
from tickertape.batch import BatchBuilder, MessageBatch, batch_from_bodies
from tickertape.filter import FilterInputs
from tickertape.filter.batch_filter import BatchFilter, bodies_of, piece_end, rows_by_type
from tickertape.filter.limits import filter_piece_bytes_max

TYPES = {"fix": "fix", "nvfix": "nvfix"}


def type_of(topic: str) -> str:
    return TYPES.get(topic, "json")


def batch_of(*messages: tuple[str, bytes]) -> MessageBatch:
    builder = BatchBuilder()
    for topic, body in messages:
        builder.add(topic, body)
    return builder.build(7, first_sequence=1)


def test_matching_rows_of_several_types_ascend() -> None:
    batch = batch_of(
        ("fix", b"35=D\x01"),
        ("a", b'{"35": "D"}'),
        ("nvfix", b"35=8\x01"),
        ("b", b"{}"),
        ("fix", b"35=D\x01"),
    )
    matcher = BatchFilter("/35 = 'D'", type_of)
    assert matcher.matching_rows(batch, np.arange(5)).tolist() == [0, 1, 4]
    assert matcher.matching_rows(batch, np.array([1, 2])).tolist() == [1]
    assert matcher.matching_rows(batch, np.arange(0)).tolist() == []
    assert sorted(matcher.types) == ["fix", "json", "nvfix"]


def test_type_without_the_fields_matches_nothing() -> None:
    matcher = BatchFilter("/a/b = 1 OR /a/b IS NULL", type_of)
    assert isinstance(matcher.prepare("fix"), BadFilter)
    assert matcher.prepare("json") is None
    batch = batch_of(("fix", b"35=D\x01"), ("a", b'{"a": {"b": 1}}'))
    assert matcher.matching_rows(batch, np.arange(2)).tolist() == [1]


def test_text_that_is_not_a_filter_is_rejected_at_once() -> None:
    with pytest.raises(BadFilter):
        BatchFilter("/a =", type_of)
    with pytest.raises(BadFilter, match="filter_bytes_max"):
        BatchFilter("/a = 1 OR /b = 2", type_of, bytes_max=10)


def test_inputs_have_constants_and_columns_of_the_rows() -> None:
    matcher = BatchFilter("USER() = 'ann' AND TOPIC_NAME() = 'b' AND BOOKMARK() = '7|3|'", type_of)
    assert matcher.needs == {"user", "topics", "bookmarks"}
    batch = batch_of(("b", b"{}"), ("a", b"{}"), ("b", b"{}"))
    assert matcher.matching_rows(batch, np.arange(3), FilterInputs(user="ann")).tolist() == [2]
    assert matcher.matching_rows(batch, np.arange(3)).tolist() == []


def test_unreadable_bodies_are_counted() -> None:
    matcher = BatchFilter("/a = 1", type_of)
    batch = batch_of(("a", b'{"a": 1}'), ("a", b"{"))
    assert matcher.matching_rows(batch, np.arange(2)).tolist() == [0]
    assert matcher.unreadable == 1


def test_piece_ends_at_the_byte_or_message_limit_with_at_least_one_message() -> None:
    large = b"x" * (filter_piece_bytes_max // 2)
    batch = batch_from_bodies("a", [large, large, large, large * 3, b"y", b"z"])
    assert [piece_end(batch, low, 100) for low in range(6)] == [2, 3, 3, 4, 6, 6]
    assert [piece_end(batch, low, 1) for low in range(6)] == [1, 2, 3, 4, 5, 6]
    assert piece_end(batch, 0, 0) == 1


def test_rows_by_type_and_bodies_of_rows_with_gaps() -> None:
    batch = batch_of(("a", b"0"), ("fix", b"1"), ("b", b"22"), ("fix", b"333"))
    found = {name: rows.tolist() for name, rows in rows_by_type(type_of, batch, np.arange(4))}
    assert found == {"json": [0, 2], "fix": [1, 3]}
    assert bodies_of(batch, np.array([0, 2, 3])) == [b"0", b"22", b"333"]


def test_passing_bodies_of_one_type_ascend_and_unreadable_ones_are_counted() -> None:
    matcher = BatchFilter("/35 = 'D' AND TOPIC_NAME() LIKE '^o'", type_of)
    inputs = FilterInputs(topics=["o1", "x", "o2", "o3"])
    bodies = [b'{"35":"D"}', b'{"35":"D"}', b'{"35":"D"}', b"no json"]
    assert matcher.passing(bodies, "json", inputs).tolist() == [0, 2]
    assert matcher.unreadable == 1
    assert matcher.passing([b"35=D\x01"], "fix", FilterInputs(topics=["o1"])).tolist() == [0]
    plain = BatchFilter("/35 = 'D'", type_of)
    assert plain.passing(bodies[:2], "json").tolist() == [0, 1]
    assert plain.passing([], "json").tolist() == []
