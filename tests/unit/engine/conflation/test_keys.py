"""Conflation keys: equal values share a key, in every size and form."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec
import pytest

from tests.helpers.engine_parts import make_filter_context
from tickertape.batch import MessageBatch, batch_from_bodies
from tickertape.engine.conflation.keys import ConflationKeys

LONG = "x" * 5_000
SAME = [
    ["1", "1.0", "1e0", "10e-1"],
    ["0", "0.0", "-0.0"],
    ["true"],
    ["false"],
    ['"1"'],
    ['"true"'],
    ["0.1", "1e-1"],
    ["9007199254740993"],
    ["9007199254740992", "9007199254740992.0"],
    ["1208925819614629174706176", "1.208925819614629174706176e24"],
    ["-1208925819614629174706176"],
    ['[1,{"a":1.0,"b":[true]}]', '[1.0,{"b":[true],"a":1}]'],
    ['[1,{"a":true,"b":[true]}]'],
    ['[1,{"a":1,"b":[1]}]'],
    ["[]"],
    ["{}"],
    ["[0]"],
]
"""JSON texts in one list have equal values. Texts of different lists have different values."""


def _keys(bodies: list[bytes], *fields: str, kind: str = "json") -> list[Hashable | None]:
    reader = ConflationKeys(fields, make_filter_context({"t": kind}), [kind])
    batch = MessageBatch.parse(batch_from_bodies("t", bodies).encode())
    return reader.of(batch, 0, len(bodies))


@pytest.mark.parametrize("beside", ['"a"', f'"{LONG}"', "[1]", "1", "true"])
def test_equal_json_values_share_a_conflation_key_with_any_second_field(beside: str) -> None:
    found = []
    for texts in SAME:
        bodies = [f'{{"k":{text},"other":{beside}}}'.encode() for text in texts]
        keys = _keys(bodies, "/k", "/other")
        assert None not in keys, texts
        assert len(set(keys)) == 1, texts
        found.append(keys[0])
    assert len(set(found)) == len(SAME)


def test_different_texts_of_any_length_have_different_conflation_keys() -> None:
    texts = ["a", "b", LONG, LONG + "y", "é", "e\u0301"]
    assert len(set(_keys([msgspec.json.encode({"k": text}) for text in texts], "/k"))) == len(texts)


def test_missing_null_or_unreadable_value_has_no_conflation_key() -> None:
    assert _keys([b'{"k":null}', b"{}", b"{"], "/k") == [None] * 3
    assert None not in _keys([b'{"k":""}', b'{"k":[]}'], "/k")


def test_bytes_and_text_have_different_conflation_keys_and_nan_has_one() -> None:
    values = [b"1", "1", float("nan"), float("nan"), float("inf"), 1]
    keys = _keys([msgspec.msgpack.encode({"k": value}) for value in values], "/k", kind="messagepack")
    assert keys[2] == keys[3] is not None
    assert len(set(keys)) == 5
