"""Names of message types: the known, the unknown, the one whose package may be missing, and binary."""

from __future__ import annotations

import sys

import pytest

from tickertape.base.errors import BadOption, BadPath
from tickertape.payload import MESSAGE_TYPES, message_type, parse_path, parse_select, registry


@pytest.mark.parametrize("name", MESSAGE_TYPES)
def test_every_type_has_its_name_and_is_made_once(name: str) -> None:
    assert message_type(name).name == name
    assert message_type(name) is message_type(name)


def test_msgpack_is_messagepack() -> None:
    assert message_type("msgpack") is message_type("messagepack")


@pytest.mark.parametrize("name", ["", "JSON", "xml", "x" * 1000])
def test_an_unknown_type_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(BadOption, match="Use json, messagepack, nvfix, fix, bson, binary"):
        message_type(name)


def test_binary_has_no_fields() -> None:
    binary = message_type("binary")
    binary.check(b"\xff")
    assert binary.unreadable([b"", b"\xff"]) == ([], "")
    assert binary.reader([]).decode(b"\xff") is None
    assert binary.reader([]).quick(b"\xff") is None
    with pytest.raises(BadPath, match="/a: messages of type binary have no fields"):
        binary.reader([parse_path("/a")])
    with pytest.raises(BadPath, match="no fields"):
        binary.projector(parse_select("-/a"))


def test_without_its_package_bson_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "bson"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "tickertape.payload.formats.bson", raising=False)
    monkeypatch.setitem(sys.modules, "bson", None)
    with pytest.raises(BadOption, match=r"pip install 'tickertape\[bson\]'"):
        registry.bson_type()
