"""Regular expressions: accepted, found, and refused for their cost."""

from __future__ import annotations

import re
from random import Random

import pytest

from tickertape.base.errors import BadTopic
from tickertape.filter.compiler.regex import (
    BadPattern,
    PatternSet,
    compile_pattern,
    compile_topic_pattern,
    costs_of,
)
from tickertape.filter.limits import pattern_depth_max


@pytest.mark.parametrize(
    ("pattern", "hits", "misses"),
    [
        ("TRADE$", ["XTRADE"], ["TRADES"]),
        ("^us$", ["us"], ["aus", "us\n", "US"]),
        ("(?i)^us$", ["Us"], ["aus"]),
        ("(?i:É)t", ["ét"], ["éT"]),
        (r"\d{4}-\d\d", ["on 2026-11"], ["26-11"]),
        ("[^a-c]", ["d"], ["abc", ""]),
        ("a|b|^c", ["b", "cx"], ["xc"]),
        (r"\Qa+b\E", ["xa+bx"], ["aab"]),
        (r"[[:digit:]]\x{41}\101", ["1AA"], ["AAA"]),
        (r"\pL\PN", ["éx"], ["11"]),
        ("", ["", "x"], []),
        ("(?P<n>x)(?<m>y)", ["xy"], ["x"]),
        ("[]a]b", ["]b"], ["cb"]),
        (r"a\b", ["a b"], ["ab"]),
    ],
)
def test_patterns_match_anywhere_in_the_text(pattern: str, hits: list[str], misses: list[str]) -> None:
    search = compile_pattern(pattern).search
    assert [search(text) for text in hits] == [True] * len(hits)
    assert [search(text) for text in misses] == [False] * len(misses)


@pytest.mark.parametrize(
    ("pattern", "at", "said"),
    [
        ("a(?=b)", 1, "look-ahead"), ("(?!b)", 0, "look-ahead"), ("x(?<=b)", 1, "look-behind"),
        ("(?<!b)", 0, "look-behind"), (r"(a)\1", 3, "back reference"), ("(?>a)", 0, "atomic"),
        ("a*+", 1, "possessive"), ("(a", 0, "missing )"),
        ("a)", 0, "unexpected )"), ("[z-a]", 1, "range"),
        (r"a\Cb", 1, "single byte"), (r"\pL{30}", 0, "too large"), ("x{1001}", 1, "repetition size"),
    ],
)  # fmt: skip
def test_unsupported_pattern_is_refused_with_the_position(pattern: str, at: int, said: str) -> None:
    with pytest.raises(BadPattern) as refused:
        compile_pattern(pattern)
    assert (refused.value.at, said in refused.value.reason) == (at, True), refused.value.reason
    assert re.search(r"\. (?:Remove|Correct|Use) ", str(refused.value))


@pytest.mark.parametrize(
    "pattern",
    ["a.{100}b", "[ab]*a[ab]{20}c", "(a|b)*a(a|b){12}", "x{1000}", "((a{30}){30})", "(.*a.{9}|b.{9})*c"],
)
def test_pattern_with_too_many_states_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern, match=r"too expensive|too long"):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["^a.{100}b$", ".{200}", "(x+x+)+y", "(a?){30}b", "^.*a.*b.*c", "|".join(f"name{i}" for i in range(90))],
)
def test_pattern_with_few_states_is_accepted(pattern: str) -> None:
    assert compile_pattern(pattern).states <= 600


def derived(pattern: str, texts: list[str]) -> int:
    """Return the number of distinct continuations of text prefixes, the least states of any automaton."""
    probes = [text[i:] for text in texts[:12] for i in range(0, len(text), 3)]
    futures = {
        tuple(re.search(pattern, prefix + probe) is not None for probe in probes)
        for text in texts
        for prefix in (text[:i] for i in range(len(text)))
    }
    return len(futures)


@pytest.mark.parametrize("pattern", ["a[ab]{3}c", "abc|bca|cab", "(ab|ba)+c", "^a[ab]{2}|c$", "[ab]c{2,4}a"])
def test_counted_states_bound_the_states_of_a_search(pattern: str) -> None:
    rng = Random(pattern)
    texts = ["".join(rng.choices("abc", k=12)) for _ in range(60)]
    # One more state for a text with an earlier match, and one for its end.
    assert derived(pattern, texts) <= costs_of(pattern).states + 2


def test_topic_pattern_matches_topics_and_invalid_ones_are_refused() -> None:
    pattern = compile_topic_pattern("^orders/(us|eu)$")
    assert [topic for topic in ("orders/us", "orders/asia", "x/orders/eu") if pattern.search(topic)] == [
        "orders/us"
    ]
    assert compile_topic_pattern("rder").search("orders")
    with pytest.raises(BadTopic, match=r"at position 1: look-ahead"):
        compile_topic_pattern("a(?=b)")
    with pytest.raises(BadTopic, match="at most 1,024 bytes"):
        compile_topic_pattern("a" * 1025)
    with pytest.raises(BadTopic, match="Unicode"):
        compile_topic_pattern("\ud800*")


@pytest.mark.parametrize("opening", ["(", "(?:"])
def test_nested_groups_above_the_depth_limit_are_refused(opening: str) -> None:
    def nested(depth: int) -> str:
        return opening * depth + "a" + ")" * depth

    assert compile_pattern(nested(pattern_depth_max)).search("a")
    with pytest.raises(BadPattern, match="nested more than"):
        compile_pattern(nested(pattern_depth_max + 1))
    assert compile_pattern("\\(" * 100).search("(" * 100)


@pytest.mark.parametrize(
    "text", ["^a", "^ab", "^é", "^a b/", "^", "^^", "^a*", "^\\.", "^a|b", "a", "^a$", "^-"]
)
def test_pattern_of_a_prefix_matches_like_a_pattern_set(text: str) -> None:
    pattern = compile_pattern(text)
    for value in ("", "a", "ab", "ba", "a b/", "é", "^", "\na", ".", "-", "A", "a\nb"):
        assert pattern.search(value) is bool(PatternSet([pattern]).found(value)), (text, value)
