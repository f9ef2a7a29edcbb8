"""Compiled filters: selected, unreadable and undecoded bodies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.helpers.processes import source_environment
from tickertape.base.errors import BadFilter
from tickertape.filter import FilterInputs, compile_filter
from tickertape.filter.compiler.regex import compile_pattern
from tickertape.filter.language.ast import Literal, unparse
from tickertape.filter.language.regex_syntax import RegexShape
from tickertape.filter.limits import pattern_states_max, pattern_steps_max
from tickertape.payload import message_type
from tickertape.payload.paths import Path
from tickertape.payload.types import FieldReader, MessageType

JSON = message_type("json")


def meaning(text: str) -> str:
    return unparse(compile_filter(text, JSON).tree)


class NeverDecoding:
    """Message type that fails when a body is read."""

    name = "json"

    def reader(self, paths: Sequence[Path]) -> FieldReader:
        raise AssertionError(paths)

    def check(self, body: bytes) -> None:
        raise AssertionError(body)

    def unreadable(self, bodies: Sequence[bytes]) -> tuple[list[int], str]:
        raise AssertionError(bodies)

    def projector(self, select: Any) -> Callable[[bytes], bytes]:
        raise AssertionError(select)

    def merger(self) -> Callable[[bytes, bytes], bytes]:
        raise AssertionError


def test_select_returns_the_matching_indexes() -> None:
    found = compile_filter("/a > 1", JSON)
    assert found.select([b'{"a":1}', b'{"a":2}', b"{}", b'{"a":"3"}']) == [1, 3]
    assert found.matches(b'{"a":5}')
    assert not found.matches(b'{"a":0}')
    assert found.select([]) == []
    assert (found.paths, found.needs) == ((Path(("a",)),), frozenset())


def test_unreadable_bodies_never_match_and_are_counted() -> None:
    bodies = [b'{"a":1}', b"nonsense", b"", b'{"a":[1,', b'{"a":1}']
    positive, negative = compile_filter("/a = 1", JSON), compile_filter("NOT /a = 2", JSON)
    assert positive.select(bodies) == negative.select(bodies) == [0, 4]
    assert (positive.unreadable, negative.unreadable) == (3, 3)
    positive.select(bodies)
    assert positive.unreadable == 6


def test_body_with_too_long_arrays_is_counted_as_unreadable() -> None:
    found = compile_filter("/a LIKE 'x$'", JSON)
    long = b'{"a":[' + b",".join(b'"%d"' % n for n in range(9_000)) + b"]}"
    assert found.select([long, b'{"a":["x"]}', long]) == [1]
    assert found.unreadable == 2


def test_filter_without_fields_decodes_no_body() -> None:
    kind: MessageType = NeverDecoding()
    assert compile_filter("1 = 1", kind).select([b"\xff", b""]) == [0, 1]
    assert compile_filter("1 = 2 OR NULL", kind).select([b"x"]) == []
    context = FilterInputs(topics=["a", "b", "a"])
    found = compile_filter("TOPIC_NAME() = 'a'", kind)
    assert found.needs == {"topics"}
    assert found.select([b"", b"x", b"{"], context) == [0, 2]
    assert found.unreadable == 0
    with pytest.raises(ValueError, match="topics"):
        found.select([b""])


def test_field_of_a_binary_topic_is_refused() -> None:
    binary = message_type("binary")
    with pytest.raises(BadFilter, match=r"at column 9: .*binary") as refused:
        compile_filter("1=1 AND /a = 1", binary)
    assert refused.value.position == 8
    assert compile_filter("1 = 1", binary).select([b"\0"]) == [0]


def test_message_and_subscriber_functions_read_the_filter_inputs() -> None:
    context = FilterInputs(
        ["t", "t"], ["1|1|", "1|2|"], ["c", None], [None, "k"], "ann", "desk", "x 1", 1_795_165_200.0
    )
    bodies = [b"{}", b'{"a":1}']
    for text, hits in {
        "BOOKMARK() LIKE '2.$'": [1],
        "CORRELATION_ID() IS NULL": [1],
        "SOW_KEY() = 'k' AND /a = 1": [1],
        "USER() = 'ann' AND CLIENT_NAME() BEGINS WITH ('d')": [0, 1],
        "CLIENT_VERSION() LIKE '^x '": [0, 1],
        "UNIX_TIMESTAMP() > 1795165199": [0, 1],
        "TOPIC_NAME() = 't' AND /a IS NULL": [0],
    }.items():
        assert compile_filter(text, JSON).select(bodies, context) == hits, text


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("/a = 1 + 2 * 3", "/a = 7"),
        ("/a = CONCAT('x', 'y')", "/a = 'xy'"),
        ("/a = 1 AND TRUE", "/a = 1"),
        ("/a = 1 AND FALSE", "FALSE"),
        ("/a = 1 OR 2 > 1", "TRUE"),
        ("/a = 1 OR 2 < 1", "/a = 1"),
        ("/a = NULL", "NULL"),
        ("/a = ''", "NULL"),
        ("NOT NOT /a = 1", "/a = 1"),
        ("/a AND 1 = 1", "/a AND TRUE"),
        ("/a = 1 AND /a = 1", "/a = 1"),
        ("/a = 1 AND (/b = 2 AND TRUE)", "/a = 1 AND /b = 2"),
        ("/a LIKE 'x' OR /b = 1 OR /a LIKE '^y'", "/a LIKE '(?:x)|(?:^y)' OR /b = 1"),
        ("REGEXP_MATCH(/a, 'x')", "/a LIKE 'x'"),
        ("IF(1 = 1, /a + 1, 2) = 3", "(/a + 1) = 3"),
        ("IF(1 = 1, /a, 2) = 3", "IF(TRUE, /a, 2) = 3"),
        ("1 / 0 = 1", "NULL"),
        ("NAN_VALUE() = 1", "FALSE"),
    ],
)
def test_constants_are_folded_at_compile_time(text: str, tree: str) -> None:
    assert meaning(text) == tree


def test_filter_texts_never_become_names_in_the_generated_code() -> None:
    """The generated function uses no text of the filter as a name."""
    found = compile_filter("/bodies = 'take' AND /m = 'arrays' OR /i = 'hits'", JSON)
    assert found.matches(b'{"bodies":"take","m":"arrays"}')
    hostile = compile_filter('/a = \'x") or __import__("os")#\'', JSON)
    assert "__import__" not in hostile.source
    assert isinstance(compile_filter("'__import__'", JSON).tree, Literal)


def test_filter_package_imports_parser_and_regex_lazily() -> None:
    """A server without a filter starts faster."""
    program = "import sys, tickertape.filter; sys.exit(any(name in sys.modules for name in ('lark', 're2')))"
    done = subprocess.run([sys.executable, "-c", program], env=source_environment(), check=False)
    assert done.returncode == 0


def test_filter_work_grows_with_terms_and_scans() -> None:
    small, large = compile_filter("/a = 1", JSON), compile_filter("UPPER(/a) LIKE 'x'", JSON)
    assert 0 < small.work < large.work


def test_total_cost_of_patterns_is_bounded() -> None:
    texts = [f"/{name} LIKE 'a.{{7}}{name}'" for name in "bcd"]
    compile_filter(texts[0], JSON)
    with pytest.raises(BadFilter, match="too expensive in total") as refused:
        compile_filter(" AND ".join(texts), JSON)
    assert refused.value.position > 0
    assert pattern_states_max < 3 * 256


@pytest.mark.parametrize(
    "text",
    [
        "/a LIKE '" + "(a?)" * 400 + "'",
        " AND ".join(f"/a LIKE '(a?){{{n}}}'" for n in range(200, 150, -1)),
        " AND ".join(f"/a LIKE '.{{{n}}}'" for n in range(200, 150, -1)),
        " AND ".join(f"'{n}' LIKE '(a?){{{n}}}'" for n in range(200, 50, -1)),
        " OR ".join(f"/a LIKE '(^|$){{{n}}}'" for n in range(900, 850, -1)),
        " OR ".join(f"/a LIKE '{chr(97 + n % 26)}.{{{n % 5}}}{n}'" for n in range(120)),
        "/a LIKE '^" + "".join(f"[^{chr(200 + n)}]" for n in range(300)) + "'",
    ],
)
def test_compile_cost_of_patterns_is_bounded(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound holds for accepted and refused filters."""
    spent: list[int] = []
    spend = RegexShape.spend

    def counting(self: RegexShape, steps: int) -> None:
        spent.append(steps)
        spend(self, steps)

    monkeypatch.setattr(RegexShape, "spend", counting)
    compile_pattern.cache_clear()
    with suppress(BadFilter):
        compile_filter(text, JSON)
    assert 0 < sum(spent) < 3 * pattern_steps_max


def test_filter_with_many_short_patterns_is_accepted() -> None:
    names = " OR ".join(f"/a LIKE 'name{n}'" for n in range(100))
    found = compile_filter(names, JSON)
    assert found.select([b'{"a":"name77"}', b'{"a":"nam77"}', b'{"a":"xname1y"}']) == [0, 2]


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("/id = 5", "/id = 6"),
        ("5 > /id", "70000 > /id"),
        ("/a = '5'", "/a = '6'"),
        ("/a + 5 != 7 OR /b = 'x'", "/a + 6 != 8 OR /b = 'y'"),
        ("/a IN (1, 'x') AND /b = 2.5", "/a IN ('y', 2) AND /b = 3.5"),
    ],
)
def test_filters_that_differ_in_constants_have_the_same_source(text: str, other: str) -> None:
    assert compile_filter(text, JSON).source == compile_filter(other, JSON).source


def test_deep_and_wide_filters_within_limits_compile_and_run() -> None:
    deep = "/a"
    for _ in range(19):
        deep = f"IF({deep} = 1, -1, 2)"
    assert compile_filter(f"{deep} = 2", JSON).matches(b"{}")
    compared = "/a"
    for _ in range(18):
        compared = f"IF({compared} = /a, /b, 2)"
    assert len(compile_filter(f"{compared} = /b", JSON).source) < 20_000
    nots = "NOT (" * 38 + "/a = 1" + ")" * 38
    assert compile_filter(nots, JSON).matches(b'{"a":1}')
    nested = "(/a = 1)"
    for _ in range(36):
        nested = f"({nested} = 1)"
    assert compile_filter(nested, JSON).matches(b'{"a":1}')
    wide = " OR ".join(f"/f{n} = {n}" for n in range(149))
    assert compile_filter(wide, JSON).select([b'{"f148":148}', b'{"f1":2}']) == [0]
