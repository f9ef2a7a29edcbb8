"""Exceptions of filters: none leaves a filter, and each is counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.planted_filters import defective
from tickertape.base.errors import BadFilter
from tickertape.filter import FilterInputs, compile_filter, compile_value
from tickertape.filter.compiler import compile as compiling
from tickertape.filter.contained_errors import DEFECTS
from tickertape.filter.functions import registry
from tickertape.filter.functions.strings import strptime
from tickertape.filter.index import predicates
from tickertape.filter.index import structures as range_module
from tickertape.filter.index.columns import ColumnReading, ValueColumns
from tickertape.filter.index.filter_index import FilterIndex
from tickertape.payload import message_type
from tickertape.payload.types import FieldReader

JSON = message_type("json")
BODIES = [b'{"a":"abc","n":1}', b'{"a":"boom","n":1}', b'{"a":"abcd","n":2}', b"no json"]

pytestmark = pytest.mark.defects


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `LENGTH('boom')` raise."""
    monkeypatch.setitem(registry._CALLS, "LENGTH", defective(registry.call_of("LENGTH")))


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("STRPTIME('2020-2020','%Y-%Y') > 0", 25),
        ("STRPTIME(/t,'%Y-%Y') > 0", 16),
        ("STRPTIME(/t,'%d%%%%''%d') > 0", 21),
        ("STRPTIME(/t,'%Y-%q') > 0", 16),
    ],
)
def test_strptime_with_a_repeated_directive_is_refused_with_the_position(text: str, position: int) -> None:
    with pytest.raises(BadFilter, match=r"repeated|at most 64") as caught:
        compile_filter(text, JSON)
    assert caught.value.position == position


def test_strptime_takes_percent_signs_repeatedly_and_strftime_any_directive() -> None:
    assert compile_filter("STRPTIME(/t, '%%%%%Y') = 0", JSON).matches(b'{"t":"%%1970"}')
    assert compile_filter("STRFTIME(/t, '%Y %Y') = '1970 1970'", JSON).matches(b'{"t":0}')


def test_strptime_of_a_format_that_python_cannot_compile_is_null() -> None:
    assert strptime("2020-2020", "%Y-%Y") is None


@pytest.mark.filterwarnings("error")
def test_strptime_of_a_day_without_a_year_assumes_1900() -> None:
    assert strptime("03-01", "%m-%d") == strptime("1900-03-01", "%Y-%m-%d")
    assert strptime("02-29", "%m-%d") is None


@pytest.mark.parametrize(
    "text",
    ["LENGTH('boom') = 4", "/a = 1 OR LENGTH('boom')", "IF(LENGTH('boom'), 1, 2) = 1", "/a = LENGTH('boom')"],
)
def test_constant_that_raises_is_refused_with_the_position(text: str) -> None:
    for compile_it in (compile_filter, compile_value):
        with pytest.raises(BadFilter, match="Planted: planted") as caught:
            compile_it(text, JSON)
        assert caught.value.position == text.index("LENGTH")


def test_exception_while_compiling_refuses_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(*_: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(compiling, "paths_of", raising)
    with pytest.raises(BadFilter, match="Cannot compile the filter: RuntimeError: a defect"):
        compile_filter("/never_compiled = 1", JSON)


def test_body_for_which_a_filter_raises_does_not_match_and_is_counted() -> None:
    before = DEFECTS.count
    found = compile_filter("NOT LENGTH(/a) = 9", JSON)
    assert found.select(BODIES) == [0, 2]
    assert found.unreadable == 2
    assert (DEFECTS.count - before, DEFECTS.last) == (1, "Planted: planted")


def test_body_for_which_a_value_raises_has_no_value_and_is_counted() -> None:
    value = compile_value("LENGTH(/a)", JSON)
    assert value(BODIES) == [3, None, 4, None]
    assert value.unreadable == 2


def test_filter_without_fields_that_raises_does_not_match() -> None:
    found = compile_filter("LENGTH(TOPIC_NAME()) = 3", JSON)
    assert found.select(BODIES, FilterInputs(topics=["abc", "boom", "abc", "abc"])) == [0, 2, 3]
    assert found.unreadable == 1


def test_filter_with_a_failing_code_generation_matches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compile_filter("/a = 'never made before'", JSON)

    def raising(source: str) -> Any:
        raise MemoryError(source[:3])

    monkeypatch.setattr(compiling, "_code", raising)
    assert found.select(BODIES) == []
    assert found.unreadable == len(BODIES)


def test_decoder_that_raises_affects_only_those_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compile_filter("/a BEGINS WITH 'abc'", JSON)
    monkeypatch.setattr(found, "_reader", _failing(JSON.reader(found.paths)))
    assert found.select(BODIES) == [0, 2]
    assert found.unreadable == 2


def _failing(reader: FieldReader) -> Any:
    """Return a reader that raises for bodies that contain `boom`."""

    class Failing:
        access = reader.access
        doubts = reader.doubts

        @staticmethod
        def quick(body: bytes) -> Any:
            if b"boom" in body:
                raise RuntimeError("a defect")
            return reader.quick(body)

        decode = quick

    return Failing


INDEXED = [
    "LENGTH(/a) > 0",
    "LENGTH(/a) > 0 AND /n = 1",
    "LENGTH(/a) > /n",
    "NOT LENGTH(/a) > 9 AND /n < 2",
    "/n = 1",
    "/a LIKE 'b'",
    "/n > 0",
    "/n > /m OR /n = 1",
    "TRUE",
    "TOPIC_NAME() = 't'",
]


def _index() -> FilterIndex[str]:
    index: FilterIndex[str] = FilterIndex(JSON)
    for text in INDEXED:
        index.add(text, compile_filter(text, JSON))
    return index


def _check(index: FilterIndex[str]) -> None:
    """Check that the index matches like the filters, with an empty and a filled cache."""
    context = FilterInputs(topics=["t"] * len(BODIES))
    for _ in range(3):
        matches = index.match(BODIES, context)
        found = {key: indices.tolist() for key, indices in matches}
        single = {text: compile_filter(text, JSON).select(BODIES, context) for text in INDEXED}
        assert found == {text: hits for text, hits in single.items() if hits}
        assert matches.unreadable == 2


def test_index_with_a_raising_filter_matches_like_the_filters() -> None:
    _check(_index())


def test_index_matches_like_the_filters_when_a_condition_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = _index()

    def raising(_: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(predicates, "test_of", raising)
    _check(index)


def test_index_matches_like_the_filters_when_an_interval_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index: FilterIndex[int] = FilterIndex(JSON)
    index.add(1, compile_filter("/n > 0", JSON))
    index.add(2, compile_filter("/a = 'abc'", JSON))

    def raising(*_: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(range_module, "_holds", raising)
    bodies = [b'{"n":[1],"a":"abc"}', b'{"n":1}']
    assert {key: found.tolist() for key, found in index.match(bodies)} == {1: [0, 1], 2: [0]}


@pytest.mark.parametrize("place", ["numbers", "values"])
def test_index_matches_like_the_filters_when_value_columns_raise(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    index = _index()

    def raising(*_: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(ValueColumns, place, raising)
    _check(index)


def test_index_matches_like_the_filters_when_column_reading_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = _index()

    def raising(*_: Any) -> Iterator[int]:
        yield 1
        raise RuntimeError("a defect")

    monkeypatch.setattr(ColumnReading, "columns", raising)
    _check(index)
