from __future__ import annotations

import pytest

from tickertape.base.errors import BadOption
from tickertape.base.options import format_options, list_value, parse_options


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("   ", {}),
        (",", {}),
        (", ,,", {}),
        ("none", {}),
        (" none ", {}),
        ("bookmark", {"bookmark": None}),
        ("bookmark,", {"bookmark": None}),
        (",bookmark,,live,", {"bookmark": None, "live": None}),
        ("rate=1x,rate_max_gap=1s", {"rate": "1x", "rate_max_gap": "1s"}),
        ("rate=5X,rate_max_gap=10s", {"rate": "5X", "rate_max_gap": "10s"}),
        (
            "conflation=2s, conflation_key = [/tickerId]",
            {"conflation": "2s", "conflation_key": "[/tickerId]"},
        ),
        (
            "rate=2x,conflation_key=[/a,/b],bookmark,",
            {"rate": "2x", "conflation_key": "[/a,/b]", "bookmark": None},
        ),
        ("conflation_key=/tickerId,live", {"conflation_key": "/tickerId", "live": None}),
        (
            "projection=[MAX(/price, 0) AS /max,/tickerId as /ticker],grouping=[/tickerId]",
            {"projection": "[MAX(/price, 0) AS /max,/tickerId as /ticker]", "grouping": "[/tickerId]"},
        ),
        ("select=[-/,+/event_id,+/description]", {"select": "[-/,+/event_id,+/description]"}),
        ("select=[/a = ']',/b = \"[,\"],live", {"select": "[/a = ']',/b = \"[,\"]", "live": None}),
        ("select=[a[0],b[1]]", {"select": "[a[0],b[1]]"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=it's,b", {"a": "it's", "b": None}),
        ("a=f(x,b", {"a": "f(x", "b": None}),
        ("max_backlog=10,replace", {"max_backlog": "10", "replace": None}),
    ],
)
def test_options_parse_and_format_back(text: str, expected: dict[str, str | None]) -> None:
    parsed = parse_options(text)
    assert parsed == expected
    assert list(parsed) == list(expected)
    assert parse_options(format_options(parsed)) == expected


@pytest.mark.behaviour(3)
@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("live,live", r"Duplicate option 'live' \(at position 5\)"),
        ("rate=1,rate=1", "Duplicate option 'rate'"),
        ("rate=", r"option 'rate' \(at position 0\): no value"),
        ("live, rate= ,", r"option 'rate' \(at position 5\): no value"),
        ("=5", "Invalid option"),
        ("a b", "Invalid option"),
        ("1rate=5", "Invalid option"),
        ("rate 5=1", "Invalid option"),
        ("ra-te=5", "Invalid option"),
        ("[a]", "Invalid option"),
        ("key=[/a,/b", "Unclosed bracket at position 4"),
        ("key=/a]", "Unmatched ']' at position 6"),
        ("key=[(/a])", "Unmatched ']' at position 8"),
        ("key=[f(/a]", "Unmatched ']' at position 9"),
        ("key=[/a]b", "text after the closing bracket"),
        ("key=[/a][/b]", "text after the closing bracket"),
        ("key=[/a = 'x]", "Unclosed quote at position 10"),
        ("\u00e9=1", "Invalid option"),
    ],
)
def test_malformed_options_are_refused(text: str, match: str) -> None:
    with pytest.raises(BadOption, match=match):
        parse_options(text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("[/a,/b]", ("/a", "/b")),
        ("[ /a , /b ]", ("/a", "/b")),
        ("[/a]", ("/a",)),
        ("/tickerId", ("/tickerId",)),
        ("[f(/a,/b),/c]", ("f(/a,/b)", "/c")),
        ("[[/a,/b],/c]", ("[/a,/b]", "/c")),
    ],
)
def test_list_value_splits_into_members(value: str, expected: tuple[str, ...]) -> None:
    assert list_value(value) == expected


@pytest.mark.parametrize("value", ["", "[]", "[ ]", "[/a,]", "[,/a]", "[/a,,/b]"])
def test_list_value_with_an_empty_member_is_refused(value: str) -> None:
    with pytest.raises(BadOption, match="a member is empty"):
        list_value(value)
