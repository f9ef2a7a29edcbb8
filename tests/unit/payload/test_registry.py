"""Names of message types: known, unknown, missing package, and binary."""

from __future__ import annotations

import sys

import pytest

from tickertape.base.errors import BadOption, BadPath
from tickertape.payload import MESSAGE_TYPES, message_type, parse_path, parse_select, registry


@pytest.mark.parametrize("name", MESSAGE_TYPES)
def test_message_type_has_the_requested_name_and_is_created_once(name: str) -> None:
    assert message_type(name).name == name
    assert message_type(name) is message_type(name)


def test_msgpack_is_an_alias_of_messagepack() -> None:
    assert message_type("msgpack") is message_type("messagepack")


@pytest.mark.parametrize("name", ["", "JSON", "xml", "x" * 1000])
def test_unknown_message_type_is_refused_with_the_known_types(name: str) -> None:
    with pytest.raises(BadOption, match="Use json, messagepack, nvfix, fix, bson or binary"):
        message_type(name)


def test_binary_message_type_has_no_fields() -> None:
    binary = message_type("binary")
    binary.check(b"\xff")
    assert binary.unreadable([b"", b"\xff"]) == ([], "")
    assert binary.reader([]).decode(b"\xff") is None
    assert binary.reader([]).quick(b"\xff") is None
    with pytest.raises(BadPath, match="/a': messages of type binary have no fields"):
        binary.reader([parse_path("/a")])
    with pytest.raises(BadPath, match="no fields"):
        binary.projector(parse_select("-/a"))


def test_bson_without_the_package_is_refused_with_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "bson"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "tickertape.payload.formats.bson", raising=False)
    monkeypatch.setitem(sys.modules, "bson", None)
    with pytest.raises(BadOption, match=r"pip install 'tickertape\[bson\]'"):
        registry.bson_type()
