"""Fuzz targets of filters: filter texts and topic patterns.

Must never catch an error that a target allows.
"""

from __future__ import annotations

from typing import Final

from tests.fuzz.target import Target, taken
from tickertape.base.errors import BadFilter, BadTopic
from tickertape.filter import Filter, FilterInputs, compile_filter, compile_topic_pattern
from tickertape.filter.contained_errors import DEFECTS
from tickertape.filter.index.filter_index import FilterIndex
from tickertape.filter.language.ast import unparse
from tickertape.filter.language.parser import parse as parse_filter
from tickertape.payload.registry import message_type

_FILTERED: Final = (b'{"a":[1,"x",null,2.5],"b":{"c":"24"},"d":""}', b"{}", b"[1]", b"no json", b"")
_CONTEXT: Final = FilterInputs(["t"] * 5, ["1|1|"] * 5, [None] * 5, ["k"] * 5, "u", "c", "v", 1.5)


def filter_text(data: bytes) -> str:
    """Compile a filter: a short `BadFilter` with a position, or one that round-trips and evaluates."""
    text = data.decode("utf-8", "replace")
    before = DEFECTS.count
    try:
        found = compile_filter(text, message_type("json"))
    except BadFilter as error:
        if not 0 <= error.position <= max(len(text), 4096):
            raise AssertionError(f"its place is {error.position}") from error
        if DEFECTS.count > before:
            raise AssertionError(f"compiling raised {DEFECTS.last}") from error
        raise
    with taken():
        outcome = _used(found)
        assert DEFECTS.count == before, DEFECTS.last
        return outcome


def _used(found: Filter) -> str:
    shown = unparse(found.written)
    if len(shown.encode()) < 4096 and shown.count("(") < 40:
        assert unparse(parse_filter(shown)) == shown
    hits = found.select(_FILTERED, _CONTEXT)
    assert hits == sorted(set(hits))
    assert found.unreadable in {0, 2}
    if not found.needs & {"user", "client_name", "client_version"}:
        index: FilterIndex[int] = FilterIndex(found.type)
        index.add(1, found)
        assert {key: at.tolist() for key, at in index.match(_FILTERED, _CONTEXT)} == (
            {1: hits} if hits else {}
        )
    return "matches" if hits else "matches nothing"


def topic_pattern(data: bytes) -> str:
    """Compile a topic pattern: `BadTopic` with a short text, or one that evaluates for any topic."""
    found = compile_topic_pattern(data.decode("utf-8", "replace"))
    with taken():
        return "found" if any(map(found.search, ("orders", "a/b/c", "", "é\n"))) else "not found"


_FILTER_WORDS: Final = (
    b"'", b'"', b"(", b")", b",", b"/", b"/a", b"/b/c", b"[0]", b" AND ", b" OR ", b"NOT ",
    b" IN (1,'x')", b" IS NULL", b" IS NAN", b" LIKE 'x'", b" BETWEEN 1 AND 2", b" BEGINS WITH ('x')",
    b" ENDS WITH 'x'", b"=", b"!=", b"<>", b"<=", b"+", b"-", b"*", b" / ", b"%", b"1e999",
    b"18446744073709551616", b".5", b"NULL", b"TRUE", b"UPPER(", b"IF(", b"ARRAY_SUM(/a)", b"SUM(",
    b"STRPTIME(/d, '%Y-%m-%d')", b"STRFTIME(/a, '%H')", b"%Y", b"%d", b"%%", b"253402300800", b"1e308",
    b"'NaN'", b"'-inf'", b"CHAR_VALUE(55296)", b"ROUND(", b"/b/c/d[0]",
    b"\xff", b"\x00", b"\n", b"(?=", b"\\1", b".{9}", b"COALESCE(/a, ", b"TOPIC_NAME()",
)  # fmt: skip
_PATTERN_WORDS: Final = (
    b"(", b")", b"[", b"]", b"[^", b"{3}", b"{0,9}", b"*", b"+", b"?", b"|", b"^", b"$", b".", b"\\d",
    b"\\w", b"\\pL", b"(?i)", b"(?:", b"(?=", b"\\1", b"\\Q", b"\\E", b"[[:alpha:]]", b"\\x{41}", b"-",
    b"\\", b"\xc3\xa9", b"\\C", b"{1000}",
)  # fmt: skip


def _filter_seeds() -> list[bytes]:
    return [
        b"/a = 1 AND NOT /b/c IN ('x', 24, NULL) OR /d IS NOT NULL",
        b"/a LIKE '^x.*[0-9]$' or /b/c between 1 and '30'",
        b"IF(/a > 1, UPPER(/b/c), CONCAT('a', /d)) = 'a' and -/a[0] * 2 % 3 <> .5e1",
        b"(/a BEGINS WITH (\"x\", 'y')) = (/b/c NOT ENDS WITH '4')",
        b"COALESCE(/d, ARRAY_MAX(/a), 3) >= LENGTH(/b/c)\n  AND 1 = 1",
        b"STRPTIME(/b/c, '%Y%m') > 1 OR STRFTIME(/a, '%Y %Y') = ROUND(/a, -2)",
        b"TRUE",
    ]


def _pattern_seeds() -> list[bytes]:
    return [b"^orders/(us|eu)$", b"[a-z]+[0-9]{2,4}", b"(?i)x.*y", rb"a|b|\d+\.x", b"or.ers"]


FILTER_TARGETS: Final[dict[str, Target]] = {
    "filter_text": Target(filter_text, _filter_seeds, words=_FILTER_WORDS, cost=10, allowed=(BadFilter,)),
    "topic_pattern": Target(topic_pattern, _pattern_seeds, words=_PATTERN_WORDS, cost=4, allowed=(BadTopic,)),
}
