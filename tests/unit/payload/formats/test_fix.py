"""FIX and NVFIX: tags, repeated tags, empty values, text encodings, and invalid bodies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.bodies import values_of
from tickertape.base.errors import BadPath
from tickertape.payload import Unreadable, message_type, parse_path, parse_select
from tickertape.payload.formats.fix import Fix
from tickertape.payload.limits import fix_searched_tags_max

ORDER = b"8=FIX.4.2\x0135=D\x0155=IBM\x0144=10.50\x0158=\x0155=AAPL\x01155=x\x0110=001\x01"


def read(kind: Fix | str, body: bytes, *paths: str) -> list[Any]:
    reader = (message_type(kind) if isinstance(kind, str) else kind).reader([parse_path(p) for p in paths])
    return values_of(reader, reader.decode(body))


@pytest.mark.parametrize("more", [0, fix_searched_tags_max], ids=["few", "many"])
def test_fix_tags_read_as_the_expected_values(more: int) -> None:
    paths = ["/35", "/55", "/55[1]", "/55[2]", "/44", "/44[0]", "/44[1]", "/58", "/5", "/35"]
    others = [f"/{900 + n}" for n in range(more)]
    assert read("fix", ORDER, *paths, *others) == [
        "D", ["IBM", "AAPL"], "AAPL", None, "10.50", "10.50", None, None, None, "D", *[None] * more,
    ]  # fmt: skip


@pytest.mark.parametrize("more", [0, fix_searched_tags_max], ids=["few", "many"])
def test_nvfix_names_read_as_the_expected_values(more: int) -> None:
    body = "symbol=IBM\x01note=a=b\x01name é=ü\x01empty=\x01last=1".encode()
    others = [f"/x{n}" for n in range(more)]
    paths = ["/symbol", "/note", "/last", "/empty", "/name"]
    assert read("nvfix", body, *paths, *others) == ["IBM", "a=b", "1", None, None, *[None] * more]


def test_fix_text_is_utf_8_or_else_latin_1() -> None:
    assert read("fix", "1=é\x01".encode() + b"2=\xe9\x01", "/1", "/2") == ["é", "é"]


def test_empty_fix_body_has_no_fields() -> None:
    assert read("fix", b"", "/35") == [None]
    message_type("nvfix").check(b"")


@pytest.mark.parametrize(
    "body", [b"x", b"\x01", b"35=D\x01\x01", b"35=D\x01x", b"=D\x01", b"35D\x01", b"a=1\x01", b" 35=D", b"{}"]
)
def test_invalid_fix_body_is_unreadable(body: bytes) -> None:
    for attempt in (lambda: read("fix", body, "/35"), lambda: message_type("fix").check(body)):
        with pytest.raises(Unreadable, match="the field at byte"):
            attempt()
    assert message_type("fix").unreadable([ORDER, body])[0] == [1]
    assert message_type("fix").projector(parse_select("-/,+/35"))(body) == body


@pytest.mark.parametrize("path", ["/35/36", "/35[0][1]", "/35[0]/36"])
@pytest.mark.parametrize("name", ["fix", "nvfix"])
def test_nested_path_in_fix_is_refused(name: str, path: str) -> None:
    with pytest.raises(BadPath, match="are not nested"):
        read(name, ORDER, path)


def test_fix_path_that_is_not_a_numeric_tag_is_refused() -> None:
    with pytest.raises(BadPath, match="are numeric tags"):
        read("fix", ORDER, "/symbol")
    with pytest.raises(BadPath, match="are numeric tags"):
        message_type("fix").projector(parse_select("-/,+/symbol"))


@pytest.mark.parametrize(
    ("select", "left"),
    [
        ("-/,+/55,+/35", b"35=D\x0155=IBM\x0155=AAPL\x01"),
        ("-/8,-/10,-/58,-/155,-/55", b"35=D\x0144=10.50\x01"),
        ("-/", b""),
        ("+/", ORDER),
    ],
)
def test_fix_selection_keeps_tags_in_order(select: str, left: bytes) -> None:
    assert message_type("fix").projector(parse_select(select))(ORDER) == left
    assert message_type("fix").projector(parse_select(select))(ORDER[:-1]) == left[:-1]


def test_fix_with_another_separator_reads_and_selects() -> None:
    kind = Fix("fix", numbered=True, separator=b"|")
    assert read(kind, b"35=D|55=a\x01b|", "/35", "/55") == ["D", "a\x01b"]
    assert kind.projector(parse_select("-/35"))(b"35=D|55=IBM") == b"55=IBM"
    with pytest.raises(Unreadable):
        kind.check(ORDER + b"|x")
