"""The test vectors of the filter language, for any implementation."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tickertape.base.errors import BadFilter
from tickertape.filter import compile_filter
from tickertape.payload import message_type

FILES = sorted((Path(__file__).parent / "filters").glob("*.json"))


def vectors(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["vectors"]
    return found


def body_of(vector: dict[str, Any]) -> bytes:
    if "body" in vector:
        return str(vector["body"]).encode()
    return base64.b64decode(vector["body_base64"])


def answer(text: str, kind: str, body: bytes) -> bool | str:
    """Return the result. It is unknown if neither the filter nor its negation matches."""
    if compile_filter(text, message_type(kind)).matches(body):
        return True
    # A filter of the maximum size leaves no space for a NOT, so only its own result is known.
    if len(text) > 1_000:
        return False
    return not compile_filter(f"NOT ({text})", message_type(kind)).matches(body) and "unknown"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_filter_vectors_give_the_expected_results(file: Path) -> None:
    wrong = []
    for vector in vectors(file):
        text, kind, expected = vector["filter"], vector["type"], vector["result"]
        if isinstance(expected, dict):
            with pytest.raises(BadFilter) as refused:
                compile_filter(text, message_type(kind))
            found: Any = (refused.value.position, expected["reason"] in str(refused.value))
            if found != (expected["position"], True) or refused.value.code != expected["error"]:
                wrong.append(f"{text[:80]}: {found} {refused.value} instead of {expected}")
            continue
        found = answer(text, kind, body_of(vector))
        if found is not expected and found != expected:
            wrong.append(f"{text[:80]} of {vector.get('body', 'binary')[:80]}: {found} instead of {expected}")
    assert not wrong, "\n".join(wrong)


CURE = re.compile(r"[.?] [A-Z]\w+ |: expected | takes .*, not \d|requires a string in quotes here, not ")
"""A sentence with the cure, or a rule that gives the right form."""


def test_every_reason_of_a_rejected_filter_has_a_cure() -> None:
    without = []
    for file in FILES:
        for vector in vectors(file):
            if isinstance(vector["result"], dict):
                with pytest.raises(BadFilter) as refused:
                    compile_filter(vector["filter"], message_type(vector["type"]))
                message = str(refused.value).partition("\n")[0]
                if not CURE.search(message):
                    without.append(message)
    assert not without, "\n".join(without)


def test_filter_vectors_are_distinct_numerous_and_cover_all_types() -> None:
    every = [json.dumps(vector, sort_keys=True) for file in FILES for vector in vectors(file)]
    assert len(every) == len(set(every)) > 600
    assert {vector["type"] for file in FILES for vector in vectors(file)} >= {
        "json",
        "nvfix",
        "fix",
        "messagepack",
    }
