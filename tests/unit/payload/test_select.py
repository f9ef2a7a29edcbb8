"""Select lists: parsing, projections, and invalid lists with positions."""

from __future__ import annotations

import re
from pathlib import Path as Documents

import pytest

from tickertape.base.errors import BadOption
from tickertape.payload import Path, message_type, parse_select
from tickertape.payload.limits import select_entries_max

PAGE = Documents(__file__).parents[3] / "docs" / "reference" / "message-types.md"
BODY = b'{"id":1,"a":{"x":1.10,"y":[{"p":1,"q":2},7,{"q":3}],"z":"\\u0041"},"s":"t"}'


@pytest.mark.parametrize(
    ("select", "left"),
    [
        ("[-/,+/id,+/s]", b'{"id":1,"s":"t"}'),
        ("[-/,+/s,+/id]", b'{"id":1,"s":"t"}'),
        ("+/id", b'{"id":1}'),
        ("-/a", b'{"id":1,"s":"t"}'),
        ("[ -/ , +/a/x ]", b'{"a":{"x":1.10}}'),
        ("-/a/y/q,-/s", b'{"id":1,"a":{"x":1.10,"y":[{"p":1},7,{}],"z":"\\u0041"}}'),
        ("-/,+/a/y/q", b'{"a":{"y":[{"q":2},{"q":3}]}}'),
        ("-/,+/id/below,+/s", b'{"s":"t"}'),
        ("-/,+/a/none", b'{"a":{}}'),
        ("-/,+/a,-/a/y,-/a/z", b'{"a":{"x":1.10}}'),
        ("-/,+/a/x,-/a", b"{}"),
        ("-/", b"{}"),
        ("+/", BODY),
        ("+/,-/,+/id", b'{"id":1}'),
        ("-/none", BODY),
    ],
)
def test_projection_keeps_order_and_text_of_selected_fields(select: str, left: bytes) -> None:
    assert message_type("json").projector(parse_select(select))(BODY) == left


def test_a_select_list_reads_back() -> None:
    select = parse_select(" [ -/, +/a/b ,-/c ] ")
    assert select.entries == ((False, Path(())), (True, Path(("a", "b"))), (False, Path(("c",))))
    assert str(select) == "[-/,+/a/b,-/c]"
    assert parse_select(str(select)) == select
    assert hash(parse_select(str(select))) == hash(select)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("[]", 1),
        ("[-/,]", 4),
        ("-/,/a", 3),
        ("[-/,  a]", 6),
        ("[-/", 3),
        ("+", 1),
        ("-/,+/a//b", 6),
        ("-/,+/a[0]", 3),
        ("-/,+a", 4),
    ],
)
def test_invalid_select_list_is_refused_with_the_error_position(text: str, position: int) -> None:
    with pytest.raises(BadOption, match=rf"position {position}\b") as caught:
        parse_select(text)
    assert str(caught.value).startswith(f"Invalid select list {text!r} at position {position}: ")
    assert str(caught.value).count("at position") == 1


def test_select_list_entries_are_limited() -> None:
    fields = [f"+/f{n}" for n in range(select_entries_max + 1)]
    assert len(parse_select(",".join(fields[:-1])).entries) == select_entries_max
    with pytest.raises(BadOption, match=f"at most {select_entries_max}"):
        parse_select(",".join(fields))


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"id":1}x', b'{"\xff":1}', b'{"s":"\xff"}', b"7", b'"id"', b"null"]
)
def test_projection_of_an_unreadable_or_scalar_body_returns_the_body_unchanged(body: bytes) -> None:
    assert message_type("json").projector(parse_select("-/,+/id"))(body) == body


def test_projection_ignores_whitespace_and_escapes_in_names() -> None:
    body = b' { "i\\u0064" : 1 , "a" : [ { "x" : 1.50 } , { "y" : 1E2 } ] } '
    project = message_type("json").projector(parse_select("-/,+/id,+/a/y"))
    assert project(body) == b'{"id":1,"a":[{},{"y":1E2}]}'


def documented() -> list[tuple[bytes, str, bytes]]:
    """Return body, select list and result of each row of the page. Empty cells repeat the cell above."""
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (?:`(.*?)`)? ?\| `(.*?)` \| `(.*?)` \|$", page.split("## Select lists")[1], re.MULTILINE
    )
    body = ""
    found = []
    for given, select, left in rows:
        body = given or body
        found.append((body.encode(), select, left.encode()))
    return found


def test_select_list_examples_of_the_page_give_the_documented_results() -> None:
    rows = documented()
    assert len(rows) == 8
    for body, select, left in rows:
        assert message_type("json").projector(parse_select(select))(body) == left, select
