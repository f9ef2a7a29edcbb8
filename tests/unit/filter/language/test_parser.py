"""Parser of filters: syntax trees, and errors with positions."""

from __future__ import annotations

import pytest

from tickertape.base.errors import BadFilter
from tickertape.base.limits import filter_bytes_max
from tickertape.filter.compiler.compile import compile_filter
from tickertape.filter.language.ast import And, Comparison, Field, In, Literal, Not, Or, unparse, walk
from tickertape.filter.language.diagnostics import caret_lines
from tickertape.filter.language.parser import parse
from tickertape.filter.limits import filter_depth_max, filter_members_max, filter_operations_max
from tickertape.payload import message_type
from tickertape.payload.paths import Path


def refused(text: str) -> BadFilter:
    with pytest.raises(BadFilter) as error:
        parse(text)
    return error.value


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("/a = 1 OR /b = 2 AND /c = 3", "/a = 1 OR (/b = 2 AND /c = 3)"),
        ("NOT /a = 1 AND /b = 2", "(NOT /a = 1) AND /b = 2"),
        ("/a + 1 * 2 - 3 > 4", "((/a + (1 * 2)) - 3) > 4"),
        ("/a between 1 and 2 and /b", "/a BETWEEN 1 AND 2 AND /b"),
        ("/a not in (1, -2.50, 'x', TRUE)", "NOT /a IN (1, -2.5, 'x', TRUE)"),
        ("/a is not null", "NOT /a IS NULL"),
        ("/a <> 'it''s' and /b == \"q\"\"q\"", "/a != 'it''s' AND /b = 'q\"q'"),
        ("/a not begins with 'x'", "NOT /a BEGINS WITH ('x')"),
        ("/a ENDS WITH (/b, 1 + 1)", "/a ENDS WITH (/b, 1 + 1)"),
        ("upper ( /a ) = 'X'", "UPPER(/a) = 'X'"),
        ("/a\n=\t1\r\n", "/a = 1"),
        ("((((/a))))", "/a"),
        ("/a - -1 = .5e1", "(/a - -1) = 5.0"),
        ("/a / /b / 2 = 1", "((/a / /b) / 2) = 1"),
        ("/a LIKE '^x$'", "/a LIKE '^x$'"),
        ("null is nan", "NULL IS NAN"),
    ],
)
def test_filter_is_parsed_with_the_documented_precedence(text: str, meaning: str) -> None:
    tree = parse(text)
    assert unparse(tree) == meaning
    assert unparse(parse(meaning)) == meaning


def test_syntax_nodes_have_positions_that_equality_ignores() -> None:
    tree = parse("/a = 1 OR /b/c[0] = 1")
    assert isinstance(tree, Or)
    first, second = tree.terms
    assert isinstance(second, Comparison)
    assert (second.at, second.left.at, second.right.at) == (18, 10, 20)
    assert second.left == Field(Path(("b", "c", 0)))
    assert first == parse("  /a  =  1")
    assert hash(first) == hash(parse("  /a  =  1"))
    assert Literal(1) != Literal(True) != Literal(1.0)


def test_chain_of_and_is_one_flat_node() -> None:
    tree = parse(" AND ".join(["/a = 1"] * 100))
    assert isinstance(tree, And)
    assert len(tree.terms) == 100


def test_list_of_constants_keeps_positions() -> None:
    tree = parse("/a IN ('x',  2, NULL)")
    assert isinstance(tree, In)
    assert [(m.at, m.value) for m in tree.members if isinstance(m, Literal)] == [
        (7, "x"),
        (13, 2),
        (16, None),
    ]
    assert isinstance(parse("/a NOT IN (1)"), Not)


@pytest.mark.parametrize(
    ("text", "position", "said"),
    [
        (
            "/a = ",
            4,
            "Invalid filter at column 5: expected a value after '='.\n  /a =\n      ^",
        ),
        (
            "/a = AAPL",
            5,
            "unknown value 'AAPL'. Did you mean the field /AAPL or the string 'AAPL'?\n  /a = AAPL\n       ^",
        ),
        (
            "/a = 1\nAND\n  /b ! 2",
            16,
            "expected an operator, AND, OR or the end, not '!'. Did you mean NOT?\n    /b ! 2\n       ^",
        ),
        ("/a = 'x", 5, "the string has no closing quote. Add ' at its end"),
        ("/a[0 = 1", 2, "invalid subscript. Write an index such as [0] directly after a field"),
        (
            "/a = 1 /b = 2",
            7,
            "expected AND, OR or the end, not the field '/b'. To divide, put a space after the /",
        ),
        ("\ud800", 0, "Use valid Unicode text"),
        ("/a = \x00", 5, "not '\\x00'.\n  /a = \\x00\n       ^"),
        ("/a is maybe", 6, "expected NAN, NOT or NULL, not 'maybe'"),
    ],
)
def test_syntax_error_has_position_and_text(text: str, position: int, said: str) -> None:
    error = refused(text)
    assert error.position == position
    assert said in str(error)
    assert str(error).replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/a[-1] = 1", "invalid subscript. Write an index"),
        ("/a[*] = 1", "or none for all elements"),
        ("/a [0] = 1", "directly after a field"),
        ("/a = 0x10", "invalid number '0x10'"),
        ("/a IN (1, 1_000)", "invalid number '1_000'"),
        ("/a CONTAINS 'x'", "not 'CONTAINS'. Did you mean LIKE?"),
        ("/a NOT contains 'x'", "not 'contains'. Did you mean LIKE?"),
        ("/a ILIKE 'x'", "Did you mean LIKE '(?i)...'?"),
        ("/a STARTS WITH 'x'", "Did you mean BEGINS WITH?"),
        ("/a EndsWith 'x'", "Did you mean ENDS WITH?"),
        ("/a = 1 && /b = 2", "Did you mean AND?"),
        ("/a = 1 || /b = 2", "Did you mean OR?"),
        ("!/a = 1", "Did you mean NOT?"),
        ("/a =~ 'x'", "Did you mean LIKE?"),
        ("/a = contains", "unknown value 'contains'"),
        ("UPPER() = 'X'", "UPPER takes 1 argument, not 0"),
        ("NAN_VALUE(1) = 1", "NAN_VALUE takes no arguments, not 1"),
        ("CONTAINS(/a, 'x')", "unknown function 'CONTAINS'. Did you mean LIKE?"),
        ("starts_with(/a, 'x')", "unknown function 'STARTS_WITH'. Did you mean BEGINS WITH?"),
    ],
)
def test_syntax_of_other_languages_is_refused_with_the_equivalent(text: str, said: str) -> None:
    with pytest.raises(BadFilter) as refusal:
        compile_filter(text, message_type("json"))
    assert said in str(refusal.value)


def test_syntax_error_quotes_the_text_around_the_position() -> None:
    text = " AND ".join(["/field = 1"] * 40) + " AND" + " OR /x = 2" * 20
    assert len(str(refused(text))) < 250
    assert caret_lines("/a = 1\n AND ?", 12) == (" AND ?", "     ^")
    assert caret_lines("/日本 = x", 6) == ("/日本 = x", " " * 8 + "^"), "wide characters take two columns"
    assert caret_lines("'\"\t' = x", 6)[1] == " " * 7 + "^", "escapes take as many columns as they show"


def test_filters_above_the_limits_are_refused() -> None:
    assert "4,097 bytes" in str(refused("/" + "a" * filter_bytes_max))
    fits = "(" * filter_depth_max + "/a" + ")" * filter_depth_max
    assert unparse(parse(fits)) == "/a"
    assert "nested more than 40" in str(refused(f"({fits})"))
    assert "nested more than 40" in str(refused("NOT " * 41 + "/a"))
    members = ",".join(["1"] * filter_members_max)
    assert sum(1 for _ in walk(parse(f"/a IN ({members})"))) == filter_members_max + 2
    assert "members" in str(refused(f"/a IN ({members},1)"))
    terms = (filter_operations_max - 1) // 2
    parse(" OR ".join(["/a=1"] * terms))
    assert "more than 300" in str(refused(" OR ".join(["/a=1"] * (terms + 1))))
    assert "64 characters" in str(refused("/a = " + "1" * 65))
    assert "empty" in str(refused(" \n"))


def test_brackets_and_commas_in_strings_do_not_count_for_limits() -> None:
    assert unparse(parse("/a = '" + "(" * 100 + "," * 1500 + "'")).startswith("/a = '((")
